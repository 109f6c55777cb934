"""Verifying a store: every record and every block is read and checked against all that is promised.

    metadata   each record can be read; the uid counter is ahead; no map is without its topic
    segments   every one has its map; offsets are dense, unless compaction left some out, and ids
               ascend, also from one to the next
    blocks     key, header, CRC-32C, and as many messages behind it as the header says
    delayed    the same of messages that are not due yet

Nothing is changed: the store that is given is a copy.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, pairwise

from tms.block import BlockHeader, Flags, read_header
from tms.block import decode as decode_block
from tms.delayed.entries import entry_of
from tms.errors import DataCorrupt, NotFound, TMSError
from tms.log.records import (
    FIRST_KEY,
    BlockKey,
    CompactionRecord,
    ForgottenRecord,
    PartitionRecord,
    ProducersRecord,
    SegmentRecord,
    decode,
)
from tms.log.staging import StagedBlocks
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import TopicName
from tms.store.base import Map, Store, pages
from tms.topics.registry import TopicRecord

SCAN_BYTES = 8 << 20
_OTHER_RECORDS: dict[str, type[ProducersRecord | ForgottenRecord | CompactionRecord]] = {
    "producers": ProducersRecord,
    "forgotten": ForgottenRecord,
    "compaction": CompactionRecord,
}
_SEGMENT_MAP = re.compile(r"t([0-9a-f]{8})/p([0-9]{5})/s([0-9]{8})")


class Severity(StrEnum):
    """The consequence of a finding."""

    DAMAGE = "damage"  # something that was stored cannot be read as it was
    NOTE = "note"  # lost earlier and mended since, or a leftover that the next start removes


class Mend(StrEnum):
    """The repair of a finding."""

    NOTHING = "nothing"
    MAP = "rebuild the map from its intact records"
    ROW = "remove the row"
    PARTITION = "rebuild the partition's record from its maps"
    TOPIC = "give its messages a topic of a new name"
    COUNTER = "set the counter of topics"


def segment_place(name: str) -> tuple[int, int, int] | None:
    """The uid, partition and segment that the name of a map spells; None for other maps."""
    match = _SEGMENT_MAP.fullmatch(name)
    return None if match is None else (int(match[1], 16), int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Damage:
    """A fault: its place, its description and its repair."""

    where: str
    what: str
    mend: Mend = Mend.NOTHING
    map: str = ""
    row: bytes = b""
    severity: Severity = Severity.DAMAGE


@dataclass(slots=True)
class Totals:
    """The amounts that were read."""

    topics: int = 0
    segments: int = 0
    blocks: int = 0
    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _End:
    """The end of the verified part of a partition."""

    offset: int
    key: BlockKey


@dataclass
class Verifier:
    """One pass over a store. `mended` are the maps that were rebuilt earlier: what they lost is
    known."""

    store: Store
    mended: frozenset[str] = frozenset()
    totals: Totals = field(default_factory=Totals)
    _topics: dict[TopicName, TopicRecord] = field(default_factory=dict)
    _partitions: dict[tuple[int, int], PartitionRecord] = field(default_factory=dict)
    _deleted: set[int] = field(default_factory=set)
    _counter: int = 0

    def run(self) -> Iterator[Damage]:
        """Verify everything; `totals` counts along."""
        try:
            rows = list(scan(self.store.open(keys.METADATA_MAP, create=False)))
        except (DataCorrupt, NotFound) as error:
            yield Damage("metadata", error.message, Mend.MAP, keys.METADATA_MAP)
            return
        for key, raw in rows:
            try:
                self._read_record(key, raw)
            except (TMSError, ValueError) as error:
                where = f"metadata, {key.decode('ascii', 'replace')}"
                yield Damage(where, str(error), Mend.ROW, keys.METADATA_MAP, key)
        for name, topic in sorted(self._topics.items()):
            self.totals.topics += 1
            for partition in range(topic.partitions):
                record = self._partitions.get((topic.uid, partition))
                if record is not None:
                    yield from self._partition(name, topic.uid, partition, record)
        yield from self._unnamed()

    def _read_record(self, key: bytes, raw: bytes) -> None:
        kind, *parts = key.decode("ascii").split("/")
        if kind == "topic":
            self._topics[TopicName(parts[0], parts[1])] = decode(raw, TopicRecord, key)
        elif kind == "partition":
            where = (int(parts[0], 16), int(parts[1]))
            self._partitions[where] = decode(raw, PartitionRecord, key)
        elif kind in _OTHER_RECORDS:
            decode(raw, _OTHER_RECORDS[kind], key)
        elif kind == "deleted":
            self._deleted.add(int(parts[0], 16))
        elif key == keys.TOPIC_UID_COUNTER:
            self._counter = int(raw)

    # --- partitions ------------------------------------------------------------------------------

    def _partition(
        self, name: TopicName, uid: int, partition: int, record: PartitionRecord
    ) -> Iterator[Damage]:
        end: _End | None = None
        for segment in record.segments:
            where = f"{name}, partition {partition}, segment {segment.number}"
            map_name = keys.segment_map(uid, partition, segment.number)
            gaps = record.gaps and segment.sealed
            if end is not None and end.offset != segment.base_offset:
                yield self._gap(where, map_name, end.offset, segment.base_offset, segment)
            end = _End(segment.base_offset, FIRST_KEY if end is None else end.key)
            self.totals.segments += 1
            yield from self._segment(where, map_name, segment, end, gaps)
            if segment.end_offset is not None and segment.last is not None:
                if end.offset < segment.end_offset and not gaps:
                    yield self._gap(where, map_name, end.offset, segment.end_offset, segment)
                end = _End(segment.end_offset, segment.last)

    def _segment(
        self, where: str, map_name: str, segment: SegmentRecord, end: _End, gaps: bool
    ) -> Iterator[Damage]:
        uid, partition, _ = segment_place(map_name) or (0, 0, 0)
        staged = StagedBlocks(self.store, uid, partition)

        def verify(key: bytes, raw: bytes) -> Iterator[Damage]:
            place, header, messages = read_block(key, raw, staged)
            first = place[1] - header.count + 1
            if first < 0 or (place[0], first) <= end.key:
                yield Damage(f"{where}, row {key.hex()}", "its ids do not ascend")
            missing = header.base_offset - end.offset
            if missing < 0 or (missing and not gaps):
                yield self._gap(where, map_name, end.offset, header.base_offset, segment)
            end.offset, end.key = header.base_offset + header.count, place
            self._count(messages, raw)

        yield from self._rows(where, map_name, verify)

    def _rows(
        self, where: str, map_name: str, verify: Callable[[bytes, bytes], Iterator[Damage]]
    ) -> Iterator[Damage]:
        """The findings of `verify` for each row of a map, or its error, and whether the map can be
        read."""
        try:
            for key, raw in scan(self.store.open(map_name, create=False)):
                try:
                    yield from verify(key, raw)
                except TMSError as error:
                    row = f"{where}, row {key.hex()}"
                    yield Damage(row, error.message, Mend.ROW, map_name, key)
        except (DataCorrupt, NotFound) as error:
            mend = Mend.PARTITION if isinstance(error, NotFound) else Mend.MAP
            yield Damage(where, error.message, mend, map_name)

    def _count(self, messages: int, raw: bytes) -> None:
        self.totals.blocks += 1
        self.totals.messages += messages
        self.totals.bytes += len(raw)

    def _gap(
        self, where: str, map_name: str, expected: int, found: int, segment: SegmentRecord
    ) -> Damage:
        if found < expected:
            return Damage(where, f"offset {found} comes after {expected - 1}")
        what = f"offsets {expected} to {found - 1} are missing"
        if segment.sealed and map_name in self.mended:
            return _note(where, f"{what}; the damaged map is kept in damaged/")
        # An open segment is cut at its first gap when it is opened: sealing it keeps what is
        # behind.
        mend = Mend.NOTHING if segment.sealed else Mend.PARTITION
        return Damage(where, what, mend, map_name)

    # --- maps that no record names ---------------------------------------------------------------

    def _unnamed(self) -> Iterator[Damage]:
        live = {topic.uid for topic in self._topics.values()}
        uids = live | self._deleted
        for map_name in self.store.names(""):
            place = segment_place(map_name)
            if place is None:
                delayed = keys.is_delayed_map(map_name)
                if delayed or keys.is_payload_map(map_name):
                    uids.add(keys.topic_of_map(map_name))
                    yield from self._rows(map_name, map_name, self._delayed) if delayed else ()
                elif map_name != keys.METADATA_MAP and not map_name.startswith(keys.TABLES):
                    yield _note(map_name, "no map of TMS has such a name")
                continue
            uid, partition, number = place
            uids.add(uid)
            record = self._partitions.get((uid, partition))
            if uid in self._deleted:
                yield _note(map_name, "belongs to a deleted topic; the next start removes it")
            elif uid not in live:
                yield Damage(map_name, "no topic names it", Mend.TOPIC, map_name)
            elif record is None or number > max((s.number for s in record.segments), default=-1):
                yield from self._unrecorded(map_name)
            elif all(segment.number != number for segment in record.segments):
                yield _note(map_name, "expired; the next start removes it")
        if uids and self._counter < max(uids):
            what = f"the counter of topics is {self._counter}, but {max(uids)} are in use"
            yield Damage("metadata", what, Mend.COUNTER)

    def _delayed(self, key: bytes, raw: bytes) -> Iterator[Damage]:
        """Messages that are not due yet."""
        if key[:1] == b"d":
            self._count(decode_block(entry_of(key, raw).block).count, raw)
        yield from ()

    def _unrecorded(self, map_name: str) -> Iterator[Damage]:
        """A map is recorded before anything is written to it: with rows in it, its record was
        lost."""
        try:
            empty = not self.store.open(map_name, create=False).scan(None, None, 1)
        except TMSError as error:
            yield Damage(map_name, error.message, Mend.MAP, map_name)
            return
        if empty:
            yield _note(map_name, "left by a crash, and empty; the next start removes it")
        else:
            yield Damage(map_name, "no record of a partition names it", Mend.PARTITION, map_name)


def scan(source: Map) -> Iterator[tuple[bytes, bytes]]:
    """All rows of a map, in order, a few at a time."""
    return chain.from_iterable(pages(source, None, None, SCAN_BYTES))


def read_block(key: bytes, raw: bytes, staged: StagedBlocks) -> tuple[BlockKey, BlockHeader, int]:
    """Place, header and number of messages of a stored block, if it and its payload are whole.
    Raises `TMSError`."""
    if len(key) != keys.BLOCK_KEY_BYTES:
        raise DataCorrupt(f"A block's key has {keys.BLOCK_KEY_BYTES} bytes, this one {len(key)}.")
    stored = StoredBlock(0, *keys.split_block_key(key), raw)
    header = read_header(raw)
    try:
        named = staged.resolve(stored).block
    except DataCorrupt:
        if header.flags & Flags.ROLLED_BACK:  # then what it names may go before it
            return keys.split_block_key(key), header, 0
        raise
    columns = decode_block(named)
    whole = read_header(named).count
    if whole != header.count:
        raise DataCorrupt(f"The header says {header.count} messages, there are {whole}.")
    if not isinstance(columns.index, range) and any(a >= b for a, b in pairwise(columns.index)):
        raise DataCorrupt("The index of the messages left in the block does not ascend.")
    return keys.split_block_key(key), header, columns.count


def _note(where: str, what: str) -> Damage:
    return Damage(where, what, severity=Severity.NOTE)
