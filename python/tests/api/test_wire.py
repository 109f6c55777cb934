"""The formats on the network: framing, positions, strict JSON, messages and problem documents."""

import json
from typing import Any

import msgspec
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tms import block
from tms.api import bodies, messages, openapi, routes, strict
from tms.api.bodies import MessageIn, PublishBody
from tms.api.commits import decode_commit, encode_commit
from tms.api.operations import OPERATIONS
from tms.errors import (
    BadBlock,
    BadJson,
    BadMessageId,
    Invalid,
    Malformed,
    OffsetOutOfRange,
    TMSError,
    TooLarge,
    codes,
)
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.message import Appended, Fetched, NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.queue import Settlement
from tms.model.topic import Durability, TopicInfo, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicStaged

TIME_MS = 1_700_000_000_000
SMALL = TopicSettings(message_bytes_max=1_000)


def stored(partition: int, values: list[bytes | None], base: int = 0, at: int = 0) -> StoredBlock:
    """A block as a store would hold it."""
    made = block.encode(values, [b"k"] * len(values))
    block.place(made, base)
    return StoredBlock(partition, TIME_MS + at, len(values) - 1, made)


# -- framing -----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**64 - 1),
            st.integers(0, 65_535),
            st.integers(48, 40_000),
        ),
        max_size=6,
    )
)
def test_framed_blocks_come_back_as_they_were(entries: list[tuple[int, int, int, int]]) -> None:
    sent = [StoredBlock(p, t, s, bytes([n % 256]) * n) for p, t, s, n in entries]
    body = b"".join(bodies.frames(sent))
    assert len(body) == bodies.framed_bytes(sent)
    assert [
        structs.replace(entry, block=bytes(entry.block)) for entry in bodies.unframe(body)
    ] == sent


def test_large_blocks_are_framed_without_a_copy() -> None:
    large = bytearray(bodies.CHUNK_BYTES)
    chunks = list(bodies.frames([NewBlock(0, large), NewBlock(1, b"x" * 48)]))
    assert chunks[1] is large


def test_every_truncation_of_a_framed_body_is_refused() -> None:
    body = b"".join(bodies.frames([NewBlock(1, bytes(50)), NewBlock(2, bytes(48))]))
    whole = {0, bodies.PREFIX_BYTES + 50}
    for end in set(range(len(body))) - whole:
        with pytest.raises(Malformed):
            bodies.unframe(body[:end])


@pytest.mark.parametrize("length", [0, 47, 49, 2**31, 2**32 - 1])
def test_an_impossible_block_length_is_refused(length: int) -> None:
    body = bytearray(b"".join(bodies.frames([NewBlock(0, bytes(48))])))
    body[0:4] = length.to_bytes(4, "big")
    with pytest.raises(BadBlock):
        bodies.unframe(body)


def test_reserved_bytes_of_an_entry_must_be_zero() -> None:
    body = bytearray(b"".join(bodies.frames([NewBlock(0, bytes(48))])))
    body[20] = 1
    with pytest.raises(Malformed):
        bodies.unframe(body)


def test_a_producer_cannot_give_the_time() -> None:
    with pytest.raises(Invalid) as caught:
        bodies.unframe_new(b"".join(bodies.frames([StoredBlock(0, 5, 0, bytes(48))])))
    assert caught.value.details == {"index": 0}


def test_a_publish_has_at_least_one_and_at_most_so_many_blocks() -> None:
    with pytest.raises(Malformed):
        bodies.unframe_new(b"")
    many = [NewBlock(0, bytes(48))] * (bodies.BLOCKS_PER_REQUEST_MAX + 1)
    with pytest.raises(TooLarge):
        bodies.unframe_new(b"".join(bodies.frames(many)))


# -- positions ---------------------------------------------------------------------------------

ID = MessageId(TIME_MS, 7)


def test_positions_are_written_and_read_back() -> None:
    positions = {0: Position.after(ID), 3: Position.latest(), 1: Position.offset(5)}
    read = bodies.parse_positions(bodies.positions_text(positions))
    assert read == [PartitionPosition(p, position) for p, position in positions.items()]


@pytest.mark.parametrize(
    "text", ["earliest", "latest", "offset:3", "time:5", f"after:{ID}", str(ID)]
)
def test_one_position_is_for_all_partitions(text: str) -> None:
    assert bodies.parse_positions(text) == Position.parse(text)


@pytest.mark.parametrize(
    "text",
    ["0:earliest,", "1024:earliest", "x:earliest", "0:", "-1:latest", ""],
)
def test_wrong_lists_of_positions_are_refused(text: str) -> None:
    with pytest.raises((Invalid, BadMessageId)):
        bodies.parse_positions(text)


def test_of_a_partition_that_is_named_twice_the_last_position_counts() -> None:
    (place,) = bodies.parse_positions("0:earliest,0:latest")
    assert place == PartitionPosition(0, Position.latest())


def test_ends_are_written_and_read_back() -> None:
    assert bodies.parse_ends(bodies.ends_text({0: 5, 7: 0})) == {0: 5, 7: 0}
    assert bodies.parse_ends("") == {}
    with pytest.raises(Malformed):
        bodies.parse_ends("0:five")


# -- JSON --------------------------------------------------------------------------------------

PUBLISH = msgspec.json.Decoder(PublishBody)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} x",
        b'{"a":1,"a":2}',
        b'[{"b":[{"a":1,"c":0,"a":2}]}]',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"01",
        b"'a'",
        b"[1,]",
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\\\\\ud800"',
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b'"\n"',
        b"\xef\xbb\xbf1",
        b"1" * 5_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadJson):
        strict.check_strict(body)


@pytest.mark.parametrize(
    "body",
    [b'"\\ud83d\\ude00"', b'"\\\\ud800"', b'"\\u0000"', b"1.5e300", b'{"a":{"a":1}}', b" 1 "],
)
def test_what_looks_odd_but_is_json_is_accepted(body: bytes) -> None:
    strict.check_strict(body)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_all_json_that_python_writes_is_strict(value: Any) -> None:
    try:
        text = json.dumps(value).encode()
    except ValueError:
        return
    if "\\ud" not in text.decode():
        strict.check_strict(text)


def test_a_small_body_with_too_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(TooLarge):
        strict.check_strict(b"[" + b"[]," * strict.VALUES_MAX + b"[]]")
    strict.check_strict(b'"' + b"," * (strict.VALUES_MAX + 1) + b'"')


def test_json_of_the_wrong_shape_names_the_message() -> None:
    with pytest.raises(Invalid) as caught:
        strict.decode_strict(b'{"messages":[{"value":"a"},{"value":1}]}', PUBLISH)
    assert caught.value.details == {"index": 1}


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(Invalid):
        strict.decode_strict(b'{"messages":[{"valeu":"a"}]}', PUBLISH)


def test_settings_travel_as_a_put_body() -> None:
    settings = TopicSettings(3, None, 1 << 20, Durability.WRITTEN, 1_000)
    body = bodies.encode(bodies.NEW_TOPIC.encode(settings))
    assert bodies.NEW_TOPIC.decode(bodies.decode(body, bodies.SettingsBody)) == settings


def test_changes_travel_as_a_patch_body() -> None:
    body = bodies.encode(bodies.TOPIC_CHANGES.encode({"retention_ms": 5_000, "partitions": 2}))
    changes = bodies.TOPIC_CHANGES.decode(bodies.decode(body, bodies.SettingsBody))
    assert changes == {"retention_ms": 5_000, "partitions": 2}


def test_a_retention_that_is_not_the_topics_own_travels_as_none_or_by_its_name() -> None:
    settings = TopicSettings(retention_ms=7_000, retention_is_default=True)
    body = bodies.encode(bodies.NEW_TOPIC.encode(settings))
    assert b'"retention"' not in body  # an earlier version understands it
    assert bodies.NEW_TOPIC.decode(bodies.decode(body, bodies.SettingsBody)).retention_is_default
    body = bodies.encode(bodies.TOPIC_CHANGES.encode({"retention_is_default": True}))
    assert json.loads(body) == {"retention": "default"}
    assert bodies.TOPIC_CHANGES.decode(bodies.decode(body, bodies.SettingsBody)) == {
        "retention_is_default": True
    }


def test_a_put_body_names_a_partitioner_that_earlier_versions_do_not_know() -> None:
    body = bodies.encode(bodies.NEW_TOPIC.encode(TopicSettings(2)))
    assert b"partitioner" not in body  # which an earlier version would refuse
    settings = TopicSettings(2, partitioner=Partitioner.MURMUR2)
    body = bodies.encode(bodies.NEW_TOPIC.encode(settings))
    assert json.loads(body)["partitioner"] == "murmur2"
    assert bodies.NEW_TOPIC.decode(bodies.decode(body, bodies.SettingsBody)) == settings


@pytest.mark.parametrize("partitioner", Partitioner)
def test_topics_travel_as_json(partitioner: Partitioner) -> None:
    info = TopicInfo("default", "a", 1, TIME_MS, TopicSettings(partitioner=partitioner))
    body = bodies.encode(info)
    assert bodies.decode(body, TopicInfo) == info
    earlier = json.loads(body)
    del earlier["settings"]["partitioner"]
    found = bodies.decode(json.dumps(earlier).encode(), TopicInfo)
    assert found.settings.partitioner is Partitioner.CRC32C


# -- messages ----------------------------------------------------------------------------------


def message(**fields: Any) -> MessageIn:
    return msgspec.json.decode(json.dumps(fields), type=MessageIn)


def test_messages_are_packed_by_partition_and_their_places_found_again() -> None:
    asked = [
        message(value="a", partition=1),
        message(value="b", partition=0),
        message(json={"x": [1, None]}, partition=1),
    ]
    packed = messages.pack(asked, 2, 0, SMALL)
    assert [new.partition for new in packed.blocks] == [1, 0]
    assert block.decode(packed.blocks[0].block).values() == [b"a", b'{"x": [1, null]}']
    answer = messages.placed(
        packed, [Appended(1, TIME_MS, 4, 2, 10), Appended(0, TIME_MS, 0, 1, 20)]
    )
    places = json.loads(answer)["messages"]
    assert [(p["partition"], p["offset"], p["id"]) for p in places] == [
        (1, 10, str(MessageId(TIME_MS, 4))),
        (0, 20, str(MessageId(TIME_MS, 0))),
        (1, 11, str(MessageId(TIME_MS, 5))),
    ]


def test_a_message_without_a_place_yet_has_nulls() -> None:
    packed = messages.pack([message(value="a")], 1, 0, SMALL)
    answer = json.loads(messages.placed(packed, [Appended(0, -1, -1, 1, -1)]))
    assert answer["messages"][0] == {
        "partition": 0,
        "id": None,
        "offset": None,
        "timestamp_ms": None,
    }


def test_the_same_key_goes_to_the_same_partition_and_no_key_to_the_spread() -> None:
    asked = [message(value=str(n), key="carrier") for n in range(3)] + [message(value="x")]
    packed = messages.pack(asked, 64, 5, SMALL)
    assert len({packed.blocks[number].partition for number, _ in packed.places[:3]}) == 1
    assert packed.blocks[packed.places[3][0]].partition == 5


@pytest.mark.parametrize("partitioner", Partitioner)
def test_keys_go_where_the_partitioner_of_the_topic_sends_them(partitioner: Partitioner) -> None:
    asked = [message(value="v", key=f"key {n}") for n in range(100)]
    wanted = [partitioner.partition_of(b"key %d" % n, 64) for n in range(100)]
    packed = messages.pack(asked, 64, 0, TopicSettings(64, partitioner=partitioner))
    assert [packed.blocks[number].partition for number, _ in packed.places] == wanted
    assert messages.destinations(asked, 64, partitioner) == {*wanted}


def test_null_and_empty_values_stay_different() -> None:
    packed = messages.pack([message(value=None), message(value="")], 1, 0, SMALL)
    assert block.decode(packed.blocks[0].block).values() == [None, b""]


FETCHED = Fetched(
    [
        stored(0, [b"a", b"b", b"c"]),
        stored(0, [b"d", b"\xff"], base=3, at=1),
        stored(1, [None], base=0, at=2),
    ],
    {0: Position.after(MessageId(TIME_MS + 1, 1)), 1: Position.after(MessageId(TIME_MS + 2, 0))},
    {0: 5, 1: 1},
    {0: 5, 1: 1},
)


def values(found: list[messages.Run]) -> list[bytes | None]:
    return [value for run in found for value in run.columns.values()]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position.earliest(), [b"a", b"b", b"c", b"d", b"\xff"]),
        (Position.offset(1), [b"b", b"c", b"d", b"\xff"]),
        (Position.offset(4), [b"\xff"]),
        (Position.at(MessageId(TIME_MS, 1)), [b"b", b"c", b"d", b"\xff"]),
        (Position.after(MessageId(TIME_MS, 1)), [b"c", b"d", b"\xff"]),
        (Position.after(MessageId(TIME_MS, 2)), [b"d", b"\xff"]),
        (Position.time(TIME_MS + 1), [b"d", b"\xff"]),
    ],
)
def test_messages_before_the_position_are_dropped(
    position: Position, expected: list[bytes]
) -> None:
    asked = {0: position, 1: Position.latest()}
    found = messages.unpacked(FETCHED, asked, 100, 1 << 20)
    assert values([run for run in found.runs if run.partition == 0]) == expected
    assert (found.next, found.reached) == (FETCHED.next, FETCHED.ends)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_reading_on_after_a_limit_loses_and_repeats_nothing(limit: int) -> None:
    asked = {0: Position.earliest(), 1: Position.earliest()}
    seen: list[bytes | None] = []
    for _ in range(7):
        found, asked, reached = messages.unpacked(FETCHED, asked, limit, 1 << 20)
        assert len(values(found)) <= limit
        seen += values(found)
        for run in found:
            assert reached[run.partition] >= run.offsets()[-1] + 1
        assert (reached == FETCHED.ends) is (len(seen) == 6)
    assert seen == [b"a", b"b", b"c", b"d", b"\xff", None]


def test_unpacking_stops_at_the_bound_of_bytes_after_at_least_one_message() -> None:
    asked = {0: Position.earliest(), 1: Position.earliest()}
    seen: list[bytes | None] = []
    for _ in range(6):
        found, asked, _ = messages.unpacked(FETCHED, asked, 100, 1)
        assert len(values(found)) == 1
        seen += values(found)
    assert seen == [b"a", b"b", b"c", b"d", b"\xff", None]


SPARSE = Fetched(
    [
        StoredBlock(
            0, TIME_MS, 19, block.thin(block.encode([b"%d" % i for i in range(20)]), [3, 4, 9, 17])
        )
    ],
    {0: Position.after(MessageId(TIME_MS, 19))},
    {0: 20},
    {0: 20},
)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("start", [0, 3, 4, 5])
def test_what_is_left_of_a_sparse_block_is_read_once_whatever_the_limit(
    limit: int, start: int
) -> None:
    asked = {0: Position.offset(start)}
    seen: list[tuple[int, int, bytes | None]] = []
    for _ in range(5):
        found, asked, reached = messages.unpacked(SPARSE, asked, limit, 1 << 20)
        assert (reached == SPARSE.ends) is (asked == SPARSE.next)
        for run in found:
            sequences = [id.sequence for id in run.ids()]
            seen += zip(run.offsets(), sequences, run.columns.values(), strict=True)
    assert seen == [(i, i, b"%d" % i) for i in (3, 4, 9, 17) if i >= start]
    assert asked == SPARSE.next


def test_json_and_arrow_show_the_places_of_what_is_left() -> None:
    found = messages.unpacked(SPARSE, {0: Position.earliest()}, 100, 1 << 20)
    shown = json.loads(messages.as_json(found, SPARSE.ends))["messages"]
    assert [message["offset"] for message in shown] == [3, 4, 9, 17]
    rows = pa.ipc.open_stream(messages.as_arrow(found.runs)).read_all().to_pylist()
    assert [row["offset"] for row in rows] == [3, 4, 9, 17]
    assert [row["id"] for row in rows] == [message["id"] for message in shown]


def test_json_shows_text_as_text_and_bytes_as_base64() -> None:
    found = messages.unpacked(
        FETCHED, {0: Position.offset(3), 1: Position.earliest()}, 100, 1 << 20
    )
    shown = json.loads(messages.as_json(found, FETCHED.ends))
    assert [(m["value"], m["encoding"], m["offset"]) for m in shown["messages"]] == [
        ("d", "utf-8", 3),
        ("/w==", "base64", 4),
        (None, "utf-8", 0),
    ]
    assert shown["next"] == bodies.positions_text(FETCHED.next)
    assert shown["ends"] == {"0": 5, "1": 1}


def test_large_values_of_control_characters_are_shown_as_base64() -> None:
    large = bytes(100_000)
    stored = StoredBlock(0, 5_000, 2, block.encode([large, b"\0" * 9, b"text\n" * 20_000]))
    fetched = Fetched([stored], {0: Position.latest()}, {0: 3}, {0: 3})
    found = messages.unpacked(fetched, {0: Position.earliest()}, 100, 1 << 20)
    body = messages.as_json(found, fetched.ends)
    shown = json.loads(body)["messages"]
    assert [(len(m["value"]), m["encoding"]) for m in shown] == [
        (133_336, "base64"),
        (9, "utf-8"),
        (100_000, "utf-8"),
    ]
    assert len(body) < 300_000


def test_an_arrow_stream_explains_itself_to_pyarrow_and_polars() -> None:
    asked = {0: Position.offset(2), 1: Position.earliest()}
    found, *_ = messages.unpacked(FETCHED, asked, 100, 1 << 20)
    stream = messages.as_arrow(found)
    rows = pa.ipc.open_stream(stream).read_all().to_pylist()
    assert [(row["offset"], row["value"], row["key"]) for row in rows] == [
        (2, b"c", b"k"),
        (3, b"d", b"k"),
        (4, b"\xff", b"k"),
        (0, None, b"k"),
    ]
    assert rows[0]["id"] == str(MessageId(TIME_MS, 2))
    assert rows[0]["timestamp"].timestamp() * 1_000 == TIME_MS
    frame = polars.read_ipc_stream(bytes(stream))
    assert frame["partition"].to_list() == [0, 0, 0, 1]


def test_an_empty_arrow_stream_still_has_its_columns() -> None:
    table = pa.ipc.open_stream(messages.as_arrow([])).read_all()
    assert table.num_rows == 0
    assert table.column_names[:3] == ["id", "partition", "offset"]


# -- problems ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(codes()))
def test_every_error_crosses_the_network_as_itself(code: str) -> None:
    cls = codes()[code]
    sent = cls.__new__(cls)
    TMSError.__init__(sent, "What happened.", index=7)
    status, body = routes.problem(sent, "r-1")
    received = routes.from_problem(status, body)
    assert type(received) is cls
    assert (received.message, received.details) == ("What happened.", {"index": 7})


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00" * 5_000, "\ud800" * 3_000, "€" * 9_000])
def test_a_problem_document_stays_small_whatever_the_error_says(text: str) -> None:
    for details in ({}, {"much": "y" * 10_000}, {"no json": object()}):
        status, body = routes.problem(OffsetOutOfRange(text, **details), "r-1")
        assert len(body) <= routes.PROBLEM_BYTES_MAX
        assert json.loads(body)["status"] == status


def test_an_answer_that_is_no_problem_document_says_so() -> None:
    assert "502" in str(routes.from_problem(502, b"<html>Bad gateway</html>"))


def test_paths_are_escaped() -> None:
    target = OPERATIONS["queues.describe"].target
    queue = target({"topic": TopicName("default", "a"), "group": "a b/c"})
    assert queue == "/v2/namespaces/default/topics/a/queues/a%20b%2Fc"


def test_the_openapi_document_has_every_route_and_schema_it_names() -> None:
    document = msgspec.json.decode(bodies.encode(openapi.document("1.0")))
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in text, f"{name} is not used"
    for part in text.split("#/components/schemas/")[1:]:
        assert part.partition('"')[0] in document["components"]["schemas"]
    assert f"{routes.PREFIX}/{{namespace}}/topics/{{topic}}/messages" in document["paths"]


# Commits


def encoded(commit: Commit) -> bytes:
    return b"".join(bytes(chunk) for chunk in encode_commit(commit))


def test_what_producers_staged_comes_back_as_it_was() -> None:
    name = TopicName("default", "orders")
    staged = (TopicStaged(name, 0, 3), TopicStaged(name, 1, 2, (1, 2**64 - 1)))
    commit = Commit(5, staged=staged)
    assert decode_commit(encoded(commit), 5) == commit


def test_a_commit_that_names_no_producers_is_read_by_services_that_know_none() -> None:
    body = encoded(Commit(5, staged=(TopicStaged(TopicName("default", "orders"), 0, 3),)))
    assert b"producers" not in body


def test_settlements_come_back_as_they_were_and_old_services_never_see_an_empty_list() -> None:
    settlement = Settlement("a group", TopicName("other", "jobs"), ("0.1.1.a", "3.ff.2.b.7"))
    commit = Commit(5, settlements=(settlement,))
    assert decode_commit(encoded(commit), 5) == commit
    assert b"settlements" not in encoded(Commit(5))


@pytest.mark.parametrize(
    "settlement",
    [
        b'{"group":"g/h","topic":"a","tokens":["0.0.1.0"]}',
        b'{"group":"g","topic":"a b","tokens":["0.0.1.0"]}',
        b'{"group":"g","topic":"a","tokens":[]}',
        b'{"group":"g","topic":"a","tokens":["token"]}',
        b'{"group":"g","topic":"a","tokens":["0.0.1.0"],"more":1}',
    ],
)
def test_settlements_that_are_none_are_refused(settlement: bytes) -> None:
    body = b'{"settlements":[%s]}' % settlement
    with pytest.raises((Invalid, Malformed)):
        decode_commit(len(body).to_bytes(4, "big") + body, 5)


@pytest.mark.parametrize("producer", ["0", "-1", "18446744073709551616"])
def test_a_producer_id_that_no_block_can_have_is_refused(producer: str) -> None:
    head = b'{"staged":[{"topic":"a","partition":0,"blocks":1,"producers":[%s]}]}'
    body = head % producer.encode()
    with pytest.raises((Invalid, Malformed)):
        decode_commit(len(body).to_bytes(4, "big") + body, 5)


@pytest.mark.parametrize("make", ["json", "arrow"])
def test_answers_keep_none_of_the_blocks_that_they_unpack(make: str) -> None:
    blocks = []
    for partition in range(3):
        packed = block.encode([b"a" * 99] * 50, compression=block.Compression.ZSTD)
        block.place(packed, 0)
        blocks.append(StoredBlock(partition, TIME_MS, 49, packed))
    columns = [block.decode(one.block).slice(49, 50) for one in blocks]
    runs = [messages.Run(p, TIME_MS, 0, 0, part) for p, part in enumerate(columns)]
    found = messages.Unpacked(runs, {}, {})
    assert messages.as_arrow(runs) if make == "arrow" else messages.as_json(found, {})
    assert [part._batch for part in columns] == [None] * 3
    assert found.unpacked_bytes >= 50 * 99
