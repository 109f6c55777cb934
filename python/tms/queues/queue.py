"""One queue that is open: receiving from it, and doing what tokens say.

    decide ─▶ journal, in this order ─▶ apply ─▶ (lock released) ─▶ stored ─▶ answer

Invariants

* Under the lock nothing waits: the log is read, and the journal is written, outside of it.
* Nothing is answered before it is in the journal. What is decided meanwhile rests on it, and fails
  with it.
* Entries of a queue are added to the journal in the order in which they are applied.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import NamedTuple

import msgspec

from tms.block.received import Received
from tms.clock import Clock
from tms.errors import DataCorrupt, TMSError
from tms.events import EventLog
from tms.journal.journaled import Cells
from tms.model.ids import MessageId
from tms.model.message import Holder, PartitionPosition, Readable
from tms.model.queue import QueueInfo, QueuePartition, Token, TokenResult
from tms.model.topic import Durability, TopicName
from tms.queues.delivering import Taking
from tms.queues.entries import encode, queue_key
from tms.queues.journal import QueueJournal, QueueWrite
from tms.queues.partition import BLOCKED, DYING, LEASED, WAITING
from tms.queues.reading import FoundAgain, Scanner, stored_bytes
from tms.queues.state import Decision, Edits, QueueState
from tms.queues.waiters import Waiter, Waiters
from tms.topics.fetching import Fetcher

RECENT_MAX = 10_000  # messages settled last: a call that is repeated is answered like the first
DAMAGED_MS = 30_000  # before what cannot be read is tried again
_log = EventLog(__name__)


class QueueServices(NamedTuple):
    """What all queues share. `dying` is called when something is to go to the dead letters."""

    log: Fetcher
    journal: QueueJournal
    clock: Clock
    random: Random
    dying: Callable[[], None]


class OpenQueue:
    """A queue of one topic. Thread-safe; `lock` guards `state`."""

    def __init__(
        self, group: str, topic: TopicName, state: QueueState, shared: QueueServices
    ) -> None:
        self.group = group
        self.topic = topic
        self.state = state
        self.lock = threading.Lock()
        self.deleted = False
        self.waiters = Waiters()
        self.redelivered = 0
        self.died = 0
        self._log, self._journal, self._clock, self._random, self._dying = shared
        self._scanner = Scanner(shared.log, topic)
        self._starts: dict[int, int] = {}  # first readable offsets, when `info` was given them last
        self._reading = threading.Lock()  # who reads ahead
        self._armed = False
        self._cancel: Callable[[], None] | None = None  # of the watch that was armed last
        self._due_ms: int | None = None  # when the last that began to wait looks again
        self._turn = 0
        self._is_full = False  # somebody found no room for more outstanding messages
        self._recent: deque[Token] = deque()
        self._recent_count = 0
        self._unreadable: dict[tuple[int, int], TMSError] = {}  # by partition and offset
        self._unknown_ends: dict[int, TMSError] = {}  # partitions to be rewound when they are read

    def replace(self, state: QueueState | None) -> None:
        """It stands like this, whatever it did before; None: it is deleted."""
        with self.lock:
            self.begin_anew(state)
        self.waiters.wake_all()

    def begin_anew(self, state: QueueState | None) -> None:
        """The same. The caller holds the lock, and wakes all that wait."""
        if state is None:
            self.deleted = True
        else:
            self.state = state
        self._scanner.reset()
        self._unreadable.clear()
        self._recent.clear()
        self._recent_count = 0

    def snapshot(self) -> Iterator[Cells]:
        """Entries that make it what it is now. The caller holds the lock until they are stored."""
        when_ms, partitions = self._clock.now_ms(), self.state.partitions
        starts = [
            (number, partition.frontier, partition.at)
            for number, partition in partitions.items()
            if partition.frontier
        ]
        yield self.key(), encode(msgspec.structs.replace(self.state.declared, starts=starts))
        for number, partition in partitions.items():
            for chunk in partition.snapshot(self.now_ms(), when_ms):
                yield self.key(number), encode(chunk)

    def rewind(self, partitions: Iterable[int]) -> None:
        """Go back to where the log ends; what was behind is gone. A partition whose end is damaged
        is asked again before it is read."""
        ends: dict[int, tuple[int, MessageId | None]] = {}
        for partition in partitions:
            try:
                ends[partition] = self._log.end(self.topic, partition)
                self._unknown_ends.pop(partition, None)
            except DataCorrupt as error:
                if partition not in self._unknown_ends:
                    self._log_damage(partition, error)
                self._unknown_ends[partition] = error
        with self.lock:
            edits = self.state.rewound(ends)
            if not edits:
                return
            declared = self.state.after_loss()
            self._journal.add([(self.key(), encode(declared))], Durability.SYNCED)
            self.state.change(declared)
            batch = self._add(edits, Durability.SYNCED)
            self._scanner.reset()
        self._journal.wait(batch)

    def is_at_rest(self, receives: bool) -> bool:
        """Whether nobody is at it, so that what is done now waits for nobody, as far as can be
        seen; who `receives` also finds something that was read before."""
        if not self._journal.is_at_rest or not self.lock.acquire(blocking=False):
            return False
        try:
            state = self.state
            if not receives:
                return True
            again = state.has_ready or bool(state.holders())
            return bool(self._scanner.ahead) and not again and not self._reading.locked()
        finally:
            self.lock.release()

    # -- receiving ---------------------------------------------------------------------------------

    def receive(
        self, partitions: int, limit: int, bytes_max: int, durability: Durability
    ) -> Received | None:
        """Up to `limit` messages, leased; None when there are none. Goes on when all that it came
        upon was gone, or waits behind others."""
        while True:
            received, again = self._receive(partitions, limit, bytes_max, durability)
            if received is not None or not again:
                return received

    def _receive(
        self, partitions: int, limit: int, bytes_max: int, durability: Durability
    ) -> tuple[Received | None, bool]:
        """The same, once; and whether it came upon something."""
        with self.lock:
            state = self.state
            state.expire(self.now_ms())
            again = self._take_ready(limit)
        try:
            found = self._find_readable(again, bytes_max)
            messages = sum(len(offsets) for _, each in found for _, offsets in each.pieces)
            if messages < limit and not any(each.left for _, each in found):
                self._read_ahead(partitions)
            kept = self._kept_ahead()
            with self.lock:
                if self.state is not state:  # the journal was read again, or the topic is a new one
                    return None, not self.deleted
                news = self._set_right(found, kept)
                taking = Taking(state, limit, bytes_max, self.now_ms(), self._clock.now_ms())
                batch = self._take(taking, found, durability)
                more = bool(self._scanner.ahead) or taking.full or self._is_news()
                dying = state.has_dying
        except BaseException:
            with self.lock:
                self._scanner.reset()
                for number, offsets in again:
                    state.partition(number).put_back(offsets)
            self.waiters.wake()
            raise
        if batch is None:
            return None, news
        self._tell(more, dying)
        self._journal.wait(batch)
        if not taking.slices:
            return None, True
        return Received(state.epoch, tuple(taking.slices)), True

    def _set_right(
        self, again: Iterable[tuple[int, FoundAgain]], kept: Mapping[int, Readable]
    ) -> bool:
        """Forget what was read ahead and is gone, put back what cannot be read, or had no room;
        whether that changes what a receive finds. The caller holds the lock."""
        news = self._scanner.drop_gone(kept)
        for number, each in again:
            self.state.partition(number).put_back(each.left)
            self._note_damaged(number, each)
            news = news or bool(each.damaged)
        return news

    def _take(
        self, taking: Taking, again: Sequence[tuple[int, FoundAgain]], durability: Durability
    ) -> QueueWrite | None:
        """Lease what was found and read ahead; None when that is nothing. The caller holds the
        lock."""
        batch = None
        if gone := self.state.settle_gone((number, each.gone) for number, each in again):
            batch = self._add(gone, durability)
        for number, each in again:
            taking.take_again(number, each)
        if not any(each.left for _, each in again):
            taking.take_new(self._scanner)
        if taking.edits:
            batch = self._add(taking.edits, durability)
        self.redelivered += taking.again
        return batch

    def _is_news(self) -> bool:
        """Whether the next one that waits has to look: something is ready, or would be before it
        looks, or nobody would tell it. The caller holds the lock."""
        if self.state.has_ready:
            return True
        if not self.waiters:
            return False
        next_ms = self.state.next_ms()
        sooner = next_ms is not None and (self._due_ms is None or next_ms < self._due_ms)
        return sooner or not self._armed

    def _take_ready(self, limit: int) -> list[tuple[int, list[int]]]:
        now_ms = self.now_ms()
        taken = []
        places = list(self.state.partitions.items())
        self._turn = (self._turn + 1) % max(1, len(places))
        for number, state in (*places[self._turn :], *places[: self._turn]):
            if limit > 0 and state.has_ready and (offsets := state.take_ready(now_ms, limit)):
                taken.append((number, offsets))
                limit -= len(offsets)
        return taken

    def _read_ahead(self, partitions: int) -> None:
        with self._reading:
            if self._unknown_ends:
                self.rewind([*self._unknown_ends])
            with self.lock:
                scanner, state = self._scanner, self.state
                if self._may_look_at(scanner.ahead):
                    return
                wanted = {*range(partitions)} - {*scanner.ahead} - {*self._unknown_ends}
                positions = scanner.positions(state.partitions, self._may_look_at(sorted(wanted)))
            if not positions:
                return
            read = scanner.read(positions)
            with self.lock:
                if self.state is not state:
                    return
                news = read.damaged.keys() - scanner.damaged.keys()
                scanner.accept(read)
        for partition in news:
            self._log_damage(partition, read.damaged[partition])

    def _kept_ahead(self) -> Mapping[int, Readable]:
        """What may still be shown of what was read ahead."""
        with self.lock:
            partitions = [*self._scanner.ahead]
        return self._log.kept(self.topic, partitions) if partitions else {}

    # -- damage ------------------------------------------------------------------------------------

    def _find_readable(
        self, again: Iterable[tuple[int, list[int]]], bytes_max: int
    ) -> list[tuple[int, FoundAgain]]:
        """What was taken, by partition, in blocks of about so many bytes together."""
        readable, room = [], bytes_max
        for partition, offsets in again:
            if room <= 0:
                readable.append((partition, FoundAgain([], [], {}, offsets)))
                continue
            with self._reading:
                part = self._scanner.find_readable(partition, offsets, room)
            room -= stored_bytes(part.pieces)
            readable.append((partition, part))
        return readable

    def _note_damaged(self, partition: int, again: FoundAgain) -> None:
        """What cannot be read is tried again later. The caller holds the lock."""
        for offset in chain(again.gone, *(offsets for _, offsets in again.pieces)):
            self._unreadable.pop((partition, offset), None)
        if not again.damaged:
            return
        self.state.partition(partition).put_off(again.damaged, self.now_ms() + DAMAGED_MS)
        for offset, error in again.damaged.items():
            if (partition, offset) not in self._unreadable:
                self._log_damage(partition, error, offset)
            self._unreadable[partition, offset] = error

    def _log_damage(self, partition: int, error: TMSError, offset: int | None = None) -> None:
        _log.error(
            "queue_cannot_read",
            group=self.group,
            topic=str(self.topic),
            partition=partition,
            offset=offset,
            error=error.message,
        )

    def damage(self) -> dict[int, TMSError]:
        """The partitions of which something cannot be read, each with a reason."""
        with self.lock:
            for partition, offset in [*self._unreadable]:
                if offset not in self.state.partition(partition).out:
                    del self._unreadable[partition, offset]
            damaged = {partition: error for (partition, _), error in self._unreadable.items()}
            return {**damaged, **self._scanner.damaged, **self._unknown_ends}

    # -- waiting -----------------------------------------------------------------------------------

    def watch(self, partitions: int, callback: Callable[[], None]) -> tuple[Waiter, float | None]:
        """Call back once when something may be there; and in how many seconds to look again in any
        case, if a lease or a delay ends. `waiters.remove` must follow."""
        waiter = self.waiters.add(callback)
        with self.lock:
            self._due_ms = next_ms = self.state.next_ms()
            left_ms = None if next_ms is None else next_ms - self.now_ms()
            ahead = self._may_look_at(self._scanner.ahead)
            at_once = self.deleted or self.state.has_ready or bool(ahead)
            damaged = {*self._scanner.damaged, *self._unknown_ends}  # else they wake at once
            open_ones = self._may_look_at(
                number for number in range(partitions) if number not in damaged
            )
            arm = bool(open_ones) and not (at_once or self._armed)
            positions = self._scanner.positions(self.state.partitions, open_ones) if arm else []
            held = dict(self._scanner.held)
            if arm:
                self._armed = True
        if arm:
            self._arm(positions, held)
        if at_once:
            self.waiters.wake()
        return waiter, None if left_ms is None else max(0.0, left_ms / 1_000)

    def _arm(self, positions: Sequence[PartitionPosition], held: Mapping[int, Holder]) -> None:
        """Let the log tell when something is there."""
        cancel = None
        try:
            cancel = self._log.watch(self.topic, positions, self._news, held)
        finally:
            with self.lock:
                before, self._cancel = self._cancel, cancel
                if cancel is None:
                    self._armed = False
            if before is not None:
                before()

    def _news(self) -> None:
        self._armed = False
        self.waiters.wake()

    def _may_look_at(self, partitions: Iterable[int]) -> list[int]:
        """Those of the partitions in which more may be looked at now. The caller holds the lock."""
        state = self.state
        if state.outstanding() >= state.settings.outstanding_max:
            self._is_full = True
            return []
        known = state.partitions
        return [
            partition
            for partition in partitions
            if partition not in known or not known[partition].is_stalled
        ]

    # -- tokens ------------------------------------------------------------------------------------

    def ack(self, tokens: Sequence[Token], durability: Durability) -> TokenResult:
        """These are done with."""
        return self._do(tokens, lambda state: state.settle(tokens), durability, remember=True)

    def nack(
        self, tokens: Sequence[Token], delay_ms: int | None, cause: str, durability: Durability
    ) -> TokenResult:
        """These are to be delivered again."""
        when_ms, random = self._clock.now_ms(), self._random
        return self._do(
            tokens, lambda state: state.nack(tokens, delay_ms, cause, when_ms, random), durability
        )

    def extend(
        self, tokens: Sequence[Token], lease_ms: int | None, durability: Durability
    ) -> TokenResult:
        """The leases of these begin anew."""
        when_ms = self._clock.now_ms()
        usual_ms = max(1, round(self.state.settings.lease_s * 1_000))
        chosen_ms = usual_ms if lease_ms is None else lease_ms
        return self._do(tokens, lambda state: state.extend(tokens, chosen_ms, when_ms), durability)

    def reject(self, tokens: Sequence[Token], cause: str, durability: Durability) -> TokenResult:
        """These go to the dead letters."""
        return self._do(tokens, lambda state: state.reject(tokens, cause), durability)

    def _do(
        self,
        tokens: Sequence[Token],
        decide: Callable[[QueueState], Decision],
        durability: Durability,
        remember: bool = False,
    ) -> TokenResult:
        with self.lock:
            self.state.expire(self.now_ms())
            decision = decide(self.state)
            batch = self._add(decision.edits, durability)
            late, repeated = decision.late, 0
            if remember:
                late, repeated = self._not_repeated(late)
                self._remember(tokens, decision.late)
            news = self._is_full or self._is_news()
            self._is_full = False
            dying = self.state.has_dying
        self._journal.wait(batch)
        self._tell(news, dying)
        return TokenResult(decision.done + repeated, tuple(map(str, late)))

    def _tell(self, news: bool, dying: bool) -> None:
        if news:
            self.waiters.wake()
        if dying:
            self._dying()

    def _remember(self, tokens: Iterable[Token], late: Sequence[Token]) -> None:
        """These were settled, except for those that were late."""
        if late:
            others = set(late)
            tokens = [single for token in tokens for single in token.each() if single not in others]
        self._recent.extend(tokens)
        self._recent_count += sum(token.count for token in tokens)
        while self._recent_count > RECENT_MAX:
            self._recent_count -= self._recent.popleft().count

    def _not_repeated(self, late: list[Token]) -> tuple[list[Token], int]:
        """What is late although it was not settled by the same token just before."""
        if not late or not self._recent:
            return late, 0
        recent = {single for token in self._recent for single in token.each()}
        left = [single for single in late if single not in recent]
        return left, len(late) - len(left)

    def _add(self, edits: Edits, durability: Durability) -> QueueWrite:
        """Journal edits, and apply them. The caller holds the lock, and waits for the batch."""
        entries = [(self.key(number), encode(edit)) for number, edit in edits]
        batch = self._journal.add(entries, durability)
        now_ms = self.now_ms()
        for number, edit in edits:
            self.state.partition(number).apply(edit, now_ms)
        return batch

    # -- dead letters ------------------------------------------------------------------------------

    def take_dying(self, limit: int) -> list[Token]:
        """What is to go to the dead letters, up to `limit` messages; each is taken once, until
        `return_dying`."""
        tokens: list[Token] = []
        with self.lock:
            self.state.expire(self.now_ms())
            for number, state in self.state.partitions.items():
                for offset in state.take_dying(limit - len(tokens)):
                    tokens.append(Token(number, offset, state.deliveries(offset), self.state.epoch))
        return tokens

    def return_dying(self, tokens: Iterable[Token]) -> None:
        """They are still to go to the dead letters."""
        with self.lock:
            for token in tokens:
                if token.epoch == self.state.epoch:
                    self.state.partition(token.partition).return_dying((token.offset,))

    def cause_of(self, token: Token) -> str:
        """Why a message goes to the dead letters."""
        return self.state.partition(token.partition).causes.get(token.offset, "")

    def find(self, partition: int, offsets: Sequence[int], bytes_max: int) -> FoundAgain:
        """The messages at these offsets, which ascend, in blocks of about so many bytes."""
        with self._reading:
            return self._scanner.find(partition, offsets, bytes_max)

    def settle_gone(self, epoch: int, partition: int, offsets: Sequence[int]) -> None:
        """Settle what is no longer in the log of this generation of the queue."""
        with self.lock:
            if self.state.epoch != epoch:
                return
            edits = self.state.settle_gone([(partition, offsets)])
            batch = self._add(edits, Durability.WRITTEN)
        self._journal.wait(batch)

    # -- looking -----------------------------------------------------------------------------------

    def key(self, partition: int | None = None) -> bytes:
        """The key of its entries."""
        return queue_key(self.group, self.topic, partition)

    def now_ms(self) -> int:
        """The time of its leases."""
        return int(self._clock.monotonic_s() * 1_000)

    def expire(self) -> bool:
        """Let leases and delays end; whether something is dying."""
        with self.lock:
            news = self.state.expire(self.now_ms())
            ready, dying = self.state.has_ready, self.state.has_dying
        if news and ready:
            self.waiters.wake()
        return dying

    def info(self, bounds: Mapping[int, tuple[int, int]], dead: int) -> QueueInfo:
        """How it stands; the log can be read within these offsets, by partition, and so many dead
        letters can be moved back. A message that cannot be read counts only while a worker has
        it; of a partition without bounds, those before the start that it had last."""
        with self.lock:
            now_ms = self.now_ms()
            state = self.state
            state.expire(now_ms)
            self._starts.update((number, start) for number, (start, _) in bounds.items())
            counts = [0, 0, 0, 0]
            ready = backlog = 0
            places = []
            for number in sorted({*bounds, *state.partitions}):
                partition = state.partition(number)
                start, end = bounds.get(number, (self._starts.get(number, 0), 0))
                gone, gone_ready = partition.unreadable(start, now_ms)
                counts = [a + b - c for a, b, c in zip(counts, partition.counts, gone, strict=True)]
                ready += max(0, partition.count_ready - gone_ready)
                end = max(end, partition.frontier)
                seen = max(partition.frontier, self._scanner.nothing_before(number), start)
                backlog += max(0, end - seen)
                places.append(QueuePartition(number, partition.cursor(), partition.frontier, end))
            return QueueInfo(
                self.group,
                self.topic,
                state.settings,
                state.declared.created_ms,
                backlog,
                counts[LEASED],
                ready,
                counts[WAITING] - ready,
                counts[BLOCKED],
                counts[DYING],
                dead,
                self.redelivered,
                self.died,
                tuple(places),
            )
