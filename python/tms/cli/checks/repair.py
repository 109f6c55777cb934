"""Mending what `verify` found, so that every intact message can be read again.

* Before anything in a map changes, the whole damaged map is kept in `damaged/`.
* Nothing is invented: what was lost stays lost, and its offsets are a gap.
* The directory must not be in use; every step leaves it in a state that can be verified again.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from tms.block import Flags, read_header
from tms.block import decode as decode_block
from tms.cli.checks.verify import Damage, Mend, read_block, scan, segment_place
from tms.errors import NotFound, TMSError
from tms.log.records import FIRST_KEY, BlockKey, PartitionRecord, SegmentRecord, decode, encode
from tms.log.staging import StagedBlocks
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import MESSAGE_BYTES_DEFAULT, Durability
from tms.store.base import Map, Store
from tms.store.leveldb import LevelDBStore, repair
from tms.topics.registry import TopicRecord


def mend(data: Path, findings: Iterable[Damage], now_ms: int) -> Iterator[str]:
    """Mend these findings of a data directory; returns the steps in words."""
    by_mend: dict[Mend, list[Damage]] = {kind: [] for kind in Mend}
    for one in findings:
        by_mend[one.mend].append(one)
    touched = by_mend[Mend.MAP] + by_mend[Mend.ROW] + by_mend[Mend.PARTITION]
    for name in sorted({one.map for one in touched}):
        try:
            yield f"rebuilt {name}; as it was, it is kept in {repair(data, name)}"
        except NotFound:  # its files are gone: nothing to keep
            if name == keys.METADATA_MAP:
                _begin_metadata(data)
                yield f"made {name} again; maps without a record are recorded next"
    if by_mend[Mend.MAP]:
        return  # what a map lost shows only now: the caller verifies again
    with closing(LevelDBStore(data, create=False)) as store:
        metadata = store.open(keys.METADATA_MAP, create=False)
        for one in by_mend[Mend.ROW]:
            store.open(one.map, create=False).delete([one.row])
            yield f"removed the row {one.row.hex()} of {one.map}"
        for uid, partition in _places(by_mend[Mend.PARTITION]):
            _rebuild_partition(store, metadata, uid, partition)
            yield f"rebuilt the record of partition {partition} of topic {uid:08x}"
        for uid in sorted({uid for uid, _ in _places(by_mend[Mend.TOPIC])}):
            name = _recover_topic(store, metadata, uid, now_ms)
            yield f"gave the messages of a lost topic the name {name}"
        if by_mend[Mend.COUNTER]:
            highest = _set_counter(store, metadata)
            yield f"set the counter of topics to {highest}"


def _begin_metadata(data: Path) -> None:
    with closing(LevelDBStore(data, create=False)) as store:
        store.open(keys.METADATA_MAP, create=True)


def _places(findings: Iterable[Damage]) -> list[tuple[int, int]]:
    places = {place[:2] for one in findings if (place := segment_place(one.map)) is not None}
    return sorted((uid, partition) for uid, partition in places)


def _rebuild_partition(store: Store, metadata: Map, uid: int, partition: int) -> None:
    """Record the segments that have maps, all of them sealed at their last block."""
    key = keys.partition_key(uid, partition)
    raw = metadata.get(key)
    old = PartitionRecord(1, ()) if raw is None else decode(raw, PartitionRecord, key)
    known = {segment.number: segment for segment in old.segments}
    segments = []
    last = old.last
    for name in store.names(keys.partition_prefix(uid, partition)):
        place = segment_place(name)
        if place is None:
            continue
        rows, staged = store.open(name, create=False), StagedBlocks(store, uid, partition)
        segment = _segment(rows, staged, place[2], known.get(place[2]), old.epoch)
        if segment is None or segment.last is None:
            continue
        segments.append(segment)
        last = max(last, segment.last)
    new = msgspec.structs.replace(old, segments=tuple(segments), last=last)
    if not metadata.compare_and_set(key, raw, encode(new)):
        raise TMSError(f"The record of partition {partition} changed meanwhile; run fsck again.")


def _segment(
    rows: Map, staged: StagedBlocks, number: int, known: SegmentRecord | None, epoch: int
) -> SegmentRecord | None:
    """A segment that ends at its last block; None if it has none."""
    first: tuple[BlockKey, int] | None = None
    last, end_offset = FIRST_KEY, 0
    for key, raw in scan(rows):
        place, header, _ = read_block(key, raw, staged)
        first = first or (place, header.base_offset)
        last, end_offset = place, header.base_offset + header.count
    if first is None:
        return None
    if known is not None and known.sealed:
        return known
    made = known or SegmentRecord(number, epoch, first[0][0], first[1])
    return msgspec.structs.replace(
        made, end_offset=end_offset, last=last, stored_bytes=rows.stored_bytes()
    )


def _recover_topic(store: Store, metadata: Map, uid: int, now_ms: int) -> str:
    """A topic for maps whose own was lost; it keeps everything for ever, until its owner
    decides."""
    partitions = 1 + max(
        place[1]
        for name in store.names(keys.topic_prefix(uid))
        if (place := segment_place(name)) is not None
    )
    record = TopicRecord(
        uid=uid,
        generation=1,
        created_ms=now_ms,
        partitions=partitions,
        retention_ms=None,
        retention_bytes=None,
        durability=Durability.SYNCED,
        message_bytes_max=MESSAGE_BYTES_DEFAULT,
        partitioner=_partitioner_of(store, uid, partitions),
    )
    name = f"recovered-{uid:08x}"
    metadata.compare_and_set(keys.topic_key("default", name), None, encode(record))
    for partition in range(partitions):
        if metadata.get(keys.partition_key(uid, partition)) is None:
            _rebuild_partition(store, metadata, uid, partition)
    return name


def _partitioner_of(store: Store, uid: int, partitions: int) -> keys.Partitioner:
    """The partitioner by which every key in the newest block of each partition belongs there; the
    default one if none does."""

    def explains(partitioner: keys.Partitioner) -> bool:
        return all(
            partitioner.partition_of(key, partitions) == partition
            for partition in range(partitions)
            for key in _newest_keys(store, uid, partition)
            if key is not None
        )

    return next(filter(explains, keys.Partitioner), keys.Partitioner.CRC32C)


def _newest_keys(store: Store, uid: int, partition: int) -> list[bytes | None]:
    names = store.names(keys.partition_prefix(uid, partition))
    for name in sorted(filter(segment_place, names), reverse=True):
        for key, raw in store.open(name, create=False).scan(None, None, 1, reverse=True):
            if read_header(raw).flags & Flags.ROLLED_BACK:  # its payload may be gone
                return []
            stored = StoredBlock(partition, *keys.split_block_key(key), raw)
            return decode_block(StagedBlocks(store, uid, partition).resolve(stored).block).keys()
    return []


def _set_counter(store: Store, metadata: Map) -> int:
    """Make the counter as high as the highest uid in use."""
    highest = max(
        [place[0] for name in store.names("") if (place := segment_place(name)) is not None]
        + [decode(raw, TopicRecord, key).uid for key, raw in scan(metadata) if key[:6] == b"topic/"]
    )
    old = metadata.get(keys.TOPIC_UID_COUNTER)
    metadata.compare_and_set(keys.TOPIC_UID_COUNTER, old, b"%d" % highest)
    return highest
