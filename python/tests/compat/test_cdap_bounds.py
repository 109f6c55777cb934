"""CDAP's protocol used wrongly, heavily, or partially: bounds, the rules of other topics, and the
remains of clients that misbehave."""

import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import cdap_kit
from tests.compat.test_cdap import AVRO, NS, TEXT, payloads, pointer, poll, post, publish, snapshot
from tests.http_kit import Client, Served, serving
from tests.waiting import until
from tms.block import encode
from tms.compat.cdap import avro
from tms.compat.cdap.avro import ConsumeRequest, PublishRequest, RollbackDetail
from tms.errors import Malformed, StorageUnavailable
from tms.model.ids import TIME_MS_MAX, MessageId
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.model.transaction import Commit
from tms.server.http.watchdog import ConnectionLimits
from tms.server.service import RequestLimits

FROM_START = bytes.fromhex("04010202")


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture
def client(served: Served) -> Client:
    """A connection; there is a topic `t`."""
    connected = served.connect()
    assert connected.request("PUT", f"{NS}/t", b"").status == 200
    return connected


def committed(client: Client) -> list[str]:
    values: list[str] = []
    start = "earliest"
    while True:
        page = client.request("GET", f"/v2/namespaces/n/topics/t/messages?start={start}").json
        if not page["messages"]:
            return values
        values += [message["value"] for message in page["messages"]]
        start = page["next"]


# -- taking back -----------------------------------------------------------------------------------


def test_plain_messages_are_never_taken_back(client: Client) -> None:
    publish(client, f"{NS}/t", b"plain")
    for write_pointer in (0, -1, 1):
        everything = RollbackDetail(write_pointer, 0, 0, TIME_MS_MAX, 65_535)
        answer = post(client, f"{NS}/t/rollback", avro.encode_rollback(everything))
        assert answer.status == (200 if write_pointer == 1 else 400), answer
    assert committed(client) == ["plain"]


def test_a_wide_rollback_takes_back_its_transaction_only(served: Served, client: Client) -> None:
    mine, other = pointer(served), pointer(served)
    publish(client, f"{NS}/t", b"1")
    for number in range(12):  # more than one look covers
        publish(
            client, f"{NS}/t", bytes([65 + number]) * (1 << 20), tx=mine if number % 2 else other
        )
    everything = RollbackDetail(mine, 0, 0, TIME_MS_MAX, 65_535)
    assert post(client, f"{NS}/t/rollback", avro.encode_rollback(everything)).status == 200
    everything = everything._replace(write_pointer=other)
    assert committed(client) == ["1"]
    assert post(client, f"{NS}/t/rollback", avro.encode_rollback(everything)).status == 200
    publish(client, f"{NS}/t", b"2")
    assert committed(client) == ["1", "2"]


def test_what_was_committed_here_is_not_taken_back(served: Served, client: Client) -> None:
    transactions = served.service.engine.transactions
    tx = transactions.begin().transaction_id
    detail = publish(client, f"{NS}/t", b"mine", tx=tx).body
    assert committed(client) == []
    transactions.commit(Commit(tx))
    answer = post(client, f"{NS}/t/rollback", detail)
    assert (answer.status, answer.headers["content-type"]) == (409, TEXT)
    assert committed(client) == ["mine"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ((1, 70_000), (2, 0)),
        ((1, 0), (2, 65_536)),
        ((2, 0), (1, 0)),
        ((-1, 0), (1, 0)),
        ((0, 0), (2**62, 0)),
    ],
)
def test_a_rollback_of_no_range_is_refused(
    client: Client, first: tuple[int, int], last: tuple[int, int]
) -> None:
    answer = post(
        client, f"{NS}/t/rollback", avro.encode_rollback(RollbackDetail(5, *first, *last))
    )
    assert (answer.status, answer.headers["content-type"]) == (400, TEXT)


def test_an_empty_publish_without_anything_stored_takes_nothing_back(
    served: Served, client: Client
) -> None:
    tx = pointer(served)
    publish(client, f"{NS}/t", b"mine", tx=tx)
    nothing = publish(client, f"{NS}/t", tx=tx).body
    assert avro.decode_rollback(nothing) == RollbackDetail(tx, 0, 0, 0, 0)
    assert post(client, f"{NS}/t/rollback", nothing).status == 200
    seen = snapshot(read=tx)  # messages from before it are not rolled back
    assert payloads(poll(client, f"{NS}/t", tx=seen)) == [b"mine"]


# -- other topics ----------------------------------------------------------------------------------


def test_nothing_is_published_to_a_topic_with_several_partitions(
    served: Served, client: Client
) -> None:
    served.create("many", partitions=2)
    path = "/v1/namespaces/default/topics/many"
    plain = cdap_kit.encode_publish(PublishRequest(None, [b"a"]))
    in_one = cdap_kit.encode_publish(PublishRequest(pointer(served), [b"a"]))
    for verb, body in (
        ("publish", plain),
        ("publish", in_one),
        ("store", in_one),
        ("poll", FROM_START),
    ):
        answer = post(client, f"{path}/{verb}", body)
        assert (answer.status, answer.headers["content-type"]) == (400, TEXT)
        assert b"several partitions" in answer.body
    assert client.request("PUT", path, b"").status == 409


def test_messages_of_others_are_polled_by_their_values(served: Served, client: Client) -> None:
    body = b'{"messages": [{"key": "k", "value": "v", "headers": {"h": "x"}}, {"value": null}]}'
    assert client.request("POST", "/v2/namespaces/n/topics/t/messages", body).status == 200
    assert payloads(poll(client, f"{NS}/t")) == [b"v", b""]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\\ud800"}',
        b'{"ttl": "5", "ttl": "6"}',
        '{"ttl": "5"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"ttl": "5"}',
        b"[" * 100_000,
        b'{"a": null}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
    ],
)
def test_properties_are_strict_json(client: Client, body: bytes) -> None:
    answer = client.request("PUT", f"{NS}/strict", body)
    assert (answer.status, answer.headers["content-type"]) == (400, TEXT)
    assert client.request("GET", f"{NS}/strict").status == 404


def test_properties_are_bounded(client: Client) -> None:
    answer = client.request("PUT", f"{NS}/huge", b'{"a": "%b"}' % (b"x" * 70_000))
    assert (answer.status, b"at most 65536 bytes" in answer.body) == (400, True)
    packed = gzip.compress(b'{"a": "%b"}' % (b"x" * 10_000_000))
    answer = client.request("PUT", f"{NS}/huge", packed, content_encoding="gzip")
    assert answer.status == 400
    assert client.request("GET", f"{NS}/huge").status == 404


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('"2147483648"', "a number greater than zero"),
        ('"1e3"', "a number greater than zero"),
        ('""', "a number greater than zero"),
        ("true", "a number greater than zero"),
        ('"-2147483648"', "greater than zero"),
    ],
)
def test_a_ttl_is_an_int_of_java(client: Client, value: str, says: str) -> None:
    answer = client.request("PUT", f"{NS}/x", b'{"ttl": %b}' % value.encode())
    assert answer.status == 400
    assert answer.body.decode() == f"The ttl property must be {says} for topic topic:n.x"


# -- bounds ----------------------------------------------------------------------------------------


def test_a_body_counts_until_it_is_stored(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, budget = served.service.engine, served.service.publishing
    body = cdap_kit.encode_publish(PublishRequest(None, [bytes(1_000)] * 1_000))
    seen: list[int] = []
    submit = engine.submit

    def noting(*args: object) -> object:
        seen.append(budget.bytes)
        return submit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "submit", noting)
    assert post(client, f"{NS}/t/publish", body).status == 200
    assert seen[0] >= 2 * len(body), "the body, and the block made of it"
    assert budget.bytes == 0


def test_memory_that_is_taken_is_answered_with_503_and_nothing_is_stored(
    served: Served, client: Client
) -> None:
    body = cdap_kit.encode_publish(PublishRequest(None, [b"a"]))
    for budget in (served.service.publishing, served.service.fetching):
        budget.bytes += budget.bytes_max
        verb, sent = ("publish", body) if budget.what == "publish" else ("poll", FROM_START)
        answer = post(client, f"{NS}/t/{verb}", sent)
        budget.bytes -= budget.bytes_max
        assert (answer.status, answer.headers["content-type"]) == (503, TEXT)
        assert answer.headers["retry-after"] == "1"
    assert poll(client, f"{NS}/t") == []


def test_too_many_messages_are_refused_and_none_is_stored(client: Client) -> None:
    body = bytes((2,)) + avro.long(avro.MESSAGES_MAX + 1) + bytes(avro.MESSAGES_MAX + 1) + b"\0"
    answer = post(client, f"{NS}/t/publish", body)
    assert (answer.status, f"{avro.MESSAGES_MAX} are allowed" in answer.body.decode()) == (
        400,
        True,
    )
    assert poll(client, f"{NS}/t") == []


def test_a_publish_of_many_blocks_is_stored_whole_or_not_at_all(client: Client) -> None:
    many = [b"%d" % number for number in range(70_000)]
    publish(client, f"{NS}/t", *many)
    assert payloads(poll(client, f"{NS}/t")) == many
    one_is_too_large = [*[bytes(1 << 20)] * 3, bytes((8 << 20) + 1), b"after"]
    body = cdap_kit.encode_publish(PublishRequest(None, one_is_too_large))
    assert post(client, f"{NS}/t/publish", body).status == 400
    assert len(poll(client, f"{NS}/t")) == len(many)


def test_a_body_over_the_limit_is_refused() -> None:
    limits = RequestLimits(body_bytes_max=10_000)
    with serving(limits=limits) as served, served.connect() as client:
        client.request("PUT", f"{NS}/t", b"")
        large = cdap_kit.encode_publish(PublishRequest(None, [bytes(20_000)]))
        assert post(client, f"{NS}/t/publish", large).status == 400
        bomb = gzip.compress(cdap_kit.encode_publish(PublishRequest(None, [bytes(1 << 20)])))
        assert len(bomb) < 10_000
        answer = post(client, f"{NS}/t/publish", bomb, content_encoding="gzip")
        assert (answer.status, answer.headers["content-type"]) == (400, TEXT)
        damaged = post(client, f"{NS}/t/publish", bomb[:-9], content_encoding="gzip")
        assert damaged.status == 400
        assert poll(client, f"{NS}/t") == []


def test_a_sender_that_stops_is_answered_in_plain_text() -> None:
    with serving(connection_limits=ConnectionLimits(body_timeout_s=1)) as served:
        client = served.connect()
        client.request("PUT", f"{NS}/t", b"")
        client.send(
            f"POST {NS}/t/publish HTTP/1.1\r\nHost: x\r\nContent-Type: {AVRO}\r\n"
            "Content-Length: 100\r\n\r\n\x02".encode()
        )
        answer = client.answer()
        assert (answer.status, answer.headers["content-type"]) == (408, TEXT)
        assert served.service.publishing.bytes == 0


def test_a_slow_reader_of_large_messages_is_counted_and_cut_off() -> None:
    limits = ConnectionLimits(write_timeout_s=1)
    with serving(connection_limits=limits) as served:
        client = served.connect()
        client.request("PUT", f"{NS}/t", b"")
        for _ in range(4):
            publish(client, f"{NS}/t", bytes(7 << 20))
        stalled = served.connect()
        stalled.send(
            f"POST {NS}/t/poll HTTP/1.1\r\nHost: x\r\nContent-Type: {AVRO}\r\n"
            f"Content-Length: {len(FROM_START)}\r\n\r\n".encode()
            + FROM_START
        )
        stalled.socket.recv(1)
        assert served.service.fetching.bytes >= 2 * (7 << 20)
        until(lambda: served.service.watchdog.cut_off == 1)
        until(lambda: served.service.fetching.bytes == 0)


# -- failures --------------------------------------------------------------------------------------


def test_a_poll_ends_at_what_was_there_when_it_began(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [bytes([number]) * 100_000 for number in range(20)]
    for payload in there:
        publish(client, f"{NS}/t", payload)
    engine = served.service.engine
    fetch, fetches = engine.fetch_cached, 0

    def and_more(name: TopicName, *args: Any) -> Any:
        nonlocal fetches
        fetches += 1
        found = fetch(name, *args)
        engine.append(name, [NewBlock(0, encode([b"later"]))])
        return found

    monkeypatch.setattr(engine, "fetch_cached", and_more)
    assert payloads(poll(client, f"{NS}/t")) == there
    assert fetches > 2, "one for each batch"
    monkeypatch.undo()
    assert payloads(poll(client, f"{NS}/t")) == there + [b"later"] * fetches


def test_a_store_that_fails_in_the_middle_breaks_the_answer_off(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        publish(client, f"{NS}/t", bytes(100_000))
    engine = served.service.engine
    fetch, fetches = engine.fetch_cached, 0

    def failing(*args: Any) -> Any:
        nonlocal fetches
        fetches += 1
        if fetches > 1:
            raise StorageUnavailable("The disk is gone.")
        return fetch(*args)

    monkeypatch.setattr(engine, "fetch_cached", failing)
    with pytest.raises((EOFError, ConnectionError)):
        poll(client, f"{NS}/t")
    monkeypatch.undo()
    assert served.service.fetching.bytes == 0
    with served.connect() as again:
        assert len(poll(again, f"{NS}/t")) == 8


def test_an_error_of_our_own_is_plain_text_and_names_its_request(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(served.service.engine, "submit", broken)
    body = cdap_kit.encode_publish(PublishRequest(None, [b"a"]))
    answer = post(client, f"{NS}/t/publish", body)
    assert (answer.status, answer.headers["content-type"]) == (500, TEXT)
    assert answer.headers["tms-request-id"] in answer.body.decode()
    assert b"secret" not in answer.body


def test_a_service_that_drains_asks_to_come_again(served: Served, client: Client) -> None:
    served.service.draining = True
    body = cdap_kit.encode_publish(PublishRequest(None, [b"a"]))
    for method, path, sent in (
        ("POST", f"{NS}/t/publish", body),
        ("POST", f"{NS}/t/poll", FROM_START),
        ("PUT", f"{NS}/new", b""),
    ):
        with served.connect() as fresh:
            assert fresh.request(method, path, sent, media=AVRO).status == 503


def test_a_publish_in_a_transaction_that_has_ended_is_refused(
    served: Served, client: Client
) -> None:
    transactions = served.service.engine.transactions
    ended = transactions.begin().transaction_id
    transactions.abort(ended)
    for verb in ("publish", "store"):
        body = cdap_kit.encode_publish(PublishRequest(ended, [b"late"]))
        answer = post(client, f"{NS}/t/{verb}", body)
        assert (answer.status, answer.headers["content-type"]) == (409, TEXT)
    assert poll(client, f"{NS}/t") == []


def test_a_transaction_that_never_ends_elsewhere_is_listed_and_ended_here(
    served: Served, client: Client
) -> None:
    held = pointer(served)
    publish(client, f"{NS}/t", b"never", tx=held)
    publish(client, f"{NS}/t", b"plain")
    assert committed(client) == []
    [listed] = client.request("GET", "/v2/transactions").json["transactions"]
    assert (listed["transaction_id"], listed["client"]) == (held, "127.0.0.1")
    assert [(one["topic"], one["partition"]) for one in listed["held"]] == [("n:t", 0)]
    ended = client.request("POST", f"/v2/transactions/{held}/invalidate", b"")
    assert ended.json["outcome"] == "invalid"
    assert committed(client) == ["plain"]
    assert payloads(poll(client, f"{NS}/t", tx=snapshot(read=held))) == [b"plain"]
    body = cdap_kit.encode_publish(PublishRequest(held, [b"late"]))
    answer = post(client, f"{NS}/t/publish", body)
    assert (answer.status, answer.headers["content-type"]) == (409, TEXT)


@pytest.mark.parametrize(
    ("said", "zipped"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("deflate", False),
        ("*", False),
    ],
)
def test_gzip_is_used_where_it_is_wanted(client: Client, said: str, zipped: bool) -> None:
    publish(client, f"{NS}/t", *[bytes(2_000)] * 100)
    answer = post(client, f"{NS}/t/poll", FROM_START, accept_encoding=said)
    assert ("content-encoding" in answer.headers) == zipped
    if zipped:  # each block of the array can be read when its chunk is there
        machine = zlib.decompressobj(wbits=31)
        sizes = [len(machine.decompress(chunk)) for chunk in answer.chunks]
        assert sizes == [60_691, 60_691, 60_691, 20_232]
        assert machine.eof
        assert not machine.unused_data
    else:
        assert len(cdap_kit.decode_messages(answer.body)) == 100


def test_an_answer_to_head_has_no_body(client: Client) -> None:
    client.send(b"HEAD /v2/namespaces/n/topics/t/messages HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.answer("HEAD").status == 200
    assert client.request("GET", "/livez").status == 200


def test_http_1_0_is_answered_without_chunks(served: Served, client: Client) -> None:
    publish(client, f"{NS}/t", b"a")
    with served.connect() as old:
        old.send(
            f"POST {NS}/t/poll HTTP/1.0\r\nContent-Type: {AVRO}\r\n"
            f"Content-Length: {len(FROM_START)}\r\n\r\n".encode()
            + FROM_START
        )
        received = b"".join(iter(lambda: old.socket.recv(1 << 16), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert [payload for _, payload in cdap_kit.decode_messages(body)] == [b"a"]


# -- the codec -------------------------------------------------------------------------------------

_ID = bytes(MessageId(1_700_000_000_000, 7))
WHOLE = {
    "publish": cdap_kit.encode_publish(PublishRequest(5, [b"", b"abc", bytes(70), bytes(9_000)])),
    "rollback": avro.encode_rollback(
        RollbackDetail(5, 1_700_000_000_000, 0, 1_700_000_000_001, 65_535)
    ),
    "consume": cdap_kit.encode_consume(ConsumeRequest(_ID, False, 100, bytes(30))),
    "messages": b"".join(
        [*(_array := avro.MessageArray(40)).add([_ID] * 5, [b"x" * 9] * 5), _array.end()]
    ),
}
READ: dict[str, Callable[[bytes], Any]] = {
    "publish": lambda body: list(avro.decode_publish(body).payloads),
    "rollback": avro.decode_rollback,
    "consume": avro.decode_consume,
    "messages": cdap_kit.decode_messages,
}


@pytest.mark.parametrize("what", WHOLE)
def test_every_truncation_is_malformed(what: str) -> None:
    whole = WHOLE[what]
    READ[what](whole)
    for size in range(len(whole)):
        with pytest.raises(Malformed):
            READ[what](whole[:size])
    with pytest.raises(Malformed):
        READ[what](whole + b"\0")


@pytest.mark.parametrize("what", WHOLE)
def test_a_flipped_bit_is_malformed_or_another_value(what: str) -> None:
    whole = WHOLE[what]
    for at in range(min(len(whole), 300)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            with contextlib.suppress(Malformed):
                READ[what](bytes(flipped))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 8_191, 8_192, 1 << 20])
def test_a_payload_of_any_size_survives(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    request = avro.decode_publish(
        cdap_kit.encode_publish(PublishRequest(None, [payload, b"", payload]))
    )
    assert list(request.payloads) == [payload, b"", payload]
    array = avro.MessageArray(60_000)
    answer = b"".join([*array.add([_ID] * 2, [payload] * 2), array.end()])
    assert cdap_kit.decode_messages(answer) == [(_ID, payload)] * 2


def test_a_count_beyond_the_body_takes_no_memory() -> None:
    tracemalloc.start()
    for count in (2**62, 2**31, -(2**62), -1):
        body = b"\x02" + avro.long(count) + bytes(50)
        with pytest.raises(Malformed):
            list(avro.decode_publish(body).payloads)
        with pytest.raises(Malformed):
            cdap_kit.decode_messages(body[1:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
