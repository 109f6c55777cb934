"""A partition as a chain of segments: which maps hold which ids, rolling to a new one, dropping
old ones.

    segment 0 (sealed)   segment 1 (sealed)   segment 2 (open)
    ids  … last 0      < ids … last 1       < ids …

Each is one map, keyed by the ids of the blocks' last messages.

Invariants

* The partition record names every segment. A map that no record names holds nothing that was
  acknowledged: a crash between creating a map and recording it, or between recording a drop and
  dropping, leaves such maps; they are swept at the next start.
* Only the last segment is appended to. Before a segment is sealed everything in it is synced.
* From a sealed segment messages may go (`rewrite`); those that are left stay as they are. The
  record says so before (`gaps`).
* The record changes by compare-and-set, so a second owner is noticed (`StorageUnavailable`), never
  overwritten.

In a store that others may write to (`Store.shared`) there is more to it, because an owner that was
paused, or a write whose answer was lost, may come back at any time:

* Each owner raises the epoch first (`take_over`), then tells the owner before, which from then on
  answers nothing by what it knows, then finds the end, then seals the open segment there. It
  appends to segments of its own only. Who was not told stands in the record (`previous`).
* What is written counts only if the record is unchanged afterwards (`StorageUnavailable`). So what
  an earlier owner writes after the seal was never acknowledged.
* Nothing behind a seal is ever read.
* Neither the epoch is raised nor a write counted by a process that does not own the store, and a
  partition without a record gets one only while its topic is there (`OwnerCheck`).
"""

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET

from tms.errors import (
    Closed,
    Conflict,
    DataCorrupt,
    NotFound,
    StorageUnavailable,
    TopicNotFound,
)
from tms.log.maps import MapStore
from tms.log.records import (
    BlockKey,
    PartitionRecord,
    SegmentRecord,
    decode,
    encode,
    key_after,
)
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import Durability
from tms.store.base import Map, Row, is_last, pages

KEY_END: BlockKey = (2**63, 0)
NEWEST_BYTES = 1 << 20  # looked through at once, of the newest blocks
CUT_BYTES = 4 << 20  # deleted at once
MERGE_PAGE_BYTES = 4 << 20
_NOTHING = PartitionRecord(epoch=0, segments=())
T = TypeVar("T")


class OwnerCheck(Protocol):
    """What has to hold of a partition's owner in a store that others may write to."""

    @property
    def name(self) -> str:
        """As which instance this process owns partitions; empty where it owns the whole store."""
        ...

    def require_owner(self) -> None:
        """Raise `NotOwner` if this process may own nothing of the store now."""
        ...

    def fence(self, owners: Collection[str]) -> None:
        """Let these instances answer nothing by what they know of a partition that they owned."""
        ...

    def require_topic(self) -> None:
        """Raise `TopicNotFound` if the partition's topic, in this generation of it, is gone from
        the store."""
        ...


class Undisputed:
    """The standing of an owner that nobody questions."""

    name = ""

    def require_owner(self) -> None:
        """Nothing to do."""

    def fence(self, owners: Collection[str]) -> None:
        """Nothing to do."""

    def require_topic(self) -> None:
        """Nothing to do."""


class SegmentChain:
    """The segments of one partition. Appending, rolling and dropping are the owner's, one at a
    time; reading is free."""

    __slots__ = (
        "_maps",
        "_metadata",
        "_raw",
        "_standing",
        "_store",
        "_taken",
        "active",
        "key",
        "partition",
        "record",
        "shared",
        "uid",
    )

    def __init__(
        self,
        store: MapStore,
        metadata: Map,
        uid: int,
        partition: int,
        standing: OwnerCheck | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self.uid = uid
        self.partition = partition
        self.shared = store.shared
        self._standing = standing or Undisputed()
        self.key = keys.partition_key(uid, partition)
        self._raw: bytes | None = None
        self.record = _NOTHING
        self.active: SegmentRecord | None = None  # appended to; none before the first append
        self._taken = -1  # the epoch that this owner has raised it to
        self._maps: dict[int, Map] = {}

    def refresh(self) -> None:
        """Read the record; nothing here is true before. The owner's. Raises `TopicNotFound`."""
        raw = self._metadata.get(self.key)
        if raw is None and self.shared:
            self._standing.require_topic()
        self._take(raw, _NOTHING if raw is None else decode(raw, PartitionRecord, self.key))

    # -- owning --------------------------------------------------------------------------------

    def take_over(self) -> bool:
        """Fence off every other owner; after it the end is to be found, and sealed. Whether nobody
        else has owned it since the last time. Does nothing in a store of one process."""
        if not self.shared:
            return True
        standing, record = self._standing, self.record
        standing.require_owner()
        if self._raw is None and not standing.name:
            return False
        before = {record.owner or "", *(record.previous or ())} - {"", standing.name}
        epoch = record.epoch + 1
        self._set(
            msgspec.structs.replace(
                record,
                epoch=epoch,
                owner=standing.name or UNSET,
                previous=tuple(sorted(before)) or UNSET,
            )
        )
        again = record.epoch == self._taken and (record.owner or "") == standing.name
        self._taken = epoch
        if before:
            standing.fence(before)
        return again

    def seal(self, end_offset: int, last: BlockKey, stored_bytes: int) -> None:
        """Let the open segment, which another owner may still write to, end here for good. Does
        nothing in a store of one process."""
        if not self.shared or self.active is None:
            return
        self.write([], Durability.SYNCED)
        sealed = msgspec.structs.replace(
            self.active, end_offset=end_offset, last=last, stored_bytes=stored_bytes
        )
        segments = (*self.record.segments[:-1], sealed)
        self._set(msgspec.structs.replace(self.record, segments=segments, previous=UNSET))

    def require_owned(self) -> None:
        """Raise `StorageUnavailable` if another owner has taken over, and `NotOwner` if that one
        owns the whole store, which only a shared store has."""
        if not self.shared:
            return
        self._standing.require_owner()
        if self._metadata.get(self.key) != self._raw:
            raise StorageUnavailable(
                f"Partition {self.partition} was taken over while it was written to. Try again."
            )

    # -- the open segment ----------------------------------------------------------------------

    def write(self, rows: list[Row], durability: Durability) -> None:
        """Append rows to the open segment. They count only if `require_owned` says so
        afterwards."""
        number = self.record.segments[-1].number
        (self._maps.get(number) or self._map(number)).write(rows, durability)

    def recover(self) -> None:
        """After a failed write: make the metadata and the open segment writable, see `store.base`,
        and read the record again, because a change of it may have taken effect and failed
        nevertheless."""
        self._metadata.recover()
        self.refresh()
        if self.record.segments:
            self._map(self.record.segments[-1].number).recover()

    def stored_bytes(self) -> int:
        """About what all segments take in the store."""
        total = sum(segment.stored_bytes for segment in self.record.segments)
        active = self.active
        return total if active is None else total + self._stored_bytes(active)

    def roll(self, created_ms: int, end_offset: int, last: BlockKey) -> None:
        """Seal the open segment, if there is one, and open the next: its first offset is
        `end_offset`, its ids are above `last`."""
        segments = self.record.segments
        number, epoch = 0, max(1, self.record.epoch)
        if segments:
            number = segments[-1].number + 1
        if self.active is not None:
            sealed = msgspec.structs.replace(
                self.active,
                end_offset=end_offset,
                last=last,
                stored_bytes=self._map(self.active.number).stored_bytes(),
            )
            segments = (*segments[:-1], sealed)
        self._maps[number] = self._new_map(self._name(number))
        new = SegmentRecord(
            number=number, epoch=epoch, created_ms=created_ms, base_offset=end_offset
        )
        self._set(
            msgspec.structs.replace(
                self.record, epoch=epoch, segments=(*segments, new), last=last, previous=UNSET
            )
        )

    def is_current(self, raw: bytes | None) -> bool:
        """Whether a partition's record, as it is in the store now, still names this owner."""
        name = self._standing.name
        if raw == self._raw:  # who tried in vain to take it over has read who owns it
            return (self.record.owner or name) == name
        return raw is not None and decode(raw, PartitionRecord, self.key).owner == name

    def _new_map(self, name: str) -> Map:
        """An empty map. One that is there was left by a crash before it was recorded; where others
        may be at work, it is also theirs, so it is taken as it is: nothing is ever written to a
        segment before the record names it."""
        if not self.shared:
            self._store.drop(name)
            return self._store.open(name, create=True)
        try:
            return self._store.open(name, create=True)
        except Conflict:
            return self._store.open(name, create=False)

    # -- the old end ---------------------------------------------------------------------------

    def raise_floor(self, floor: BlockKey) -> None:
        """Make everything before `floor` unreadable and drop the sealed segments that lie before
        it."""
        sealed = self.record.segments[:-1]  # the last one stays, sealed or not: it has the end
        dropped = [s for s in sealed if s.last is not None and s.last < floor]
        kept = self.record.segments[len(dropped) :]
        if floor <= self.record.floor and not dropped:
            return
        self._set(
            msgspec.structs.replace(self.record, segments=kept, floor=max(floor, self.record.floor))
        )
        for segment in dropped:
            self._maps.pop(segment.number, None)
            self._store.drop(self._name(segment.number))

    # -- messages that go ----------------------------------------------------------------------

    def note_gaps(self, forgotten: BlockKey) -> None:
        """Note that messages will be missing in sealed segments, up to a key perhaps the newest of
        their keys."""
        record = self.record
        if not record.gaps or forgotten > record.forgotten:
            self._set(msgspec.structs.replace(record, gaps=True, forgotten=forgotten))

    def rewrite(
        self,
        segment: SegmentRecord,
        blocks: list[StoredBlock],
        gone: list[BlockKey],
        durability: Durability = Durability.WRITTEN,
    ) -> None:
        """Put changed blocks of a sealed segment in the place of the stored ones, and take blocks
        out. `note_gaps` came before; each of the changes alone may survive a crash."""
        self.require_owned()
        rows = [
            (keys.block_key(block.time_ms, block.last_sequence), block.block) for block in blocks
        ]
        map_ = self._map(segment.number)
        map_.recover()  # what failed before is done again
        if rows:
            map_.overwrite(rows, durability)
        map_.delete([keys.block_key(*key) for key in gone])

    def reclaim(self, segment: SegmentRecord, pause: Callable[[], None]) -> None:
        """Give back what a sealed segment took before it was rewritten, for good; with what a
        `merge` that was interrupted has left behind its end."""
        map_ = self._map(segment.number)
        map_.recover()
        if not self.shared and segment.last is not None:
            self.cut(segment, key_after(segment.last))
        map_.reclaim(pause)

    def merge(self, first: SegmentRecord, second: SegmentRecord) -> None:
        """Let a sealed segment end where the next one ends, whose blocks it gets, and which goes.
        Until the record says so they lie behind its end, where nobody reads. Only in a store of one
        process: elsewhere what lies there is dropped at any time."""
        assert not self.shared and first.last is not None and second.last is not None
        self.cut(first, key_after(first.last))
        source, target = self._map(second.number), self._map(first.number)
        target.recover()
        for page in pages(source, None, _stop(second), MERGE_PAGE_BYTES):
            target.write(page, Durability.WRITTEN)
        target.write([], Durability.SYNCED)
        longer = msgspec.structs.replace(
            first,
            end_offset=second.end_offset,
            last=second.last,
            stored_bytes=target.stored_bytes(),
        )
        segments = self.record.segments
        at = segments.index(first)
        kept = (*segments[:at], longer, *segments[at + 2 :])
        self._set(msgspec.structs.replace(self.record, segments=kept))
        self.drop_unnamed(self._name(second.number))

    def drop_unnamed(self, name: str) -> None:
        """Drop a map that was a segment, if the record does not name it any more."""
        if all(self._name(segment.number) != name for segment in self.record.segments):
            for number in [number for number in self._maps if self._name(number) == name]:
                del self._maps[number]
            self._store.drop(name)

    def resize(self, number: int) -> int:
        """Note what a sealed segment takes now; how many bytes less than before. One that is empty
        goes, and the next begins where it began, if that is sealed: where an open one begins is
        where its first block begins."""
        segments = self.record.segments
        at = next((at for at, segment in enumerate(segments) if segment.number == number), None)
        if at is None:
            return 0
        mine, behind = segments[at], segments[at + 1 :]
        empty = bool(behind) and behind[0].sealed and not self._map(number).scan(None, None, 1)
        stored_bytes = 0 if empty else self._map(number).stored_bytes()
        if empty:
            longer = msgspec.structs.replace(behind[0], base_offset=mine.base_offset)
            behind = (longer, *behind[1:])
        else:
            behind = (msgspec.structs.replace(mine, stored_bytes=stored_bytes), *behind)
        self._set(msgspec.structs.replace(self.record, segments=(*segments[:at], *behind)))
        if empty:
            del self._maps[number]
            self._store.drop(self._name(number))
        return max(0, mine.stored_bytes - stored_bytes)

    # -- reading -------------------------------------------------------------------------------

    def scan(self, start: BlockKey, stop: BlockKey, bytes_max: int) -> list[StoredBlock]:
        """Blocks whose last message is in [start, stop), in order, at least one if there is one: a
        segment is entered only when nothing more is in the one before."""
        return _heeding_merges(lambda: self._scan(start, stop, bytes_max))

    def _scan(self, start: BlockKey, stop: BlockKey, bytes_max: int) -> list[StoredBlock]:
        blocks: list[StoredBlock] = []
        room = max(1, bytes_max)
        for segment in self.record.segments:
            if segment.last is not None and segment.last < start:
                continue
            page = self._rows(segment, start, stop, room)
            blocks += self._stored(page)
            if not is_last(page, room):
                break
            room -= sum(len(key) + len(value) for key, value in page)
            if segment.last is not None and segment.last >= stop:
                break
        return blocks

    def scan_segment(
        self, segment: SegmentRecord, start: BlockKey, bytes_max: int, stop: BlockKey = KEY_END
    ) -> list[StoredBlock]:
        """Like `scan`, of one segment."""
        return self._stored(self._rows(segment, start, stop, bytes_max))

    def before(self, key: BlockKey) -> StoredBlock | None:
        """The last block before a key."""
        return _heeding_merges(lambda: self._before(key))

    def _before(self, key: BlockKey) -> StoredBlock | None:
        found = (self.last_block(segment, key) for segment in reversed(self.record.segments))
        return next((block for block in found if block is not None), None)

    def newest(self, count: int) -> list[tuple[int, StoredBlock]]:
        """The newest `count` blocks with their segment's number, newest first."""
        return _heeding_merges(lambda: self._newest(count))

    def _newest(self, count: int) -> list[tuple[int, StoredBlock]]:
        sized: list[tuple[int, StoredBlock]] = []
        for segment in reversed(self.record.segments):
            stop = _stop(segment)
            while len(sized) < count:
                rows = self._scan_map(segment, None, stop, NEWEST_BYTES, reverse=True)
                if not rows:
                    break
                blocks = self._stored(rows[: count - len(sized)])
                sized += ((segment.number, block) for block in blocks)
                stop = rows[-1][0]
        return sized

    def last_block(self, segment: SegmentRecord, before: BlockKey = KEY_END) -> StoredBlock | None:
        """The newest block of one segment, of those before a key. Raises `StorageUnavailable` if
        they have moved into another one."""
        stop = before if segment.last is None else min(before, key_after(segment.last))
        rows = self._scan_map(segment, None, keys.block_key(*stop), 1, reverse=True)
        return self._stored(rows)[0] if rows else None

    def replace(self, blocks: list[StoredBlock], durability: Durability) -> None:
        """Write blocks again that are stored, with other flags."""
        for segment in self.record.segments:
            rows = [
                (keys.block_key(block.time_ms, block.last_sequence), block.block)
                for block in blocks
                if self._number_of((block.time_ms, block.last_sequence)) == segment.number
            ]
            if rows:
                self._map(segment.number).overwrite(rows, durability)
                self.require_owned()

    def _number_of(self, key: BlockKey) -> int:
        for segment in self.record.segments:
            if segment.last is None or key <= segment.last:
                return segment.number
        return -1

    def cut(self, segment: SegmentRecord, start: BlockKey) -> tuple[int, BlockKey]:
        """Delete all blocks of a segment at or after `start`; how many, and the greatest key, which
        is not to be given out again. Only for recovery."""
        count, last = 0, start
        while rows := self._map(segment.number).scan(keys.block_key(*start), None, CUT_BYTES):
            self._map(segment.number).delete([key for key, _ in rows])
            count += len(rows)
            last = max(last, keys.split_block_key(rows[-1][0]))
        return count, last

    def segment_stored_bytes(self, segment: SegmentRecord) -> int:
        """About what one segment takes in the store."""
        return segment.stored_bytes if segment.sealed else self._stored_bytes(segment)

    def _stored_bytes(self, segment: SegmentRecord) -> int:
        try:
            return self._map(segment.number).stored_bytes()
        except (NotFound, Closed):
            if self._names(segment.number):
                raise
            return 0  # it was sealed meanwhile, and is gone

    def _rows(
        self, segment: SegmentRecord, start: BlockKey, stop: BlockKey, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        if segment.last is not None:
            stop = min(stop, key_after(segment.last))
        return self._scan_map(segment, keys.block_key(*start), keys.block_key(*stop), bytes_max)

    def _scan_map(
        self,
        segment: SegmentRecord,
        start: bytes | None,
        stop: bytes | None,
        bytes_max: int,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """The rows of a segment that the record named a moment ago."""
        try:
            return self._map(segment.number).scan(start, stop, bytes_max, reverse=reverse)
        except (NotFound, Closed):
            # Retention dropped it, or it was merged, between our look at the record and the scan.
            if self._names(segment.number):
                raise
            if any(
                known.number < segment.number and _reaches(known, segment)
                for known in self.record.segments
            ):
                raise _Merged from None
            return []

    def _names(self, number: int) -> bool:
        """Whether the record names a segment."""
        return any(known.number == number for known in self.record.segments)

    # -- inside --------------------------------------------------------------------------------

    def _stored(self, rows: list[tuple[bytes, bytes]]) -> list[StoredBlock]:
        return [StoredBlock(self.partition, *keys.split_block_key(key), row) for key, row in rows]

    def _name(self, number: int) -> str:
        return keys.segment_map(self.uid, self.partition, number)

    def _map(self, number: int) -> Map:
        map_ = self._maps.get(number)
        if map_ is None:
            try:
                map_ = self._maps[number] = self._store.open(self._name(number), create=False)
            except NotFound as exc:
                if not self._names(number):
                    raise
                raise DataCorrupt(
                    f"Segment {number} of partition {self.partition} is recorded but its map "
                    f"{self._name(number)} is missing. Run `tms fsck`."
                ) from exc
        return map_

    def _set(self, record: PartitionRecord) -> None:
        raw, first = encode(record), self._raw is None
        if not self._metadata.compare_and_set(self.key, self._raw, raw):
            raise StorageUnavailable(
                f"The record of partition {self.partition} was changed by another owner. Try again."
            )
        if first and self.shared:
            self._require_needed(raw)
        self._take(raw, record)

    def _require_needed(self, raw: bytes) -> None:
        """Remove the first record again if the topic was deleted before the record was written: a
        deletion removes the topic's record first, then those of its partitions."""
        try:
            self._standing.require_topic()
        except TopicNotFound:
            self._metadata.compare_and_set(self.key, raw, None)
            raise

    def _take(self, raw: bytes | None, record: PartitionRecord) -> None:
        last = record.segments[-1] if record.segments else None
        self._raw, self.record = raw, record
        self.active = None if last is None or last.sealed else last


class _Merged(StorageUnavailable):
    """The blocks of a segment have moved into the one before."""

    def __init__(self) -> None:
        super().__init__("A segment was merged into the one before while it was read. Try again.")


def _heeding_merges(read: Callable[[], T]) -> T:
    """What is read, again from the beginning when blocks have moved meanwhile: by then the record
    names the segment in which they are."""
    while True:
        try:
            return read()
        except _Merged:
            continue


def _reaches(earlier: SegmentRecord, segment: SegmentRecord) -> bool:
    """Whether the blocks of a segment may be in an earlier one; of one that was still open when we
    looked nobody knows where it ended."""
    if earlier.last is None:
        return False
    return segment.last is None or earlier.last >= segment.last


def _stop(segment: SegmentRecord) -> bytes | None:
    """The end of a segment's keys: what lies behind a seal is none of the partition's."""
    return None if segment.last is None else keys.block_key(*key_after(segment.last))
