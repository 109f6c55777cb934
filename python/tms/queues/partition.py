"""The state of one partition of a queue.

          settled            some settled, the others in `out`            not looked at
    ───────────────────┬──────────────────────────────────────────┬──────────────────────▶ offsets
                     cursor                                    frontier

    out      offset → time ms << 23 | state << 20 | deliveries
             leased    until that time
             waiting   for its next delivery, from that time on
             blocked   by an earlier message of its key
             dying     on its way to the dead letters
    dues     leases and delays by the time at which they end
    ready    a heap of what may be delivered again
    held     offset → write pointer of the transaction that settles it
    releases offset → number of its releases, if it was ever released

Invariants

* An offset before the frontier that is not in `out` is settled for good.
* The time of an operation depends on the offsets that it changes, not on how many are outstanding.
  The cursor is computed when it is read.
* A held message does not change, whatever the time, until its transaction has ended.
* Entries of `deadlines` and `ready` may be stale: `out` decides.
* The first message of a key is never blocked, whatever an entry says: an earlier entry or commit
  of the journal may have settled the message that blocked it.
* `apply` makes every change, here and in a replay, except those of time: ends of leases and delays.
* `totals` are the sums over the partitions of the queue.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from tms.model.queue import (
    DELIVERIES_BITS,
    DELIVERIES_MASK,
    RELEASED,
    Token,
    deliveries_of,
)
from tms.queues.deadlines import BUCKET_MS, Deadlines
from tms.queues.entries import (
    NOWHERE,
    Advanced,
    Extended,
    Leased,
    PartitionEdit,
    PartitionSnapshot,
    Rejected,
    Released,
    Returned,
    Rewound,
    Settled,
)
from tms.queues.key_order import KeyOrder, pack, unpack
from tms.queues.runs import Runs, offsets_in, ranges

LEASED, WAITING, BLOCKED, DYING = range(4)
STATE_BITS = 3
TIME_SHIFT = DELIVERIES_BITS + STATE_BITS
STATE_MASK = (1 << STATE_BITS) - 1
EXPIRE_MAX = 10_000  # deadlines of one look
BLOCKED_MAX = 10_000  # messages to look ahead for free keys
RUNS_MAX = 20_000  # of a chunk of a snapshot
_STALE_MAX = 4_096  # entries of `deadlines` beyond twice what is in `out`


class Counters:
    """Counters over all partitions of a queue: messages in `out`, and those of them in `held`."""

    outstanding = 0
    held = 0


class QueuePartitionState:
    """The state of one partition of one queue. Times are ms of a clock that does not jump. Not
    thread-safe."""

    def __init__(
        self,
        frontier: int = 0,
        at: int = NOWHERE,
        ordered: bool = False,
        totals: Counters | None = None,
    ) -> None:
        self._ordered = ordered
        self._totals = totals or Counters()
        self.chunks: list[PartitionSnapshot] = []  # of an incomplete snapshot
        self._reset(frontier, at)

    def _reset(self, frontier: int, at: int) -> None:
        self.frontier = frontier
        self.at = at  # id of the last message that was looked at, ms << 16 | sequence
        self.out: dict[int, int] = {}
        self.counts = [0, 0, 0, 0]
        self.order = KeyOrder() if self._ordered else None
        self.held: dict[int, int] = {}
        self.releases: dict[int, int] = {}
        self.dying: OrderedDict[int, None] = OrderedDict()  # a set in order
        self.causes: dict[int, str] = {}
        self._cursor = frontier
        self.deadlines = Deadlines()
        self.ready: list[int] = []

    # -- looking -----------------------------------------------------------------------------------

    def cursor(self) -> int:
        """The first offset that is not settled."""
        out, cursor = self.out, self._cursor
        for _ in range(2 * len(out) + 1):
            if cursor >= self.frontier or cursor in out:
                break
            cursor += 1
        else:
            cursor = min(out, default=self.frontier)
        self._cursor = cursor
        return cursor

    @property
    def count_ready(self) -> int:
        """About how many messages are ready for their next delivery."""
        return min(len(self.ready), self.counts[WAITING])

    def unreadable(self, start: int, now_ms: int) -> tuple[list[int], int]:
        """Counts of the messages before `start`, which can no longer be read, by state but without
        leased ones; and how many of them are ready. Scans messages only if there are any."""
        counts = [0, 0, 0, 0]
        ready = 0
        if self.cursor() < start:
            for offset, value in self.out.items():
                state = value >> DELIVERIES_BITS & STATE_MASK
                if offset < start and state != LEASED:
                    counts[state] += 1
                    ready += self.is_ready(offset, now_ms)
        return counts, ready

    @property
    def is_stalled(self) -> bool:
        """True if too many messages are blocked to look at further ones."""
        return self.counts[BLOCKED] >= BLOCKED_MAX

    def deliveries(self, offset: int) -> int:
        """How often an unsettled message was delivered, without released deliveries."""
        return self.out[offset] & DELIVERIES_MASK

    def number(self, offset: int) -> int:
        """The number of the last delivery of an unsettled message."""
        return self.releases.get(offset, 0) << DELIVERIES_BITS | self.deliveries(offset)

    def was_released(self, token: Token) -> bool:
        """True if the delivery of the token was the last one of its message, and was released."""
        offset = token.offset
        if offset not in self.out or self._state(offset) != WAITING:
            return False
        return self.number(offset) == token.deliveries + RELEASED

    def is_ready(self, offset: int, now_ms: int) -> bool:
        """True if a message may be delivered again at this time."""
        value = self.out.get(offset)
        return (
            value is not None
            and value >> DELIVERIES_BITS & STATE_MASK == WAITING
            and value >> TIME_SHIFT <= now_ms
            and offset not in self.held
        )

    def _state(self, offset: int) -> int:
        return self.out[offset] >> DELIVERIES_BITS & STATE_MASK

    def split(
        self, token: Token, states: Sequence[int] = (LEASED, WAITING, DYING)
    ) -> tuple[list[int], list[int]]:
        """The offsets of a token that its delivery still covers, and the offsets that came too
        late."""
        out, held, releases = self.out, self.held, self.releases
        number = token.deliveries & DELIVERIES_MASK
        times = token.deliveries >> DELIVERIES_BITS
        good: list[int] = []
        late: list[int] = []
        for offset in range(token.offset, token.offset + token.count):
            value = out.get(offset)
            if (
                value is not None
                and value & DELIVERIES_MASK == number
                and number
                and value >> DELIVERIES_BITS & STATE_MASK in states
                and offset not in held
                and releases.get(offset, 0) == times
            ):
                good.append(offset)
            else:
                late.append(offset)
        return good, late

    # -- time --------------------------------------------------------------------------------------

    def expire(self, now_ms: int, deliveries_max: int) -> bool:
        """End leases and delays that are over, up to some thousands of them; True if a message
        became ready or dying."""
        news, left = False, EXPIRE_MAX
        while left > 0 and (taken := self.deadlines.take(now_ms, left)):
            left -= len(taken)
            for offset in taken:
                news = self._end(offset, now_ms, deliveries_max) or news
        return news

    def _end(self, offset: int, now_ms: int, deliveries_max: int) -> bool:
        value = self.out.get(offset)
        if value is None or offset in self.held:
            return False
        if (value >> TIME_SHIFT) // BUCKET_MS >= now_ms // BUCKET_MS:  # it was extended meanwhile
            return False
        state, deliveries = value >> DELIVERIES_BITS & STATE_MASK, value & DELIVERIES_MASK
        if state == LEASED and 0 < deliveries_max <= deliveries:
            self._die(offset, f"its lease ended after {deliveries} deliveries", now_ms)
            return True
        if state == LEASED:
            self._put(offset, WAITING, now_ms)
        elif state != WAITING:
            return False
        heapq.heappush(self.ready, offset)
        return True

    def take_ready(self, now_ms: int, limit: int) -> list[int]:
        """Take up to `limit` ready offsets, oldest first. No other receive gets them until they are
        delivered or `put_back`."""
        taken: list[int] = []
        ready = self.ready
        while ready and len(taken) < limit:
            offset = heapq.heappop(ready)
            if self.is_ready(offset, now_ms) and (not taken or taken[-1] != offset):
                taken.append(offset)
        return taken

    def put_back(self, offsets: Iterable[int]) -> None:
        """Make taken offsets ready again; they were not delivered."""
        for offset in offsets:
            heapq.heappush(self.ready, offset)

    def put_off(self, offsets: Collection[int], until_ms: int) -> None:
        """Make taken offsets ready again at `until_ms`."""
        self.deadlines.add(until_ms, offsets, len(offsets))

    def take_dying(self, limit: int) -> list[int]:
        """Take up to `limit` offsets to be moved to the dead letters; `return_dying` must follow
        for those that were not moved."""
        taken: list[int] = []
        while self.dying and len(taken) < limit:
            offset, _ = self.dying.popitem(last=False)
            dying = offset in self.out and self._state(offset) == DYING
            if dying and offset not in self.held:
                taken.append(offset)
        return taken

    def return_dying(self, offsets: Iterable[int]) -> None:
        """Let taken offsets be moved to the dead letters later."""
        self.dying.update((offset, None) for offset in offsets if offset in self.out)

    # -- commits under way -------------------------------------------------------------------------

    def hold(self, offsets: Iterable[int], pointer: int) -> None:
        """Hold offsets for the transaction with this write pointer, which settles them when it
        commits."""
        before = len(self.held)
        self.held.update((offset, pointer) for offset in offsets if offset in self.out)
        self._totals.held += len(self.held) - before

    def end(self, pointer: int, settle: bool, now_ms: int) -> None:
        """End the hold of a transaction: settle its messages, or release them."""
        held = [offset for offset, by in self.held.items() if by == pointer]
        if settle:
            self._settle(held, now_ms)
        else:
            self.release_held(held, pointer)

    def release_held(self, offsets: Iterable[int], pointer: int) -> None:
        """Release held messages of a failed transaction: their leases and delays end again."""
        for offset in offsets:
            if self.held.get(offset) != pointer:
                continue
            del self.held[offset]
            self._totals.held -= 1
            value = self.out[offset]
            if self._state(offset) == DYING:
                self.dying[offset] = None
            else:
                self.deadlines.add(value >> TIME_SHIFT, (offset,), 1)

    # -- what happens ------------------------------------------------------------------------------

    def apply(self, edit: PartitionEdit, now_ms: int, passed_ms: int = 0) -> None:
        """Apply an edit; it was journaled `passed_ms` ago."""
        match edit:
            case Advanced():
                self._advance(edit, now_ms, passed_ms)
            case Leased():
                until_ms = _until(now_ms, edit.lease_ms - passed_ms)
                for run, deliveries in zip(ranges(edit.runs), edit.deliveries, strict=True):
                    self._lease(run, until_ms, deliveries)
            case Settled():
                self._settle(offsets_in(edit.runs), now_ms)
            case Returned():
                for run, delay_ms in zip(ranges(edit.runs), edit.delays_ms, strict=True):
                    self._return(run, _until(now_ms, delay_ms - passed_ms), now_ms)
            case Released():
                for run, number in zip(ranges(edit.runs), edit.deliveries, strict=True):
                    self._release(run, number, now_ms)
            case Extended():
                until_ms = _until(now_ms, edit.lease_ms - passed_ms)
                for run in ranges(edit.runs):
                    self._lease(run, until_ms, None)
            case Rejected():
                for offset in offsets_in(edit.runs):
                    if offset in self.out:
                        self._die(offset, edit.cause, now_ms)
            case Rewound(stop, at):
                self._rewind(stop, at, now_ms)
            case PartitionSnapshot():
                self._restore(edit, now_ms, passed_ms)

    def _rewind(self, stop: int, at: int, now_ms: int) -> None:
        self._settle([offset for offset in self.out if offset >= stop], now_ms)
        if stop < self.frontier:
            self.frontier, self.at, self._cursor = stop, at, min(self._cursor, stop)

    def _advance(self, edit: Advanced, now_ms: int, passed_ms: int) -> None:
        if edit.first > self.frontier:  # an entry before this one was never stored
            missed = range(self.frontier, edit.first)
            self._add(missed, WAITING, now_ms, 0)
            self.put_back(missed)
        until_ms = _until(now_ms, edit.lease_ms - passed_ms)
        leased = self._beyond(edit.leased)
        blocked = self._beyond(edit.blocked) if edit.blocked else ()
        for run in leased:
            self._add(run, LEASED, until_ms, 1)
            self.deadlines.add(until_ms, run, len(run))
        for run in blocked:
            self._add(run, BLOCKED, 0, 0)
        if self.order is not None:
            every = offsets_in(edit.leased + edit.blocked)
            keys = dict(zip(every, unpack(edit.hashes), strict=True))
            seen = sorted(chain(*leased, *blocked))
            for head in self.order.add_all((offset, keys[offset]) for offset in seen):
                self._unblock(head, now_ms)
        if edit.stop >= self.frontier:
            self.frontier, self.at = edit.stop, max(self.at, edit.at)

    def _beyond(self, runs: Runs) -> Sequence[Sequence[int]]:
        """The parts of runs from the frontier on; an entry may repeat another one in part. In a
        queue ordered by key these are lists, so that all notes of an offset share one integer."""
        if self.order is None and runs[:1] >= [self.frontier]:
            return ranges(runs)
        beyond = [range(max(run.start, self.frontier), run.stop) for run in ranges(runs)]
        return beyond if self.order is None else [[*run] for run in beyond]

    def _add(self, run: Sequence[int], state: int, time_ms: int, deliveries: int) -> None:
        value = time_ms << TIME_SHIFT | state << DELIVERIES_BITS | deliveries
        self.out.update(dict.fromkeys(run, value))
        self.counts[state] += len(run)
        self._totals.outstanding += len(run)

    def _lease(self, run: range, until_ms: int, deliveries: int | None) -> None:
        """Lease messages with this number of a delivery, or with the number that each has."""
        out, counts = self.out, self.counts
        for offset in run:
            value = out.get(offset)
            if value is None:
                continue
            counts[value >> DELIVERIES_BITS & STATE_MASK] -= 1
            counts[LEASED] += 1
            number = value if deliveries is None else deliveries
            if deliveries is not None:
                self._note_releases(offset, deliveries)
            number &= DELIVERIES_MASK
            out[offset] = until_ms << TIME_SHIFT | LEASED << DELIVERIES_BITS | number
            self.causes.pop(offset, None)
        self.deadlines.add(until_ms, run, len(run))
        if self.deadlines.size > 2 * len(self.out) + _STALE_MAX:
            self._clean()

    def _return(self, run: range, ready_ms: int, now_ms: int) -> None:
        for offset in run:
            if offset in self.out:
                self._put(offset, WAITING, ready_ms)
        if ready_ms <= now_ms:
            self.put_back(run)
        else:
            self.deadlines.add(ready_ms, run, len(run))

    def _release(self, run: range, number: int, now_ms: int) -> None:
        for offset in run:
            if offset in self.out:
                self._put(offset, WAITING, now_ms)
                self.out[offset] += deliveries_of(number) - self.deliveries(offset)
                self._note_releases(offset, number)
                self.causes.pop(offset, None)
        self.put_back(run)

    def _note_releases(self, offset: int, number: int) -> None:
        if times := number >> DELIVERIES_BITS:
            self.releases[offset] = times
        elif self.releases:
            self.releases.pop(offset, None)

    def _settle(self, offsets: Iterable[int], now_ms: int) -> None:
        out, counts, before = self.out, self.counts, len(self.out)
        for offset in offsets:
            value = out.pop(offset, None)
            if value is None:
                continue
            counts[value >> DELIVERIES_BITS & STATE_MASK] -= 1
            if self.held and self.held.pop(offset, None) is not None:
                self._totals.held -= 1
            if self.causes:
                self.causes.pop(offset, None)
            if self.releases:
                self.releases.pop(offset, None)
            if self.order is not None:
                self._unblock(self.order.remove(offset), now_ms)
        self._totals.outstanding -= before - len(out)
        if self.deadlines.size > 2 * len(self.out) + _STALE_MAX:
            self._clean()

    def _unblock(self, offset: int | None, now_ms: int) -> None:
        if offset is None or self._state(offset) != BLOCKED:
            return
        self._put(offset, WAITING, now_ms)
        heapq.heappush(self.ready, offset)

    def _die(self, offset: int, cause: str, now_ms: int) -> None:
        self._put(offset, DYING, now_ms)
        self.causes[offset] = cause
        self.dying[offset] = None

    def _put(self, offset: int, state: int, time_ms: int) -> None:
        value = self.out[offset]
        self.counts[value >> DELIVERIES_BITS & STATE_MASK] -= 1
        self.counts[state] += 1
        number = value & DELIVERIES_MASK
        self.out[offset] = time_ms << TIME_SHIFT | state << DELIVERIES_BITS | number

    def _clean(self) -> None:
        """Remove stale deadlines."""
        self.deadlines.clear()
        for offset, value in self.out.items():
            if value >> DELIVERIES_BITS & STATE_MASK <= WAITING:
                self.deadlines.add(value >> TIME_SHIFT, (offset,), 1)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self, now_ms: int, when_ms: int) -> Iterator[PartitionSnapshot]:
        """The state as it is now, in chunks that fit into the journal; `when_ms` is the wall
        time."""
        runs, values, releases = self._runs(now_ms)
        chunks = max(1, -(-len(values) // RUNS_MAX))
        held = [(pointer, offset, 1) for offset, pointer in self.held.items()]
        for number in range(chunks):
            start, stop = number * RUNS_MAX, (number + 1) * RUNS_MAX
            part = runs[2 * start : 2 * stop]
            hashes = b""
            if self.order is not None:
                hashes = pack(map(self.order.hash_of, offsets_in(part)))
            yield PartitionSnapshot(
                number,
                chunks,
                self.frontier,
                self.at,
                when_ms,
                part,
                values[start:stop],
                hashes,
                {at: self.causes[at] for at in offsets_in(part) if at in self.causes},
                held if number == 0 else [],
                releases[start:stop],
            )

    def _runs(self, now_ms: int) -> tuple[Runs, list[int], list[int]]:
        """Runs of unsettled messages with the value of each run, in which the time is the time
        left, and how often the messages of each run were released."""
        runs: Runs = []
        values: list[int] = []
        releases: list[int] = []
        low_bits = (1 << TIME_SHIFT) - 1
        for offset in sorted(self.out):
            value = self.out[offset]
            value = max(0, (value >> TIME_SHIFT) - now_ms) << TIME_SHIFT | value & low_bits
            times = self.releases.get(offset, 0)
            joins = runs and runs[-2] + runs[-1] == offset
            if joins and values[-1] == value and releases[-1] == times:
                runs[-1] += 1
            else:
                runs += (offset, 1)
                values.append(value)
                releases.append(times)
        return runs, values, releases if self.releases else []

    def _restore(self, edit: PartitionSnapshot, now_ms: int, passed_ms: int) -> None:
        """Take a chunk of a snapshot; the last chunk replaces the state."""
        if edit.number == 0:
            self.chunks = []
        if edit.number != len(self.chunks):
            return
        self.chunks.append(edit)
        if len(self.chunks) < edit.chunks:
            return
        chunks, self.chunks = self.chunks, []
        self._totals.outstanding -= len(self.out)
        self._totals.held -= len(self.held)
        self._reset(edit.frontier, edit.at)
        for chunk in chunks:
            self.causes.update(chunk.causes)
            for run, value in zip(ranges(chunk.runs), chunk.values, strict=True):
                self._restore_run(run, value, now_ms, passed_ms)
            for run, times in zip(ranges(chunk.runs), chunk.releases, strict=False):
                if times:
                    self.releases.update(dict.fromkeys(run, times))
        if self.order is not None:
            keys = unpack(b"".join(chunk.hashes for chunk in chunks))
            for head in self.order.add_all(zip(self.out, keys, strict=True)):
                self._unblock(head, now_ms)
        for chunk in chunks:
            for pointer, first, count in chunk.held:
                self.hold(range(first, first + count), pointer)
        self._cursor = min(self.out, default=self.frontier)

    def _restore_run(self, run: range, value: int, now_ms: int, passed_ms: int) -> None:
        state = value >> DELIVERIES_BITS & STATE_MASK
        time_ms = _until(now_ms, (value >> TIME_SHIFT) - passed_ms)
        self._add(run, state, time_ms, value & DELIVERIES_MASK)
        if state == DYING:
            self.dying.update(dict.fromkeys(run))
        elif state != BLOCKED:
            self.deadlines.add(time_ms, run, len(run))


def _until(now_ms: int, left_ms: int) -> int:
    """The end of a lease or delay; one that is over is due at once."""
    return now_ms + left_ms if left_ms > 0 else now_ms - BUCKET_MS
