"""A partition that another process owns: its begin and end, and its committed blocks.

    segment 0 (sealed)    segment 1 (sealed)    segment 2 (open)
    up to its seal        up to its seal        up to where its owner cannot take it back: `ending`

    scan a page ─▶ is all of it still kept? ─▶ fate_of ─▶ staged blocks in their places

Invariants

* Nothing behind a seal is shown, and nothing of an open segment that may be taken back.
* Nothing is shown that is expired or truncated, or of a transaction that is not committed, and
  nothing at or after the first message that the image does not decide. The image was read before
  any row: so what is not invalid there, and not marked in its row, is committed.
* The end never goes back within one `ObservedPartition`.
* Rows go when a topic is deleted, truncated or expires, at any time. So after each page the records
  are read again, and it is shown only if nothing between the last one and its end may have gone:
  whoever gets blocks gets all of them, of one generation of the topic, or an error.
* Where the search for what is not decided begins is told by clocks, which may be wrong. So what is
  shown is judged once more, and an undecided message there is an error.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import msgspec

from tms.block import Flags
from tms.engine.observer.ending import End, open_end
from tms.engine.observer.rows import PartitionRows
from tms.errors import Closed, DataCorrupt, NotFound, OffsetOutOfRange, StorageUnavailable, TMSError
from tms.log.records import FIRST_KEY, BlockKey, SegmentRecord, key_after, key_before
from tms.log.search import BlockPlace, place_of, search, start_key
from tms.log.staging import StagedBlocks, is_reference
from tms.log.trimming import trimmed
from tms.log.visibility import visible_blocks
from tms.model.message import StoredBlock
from tms.model.position import Position, PositionKind
from tms.model.transaction_image import Fates

CLOCK_SLACK_MS = 10_000  # by which a clock may have gone back while a transaction was in progress
READ_BYTES = 8 << 20
_ATTEMPTS = 40
_PAUSE_S = 0.05
PLACES_MAX = 16
_NOTHING = End(0, FIRST_KEY)


@dataclass(slots=True)
class KnownPartition:
    """The knowledge of earlier reads of a partition: an end before which every message is decided,
    and the keys of the first messages of some blocks, by offset. A place that was found stays true
    as long as the topic lives."""

    end: End = _NOTHING
    places: dict[int, BlockKey] = field(default_factory=dict)

    def note(self, offset: int, key: BlockKey) -> None:
        """Keep a place, and the newest ones that were noted before."""
        kept = [*self.places.items()][1 - PLACES_MAX :]
        self.places = {**dict(kept), offset: key}

    def place(self, offset: int) -> BlockKey | None:
        """The key that parts what is before an offset from what is not, when it is known."""
        return self.end.key if offset == self.end.offset else self.places.get(offset)


class Piece(NamedTuple):
    """Offsets that lie in one segment, and about how many bytes they take."""

    start: int
    stop: int
    bytes: int


class ObservedPartition:
    """A partition as it stood at the first call. `known`: its end and keys from earlier reads."""

    def __init__(
        self,
        rows: PartitionRows,
        staged: StagedBlocks,
        has_foreign: bool,
        fates: Fates,
        floor: BlockKey,
        known: KnownPartition,
    ) -> None:
        self.partition = rows.partition
        self.uid = rows.uid
        self._has_foreign = has_foreign  # whether transactions of others have written to the topic
        self._rows = rows
        self._staged = staged
        self._fates = fates
        self._known = known
        self._record = self._rows.record()
        self.floor = max(floor, self._record.floor)

    @property
    def segments(self) -> tuple[SegmentRecord, ...]:
        """The segments that retention holds; an open one as if it were sealed at its end."""
        stored, segments = self._stored_end, self._record.segments
        if not segments or segments[-1].sealed:
            return segments
        last = key_before(stored.key)
        sealed = msgspec.structs.replace(segments[-1], end_offset=stored.offset, last=last)
        return (*segments[:-1], sealed)

    # -- offsets -------------------------------------------------------------------------------

    def start(self) -> int:
        """The offset of the first readable message, or the end."""
        return self._offset_from(FIRST_KEY)

    def end(self) -> End:
        """The end of the decided messages; what lies before it only changes when it expires."""
        return self._decided_end

    def decided(self, offset: int) -> End:
        """An end before which every message is decided: one that is known already if the offset
        lies before it."""
        return self._known.end if self._known.end.offset >= offset else self.end()

    def offset_at(self, position: Position) -> int:
        """The offset of the first readable message at or after a position; never beyond the
        end."""
        if position.kind is PositionKind.EARLIEST:
            return self.start()
        if position.kind is PositionKind.LATEST:
            return self.end().offset
        if position.kind is PositionKind.OFFSET:
            return max(self.start(), min(position.number, self.decided(position.number).offset))
        found = self._offset_from(start_key(position, FIRST_KEY))
        return min(found, self.decided(found).offset)

    def find(self, offset: int) -> BlockPlace | None:
        """The stored block that has an offset or, where it was cleaned away, the next one. Reads a
        few blocks."""
        begin = self.floor
        for segment in self._record.segments:
            last, end = segment.last, segment.end_offset
            if end is None or last is None:
                newest = self._rows.before(segment.number, None)
                if newest is None:
                    return None
                last, end = newest.key, newest.end_offset
            if offset < end and begin <= last:
                first_from = partial(self._rows.first, segment.number)
                found = search(first_from, begin, last, end, offset)
                if found is not None:
                    return found
            begin = max(begin, key_after(last))
        return None

    def locate(self, offset: int) -> BlockKey:
        """The key of the message that has an offset or, where it was cleaned away, of the next
        one; the end when there is none."""
        found = self.find(offset)
        if found is None:
            return self._stored_end.key
        return found.key_of(offset)

    def span(self, start: int, stop: int) -> tuple[BlockKey, BlockKey]:
        """The keys, half open, between which the blocks stand that overlap a range of offsets."""
        known = self._known.place
        begin, end = known(start) or self.locate(start), known(stop)
        if end is not None:
            return begin, end
        last = self.find(stop - 1)
        if last is None:
            return begin, self.end().key
        return begin, key_after(last.key) if last.base_offset < stop else last.key

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The parts of a range of offsets, by segment."""
        found: list[Piece] = []
        rate = 1.0  # bytes per offset
        for segment in self._record.segments:
            end = segment.end_offset if segment.end_offset is not None else max(stop, start)
            if segment.stored_bytes and end > segment.base_offset:
                rate = segment.stored_bytes / (end - segment.base_offset)
            low, high = max(start, segment.base_offset), min(stop, end)
            if low < high:
                found.append(Piece(low, high, max(1, int((high - low) * rate))))
        return found

    # -- blocks --------------------------------------------------------------------------------

    def blocks(self, start: BlockKey, stop: BlockKey) -> Iterator[StoredBlock]:
        """The blocks of `pages`, one by one."""
        for page in self.pages(start, stop):
            yield from page

    def pages(self, start: BlockKey, stop: BlockKey) -> Iterator[list[StoredBlock]]:
        """The committed blocks whose last message is in [start, stop), in order, some at a time.
        Expired blocks are left out. `stop` is at most an end that was read. Raises
        `OffsetOutOfRange` when some blocks go meanwhile, `TopicNotFound` when all do."""
        begin = max(start, self.floor)
        unsure = start < self.floor  # whether there is anything at `begin`
        for found in self._scanned(begin, stop):
            if unsure:
                begin, unsure = max(begin, place_of(found[0]).first), False
            self._require(begin)
            try:
                page = shown(found, self.floor, self._fates, self._staged.resolve)
            except TMSError as error:
                self._require(begin)  # its staged blocks go with it
                left = self._left(found)
                if not isinstance(error, DataCorrupt) or len(left) == len(found):
                    raise
                page = shown(left, self.floor, self._fates, self._staged.resolve) if left else []
            yield page
            begin = key_after(_key_of(found[-1]))
        if begin < stop and not unsure:
            self._require(begin)

    def _left(self, found: list[StoredBlock]) -> list[StoredBlock]:
        """The blocks that compaction has not removed since they were read, and is not removing."""

        def is_there(one: StoredBlock) -> bool:
            there = self.block_at(_key_of(one))
            return (
                there is not None
                and there.key == _key_of(one)
                and not there.flags & Flags.ROLLED_BACK
            )

        return [one for one in found if not is_reference(one) or is_there(one)]

    def block_at(self, key: BlockKey) -> BlockPlace | None:
        """The first stored block whose last message is at a key or behind it."""
        key = max(key, self.floor)
        for segment in self._record.segments:
            if segment.last is not None and segment.last < key:
                continue
            for stop in self._stops(segment):
                found = self._rows.first(segment.number, key, key_before(stop))
                if found is not None:
                    return found
        return None

    def _stops(self, segment: SegmentRecord) -> Iterator[BlockKey]:
        """Before which keys a segment's rows count; of an open one first what is known."""
        if segment.last is not None:
            yield key_after(segment.last)
        else:
            yield self._known.end.key
            yield self._stored_end.key

    def _require(self, begin: BlockKey) -> None:
        """Raise `OffsetOutOfRange` unless retention still holds every row from this key on."""
        floor = self._rows.floor()
        if floor <= begin:
            return
        self._record, self.floor = self._rows.record(), max(floor, self.floor)
        earliest = self.start()
        raise OffsetOutOfRange(
            f"Messages of partition {self.partition} of the topic expired, or were truncated, "
            f"before they were read; what is kept begins at offset {earliest}. Go on there, or "
            "keep messages for longer.",
            earliest=earliest,
        )

    # -- the end -------------------------------------------------------------------------------

    @cached_property
    def _stored_end(self) -> End:
        """The end of the rows that are stored for good (`tms.engine.observer.ending`)."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                threading.Event().wait(_PAUSE_S)
            seen = self._record = self._rows.record()
            self.floor = max(self.floor, seen.floor)
            last = seen.segments[-1] if seen.segments else None
            if last is None:
                return End(0, FIRST_KEY)
            if last.end_offset is not None and last.last is not None:
                return End(last.end_offset, key_after(last.last))
            settled = last.epoch == seen.epoch
            if not settled and attempt < _ATTEMPTS // 2:
                continue  # it takes a moment, unless who takes over has died
            try:
                end = open_end(self._rows.segment(last.number), last, seen.last, settled)
            except (NotFound, Closed):
                continue
            if self._rows.record() == seen:
                return end
        raise StorageUnavailable(
            f"Partition {self.partition} changes hands all the time; try again later."
        )

    @cached_property
    def _decided_end(self) -> End:
        known, end = self._known.end, self._stored_end
        since_ms = self._fates.undecided_since_ms(self._has_foreign) - CLOCK_SLACK_MS
        start = max(self.floor, (max(0, since_ms), 0), known.key)
        for found in self._scanned(start, end.key):
            visible = visible_blocks(found, self._fates.of)
            if visible.stop is not None:
                end = End(visible.end_offset, start_key(visible.stop, FIRST_KEY))
                break
        self._known.end = end = max(end, self._known.end)
        return end

    # -- rows ----------------------------------------------------------------------------------

    def _scanned(self, start: BlockKey, stop: BlockKey) -> Iterator[list[StoredBlock]]:
        """The stored blocks from `start` to before `stop`, page by page."""
        for segment in self._record.segments:
            behind = stop if segment.last is None else min(stop, key_after(segment.last))
            while start < behind and (
                found := self._rows.scan(segment.number, start, behind, READ_BYTES)
            ):
                yield found
                start = key_after(_key_of(found[-1]))

    def _offset_from(self, start: BlockKey) -> int:
        start = max(start, self.floor)
        found = self.block_at(start)
        gaps = self._record.gaps
        if found is None:
            end = self._stored_end
            return self._behind(start) if gaps and start < end.key else end.offset
        if start > found.first:
            return found.offset_of(start)
        self._known.note(found.base_offset, found.first)
        return min(found.base_offset, self._behind(start)) if gaps else found.base_offset

    def _behind(self, key: BlockKey) -> int:
        """The offset behind the last block before a key: where messages were compacted away, from
        there on nothing else is missing."""
        segments = self._record.segments
        for segment in reversed(segments):
            behind = self._stored_end.key if segment.last is None else key_after(segment.last)
            before = self._rows.before(segment.number, min(key, behind))
            if before is not None:
                return before.end_offset
        return segments[0].base_offset


def shown(
    found: list[StoredBlock],
    floor: BlockKey,
    fates: Fates,
    resolve: Callable[[StoredBlock], StoredBlock],
) -> list[StoredBlock]:
    """The committed blocks of these from `floor` on, with staged blocks in place of references.
    Raises `StorageUnavailable` at a block whose transaction is not decided."""
    visible = visible_blocks(trimmed(found, floor), fates.of)
    if visible.stop is not None:
        raise StorageUnavailable(
            f"A message of transaction {visible.held_by} stands before the time at which it "
            f"began, at {visible.stop} of partition {found[0].partition}: the clock of the "
            "service went back. Try again when the transaction has ended."
        )
    page: list[StoredBlock] = []
    for stored in visible.blocks:
        page += trimmed([resolve(stored)], floor) if is_reference(stored) else [stored]
    return page


def _key_of(stored: StoredBlock) -> BlockKey:
    return stored.time_ms, stored.last_sequence
