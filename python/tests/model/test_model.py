"""The code and the vectors agree; spelled values sort as promised, wrong ones are refused."""

import json
import pickle
from random import Random
from typing import Any

import msgspec
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
from tms.model.keys import Partitioner
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


def header_of(block: bytes, vector: dict[str, Any]) -> dict[str, Any]:
    """The header of a block, as vectors have it."""
    header = structs.asdict(read_header(block))
    assert header.pop("has_times") == any(times_of(vector))
    return header


def times_of(vector: dict[str, Any]) -> list[int | None]:
    """The event times of a vector's messages."""
    return [message.get("event_time_ms") for message in vector["messages"]]


def cells_of(vector: dict[str, Any]) -> tuple[list[Any], list[Any], list[dict[str, Any]]]:
    """Values, keys and headers of a vector's messages."""

    def raw(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    messages = vector["messages"]
    headers = [{n: raw(t) for n, t in m["headers"].items()} for m in messages]
    return [raw(m["value"]) for m in messages], [raw(m["key"]) for m in messages], headers


@pytest.mark.parametrize("vector", named(load("blocks")["blocks"]))
def test_a_block_of_the_vectors_holds_its_messages(vector: dict[str, Any]) -> None:
    block = bytes.fromhex(vector["block"])
    assert check(block, **load("blocks")["limits"]) == read_header(block)
    assert header_of(block, vector) == vector["header"]
    assert unpack(block) == cells_of(vector)
    assert decode(block).event_times() == times_of(vector)
    batch, expected = decode(block).record_batch(), batch_of(*cells_of(vector))
    assert batch.columns[:2] == expected.columns[:2]
    assert batch.columns[2] == expected.columns[2] or vector["name"] == "null maps of headers"


@pytest.mark.parametrize("vector", named([b for b in load("blocks")["blocks"] if b["canonical"]]))
def test_a_canonical_block_of_the_vectors_is_what_a_producer_makes(vector: dict[str, Any]) -> None:
    header = vector["header"]
    block = encode(
        *cells_of(vector),
        times_of(vector),
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
    assert header_of(block, vector) == vector["header"]
    assert columns.event_times() == times_of(vector)
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


@given(st.sampled_from(Partitioner), st.binary(), st.integers(1, 1_024))
def test_a_key_has_one_partition_of_those_there_are(
    partitioner: Partitioner, key: bytes, partitions: int
) -> None:
    assert partitioner.partition_of(key, partitions) in range(partitions)


@pytest.mark.parametrize("partitioner", Partitioner)
def test_keys_spread_over_all_partitions(partitioner: Partitioner) -> None:
    found = partitioner.partitions_of([b"key %d" % i for i in range(8_000)], 8)
    assert all(900 < found.count(partition) < 1_100 for partition in range(8))


MANY = st.integers(0, 30).map(lambda n: n * n)


@pytest.mark.parametrize("partitioner", Partitioner)
@given(MANY, MANY, st.integers(0, 40), st.randoms(use_true_random=False))
def test_many_keys_go_where_each_of_them_goes(
    partitioner: Partitioner, alike: int, others: int, length: int, random: Random
) -> None:
    many = [random.randbytes(length) for _ in range(alike)]
    many += [random.randbytes(random.randrange(40)) for _ in range(others)]
    many += [b"\xff" * length, bytes(length)] * (alike // 2)
    random.shuffle(many)
    assert partitioner.partitions_of(many, 1_021) == [
        partitioner.partition_of(key, 1_021) for key in many
    ]


def test_more_keys_than_one_step_takes_go_where_each_of_them_goes() -> None:
    murmur2 = Partitioner.MURMUR2
    for length, count in ((0, 10_000), (7, 10_000), (5_003, 200), (keys._STEP_BYTES, 9)):
        many = [(b"%d" % number).rjust(length)[:length] for number in range(count)]
        assert murmur2.hashes_of(many) == [murmur2.hash_of(key) for key in many]


@pytest.mark.parametrize(
    ("key", "hash"),
    [  # of Kafka's own tests (`UtilsTest.testMurmur2`)
        (b"21", -973_932_308),
        (b"foobar", -790_332_482),
        (b"a-little-bit-long-string", -985_981_536),
        (b"a-little-bit-longer-string", -1_486_304_829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        (b"abc", 479_470_107),
    ],
)
def test_murmur2_is_the_hash_of_kafka_without_its_sign(key: bytes, hash: int) -> None:
    murmur2 = Partitioner.MURMUR2
    assert murmur2.hash_of(key) == hash & 0x7FFF_FFFF
    assert murmur2.hashes_of([key] * 20) == [hash & 0x7FFF_FFFF] * 20


def test_a_partitioner_is_its_name_in_json_and_after_pickling() -> None:
    for partitioner in Partitioner:
        assert (
            msgspec.json.decode(msgspec.json.encode(partitioner), type=Partitioner) is partitioner
        )
        assert pickle.loads(pickle.dumps(partitioner)) is partitioner


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
