"""A partition as a chain of segments: the maps and their ranges of ids, rolling to a new one,
dropping old ones.

    segment 0 (sealed)   segment 1 (sealed)   segment 2 (open)
    ids  … last 0      < ids … last 1       < ids …

Each is one map, keyed by the ids of the blocks' last messages.

Invariants

* The partition record names every segment. A map that no record names holds no acknowledged block:
  a crash between creating a map and recording it, or between recording a drop and dropping, leaves
  such maps; they are swept at the next start.
* Only the last segment is appended to. Before a segment is sealed everything in it is synced.
* Messages may be removed from a sealed segment (`rewrite`); the others stay as they are. The record
  says so before (`gaps`).
* The record changes by compare-and-set, so a second owner is noticed (`StorageUnavailable`), never
  overwritten.

In a store that others may write to (`Store.shared`) an owner that was paused, or a write whose
answer was lost, may come back at any time. Therefore:

* Each owner raises the epoch first (`take_over`), then fences the previous owner, which from then
  on answers no request from memory, then finds the end, then seals the open segment there. It
  appends to segments of its own only. The record names the owners that could not be fenced
  (`previous`).
* A write counts only if the record is unchanged afterwards (`StorageUnavailable`). So blocks that
  an earlier owner writes after the seal were never acknowledged.
* Nothing behind a seal is ever read.
* A process that does not own the store neither raises the epoch nor counts a write, and a partition
  without a record gets one only while its topic exists (`OwnerCheck`).
"""

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET

from tms.errors import Closed, Conflict, DataCorrupt, NotFound, StorageUnavailable, TopicNotFound
from tms.log.maps import MapStore
from tms.log.records import BlockKey, PartitionRecord, SegmentRecord, decode, encode, key_after
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import Durability
from tms.store.base import Map, MapRow, is_last, pages

KEY_END: BlockKey = (2**63, 0)
NEWEST_BYTES = 1 << 20  # of the newest blocks, read at once
CUT_BYTES = 4 << 20  # deleted at once
MERGE_PAGE_BYTES = 4 << 20
_NOTHING = PartitionRecord(epoch=0, segments=())
T = TypeVar("T")


class OwnerCheck(Protocol):
    """Checks of a partition's owner in a store that others may write to."""

    @property
    def name(self) -> str:
        """The name of the instance as which this process owns partitions; empty if it owns the
        whole store."""
        ...

    def require_owner(self) -> None:
        """Raise `NotOwner` if this process owns no part of the store now."""
        ...

    def fence(self, owners: Collection[str]) -> None:
        """Stop these instances, earlier owners of a partition, from answering requests about it
        from memory."""
        ...

    def require_topic(self) -> None:
        """Raise `TopicNotFound` if this generation of the partition's topic is gone from the
        store."""
        ...


class SoleOwner:
    """The check of an owner in a store of one process, which always passes."""

    name = ""

    def require_owner(self) -> None:
        """Nothing to do."""

    def fence(self, owners: Collection[str]) -> None:
        """Nothing to do."""

    def require_topic(self) -> None:
        """Nothing to do."""


class SegmentChain:
    """The segments of one partition. The owner appends, rolls and drops, one call at a time; any
    thread may read."""

    __slots__ = (
        "_maps",
        "_metadata",
        "_owner_check",
        "_raw",
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
        owner_check: OwnerCheck | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self.uid = uid
        self.partition = partition
        self.shared = store.shared
        self._owner_check = owner_check or SoleOwner()
        self.key = keys.partition_key(uid, partition)
        self._raw: bytes | None = None
        self.record = _NOTHING
        self.active: SegmentRecord | None = None  # None before the first append
        self._taken = -1  # the epoch of this owner
        self._maps: dict[int, Map] = {}

    def refresh(self) -> None:
        """Read the record, which the owner does before anything else. Raises `TopicNotFound`."""
        raw = self._metadata.get(self.key)
        if raw is None and self.shared:
            self._owner_check.require_topic()
        self._take(raw, _NOTHING if raw is None else decode(raw, PartitionRecord, self.key))

    # -- owning --------------------------------------------------------------------------------

    def take_over(self) -> bool:
        """Fence off every other owner; the caller then finds the end and seals it. True if no other
        owner has come since the last time. Does nothing in a store of one process."""
        if not self.shared:
            return True
        owner_check, record = self._owner_check, self.record
        owner_check.require_owner()
        if self._raw is None and not owner_check.name:
            return False
        before = {record.owner or "", *(record.previous or ())} - {"", owner_check.name}
        epoch = record.epoch + 1
        self._set(
            msgspec.structs.replace(
                record,
                epoch=epoch,
                owner=owner_check.name or UNSET,
                previous=tuple(sorted(before)) or UNSET,
            )
        )
        again = record.epoch == self._taken and (record.owner or "") == owner_check.name
        self._taken = epoch
        if before:
            owner_check.fence(before)
        return again

    def seal(self, end_offset: int, last: BlockKey, stored_bytes: int) -> None:
        """End the open segment, which another owner may still write to, here for good. Does nothing
        in a store of one process."""
        if not self.shared or self.active is None:
            return
        self.write([], Durability.SYNCED)
        sealed = msgspec.structs.replace(
            self.active, end_offset=end_offset, last=last, stored_bytes=stored_bytes
        )
        segments = (*self.record.segments[:-1], sealed)
        self._set(msgspec.structs.replace(self.record, segments=segments, previous=UNSET))

    def require_owned(self) -> None:
        """Raise `StorageUnavailable` if another owner has taken over, and `NotOwner` if another
        process owns the whole store, which may only happen to a shared store."""
        if not self.shared:
            return
        self._owner_check.require_owner()
        if self._metadata.get(self.key) != self._raw:
            raise StorageUnavailable(
                f"Partition {self.partition} was taken over while it was written to. Try again."
            )

    # -- the open segment ----------------------------------------------------------------------

    def write(self, rows: list[MapRow], durability: Durability) -> None:
        """Append rows to the open segment. They count only if `require_owned` passes afterwards."""
        number = self.record.segments[-1].number
        (self._maps.get(number) or self._map(number)).write(rows, durability)

    def recover(self) -> None:
        """After a failed write: make the metadata and the open segment writable, as `store.base`
        requires, and read the record again, because a change that failed may have taken effect."""
        self._metadata.recover()
        self.refresh()
        if self.record.segments:
            self._map(self.record.segments[-1].number).recover()

    def stored_bytes(self) -> int:
        """Approximate bytes that all segments take in the store."""
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
        """True if a partition's record, as read from the store, still names this owner."""
        name = self._owner_check.name
        if raw == self._raw:  # an owner that failed to take over has read the record, too
            return (self.record.owner or name) == name
        return raw is not None and decode(raw, PartitionRecord, self.key).owner == name

    def _new_map(self, name: str) -> Map:
        """A map for a new segment. A crash before the map was recorded may have left one with this
        name. In a shared store it may be another process's, so it is used as it is: nothing is
        written to a segment before the record names it."""
        if not self.shared:
            self._store.drop(name)
            return self._store.open(name, create=True)
        try:
            return self._store.open(name, create=True)
        except Conflict:
            return self._store.open(name, create=False)

    # -- the old end ---------------------------------------------------------------------------

    def raise_floor(self, floor: BlockKey) -> None:
        """Make everything before `floor` unreadable and drop the sealed segments before it."""
        sealed = self.record.segments[:-1]  # the last one stays: it says where the partition ends
        dropped = [s for s in sealed if s.last is not None and s.last < floor]
        rest = self.record.segments[len(dropped) :]
        if floor <= self.record.floor and not dropped:
            return
        self._set(
            msgspec.structs.replace(self.record, segments=rest, floor=max(floor, self.record.floor))
        )
        for segment in dropped:
            self._maps.pop(segment.number, None)
            self._store.drop(self._name(segment.number))

    # -- messages that go ----------------------------------------------------------------------

    def note_gaps(self, forgotten: BlockKey) -> None:
        """Record that messages will be missing in sealed segments; up to the key `forgotten`,
        perhaps the newest ones of their keys."""
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
        """Replace changed blocks of a sealed segment, and remove the blocks `gone`. The caller has
        called `note_gaps`; each of the changes alone may survive a crash."""
        self.require_owned()
        rows = [
            (keys.block_key(block.time_ms, block.last_sequence), block.block) for block in blocks
        ]
        map_ = self._map(segment.number)
        map_.recover()  # after a failure: the changes are made again
        if rows:
            map_.overwrite(rows, durability)
        map_.delete([keys.block_key(*key) for key in gone])

    def reclaim(self, segment: SegmentRecord, pause: Callable[[], None]) -> None:
        """Reclaim the space that a sealed segment took before it was rewritten, for good, with the
        blocks that an interrupted `merge` has left behind its end."""
        map_ = self._map(segment.number)
        map_.recover()
        if not self.shared and segment.last is not None:
            self.cut(segment, key_after(segment.last))
        map_.reclaim(pause)

    def merge(self, first: SegmentRecord, second: SegmentRecord) -> None:
        """Append the blocks of a sealed segment to the one before, which then ends where the second
        one ended; the second one is dropped. Until the record changes they lie behind the end of
        the first, where they are not read. Only in a store of one process: a shared store may drop
        rows behind a seal at any time."""
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
        merged = (*segments[:at], longer, *segments[at + 2 :])
        self._set(msgspec.structs.replace(self.record, segments=merged))
        self.drop_unnamed(self._name(second.number))

    def drop_unnamed(self, name: str) -> None:
        """Drop a map of a former segment, unless the record still names it."""
        if all(self._name(segment.number) != name for segment in self.record.segments):
            for number in [number for number in self._maps if self._name(number) == name]:
                del self._maps[number]
            self._store.drop(name)

    def resize(self, number: int) -> int:
        """Record the present size of a sealed segment; returns the bytes that it shrank by. An
        empty segment is dropped, and the next one begins at its offset, if that is sealed: an open
        segment begins where its first block begins."""
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
        segment is entered only if the one before has no more."""
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
        """The newest block of one segment before a key. Raises `StorageUnavailable` if its blocks
        have moved into another segment."""
        stop = before if segment.last is None else min(before, key_after(segment.last))
        rows = self._scan_map(segment, None, keys.block_key(*stop), 1, reverse=True)
        return self._stored(rows)[0] if rows else None

    def replace(self, blocks: list[StoredBlock], durability: Durability) -> None:
        """Overwrite stored blocks with the same ones that have other flags."""
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
        """Delete all blocks of a segment at or after `start`; returns their number and the greatest
        key, which must not be assigned again. Only for recovery."""
        count, last = 0, start
        while rows := self._map(segment.number).scan(keys.block_key(*start), None, CUT_BYTES):
            self._map(segment.number).delete([key for key, _ in rows])
            count += len(rows)
            last = max(last, keys.split_block_key(rows[-1][0]))
        return count, last

    def segment_stored_bytes(self, segment: SegmentRecord) -> int:
        """Approximate bytes that one segment takes in the store."""
        return segment.stored_bytes if segment.sealed else self._stored_bytes(segment)

    def _stored_bytes(self, segment: SegmentRecord) -> int:
        try:
            return self._map(segment.number).stored_bytes()
        except (NotFound, Closed):
            if self._names(segment.number):
                raise
            return 0  # the segment was sealed meanwhile, and dropped

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
        """The rows of a segment that the record has just named."""
        try:
            return self._map(segment.number).scan(start, stop, bytes_max, reverse=reverse)
        except (NotFound, Closed):
            # Retention dropped it, or it was merged, after the record was read and before the scan.
            if self._names(segment.number):
                raise
            if any(
                known.number < segment.number and _reaches(known, segment)
                for known in self.record.segments
            ):
                raise _Merged from None
            return []

    def _names(self, number: int) -> bool:
        """True if the record names a segment."""
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
        """Remove the first record of a partition again if the topic was deleted before the record
        was written: a deletion removes the topic's record first, then those of its partitions."""
        try:
            self._owner_check.require_topic()
        except TopicNotFound:
            self._metadata.compare_and_set(self.key, raw, None)
            raise

    def _take(self, raw: bytes | None, record: PartitionRecord) -> None:
        last = record.segments[-1] if record.segments else None
        self._raw = raw
        self.record = record
        self.active = None if last is None or last.sealed else last


class _Merged(StorageUnavailable):
    """Raised if the blocks of a segment have moved into the one before."""

    def __init__(self) -> None:
        super().__init__("A segment was merged into the one before while it was read. Try again.")


def _heeding_merges(read: Callable[[], T]) -> T:
    """The result of `read`, repeated when blocks have moved meanwhile: by then the record names the
    segment that has them."""
    while True:
        try:
            return read()
        except _Merged:
            continue


def _reaches(earlier: SegmentRecord, segment: SegmentRecord) -> bool:
    """True if the blocks of a segment may be in an earlier one. The end of a segment that was still
    open when its record was read is unknown."""
    if earlier.last is None:
        return False
    return segment.last is None or earlier.last >= segment.last


def _stop(segment: SegmentRecord) -> bytes | None:
    """The end of a segment's keys: rows behind a seal do not belong to the partition."""
    return None if segment.last is None else keys.block_key(*key_after(segment.last))
