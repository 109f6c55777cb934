"""One partition that another process owns: where it begins and ends, and its committed blocks.

    segment 0 (sealed)    segment 1 (sealed)    segment 2 (open)
    up to its seal        up to its seal        up to the first gap: what is behind it may be part
                                                of a write that is under way, and be taken back

How the open segment is read safely. One write is under way at a time, and its rows have one publish
time, or follow it within `WRITE_SPAN_MS`: only they may be there in part, and only they may come
later than somebody looked. So rows that continue each other without a gap are stored for good, if
whoever takes the partition over has not looked yet: if the epoch is the segment's own, and the
record is unchanged when it is read again afterwards. While a take-over is under way, which may have
died, the rows of the last write are left out.

Invariants

* Nothing behind a seal or a gap is shown.
* Nothing is shown that is expired or truncated, or of a transaction that is not committed; and
  nothing at or after the first message that is not decided in the image.
"""

import threading
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tms.errors import StorageUnavailable
from tms.log.records import FIRST_KEY, BlockKey, SegmentRecord, key_after
from tms.log.recovery import header_of
from tms.log.segments import SegmentChain
from tms.log.staging import StagedBlocks, is_reference
from tms.log.trimming import trimmed
from tms.log.visibility import admit
from tms.model import keys
from tms.model.log import StoredBlock
from tms.model.position import Kind, Position
from tms.model.transaction_image import Fates
from tms.store.base import Map, Store
from tms.topic.registry import TopicRecord

WRITE_SPAN_MS = 64
CLOCK_SLACK_MS = 10_000  # by which a clock may have gone back while a transaction was in progress
READ_BYTES = 8 << 20
_LOOK_BYTES = 1 << 20
_ATTEMPTS = 40
_PAUSE_S = 0.05


class End(NamedTuple):
    """Where a partition ends: the offset of the next message, and the smallest key behind."""

    offset: int
    key: BlockKey


class PartitionView:
    """A partition as it stood when this was made."""

    def __init__(
        self,
        store: Store,
        metadata: Map,
        topic: TopicRecord,
        partition: int,
        fates: Fates,
        floor: BlockKey,
    ) -> None:
        self.partition = partition
        self.uid = topic.uid
        self._has_foreign = topic.has_foreign
        self._fates = fates
        self._chain = SegmentChain(store, metadata, topic.uid, partition)
        self._staged = StagedBlocks(store, topic.uid, partition)
        self._stored = self._read_end(store)
        self.floor = max(floor, self._chain.record.floor)
        self._end: End | None = None

    @property
    def segments(self) -> tuple[SegmentRecord, ...]:
        """The segments that are kept; the last one as if it were sealed at its end."""
        return self._chain.record.segments

    def start(self) -> int:
        """The offset of the first readable message; the end when there is none."""
        return self._offset_from(FIRST_KEY)

    def end(self) -> End:
        """Where what is decided ends."""
        if self._end is None:
            self._end = self._decided_end()
        return self._end

    def offset_at(self, position: Position) -> int:
        """The offset of the first readable message at or after a position; never beyond the
        end."""
        end = self.end()
        if position.kind is Kind.LATEST:
            return end.offset
        if position.kind is Kind.OFFSET:
            return max(self.start(), min(position.number, end.offset))
        return min(self._offset_from(_first_key(position)), end.offset)

    def locate(self, offset: int) -> BlockKey:
        """A key from which on a scan begins with the block that has this offset, or, where it was
        cleaned away, with a later one. Reads a few blocks."""
        found = self.floor
        for segment in self.segments:
            if segment.base_offset > offset:
                break
            begin = max(found, self._begin(segment))
            if segment.end_offset is None or offset < segment.end_offset:
                return self._search(segment, begin, offset)
            found = begin
        return found

    def blocks(self, start: BlockKey, stop: BlockKey) -> Iterator[StoredBlock]:
        """The committed blocks whose last message is in [start, stop), in order."""
        start, stop = max(start, self.floor), min(stop, self.end().key)
        while start < stop and (found := self._chain.scan(start, stop, READ_BYTES)):
            admitted = admit(trimmed(found, self.floor), self._fates.of)
            if admitted.stop is not None:
                raise StorageUnavailable(
                    f"A message of transaction {admitted.held_by} stands before the time at which "
                    f"it began, at {admitted.stop} of partition {self.partition}: the clock of the "
                    "service went back. Try again when the transaction has ended."
                )
            for stored in admitted.blocks:
                if is_reference(stored):
                    [whole] = trimmed([self._staged.resolve(stored)], self.floor)
                    yield whole
                else:
                    yield stored
            start = key_after((found[-1].time_ms, found[-1].last_sequence))

    def block_at(self, key: BlockKey) -> StoredBlock | None:
        """The first stored block whose last message is at a key or behind it."""
        found = self._chain.scan(max(key, self.floor), self._stored.key, 1)
        return found[0] if found else None

    # -- what is stored ------------------------------------------------------------------------

    def _read_end(self, store: Store) -> End:
        chain = self._chain
        for attempt in range(_ATTEMPTS):
            if attempt:
                threading.Event().wait(_PAUSE_S)
            chain.refresh()
            seen, active = chain.record, chain.active
            if active is None:
                return self._sealed_end()
            settled = active.epoch == seen.epoch
            if not settled and attempt < _ATTEMPTS // 2:
                continue
            name = keys.segment_map(self.uid, self.partition, active.number)
            offset, key = open_end(store.open(name, create=False), active, seen.last, settled)
            chain.refresh()
            if chain.record == seen:
                sealed = msgspec.structs.replace(active, end_offset=offset, last=key)
                chain.record = msgspec.structs.replace(seen, segments=(*seen.segments[:-1], sealed))
                chain.active = None
                return End(offset, key_after(key))
        raise StorageUnavailable(
            f"Partition {self.partition} changes hands all the time; try again later."
        )

    def _sealed_end(self) -> End:
        record = self._chain.record
        last = record.segments[-1] if record.segments else None
        if last is None or last.end_offset is None or last.last is None:
            return End(0, FIRST_KEY)
        return End(last.end_offset, key_after(last.last))

    def _decided_end(self) -> End:
        since_ms = self._fates.undecided_since_ms(self._has_foreign) - CLOCK_SLACK_MS
        start = max(self.floor, (max(0, since_ms), 0))
        while found := self._chain.scan(start, self._stored.key, READ_BYTES):
            admitted = admit(found, self._fates.of)
            if admitted.stop is not None:
                return End(admitted.end_offset, _first_key(admitted.stop))
            start = key_after((found[-1].time_ms, found[-1].last_sequence))
        return self._stored

    # -- finding -------------------------------------------------------------------------------

    def _offset_from(self, start: BlockKey) -> int:
        start = max(start, self.floor)
        found = self._chain.scan(start, self._stored.key, 1) if start < self._stored.key else []
        if not found:
            return self._stored.offset
        header = header_of(found[0])
        first = found[0].last_sequence - header.count + 1
        skipped = max(0, start[1] - first) if start[0] == found[0].time_ms else 0
        return header.base_offset + skipped

    def _begin(self, segment: SegmentRecord) -> BlockKey:
        before = FIRST_KEY
        for one in self.segments:
            if one.number >= segment.number:
                break
            before = key_after(one.last) if one.last is not None else before
        return before

    def _search(self, segment: SegmentRecord, low: BlockKey, offset: int) -> BlockKey:
        """Guess by proportion, and halve every second time: offsets grow with keys."""
        assert segment.last is not None and segment.end_offset is not None
        first, stop = _number(low), _number(segment.last) + 1
        least, most = segment.base_offset, segment.end_offset
        step = 0
        while first < stop:
            share = 0.5 if step % 2 or most <= least else (offset - least) / (most - least)
            middle = min(stop - 1, first + int((stop - first) * share))
            step += 1
            found = self._chain.scan_segment(segment, _key(middle), 1)
            if not found:
                stop = middle
                continue
            header, last = header_of(found[0]), _number(_place(found[0]))
            if offset >= header.base_offset + header.count:
                first, least = last + 1, header.base_offset + header.count
            elif offset >= header.base_offset:
                return _key(max(first, min(middle, last)))
            else:
                stop, most = middle, header.base_offset
        return _key(first)


def open_end(
    rows: Map, segment: SegmentRecord, before: BlockKey, settled: bool
) -> tuple[int, BlockKey]:
    """The offset after the rows of an open segment that no owner can take back, and the last of
    their keys; `before` when there is none. `settled`: nobody takes the partition over."""
    newest: list[tuple[BlockKey, bytes]] = []
    stop: bytes | None = None
    whole = True
    while found := rows.scan(None, stop, _LOOK_BYTES, reverse=True):
        newest += [(keys.split_block_key(key), value) for key, value in found]
        if newest[-1][0][0] < newest[0][0][0] - WRITE_SPAN_MS:
            whole = False
            break
        stop = found[-1][0]
    uncertain_ms = newest[0][0][0] - WRITE_SPAN_MS if newest and not settled else None
    newest.reverse()
    expected, last = segment.base_offset, before
    for number, (key, value) in enumerate(newest):
        header = header_of(StoredBlock(0, *key, value))
        if number == 0 and not whole:
            expected = header.base_offset
        gap = header.base_offset != expected
        if gap or (uncertain_ms is not None and key[0] >= uncertain_ms):
            break
        expected, last = expected + header.count, key
    return expected, last


def _first_key(position: Position) -> BlockKey:
    if position.id is not None:
        key = (position.id.time_ms, position.id.sequence)
        return key_after(key) if position.kind is Kind.AFTER else key
    return (position.number, 0) if position.kind is Kind.TIME else FIRST_KEY


def _place(stored: StoredBlock) -> BlockKey:
    return stored.time_ms, stored.last_sequence


def _number(key: BlockKey) -> int:
    return key[0] << 16 | key[1]


def _key(number: int) -> BlockKey:
    return number >> 16, number & 0xFFFF
