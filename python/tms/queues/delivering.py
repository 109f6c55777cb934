"""Leasing messages to a worker: the edits to journal, and the slices to answer.

    ready again ──▶ read, outside of the lock ──▶ Leased ────┬─▶ journal ─▶ slices
    read ahead ───────────────────────────────▶ Advanced ────┘

Invariants

* Messages that are gone from the log are settled first, because that may free their keys.
* Messages that were delivered before come first, then new ones, in the order of each partition.
* No message that was looked at is forgotten: it is leased, blocked, or settled because no reader
  can see it.
* At least one message is leased, however large, if there is one.
"""

from msgspec import Struct

from tms.block.received import Slice
from tms.model.queue import DELIVERIES_MASK, deliveries_of
from tms.queues.entries import NOWHERE, Advanced, Leased
from tms.queues.key_order import NO_KEY, pack
from tms.queues.partition import BLOCKED, BLOCKED_MAX
from tms.queues.reading import ReadBlock, Reread, Scanner
from tms.queues.runs import Runs, add_range
from tms.queues.state import Edits, QueueState


class _Looked(Struct):
    """The part of a partition that a receive has looked at, from `first` up to `stop`."""

    first: int
    stop: int
    at: int = NOWHERE
    leased: Runs = []
    blocked: Runs = []
    hashes: list[int] = []
    blocked_hashes: list[int] = []
    keys: set[int] = set()  # of messages that this receive takes


class Receive(Struct, eq=False):
    """A receive: which messages to lease, and the slices to answer. The caller holds the lock of
    the queue."""

    _state: QueueState
    _limit: int  # left
    _bytes: int  # left
    now_ms: int
    _when_ms: int
    edits: Edits = []
    slices: list[Slice] = []
    again: int = 0  # messages that were delivered before

    @property
    def full(self) -> bool:
        """True if no further message fits into the answer."""
        return self._limit <= 0 or (self._bytes <= 0 and bool(self.slices))

    # -- again -------------------------------------------------------------------------------------

    def take_again(self, partition: int, again: Reread) -> None:
        """Deliver messages again that are still ready; put those back that do not fit."""
        state = self._state.partitions[partition]
        runs: Runs = []
        deliveries: list[int] = []
        for block, offsets in again.pieces:
            for offset in offsets:
                if not state.is_ready(offset, self.now_ms):
                    continue
                if self.full:
                    state.put_back((offset,))
                    continue
                number = state.number(offset)
                number += deliveries_of(number) < DELIVERIES_MASK
                joins = runs and runs[-2] + runs[-1] == offset and deliveries[-1] == number
                if joins and self._joins(block, offset):
                    runs[-1] += 1
                    self._grow(block)
                else:
                    runs += (offset, 1)
                    deliveries.append(number)
                    self.slices.append(block.slice(offset, 1, number))
                self._limit -= 1
                self._bytes -= block.bytes_of(offset, 1)
                self.again += deliveries_of(number) > 1
        if runs:
            self.edits.append(
                (partition, Leased(runs, deliveries, self._state.lease_ms, self._when_ms))
            )

    def _joins(self, block: ReadBlock, offset: int) -> bool:
        last = self.slices[-1]
        return block.base <= last.offset and last.partition == block.partition

    def _grow(self, block: ReadBlock) -> None:
        last = self.slices[-1]
        self.slices[-1] = block.slice(last.offset, last.columns.count + 1, last.deliveries)

    # -- new ---------------------------------------------------------------------------------------

    def take_new(self, scanner: Scanner) -> None:
        """Deliver messages that were read ahead."""
        room = self._state.settings.outstanding_max - self._state.totals.outstanding
        self._limit = min(self._limit, room)
        ordered = self._state.settings.ordered_by == "key"
        take = self._take_ordered if ordered else self._take_run
        for partition, blocks in [*scanner.ahead.items()]:
            frontier = self._state.partitions[partition].frontier
            looked = _Looked(frontier, frontier)
            while blocks and not self.full:
                block = blocks[0]
                first = stop = max(block.base, looked.stop)
                if first < block.stop:
                    stop = take(block, looked, first)
                if stop > first:
                    looked.stop, looked.at = stop, block.number(stop - 1)
                if stop < block.stop:
                    break
                blocks.popleft()
            if not blocks:
                del scanner.ahead[partition]
            if looked.stop > looked.first:
                self.edits.append((partition, self._advanced(looked)))

    def _advanced(self, looked: _Looked) -> Advanced:
        return Advanced(
            looked.first,
            looked.stop,
            looked.at,
            looked.leased,
            self._state.lease_ms,
            self._when_ms,
            looked.blocked,
            pack(hashes) if (hashes := looked.hashes + looked.blocked_hashes) else b"",
        )

    def _take_run(self, block: ReadBlock, looked: _Looked, first: int) -> int:
        count, size = block.fitting(first, self._limit, self._bytes)
        add_range(looked.leased, first, count)
        self.slices.append(block.slice(first, count, 1))
        self._limit -= count
        self._bytes -= size
        return first + count

    def _take_ordered(self, block: ReadBlock, looked: _Looked, first: int) -> int:
        """Lease messages that are the first of their keys, and note the others as blocked, up to
        the limit of looking ahead. Returns the offset after the last one."""
        state = self._state.partitions[block.partition]
        assert state.order is not None
        blocked = state.counts[BLOCKED] + sum(looked.blocked[1::2])
        offset, since = first, first  # since: first free message that is not in a slice
        room, _ = block.fitting(first, self._limit, self._bytes)
        while offset < block.stop:
            key = block.hash_at(offset)
            free = key == NO_KEY or (key not in looked.keys and state.order.is_free(key))
            if not free and blocked >= BLOCKED_MAX:
                break
            if free and offset - since >= room:
                break
            if key != NO_KEY:
                looked.keys.add(key)
            if free:
                add_range(looked.leased, offset, 1)
                looked.hashes.append(key)
            else:
                self._hand_out(block, since, offset - since)
                add_range(looked.blocked, offset, 1)
                looked.blocked_hashes.append(key)
                blocked += 1
                since = offset + 1
                room, _ = block.fitting(since, self._limit, self._bytes)
            offset += 1
            if self.full:
                break
        self._hand_out(block, since, offset - since)
        return offset

    def _hand_out(self, block: ReadBlock, first: int, count: int) -> None:
        if count > 0:
            self.slices.append(block.slice(first, count, 1))
            self._limit -= count
            self._bytes -= block.bytes_of(first, count)
