"""The code and the vectors agree; spelled values sort as promised, wrong ones are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.block_kit import batch_of, unpack
from tests.vectors_kit import MAKERS, VECTORS, load, text_of
from tms.block import Compression, check, decode, encode, place, read_header
from tms.errors import BadMessageId, Forbidden, Invalid, codes
from tms.model import keys
from tms.model.ids import TIME_MS_MAX, MessageId
from tms.model.position import OFFSET_MAX, Position
from tms.model.topic import TopicName, TopicSettings, parse_cleanup, parse_retention

TIMES = st.integers(0, TIME_MS_MAX)
SEQUENCES = st.integers(0, 65_535)
IDS = st.builds(MessageId, TIMES, SEQUENCES, TIMES, SEQUENCES)


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases]


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "blocks"])
def test_the_vectors_are_what_the_code_makes(name: str) -> None:
    assert (VECTORS / f"{name}.json").read_text() == text_of(name)


def test_the_vectors_of_blocks_are_what_the_code_makes_where_only_one_way_is_right() -> None:
    made = json.loads(text_of("blocks"))
    committed = json.loads((VECTORS / "blocks.json").read_text())
    assert made["sparse"] == committed["sparse"]
    for vector in made["blocks"] + committed["blocks"]:
        if not vector["canonical"]:
            del vector["block"], vector["header"]["crc"]  # another version may compress differently
    for vector in made["refused"] + committed["refused"]:
        del vector["block"]
    assert made == committed


def cells_of(vector: dict[str, Any]) -> tuple[list[Any], list[Any], list[dict[str, bytes]]]:
    """Values, keys and headers of a vector's messages."""

    def raw(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    messages = vector["messages"]
    headers = [{n: bytes.fromhex(t) for n, t in m["headers"].items()} for m in messages]
    return [raw(m["value"]) for m in messages], [raw(m["key"]) for m in messages], headers


@pytest.mark.parametrize("vector", named(load("blocks")["blocks"]))
def test_a_block_of_the_vectors_holds_its_messages(vector: dict[str, Any]) -> None:
    block = bytes.fromhex(vector["block"])
    assert check(block, **load("blocks")["limits"]) == read_header(block)
    assert structs.asdict(read_header(block)) == vector["header"]
    assert unpack(block) == cells_of(vector)
    batch, expected = decode(block).record_batch(), batch_of(*cells_of(vector))
    assert batch.columns[:2] == expected.columns[:2]
    assert batch.columns[2] == expected.columns[2] or vector["name"] == "null maps of headers"


@pytest.mark.parametrize("vector", named([b for b in load("blocks")["blocks"] if b["canonical"]]))
def test_a_canonical_block_of_the_vectors_is_what_a_producer_makes(vector: dict[str, Any]) -> None:
    header = vector["header"]
    block = encode(
        *cells_of(vector),
        producer_id=header["producer_id"],
        producer_sequence=header["producer_sequence"],
        compression=Compression(vector["compression"]),
    )
    place(block, header["base_offset"], header["flags"])
    assert block.hex() == vector["block"]


@pytest.mark.parametrize("vector", named(load("blocks")["sparse"]))
def test_a_sparse_block_of_the_vectors_holds_what_is_left(vector: dict[str, Any]) -> None:
    block = bytes.fromhex(vector["block"])
    columns = decode(block)
    assert structs.asdict(read_header(block)) == vector["header"]
    assert [*columns.index] == vector["index"]
    assert (columns.values(), columns.keys(), columns.headers()) == cells_of(vector)


@pytest.mark.parametrize("vector", named(load("blocks")["refused"]))
def test_a_wrong_block_of_the_vectors_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(codes()[vector["error"]]) as caught:
        check(bytes.fromhex(vector["block"]), **load("blocks")["limits"])
    assert caught.value.code == vector["error"]


def test_an_id_of_the_vectors_is_its_bytes_and_its_text() -> None:
    for case in load("ids")["ids"]:
        id = MessageId(*(case[field] for field in MessageId._fields))
        assert (str(id), bytes(id).hex()) == (case["hex"], case["hex"])
        assert MessageId.parse(case["hex"]) == MessageId.from_bytes(bytes(id)) == id
        assert MessageId.parse(case["hex"].upper()) == id


@pytest.mark.parametrize("text", load("ids")["refused"].values(), ids=load("ids")["refused"].keys())
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadMessageId):
        MessageId.parse(text)


@pytest.mark.parametrize("raw", [b"", bytes(19), bytes(21), b"\xff" * 20])
def test_bytes_that_are_no_id_are_refused(raw: bytes) -> None:
    with pytest.raises(BadMessageId):
        MessageId.from_bytes(raw)


@given(st.lists(IDS, min_size=2))
def test_ids_sort_alike_as_values_as_bytes_and_as_text(ids: list[MessageId]) -> None:
    assert sorted(ids) == sorted(ids, key=bytes) == sorted(ids, key=str)


@given(st.lists(st.tuples(TIMES, SEQUENCES), min_size=2))
def test_block_keys_sort_like_the_ids_of_the_last_messages(places: list[tuple[int, int]]) -> None:
    assert sorted(places) == sorted(places, key=lambda place: keys.block_key(*place))
    for time_ms, sequence in places:
        key = keys.block_key(time_ms, sequence)
        assert keys.split_block_key(key) == (time_ms, sequence)
        assert key == bytes(MessageId(time_ms, sequence))[: keys.BLOCK_KEY_BYTES]


@given(st.binary(), st.integers(1, 1_024))
def test_a_key_has_one_partition_of_those_there_are(key: bytes, partitions: int) -> None:
    assert keys.partition_for_key(key, partitions) in range(partitions)


def test_keys_spread_over_all_partitions() -> None:
    found = [keys.partition_for_key(b"key %d" % i, 8) for i in range(8_000)]
    assert keys.partitions_for_keys((b"key %d" % i for i in range(8_000)), 8) == found
    assert all(900 < found.count(partition) < 1_100 for partition in range(8))


NUMBERS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 1_023), st.integers(0, 99_999_999))


@given(st.lists(NUMBERS, min_size=2))
def test_names_of_segments_sort_like_their_numbers(segments: list[tuple[int, int, int]]) -> None:
    assert sorted(segments) == sorted(segments, key=lambda segment: keys.segment_map(*segment))
    for uid, partition, segment in segments:
        name = keys.segment_map(uid, partition, segment)
        assert name.startswith(keys.partition_prefix(uid, partition))
        assert keys.partition_prefix(uid, partition).startswith(keys.topic_prefix(uid))


def test_a_prefix_covers_its_namespace_and_no_other() -> None:
    start = keys.topic_key("orders", "")
    stop = keys.prefix_stop(start)
    assert start <= keys.topic_key("orders", "z" * 249) < stop
    assert start <= keys.topic_key("orders", "0.a") < keys.topic_key("orders", "z.z") < stop
    for namespace in ("order", "orders2", "orders_", "orderz", "Orders"):
        assert not start <= keys.topic_key(namespace, "a") < stop


@pytest.mark.parametrize("case", load("topics")["names"], ids=lambda case: case["text"][:20])
def test_a_topic_name_of_the_vectors_is_read(case: dict[str, str]) -> None:
    name = TopicName.parse(case["text"])
    assert name == (case["namespace"], case["topic"])
    assert str(name) == case["short"]
    assert TopicName.parse(str(name)) == name


@pytest.mark.parametrize("text", load("topics")["refused_names"])
def test_a_topic_name_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        TopicName.parse(text)


def test_only_tms_itself_writes_to_the_namespace_system() -> None:
    TopicName("default", "system").require_writable()
    with pytest.raises(Forbidden):
        TopicName("system", "anything").require_writable()


@pytest.mark.parametrize("case", load("topics")["retentions"], ids=lambda case: case["text"])
def test_a_retention_of_the_vectors_is_read(case: dict[str, Any]) -> None:
    assert parse_retention(case["text"]) == case["ms"]


@pytest.mark.parametrize("text", load("topics")["refused_retentions"])
def test_a_retention_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_retention(text)


@pytest.mark.parametrize("case", load("topics")["cleanups"].items())
def test_a_cleanup_is_spelled_in_any_order(case: tuple[str, str]) -> None:
    assert parse_cleanup(case[0]) == case[1]


@pytest.mark.parametrize("text", load("topics")["refused_cleanups"])
def test_a_cleanup_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_cleanup(text)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("partitions", [0, 1_025, True, 1.0, "1"]),
        ("retention_ms", [999, 36_526 * 86_400_000, 1e6]),
        ("retention_bytes", [0, (1 << 20) - 1, 2**63]),
        ("message_bytes_max", [0, (8 << 20) + 1, None]),
        ("durability", ["sync", "", "SYNCED"]),
        ("cleanup", ["keep", "", "COMPACT", "compact,compact", None]),
        ("tombstone_retention_ms", [999, 36_526 * 86_400_000, 1e6]),
    ],
)
def test_settings_outside_of_their_limits_are_refused_by_field(
    field: str, wrong: list[Any]
) -> None:
    for value in wrong:
        with pytest.raises(Invalid) as caught:
            TopicSettings(**{field: value})
        assert caught.value.details == {"field": field}


POSITIONS = st.one_of(
    st.just(Position.earliest()),
    st.just(Position.latest()),
    IDS.map(Position.at),
    IDS.map(Position.after),
    TIMES.map(Position.time),
    st.integers(0, OFFSET_MAX).map(Position.offset),
)


@given(POSITIONS)
def test_a_position_is_read_as_it_is_written(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["-1h", "1900-01-01", "2026-11-01T00:00Z", "now", "@2026-11-01"])
def test_a_time_as_other_tools_spell_it_is_refused_with_how_to_spell_it(text: str) -> None:
    with pytest.raises(Invalid, match=r"time:MS.*timedelta\(hours=1\)"):
        Position.parse(text)


def test_an_id_that_ends_like_a_duration_is_an_id() -> None:
    text = "0" * 38 + "1d"
    assert str(Position.parse(text)) == f"id:{text}"


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "first",
            "offset:",
            "offset:-1",
            "offset:1.0",
            f"offset:{2**63}",
            "offset:" + "9" * 99,
        ],
        *["time:\u0661", "time:+1", f"time:{TIME_MS_MAX + 1}", "id:", "after:12", "id:" + "g" * 40],
    ],
)
def test_a_position_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises((Invalid, BadMessageId)):
        Position.parse(text)
