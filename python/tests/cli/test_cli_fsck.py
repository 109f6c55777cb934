"""`tms fsck` names the damage, and `--repair` recovers every intact message."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tms
from tms.cli.main import run
from tms.log.records import PartitionRecord, decode, encode
from tms.model import keys
from tms.model.keys import Partitioner
from tms.model.topic import Durability
from tms.store.base import Map
from tms.store.leveldb import LevelDBStore

SEGMENT = "maps/t00000001+p00000+s00000000"
COUNT = 40


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one topic, forty blocks of two messages in its only segment."""
    path = tmp_path / "data"
    with tms.open(path) as bus:
        bus.create_topic("orders")
        for number in range(COUNT):
            bus.publish_many("orders", [b"%d" % number * 50, b"second"])
    return path


Fsck = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def fsck(data: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Fsck:
    """Run fsck; returns its exit code and its JSON."""

    def fsck(*options: str) -> tuple[int, dict[str, Any]]:
        capsysbinary.readouterr()
        code = run(["fsck", "--data", str(data), "--json", *options])
        return code, json.loads(capsysbinary.readouterr().out)

    return fsck


def _offsets(data: Path, topic: str = "orders") -> list[int]:
    with tms.open(data) as bus, bus.consumer(topic, start="earliest", stop_at_end=True) as consumer:
        return [message.offset for message in consumer]


def _change(data: Path, change: Callable[[LevelDBStore, Map], None]) -> None:
    store = LevelDBStore(data, create=False)
    try:
        change(store, store.open(keys.METADATA_MAP, create=False))
    finally:
        store.close()


def _log_file(data: Path) -> Path:
    return max((data / SEGMENT).glob("*.log"), key=lambda path: path.stat().st_size)


def _flip(path: Path, position: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 0x10
    path.write_bytes(damaged)


def test_an_intact_directory_is_found_intact_and_left_alone(data: Path, fsck: Fsck) -> None:
    before = {path: path.stat() for path in data.rglob("*")}
    code, found = fsck()
    assert code == 0
    assert found["findings"] == []
    assert found["read"]["blocks"] == COUNT
    assert found["read"]["messages"] == 2 * COUNT
    after = {path: path.stat() for path in data.rglob("*")}
    assert {p: (s.st_size, s.st_mtime_ns, s.st_ino) for p, s in after.items()} == {
        p: (s.st_size, s.st_mtime_ns, s.st_ino) for p, s in before.items()
    }


def test_a_directory_in_use_can_be_verified(data: Path, fsck: Fsck) -> None:
    with tms.open(data) as bus:
        bus.publish("orders", b"more")
        code, found = fsck()
    assert code == 0
    assert found["read"]["messages"] == 2 * COUNT + 1


def test_maps_beside_the_log_are_known_and_what_waits_is_verified(data: Path, fsck: Fsck) -> None:
    with tms.open(data) as bus:
        bus.publish_later("orders", b"later", delay="1h")
    _change(data, lambda store, _: store.open(keys.payload_map(1, 0, 1), create=True).recover())
    _change(data, lambda store, _: store.open(f"{keys.TABLES}stock", create=True).recover())
    code, found = fsck()
    assert (code, found["findings"]) == (0, [])
    assert found["read"]["messages"] == 2 * COUNT + 1
    _change(data, lambda store, _: store.open("t00000009/p00000/z", create=True).recover())
    assert [one["severity"] for one in fsck()[1]["findings"]] == ["note"]
    waiting = keys.delayed_map(1)
    _change(
        data,
        lambda store, _: store.open(waiting, create=False).write(
            [(b"d-damaged", b"?")], Durability.SYNCED
        ),
    )
    code, found = fsck()
    assert code == 1 and found["findings"][0]["mend"] == "remove the row"
    assert fsck("--repair")[0] == 0


def test_a_flipped_bit_is_named_and_repaired_around(data: Path, fsck: Fsck) -> None:
    log = _log_file(data)
    _flip(log, log.stat().st_size // 2)
    code, found = fsck()
    assert code == 1
    assert found["damaged"]
    assert any("orders, partition 0, segment 0" in one["where"] for one in found["findings"])
    assert str(data / SEGMENT) in found["findings"][0]["what"]
    code, found = fsck("--repair")
    assert code == 0, found
    assert any("offsets" in one["what"] for one in found["findings"])
    offsets = _offsets(data)
    assert len(offsets) >= 2 * COUNT - 4
    assert offsets == sorted(set(offsets))
    assert list((data / "damaged").iterdir())


def test_publishing_goes_on_after_a_repair(data: Path, fsck: Fsck) -> None:
    log = _log_file(data)
    _flip(log, log.stat().st_size // 2)
    fsck("--repair")
    with tms.open(data) as bus:
        bus.publish("orders", b"after")
    offsets = _offsets(data)
    assert offsets[-1] == 2 * COUNT
    assert fsck()[0] == 0


def test_a_row_that_is_no_block_is_named_and_removed(data: Path, fsck: Fsck) -> None:
    def change(store: LevelDBStore, metadata: Map) -> None:
        segment = store.open(keys.segment_map(1, 0, 0), create=False)
        segment.write([(keys.block_key(2**40, 0), b"rubbish")], Durability.SYNCED)

    _change(data, change)
    code, found = fsck()
    assert code == 1
    assert [one["row"] for one in found["findings"]] == [keys.block_key(2**40, 0).hex()]
    assert fsck("--repair")[0] == 0
    assert _offsets(data) == list(range(2 * COUNT))


def test_a_missing_block_is_a_gap_and_what_is_behind_it_is_kept(data: Path, fsck: Fsck) -> None:
    def change(store: LevelDBStore, metadata: Map) -> None:
        segment = store.open(keys.segment_map(1, 0, 0), create=False)
        rows = segment.scan(None, None, 1 << 30)
        segment.delete([rows[10][0]])

    _change(data, change)
    code, found = fsck()
    assert code == 1
    assert "offsets 20 to 21 are missing" in found["findings"][0]["what"]
    fsck("--repair")
    assert _offsets(data) == [n for n in range(2 * COUNT) if n not in (20, 21)]


def test_a_lost_partition_record_is_rebuilt(data: Path, fsck: Fsck) -> None:
    _change(data, lambda store, metadata: metadata.delete([keys.partition_key(1, 0)]))
    assert fsck()[0] == 1
    assert fsck("--repair")[0] == 0
    assert _offsets(data) == list(range(2 * COUNT))


def test_the_messages_of_a_lost_topic_get_a_topic_of_a_new_name(data: Path, fsck: Fsck) -> None:
    _change(data, lambda store, metadata: metadata.delete([keys.topic_key("default", "orders")]))
    assert fsck()[0] == 1
    assert fsck("--repair")[0] == 0
    assert _offsets(data, "recovered-00000001") == list(range(2 * COUNT))


@pytest.mark.parametrize(
    ("partitioner", "elsewhere", "found"),
    [
        ("crc32c", False, "crc32c"),
        ("murmur2", False, "murmur2"),
        ("murmur2", True, "crc32c"),  # one message is where neither would send it: the default
    ],
)
def test_a_lost_topic_gets_the_partitioner_that_explains_where_its_keys_are(
    data: Path, fsck: Fsck, partitioner: str, elsewhere: bool, found: str
) -> None:
    names = [b"key %d" % number for number in range(40)]
    with tms.open(data) as bus:
        bus.create_topic("kafka", 3, partitioner=Partitioner(partitioner))
        bus.publish_many("kafka", [b"v"] * 40, names)
        if elsewhere:
            at = Partitioner(partitioner).partition_of(b"key 0", 3)
            bus.publish("kafka", b"v", b"key 0", partition=(at + 1) % 3)
    _change(data, lambda store, metadata: metadata.delete([keys.topic_key("default", "kafka")]))
    assert fsck("--repair")[0] == 0
    with tms.open(data) as bus:
        settings = bus.describe_topic("recovered-00000002").settings
    assert (settings.partitions, settings.partitioner) == (3, found)


def test_without_any_record_every_message_is_found_again(data: Path, fsck: Fsck) -> None:
    with tms.open(data) as bus:
        bus.create_topic("large", partitions=3)
        for partition in (0, 2):
            bus.publish("large", b"x" * 6_000, partition=partition)
    shutil.rmtree(data / "maps/metadata")
    assert fsck()[0] != 0
    code, found = fsck("--repair")
    assert code == 0, found
    assert _offsets(data, "recovered-00000001") == list(range(2 * COUNT))
    assert _offsets(data, "recovered-00000002") == [0, 0]
    with tms.open(data) as bus:
        assert bus.create_topic("new").generation == 1
        bus.publish("recovered-00000001", b"more")
    assert fsck()[0] == 0


def test_a_counter_that_is_behind_is_set(data: Path, fsck: Fsck) -> None:
    _change(data, lambda store, metadata: metadata.delete([keys.TOPIC_UID_COUNTER]))
    assert fsck()[0] == 1
    assert fsck("--repair")[0] == 0
    with tms.open(data) as bus:
        bus.create_topic("next")
    assert _offsets(data) == list(range(2 * COUNT))


def test_an_unreadable_record_is_named_and_rebuilt(data: Path, fsck: Fsck) -> None:
    key = keys.partition_key(1, 0)
    _change(data, lambda store, metadata: metadata.write([(key, b"{")], Durability.SYNCED))
    code, found = fsck()
    assert code == 1
    assert any(key.decode() in one["where"] for one in found["findings"])
    assert fsck("--repair")[0] == 0
    assert _offsets(data) == list(range(2 * COUNT))


def test_a_missing_segment_is_named(data: Path, fsck: Fsck) -> None:
    shutil.rmtree(data / SEGMENT)
    code, found = fsck()
    assert code == 1
    assert "segment 0" in found["findings"][0]["where"]


def test_a_sealed_segment_that_ends_early_is_named(data: Path, fsck: Fsck) -> None:
    def change(store: LevelDBStore, metadata: Map) -> None:
        key = keys.partition_key(1, 0)
        raw = metadata.get(key)
        assert raw is not None
        record = decode(raw, PartitionRecord, key)
        sealed = msgspec.structs.replace(
            record.segments[0], end_offset=2 * COUNT + 5, last=(2**41, 0)
        )
        metadata.write(
            [(key, encode(msgspec.structs.replace(record, segments=(sealed,))))], Durability.SYNCED
        )

    _change(data, change)
    code, found = fsck()
    assert code == 1
    assert "offsets 80 to 84 are missing" in found["findings"][0]["what"]


def test_a_leftover_of_a_crash_is_only_a_note(data: Path, fsck: Fsck) -> None:
    def change(store: LevelDBStore, metadata: Map) -> None:
        store.open(keys.segment_map(1, 0, 1), create=True)

    _change(data, change)
    code, found = fsck()
    assert code == 0
    assert [one["severity"] for one in found["findings"]] == ["note"]


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    assert run(["fsck", "--data", str(tmp_path / "nothing")]) == 3
    (tmp_path / "FORMAT").write_text('{"format": 99, "store": "leveldb"}')
    assert run(["fsck", "--data", str(tmp_path)]) == 78
