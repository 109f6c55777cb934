"""What a queue knows of one partition.

          settled            some settled, the others in `out`            never looked at
    ───────────────────┬──────────────────────────────────────────┬──────────────────────▶ offsets
                     cursor                                    frontier

    out      offset → time ms << 23 | state << 20 | deliveries
             leased    until that time
             waiting   for its next delivery, from that time on
             blocked   by an earlier message of its key
             dying     on its way to the dead letters
    dues     leases and delays by the time at which they end
    ready    a heap of what may be delivered again
    held     offset → write pointer of the commit under way that settles it

Invariants

* An offset before the frontier that is not in `out` is settled, and never comes back.
* Every operation takes time for what it touches; none looks at what lies behind. The cursor moves
  when it is asked for.
* What is held stays as it is, whatever the time, until its commit has ended.
* Entries of `dues` and `ready` may be stale: `out` decides.
* The first of its key is never blocked, whatever an entry says: what it was blocked by may have
  been settled by an entry, or a commit, that the journal has before.
* `apply` is the only way in which something becomes so, here and when a journal is replayed; only
  time makes the rest: leases end by themselves.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from tms.model.queue import Token
from tms.queues.deadlines import BUCKET_MS, Dues
from tms.queues.entries import (
    NOWHERE,
    Advanced,
    Extended,
    Leased,
    PartitionEdit,
    PartitionSnapshot,
    Rejected,
    Returned,
    Rewound,
    Settled,
)
from tms.queues.key_order import KeyOrder, pack, unpack
from tms.queues.runs import Runs, offsets_in, ranges

LEASED, WAITING, BLOCKED, DYING = range(4)
DELIVERIES_BITS, STATE_BITS = 20, 3
TIME_SHIFT = DELIVERIES_BITS + STATE_BITS
DELIVERIES_MASK = (1 << DELIVERIES_BITS) - 1
STATE_MASK = (1 << STATE_BITS) - 1
EXPIRE_MAX = 10_000  # entries of one look at the time
BLOCKED_MAX = 10_000  # how far to look ahead for keys that are free
RUNS_MAX = 20_000  # of a chunk of a snapshot
_STALE_MAX = 4_096  # entries of `dues` beyond twice what is in `out`


class QueuePartitionState:
    """One partition of one queue. Times are ms of a clock that does not jump. Not thread-safe."""

    def __init__(self, frontier: int = 0, at: int = NOWHERE, ordered: bool = False) -> None:
        self._ordered = ordered
        self.chunks: list[PartitionSnapshot] = []  # of a snapshot that is not complete
        self._reset(frontier, at)

    def _reset(self, frontier: int, at: int) -> None:
        self.frontier = frontier
        self.at = at  # id of the last message that was looked at, ms << 16 | sequence
        self.out: dict[int, int] = {}
        self.counts = [0, 0, 0, 0]
        self.order = KeyOrder() if self._ordered else None
        self.held: dict[int, int] = {}
        self.dying: OrderedDict[int, None] = OrderedDict()  # each once
        self.causes: dict[int, str] = {}
        self._cursor = frontier
        self._dues = Dues()
        self._ready: list[int] = []

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

    def next_ms(self) -> int | None:
        """When a lease or a delay may end."""
        return self._dues.next_ms()

    @property
    def has_ready(self) -> bool:
        """Whether something may be there to be delivered again."""
        return bool(self._ready)

    @property
    def count_ready(self) -> int:
        """About how many may be delivered again at once."""
        return min(len(self._ready), self.counts[WAITING])

    def unreadable(self, start: int, now_ms: int) -> tuple[list[int], int]:
        """How many messages before an offset, where nothing can be read any more, are in each state
        but with workers; and how many of them may be delivered again at once. It looks through
        them only if there are any."""
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
        """Whether nothing more may be looked at, because too many wait for others of their key."""
        return self.counts[BLOCKED] >= BLOCKED_MAX

    def deliveries(self, offset: int) -> int:
        """How often a message that is not settled was delivered."""
        return self.out[offset] & DELIVERIES_MASK

    def is_ready(self, offset: int, now_ms: int) -> bool:
        """Whether a message may be delivered again."""
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
        """The offsets of a token that belong to its delivery still, and the offsets that do not."""
        out, held, number = self.out, self.held, token.deliveries
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
            ):
                good.append(offset)
            else:
                late.append(offset)
        return good, late

    # -- time --------------------------------------------------------------------------------------

    def expire(self, now_ms: int, deliveries_max: int) -> bool:
        """Leases and delays that are over end, some thousands of them at most; whether something
        became ready or dying."""
        news, left = False, EXPIRE_MAX
        while left > 0 and (taken := self._dues.take(now_ms, left)):
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
        heapq.heappush(self._ready, offset)
        return True

    def take_ready(self, now_ms: int, limit: int) -> list[int]:
        """Up to `limit` offsets that may be delivered again, oldest first. Nobody else is given
        them until they are delivered or `put_back`."""
        taken: list[int] = []
        ready = self._ready
        while ready and len(taken) < limit:
            offset = heapq.heappop(ready)
            if self.is_ready(offset, now_ms) and (not taken or taken[-1] != offset):
                taken.append(offset)
        return taken

    def put_back(self, offsets: Iterable[int]) -> None:
        """They were taken, and not delivered."""
        for offset in offsets:
            heapq.heappush(self._ready, offset)

    def put_off(self, offsets: Collection[int], until_ms: int) -> None:
        """They were taken, and cannot be delivered before."""
        self._dues.add(until_ms, offsets, len(offsets))

    def take_dying(self, limit: int) -> list[int]:
        """Up to `limit` offsets that are to go to the dead letters; `return_dying` those that did
        not."""
        taken: list[int] = []
        while self.dying and len(taken) < limit:
            offset, _ = self.dying.popitem(last=False)
            dying = offset in self.out and self._state(offset) == DYING
            if dying and offset not in self.held:
                taken.append(offset)
        return taken

    def return_dying(self, offsets: Iterable[int]) -> None:
        """They were taken, and are still to go to the dead letters."""
        self.dying.update((offset, None) for offset in offsets if offset in self.out)

    # -- commits under way -------------------------------------------------------------------------

    def hold(self, offsets: Iterable[int], pointer: int) -> None:
        """A commit under way settles these."""
        self.held.update((offset, pointer) for offset in offsets if offset in self.out)

    def end(self, pointer: int, settle: bool, now_ms: int) -> None:
        """That commit has ended, with what it settles, or without."""
        held = [offset for offset, by in self.held.items() if by == pointer]
        if settle:
            self._settle(iter(held), now_ms)
        else:
            self.let_go(held, pointer)

    def let_go(self, offsets: Iterable[int], pointer: int) -> None:
        """That commit has failed: time counts again."""
        for offset in offsets:
            if self.held.get(offset) != pointer:
                continue
            del self.held[offset]
            value = self.out[offset]
            if self._state(offset) == DYING:
                self.dying[offset] = None
            else:
                self._dues.add(value >> TIME_SHIFT, (offset,), 1)

    # -- what happens ------------------------------------------------------------------------------

    def apply(self, edit: PartitionEdit, now_ms: int, passed_ms: int = 0) -> None:
        """What an entry says is so now; it was made `passed_ms` ago."""
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
        self._settle(iter([offset for offset in self.out if offset >= stop]), now_ms)
        if stop < self.frontier:
            self.frontier, self.at, self._cursor = stop, at, min(self._cursor, stop)

    def _advance(self, edit: Advanced, now_ms: int, passed_ms: int) -> None:
        if edit.first > self.frontier:  # an entry before this one was never stored
            missed = range(self.frontier, edit.first)
            self._add(missed, WAITING, now_ms, 0)
            self.put_back(missed)
        until_ms = _until(now_ms, edit.lease_ms - passed_ms)
        leased, blocked = self._beyond(edit.leased), self._beyond(edit.blocked)
        for run in leased:
            self._add(run, LEASED, until_ms, 1)
            self._dues.add(until_ms, run, len(run))
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
        """What of these was not looked at before; an entry may repeat another in part. With an
        order lists: all that is noted of an offset shares one integer."""
        beyond = [range(max(run.start, self.frontier), run.stop) for run in ranges(runs)]
        return beyond if self.order is None else [[*run] for run in beyond]

    def _add(self, run: Sequence[int], state: int, time_ms: int, deliveries: int) -> None:
        value = time_ms << TIME_SHIFT | state << DELIVERIES_BITS | deliveries
        self.out.update(dict.fromkeys(run, value))
        self.counts[state] += len(run)

    def _lease(self, run: range, until_ms: int, deliveries: int | None) -> None:
        """Lease messages with this number of deliveries, or with the number that each has."""
        out, counts = self.out, self.counts
        for offset in run:
            value = out.get(offset)
            if value is None:
                continue
            counts[value >> DELIVERIES_BITS & STATE_MASK] -= 1
            counts[LEASED] += 1
            number = value & DELIVERIES_MASK if deliveries is None else deliveries
            out[offset] = until_ms << TIME_SHIFT | LEASED << DELIVERIES_BITS | number
            self.causes.pop(offset, None)
        self._dues.add(until_ms, run, len(run))
        self._clean()

    def _return(self, run: range, ready_ms: int, now_ms: int) -> None:
        for offset in run:
            if offset in self.out:
                self._put(offset, WAITING, ready_ms)
        if ready_ms <= now_ms:
            self.put_back(run)
        else:
            self._dues.add(ready_ms, run, len(run))

    def _settle(self, offsets: Iterator[int], now_ms: int) -> None:
        out, counts = self.out, self.counts
        for offset in offsets:
            value = out.pop(offset, None)
            if value is None:
                continue
            counts[value >> DELIVERIES_BITS & STATE_MASK] -= 1
            if self.held:
                self.held.pop(offset, None)
            if self.causes:
                self.causes.pop(offset, None)
            if self.order is not None:
                self._unblock(self.order.remove(offset), now_ms)
        self._clean()

    def _unblock(self, offset: int | None, now_ms: int) -> None:
        if offset is None or self._state(offset) != BLOCKED:
            return
        self._put(offset, WAITING, now_ms)
        heapq.heappush(self._ready, offset)

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
        """Forget stale entries of `dues` when most of them are."""
        if self._dues.size <= 2 * len(self.out) + _STALE_MAX:
            return
        self._dues.clear()
        for offset, value in self.out.items():
            if value >> DELIVERIES_BITS & STATE_MASK <= WAITING:
                self._dues.add(value >> TIME_SHIFT, (offset,), 1)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self, now_ms: int, when_ms: int) -> Iterator[PartitionSnapshot]:
        """The state as it is now, in chunks that fit into the journal; `when_ms` is the wall
        time."""
        runs, values = self._runs(now_ms)
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
            )

    def _runs(self, now_ms: int) -> tuple[Runs, list[int]]:
        """Runs of what is not settled, and the value of each, with the time that is left."""
        runs: Runs = []
        values: list[int] = []
        low_bits = (1 << TIME_SHIFT) - 1
        for offset in sorted(self.out):
            value = self.out[offset]
            value = max(0, (value >> TIME_SHIFT) - now_ms) << TIME_SHIFT | value & low_bits
            if runs and runs[-2] + runs[-1] == offset and values[-1] == value:
                runs[-1] += 1
            else:
                runs += (offset, 1)
                values.append(value)
        return runs, values

    def _restore(self, edit: PartitionSnapshot, now_ms: int, passed_ms: int) -> None:
        """Take a chunk of a snapshot; with the last one the state is what they say."""
        if edit.number == 0:
            self.chunks = []
        if edit.number != len(self.chunks):
            return
        self.chunks.append(edit)
        if len(self.chunks) < edit.chunks:
            return
        chunks, self.chunks = self.chunks, []
        self._reset(edit.frontier, edit.at)
        for chunk in chunks:
            self.causes.update(chunk.causes)
            for run, value in zip(ranges(chunk.runs), chunk.values, strict=True):
                self._restore_run(run, value, now_ms, passed_ms)
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
            self._dues.add(time_ms, run, len(run))


def _until(now_ms: int, left_ms: int) -> int:
    """When it ends; what is over already is due at once."""
    return now_ms + left_ms if left_ms > 0 else now_ms - BUCKET_MS
