"""CDAP's protocol: requests and the bytes that its clients expect."""

import gzip
import itertools
from collections.abc import Iterator

import pytest

import tms.compat.cdap.poll
from tests import cdap_kit
from tests.clocks import ManualClock
from tests.http_kit import Answer, Client, Served, serving
from tests.vectors_kit import load
from tms.block import Compression, encode
from tms.compat.cdap import app, avro
from tms.compat.cdap.app import CdapLimits
from tms.compat.cdap.avro import ConsumeRequest, PublishRequest, RollbackDetail
from tms.model.ids import MessageId
from tms.model.message import NewBlock
from tms.model.snapshot import Snapshot, encode_snapshot
from tms.model.topic import TopicName, TopicSettings
from tms.runtime.clock import SystemClock

AVRO, TEXT = "avro/binary", "text/plain; charset=utf-8"
NS = "/v1/namespaces/n/topics"
_names = itertools.count()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture
def topic(client: Client) -> str:
    """The path of a topic."""
    path = f"{NS}/t{next(_names)}"
    assert client.request("PUT", path, b"").status == 200
    return path


def post(client: Client, path: str, body: bytes, **headers: str) -> Answer:
    return client.request("POST", path, body, media=AVRO, **headers)


def publish(client: Client, topic: str, *payloads: bytes, tx: int | None = None) -> Answer:
    answer = post(
        client, f"{topic}/publish", cdap_kit.encode_publish(PublishRequest(tx, [*payloads]))
    )
    assert answer.status == 200, answer
    return answer


def store(client: Client, topic: str, *payloads: bytes, tx: int) -> None:
    answer = post(
        client, f"{topic}/store", cdap_kit.encode_publish(PublishRequest(tx, [*payloads]))
    )
    assert (answer.status, answer.body) == (200, b"")


def poll(
    client: Client,
    topic: str,
    start: bytes | int | None = None,
    *,
    inclusive: bool = True,
    limit: int | None = None,
    tx: Snapshot | None = None,
) -> list[tuple[bytes, bytes]]:
    snapshot = None if tx is None else encode_snapshot(tx)
    body = cdap_kit.encode_consume(ConsumeRequest(start, inclusive, limit, snapshot))
    answer = post(client, f"{topic}/poll", body)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == AVRO
    return cdap_kit.decode_messages(answer.body)


def payloads(found: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [payload for _, payload in found]


def pointer(served: Served) -> int:
    """A write pointer of a manager elsewhere."""
    return served.service.clock.now_ms() * 1_000_000 + next(_names)


def snapshot(*, read: int, open: tuple[int, ...] = (), invalid: tuple[int, ...] = ()) -> Snapshot:
    own = read + 1_000
    return Snapshot(own, read, invalid, open, write_pointer=own)


# -- the codec -------------------------------------------------------------------------------------

POINTER = 1_795_212_451_767_000_000
REQUESTS: list[tuple[PublishRequest, str]] = [
    (PublishRequest(None, [b"a", b"bc"]), "02 04 02 61 04 62 63 00"),
    (PublishRequest(POINTER, [b"x"]), "00 80eff0bed48df0e931 02 02 78 00"),
    (PublishRequest(POINTER, []), "00 80eff0bed48df0e931 00"),
]
CONSUMES: list[tuple[ConsumeRequest, str]] = [
    (ConsumeRequest(None, True, None, None), "04 01 02 02"),
    (ConsumeRequest(None, True, 2, None), "04 01 00 04 02"),
    (ConsumeRequest(0, True, None, None), "02 00 01 02 02"),
]
DETAIL = RollbackDetail(POINTER, 1_795_212_550_723, 0, 1_795_212_550_723, 0)
DETAIL_HEX = "00 80eff0bed48df0e931 86898db0bf68 00 86898db0bf68 00"


def test_bodies_are_those_of_cdap() -> None:
    for request, text in REQUESTS:
        assert cdap_kit.encode_publish(request) == bytes.fromhex(text)
        found = avro.decode_publish(bytes.fromhex(text))
        assert (found.write_pointer, list(found.payloads)) == request
    for consume, text in CONSUMES:
        assert cdap_kit.encode_consume(consume) == bytes.fromhex(text)
        assert avro.decode_consume(bytes.fromhex(text)) == consume
    assert avro.encode_rollback(DETAIL) == bytes.fromhex(DETAIL_HEX)
    assert avro.decode_rollback(bytes.fromhex(DETAIL_HEX)) == DETAIL
    array = avro.MessageArray(block_bytes=60_000)
    assert list(array.add(MessageId(1_795_212_550_670, 0).run(range(2)), [b"a", b"bc"])) == []
    assert array.end().hex() == (
        "04" "28" "000001a1fb01a20e" "0000" "0000000000000000" "0000" "0261"
        "28" "000001a1fb01a20e" "0001" "0000000000000000" "0000" "046263" "00"
    )  # fmt: skip


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 2**31, 2**62, 2**63 - 1, -(2**63)])
def test_numbers_survive(number: int) -> None:
    body = avro.encode_rollback(RollbackDetail(number, number, 0, number, 65_535))
    assert avro.decode_rollback(body) == RollbackDetail(number, number, 0, number, 65_535)


# -- topics ----------------------------------------------------------------------------------------


def test_topics_answer_as_cdap_does() -> None:
    with serving() as fresh, fresh.connect() as client:
        for case in load("cdap")["topics"]:
            raw = bytes.fromhex(case["body_hex"]) if "body_hex" in case else None
            body = case["body"].encode() if "body" in case else raw
            got = client.request(case["method"], case["path"], body)
            assert (got.status, got.body.decode()) == (case["status"], case["answer"]), case
            assert got.headers.get("content-type") == case.get("media"), case


def test_a_list_has_the_topics_that_cdap_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_PAGE", 2)
    with serving() as fresh, fresh.connect() as client:
        for name in ("a", "b.1", "b.2", "b.3", "c-d", "t" * 249, "z.z"):
            fresh.service.engine.create_topic(TopicName("n", name), TopicSettings())
        assert client.request("GET", NS).json == ["a", "c-d", "t" * 249]
        answer = client.request("GET", f"{NS}/b.1")
        assert answer.status == 400 and b"alphanumeric characters and _ or -" in answer.body


def test_unknown_paths_and_methods_end_the_connection(served: Served) -> None:
    for method, path, status, body in (
        ("GET", "/v1/x", 404, b"Problem accessing: /v1/x. Reason: Not Found"),
        ("GET", "/v1", 404, b"Problem accessing: /v1. Reason: Not Found"),
        ("POST", "/ping", 405, b"/ping"),
        ("POST", f"{NS}/t", 405, f"{NS}/t".encode()),
        ("GET", f"{NS}/t/publish", 405, f"{NS}/t/publish".encode()),
        ("DELETE", NS, 405, NS.encode()),
    ):
        with served.connect() as client:
            answer = client.request(method, path)
            assert (answer.status, answer.body) == (status, body)
            assert answer.headers["connection"] == "close"
            assert client.is_closed()


# -- messages --------------------------------------------------------------------------------------


def test_a_plain_publish_is_answered_with_nothing_and_read_back(client: Client, topic: str) -> None:
    answer = publish(client, topic, b"a", b"bc", b"")
    assert (answer.status, answer.body) == (200, b"")
    found = poll(client, topic)
    assert payloads(found) == [b"a", b"bc", b""]
    ids = [id for id, _ in found]
    assert [len(id) for id in ids] == [20] * 3
    assert ids == sorted(ids)
    assert [id[10:] for id in ids] == [bytes(10)] * 3


def test_a_publish_in_a_transaction_is_answered_with_where_it_stands(
    served: Served, client: Client, topic: str
) -> None:
    tx = pointer(served)
    answer = publish(client, topic, b"x", b"y", tx=tx)
    assert answer.headers["content-type"] == AVRO
    assert answer.headers["content-length"] == str(len(answer.body))
    detail = avro.decode_rollback(answer.body)
    [first, last] = [MessageId.from_bytes(id) for id, _ in poll(client, topic)]
    assert detail == RollbackDetail(tx, first.time_ms, first.sequence, last.time_ms, last.sequence)


def test_readers_stop_at_what_may_still_commit_and_skip_what_never_will(
    served: Served, client: Client, topic: str
) -> None:
    tx = pointer(served)
    publish(client, topic, b"1")
    detail = publish(client, topic, b"2", tx=tx).body
    publish(client, topic, b"3")
    assert payloads(poll(client, topic)) == [b"1", b"2", b"3"]
    assert payloads(poll(client, topic, tx=snapshot(read=tx - 1))) == [b"1"]
    assert payloads(poll(client, topic, tx=snapshot(read=tx + 5, open=(tx,)))) == [b"1"]
    assert payloads(poll(client, topic, tx=snapshot(read=tx + 5))) == [b"1", b"2", b"3"]
    gone = snapshot(read=tx + 5, invalid=(tx,))
    assert payloads(poll(client, topic, tx=gone)) == [b"1", b"3"]
    for _ in range(2):  # rolling back twice is rolling back
        done = client.request("POST", f"{topic}/rollback", detail, media="text/plain")
        assert (done.status, done.body) == (200, b"")
    assert payloads(poll(client, topic, tx=snapshot(read=tx + 5))) == [b"1", b"3"]
    assert payloads(poll(client, topic, tx=snapshot(read=tx - 1))) == [b"1", b"3"]
    assert payloads(poll(client, topic)) == [b"1", b"2", b"3"]


def test_stored_messages_appear_where_they_are_published(
    served: Served, client: Client, topic: str
) -> None:
    tx = pointer(served)
    publish(client, topic, b"before")
    store(client, topic, b"a", b"b", tx=tx)
    store(client, topic, b"c", tx=tx)
    assert payloads(poll(client, topic)) == [b"before"]
    detail = publish(client, topic, tx=tx).body
    publish(client, topic, b"after")
    found = poll(client, topic)
    assert payloads(found) == [b"before", b"a", b"b", b"c", b"after"]
    ids = [id for id, _ in found]
    assert ids == sorted(set(ids))
    assert [any(id[10:]) for id in ids] == [False, True, True, True, False]
    assert payloads(poll(client, topic, tx=snapshot(read=tx - 1))) == [b"before"]
    assert len(poll(client, topic, tx=snapshot(read=tx))) == 5
    assert client.request("POST", f"{topic}/rollback", detail).status == 200
    assert payloads(poll(client, topic, tx=snapshot(read=tx))) == [b"before", b"after"]


def test_nothing_is_lost_between_stored_and_plain_messages(
    served: Served, client: Client, topic: str
) -> None:
    """Pages that end within stored messages: CDAP's own service loses messages there."""
    tx = pointer(served)
    publish(client, topic, b"n0")
    store(client, topic, b"a", b"b", b"c", b"d", tx=tx)
    publish(client, topic, tx=tx)
    publish(client, topic, b"e", b"f")
    everything = poll(client, topic)
    assert payloads(everything) == [b"n0", b"a", b"b", b"c", b"d", b"e", b"f"]
    for limit in (1, 2, 3):
        found: list[tuple[bytes, bytes]] = []
        while page := poll(
            client, topic, found[-1][0] if found else None, inclusive=False, limit=limit
        ):
            assert len(page) <= limit
            found += page
        assert found == everything
    for number, (id, _) in enumerate(everything):
        assert poll(client, topic, id) == everything[number:]
        assert poll(client, topic, id, inclusive=False) == everything[number + 1 :]


def test_the_messages_of_one_transactional_publish_share_its_time_and_sequence(
    served: Served, client: Client, topic: str
) -> None:
    first, second = pointer(served), pointer(served)
    publish(client, topic, b"before")
    for number in range(3):
        store(client, topic, b"a%d" % number, b"b%d" % number, tx=first)
    store(client, topic, b"c", b"d", tx=second)
    publish(client, topic, tx=first)
    publish(client, topic, tx=second)
    publish(client, topic, b"after")
    everything = poll(client, topic)
    ids = [MessageId.from_bytes(id) for id, _ in everything]
    groups = [(ids[0][:2], 1), (ids[1][:2], 6), (ids[7][:2], 2), (ids[9][:2], 1)]
    assert [id[:2] for id in ids] == [place for place, count in groups for _ in range(count)]
    assert len(dict(groups)) == 4 and sorted({*ids}) == ids
    for limit in (1, 2, 4):
        found: list[tuple[bytes, bytes]] = []
        while page := poll(
            client, topic, found[-1][0] if found else None, inclusive=False, limit=limit
        ):
            found += page
        assert found == everything
    for number, (id, _) in enumerate(everything):
        assert poll(client, topic, id) == everything[number:]
        assert poll(client, topic, id, inclusive=False) == everything[number + 1 :]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_poll_from_the_place_of_a_publish_has_all_of_its_messages_or_none(
    served: Served, client: Client, topic: str, zipped: bool
) -> None:
    tx = pointer(served)
    for number in range(20):  # blocks of one publish, with plain messages in between
        store(client, topic, b"a%d" % number, tx=tx)
        publish(client, topic, b"plain")
    assert payloads(poll(client, topic)) == [b"plain"] * 20
    publish(client, topic, tx=tx)
    publish(client, topic, b"after")
    everything = poll(client, topic)
    staged = [b"a%d" % number for number in range(20)]
    assert payloads(everything) == [b"plain"] * 20 + staged + [b"after"]
    place = MessageId(*MessageId.from_bytes(everything[20][0])[:2])

    def polled(start: MessageId, inclusive: bool) -> list[bytes]:
        body = cdap_kit.encode_consume(ConsumeRequest(bytes(start), inclusive, None, None))
        wanted = {"accept_encoding": "gzip"} if zipped else {}
        answer = post(client, f"{topic}/poll", body, **wanted)
        return payloads(
            cdap_kit.decode_messages(gzip.decompress(answer.body) if zipped else answer.body)
        )

    assert polled(place, True) == [*staged, b"after"]
    assert polled(place, False) == [b"after"]
    for distance in (1, 10, 19):  # no row of CDAP's is there
        between = MessageId(place.time_ms, place.sequence + distance)
        assert polled(between, True) == polled(between, False) == [b"after"]
    last = MessageId.from_bytes(everything[-1][0])
    assert polled(last, True) == [b"after"] and polled(last, False) == []


def test_plain_messages_before_an_id_stay_out_beside_staged_ones_of_the_same_time() -> None:
    clock = ManualClock(SystemClock().now_ms())
    with serving(clock=clock) as other, other.connect() as client:
        topic = f"{NS}/t"
        client.request("PUT", topic, b"")
        publish(client, topic, b"1", b"2", b"3")
        tx = pointer(other)
        store(client, topic, b"a", b"b", tx=tx)
        publish(client, topic, tx=tx)
        publish(client, topic, b"4")
        everything = poll(client, topic)
        places = [MessageId.from_bytes(id)[:2] for id, _ in everything]
        assert len({time_ms for time_ms, _ in places}) == 1
        for start in sorted({*places}):
            for inclusive in (False, True):
                wanted = [
                    payload
                    for (_, payload), place in zip(everything, places, strict=True)
                    if place > start or (inclusive and place == start)
                ]
                found = poll(client, topic, bytes(MessageId(*start)), inclusive=inclusive)
                assert payloads(found) == wanted, (start, inclusive)


def test_a_topic_without_a_ttl_gets_the_one_that_is_configured() -> None:
    with serving(cdap=CdapLimits(ttl_s=77)) as other, other.connect() as client:
        assert client.request("PUT", f"{NS}/t", b"").status == 200
        assert client.request("GET", f"{NS}/t").json["ttl"] == "77"
        assert client.request("PUT", f"{NS}/t/properties", b'{"ttl": "5"}').status == 200
        assert client.request("GET", f"{NS}/t").json["ttl"] == "5"
        assert client.request("PUT", f"{NS}/t/properties", b"{}").status == 200
        assert client.request("GET", f"{NS}/t").json["ttl"] == "77"


def test_a_poll_begins_at_a_time(client: Client, topic: str) -> None:
    publish(client, topic, b"a")
    [(id, _)] = poll(client, topic)
    time_ms = MessageId.from_bytes(id).time_ms
    assert len(poll(client, topic, 0)) == len(poll(client, topic, time_ms)) == 1
    assert poll(client, topic, time_ms + 1) == poll(client, topic, 2**63 - 1) == []


def test_each_chunk_is_a_block_of_the_array(client: Client, topic: str) -> None:
    publish(client, topic, *[bytes([n]) * 2_000 for n in range(100)])
    answer = post(client, f"{topic}/poll", bytes.fromhex("04010202"))
    assert [len(chunk) for chunk in answer.chunks] == [60_691, 60_691, 60_691, 20_232]
    assert len(cdap_kit.decode_messages(answer.body)) == 100
    nothing = post(
        client, f"{topic}/poll", cdap_kit.encode_consume(ConsumeRequest(2**60, True, None, None))
    )
    assert nothing.chunks == [b"\x00"]


def test_a_last_block_that_is_just_full_carries_the_end() -> None:
    with serving(cdap=CdapLimits(chunk_bytes=1_024)) as small, small.connect() as client:
        assert client.request("PUT", f"{NS}/t", b"").status == 200
        publish(client, f"{NS}/t", bytes(1_000), bytes(1_000))
        answer = post(client, f"{NS}/t/poll", bytes.fromhex("04010202"))
        assert [len(chunk) for chunk in answer.chunks] == [1_024, 1_025]


def test_gzip_goes_both_ways(client: Client, topic: str) -> None:
    body = gzip.compress(cdap_kit.encode_publish(PublishRequest(None, [bytes(50_000)] * 4)))
    assert post(client, f"{topic}/publish", body, content_encoding="gzip").status == 200
    answer = post(
        client, f"{topic}/poll", bytes.fromhex("04010202"), accept_encoding="gzip, deflate"
    )
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) < 5_000
    assert len(cdap_kit.decode_messages(gzip.decompress(answer.body))) == 4


def test_more_messages_than_memory_for_them_are_answered(client: Client, topic: str) -> None:
    for number in range(12):
        publish(client, topic, *[bytes([number]) * 100_000] * 10)
    found = poll(client, topic)
    assert [payload[0] for payload in payloads(found)] == [n for n in range(12) for _ in range(10)]


def test_messages_are_refused_as_cdap_does() -> None:
    with serving() as fresh, fresh.connect() as client:
        assert client.request("PUT", f"{NS}/t", b"").status == 200
        for case in load("cdap")["messages"]:
            path, body = f"{NS}/{case['topic']}/{case['verb']}", bytes.fromhex(case["body_hex"])
            got = client.request("POST", path, body, media=case["media"])
            assert (got.status, got.body.decode()) == (case["status"], case["answer"]), case
            assert got.headers["content-type"] == TEXT
        assert poll(client, f"{NS}/t") == []


@pytest.mark.parametrize(
    ("verb", "whole"),
    [
        ("publish", "02 04 02 61 04 62 63 00"),
        ("store", "00 80eff0bed48df0e931 02 02 78 00"),
        ("rollback", DETAIL_HEX),
        ("poll", "00 28 000001a1fb01a20e00000000000000000000 0000 01 00 04 02"),
    ],
)
def test_every_truncation_and_what_follows_is_refused(
    client: Client, topic: str, verb: str, whole: str
) -> None:
    body = bytes.fromhex(whole)
    for wrong in [*(body[:size] for size in range(len(body))), body + b"\x00"]:
        answer = post(client, f"{topic}/{verb}", wrong)
        assert answer.status == 400, wrong.hex()
        assert answer.body.startswith(b"The body is not the Avro")
    assert poll(client, topic) == []


@pytest.mark.parametrize(
    "body",
    [
        "02 01 02 61 00",  # a negative count
        "02 feffffffffffffffff01 02 61 00",  # 2**62 messages
        "02 02 feffffffffffffffff01 61 00",  # of 2**62 bytes
        "02 02 01 61 00",  # of -1 bytes
        "02 ffffffffffffffffffffff01",  # a number without end
        "06 02 02 61 00",  # a branch that is none
    ],
)
def test_lengths_that_cannot_be_are_refused(client: Client, topic: str, body: str) -> None:
    assert post(client, f"{topic}/publish", bytes.fromhex(body)).status == 400
    assert poll(client, topic) == []


def test_a_short_id_and_a_broken_snapshot_are_refused(client: Client, topic: str) -> None:
    short = cdap_kit.encode_consume(ConsumeRequest(b"short", True, None, None))
    assert post(client, f"{topic}/poll", short).status == 400
    broken = cdap_kit.encode_consume(ConsumeRequest(None, True, None, b"\x0a\x00"))
    assert post(client, f"{topic}/poll", broken).status == 400


def test_a_topic_with_several_partitions_is_not_for_cdap(served: Served, client: Client) -> None:
    path = served.create(f"many{next(_names)}", partitions=2)
    name = path.rpartition("/")[2]
    answer = post(client, f"/v1/namespaces/default/topics/{name}/poll", bytes.fromhex("04010202"))
    assert (answer.status, b"several partitions" in answer.body) == (400, True)


def test_what_cdap_publishes_is_read_by_everybody(
    served: Served, client: Client, topic: str
) -> None:
    publish(client, topic, b"plain")
    name = topic.rpartition("/")[2]
    found = client.request("GET", f"/v2/namespaces/n/topics/{name}/messages", media=None)
    assert b"plain" in found.body
    assert served.service.engine.properties(TopicName("n", name)) == {}


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(served: Served) -> None:
    with served.connect() as client:
        assert client.request("PUT", f"{NS}/left", b"").status == 200
        for _ in range(8):
            publish(client, f"{NS}/left", *[bytes(100_000)] * 10)
    for _ in range(3):
        with served.connect() as leaving:
            body = bytes.fromhex("04010202")
            leaving.send(
                f"POST {NS}/left/poll HTTP/1.1\r\nHost: x\r\nContent-Type: {AVRO}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            leaving.socket.recv(1_000)
    with served.connect() as client:
        assert len(poll(client, f"{NS}/left")) == 80
    assert served.service.fetching.bytes == 0


@pytest.mark.parametrize("limit", [None, 1, 9, 10, 40])
def test_a_poll_of_compressed_blocks_unpacks_them_in_portions(
    served: Served, client: Client, topic: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tms.compat.cdap.poll, "PORTION_BYTES", 1_000)
    values = [b"%d" % n * 100 for n in range(60)]
    name = TopicName("n", topic.rpartition("/")[2])
    for at in range(0, 60, 20):
        block = encode(values[at : at + 20], compression=Compression.ZSTD)
        served.service.engine.append(name, [NewBlock(0, block)])
    found = poll(client, topic, limit=limit)
    assert payloads(found) == values[:limit]
    assert payloads(poll(client, topic, found[0][0], inclusive=False)) == values[1:]
