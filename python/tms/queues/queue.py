"""One open queue: receiving messages, and settling or returning them by token.

    decide ─▶ journal, in this order ─▶ apply ─▶ (lock released) ─▶ stored ─▶ answer

Invariants

* No thread waits under the lock: the log is read, and the journal is written, outside of it.
* Nothing is answered before the journal has it. Decisions made meanwhile rest on it, and fail with
  it.
* Entries of a queue are added to the journal in the order in which they are applied.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from tms.block.received import Received
from tms.errors import DataCorrupt, TMSError
from tms.log.journaled import Cells
from tms.model.ids import MessageId
from tms.model.message import Holder, PartitionPosition
from tms.model.queue import QueueInfo, QueuePartition, Token, TokenResult
from tms.model.topic import Durability, TopicName
from tms.queues.checks import not_found
from tms.queues.delivering import Receive
from tms.queues.entries import encode, queue_key
from tms.queues.journal import QueueJournal, QueueWrite
from tms.queues.partition import BLOCKED, DYING, LEASED, WAITING
from tms.queues.reading import Reread, Scanner, stored_bytes
from tms.queues.state import Decision, Edits, QueueState
from tms.queues.waiters import Waiter, Waiters
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.topics.fetching import Fetcher

RECENT_MAX = 10_000  # settled messages that a repeated call may name
DAMAGED_MS = 30_000  # before an unreadable message is tried again
_log = EventLog(__name__)


class QueueServices(NamedTuple):
    """Services that all queues of a shard share. `dying` is called if a message is to be moved to
    the dead letters."""

    log: Fetcher
    journal: QueueJournal
    clock: Clock
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
        self._log, self._journal, self._clock, self._dying = shared
        self._scanner = Scanner(shared.log, topic)
        self._starts: dict[int, int] = {}  # first readable offsets, of the last `info`
        self._reading = threading.Lock()  # held while reading ahead
        self._armed = False
        self._cancel: Callable[[], None] | None = None  # of the last watch
        self._due_ms: int | None = None  # when the last waiter looks again
        self._turn = 0
        self._is_full = False  # a read found no room for further outstanding messages
        self._recent: deque[Token] = deque()
        self._recent_count = 0
        self._unreadable: dict[tuple[int, int], TMSError] = {}  # by partition and offset
        self._unknown_ends: dict[int, TMSError] = {}  # partitions to be rewound when they are read

    def replace(self, state: QueueState | None) -> None:
        """Replace the state; None deletes the queue."""
        with self.lock:
            self.reset(state)
        self.waiters.wake_all()

    def reset(self, state: QueueState | None) -> None:
        """Replace the state and drop everything that rests on the old one; None deletes the queue.
        The caller holds the lock, and wakes all waiters after it."""
        if state is None:
            self.deleted = True
        else:
            self.state = state
        self._scanner.reset()
        self._unreadable.clear()
        self._recent.clear()
        self._recent_count = 0

    def snapshot(self) -> Iterator[Cells]:
        """Yields entries that give the present state. The caller holds the lock until they are
        stored."""
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
        """Drop all state behind the end of the log. A partition with a damaged end is rewound
        before it is read."""
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
            write = self._add(edits, Durability.SYNCED, self.now_ms())
            self._scanner.reset()
        self._journal.wait(write)

    def is_at_rest(self, receives: bool) -> bool:
        """True if an operation would take the lock and the journal without waiting. With
        `receives`, also if messages were read ahead."""
        if self._journal.turn.locked() or self.lock.locked():
            return False
        if not receives:
            return True
        with self.lock:  # held for a moment only
            redelivers = self.state.has_ready or self.state.totals.held > 0
            return bool(self._scanner.ahead) and not redelivers and not self._reading.locked()

    # -- receiving ---------------------------------------------------------------------------------

    def receive(
        self, partitions: int, limit: int, bytes_max: int, durability: Durability
    ) -> tuple[Received | None, bool]:
        """Lease up to `limit` messages in one pass, None if there are none; and True if another
        pass may find more."""
        with self.lock:
            state, now_ms = self.state, self.now_ms()
            state.expire(now_ms)
            ready = self._take_ready(now_ms, limit) if state.has_ready else []
            ahead = [*self._scanner.ahead]
            # unless another thread is reading, later reads begin after this receive
            reads = ready or self._unknown_ends or self._reading.locked()
            suffices = not reads and bool(self._may_look_at(ahead))
        try:
            reread = self._find_readable(ready, bytes_max) if ready else []
            if not suffices:
                ahead = self._look_ahead(partitions, limit, reread)
            readable = self._log.kept(self.topic, ahead) if ahead else {}
            with self.lock:
                if self.state is not state:  # the journal was read again, or the topic is a new one
                    return None, not self.deleted
                news = self._scanner.drop_gone(readable)
                for number, each in reread:
                    self.state.partitions[number].put_back(each.left)
                    self._note_damaged(number, each)
                    news = news or bool(each.damaged)
                now_ms = now_ms if suffices else self.now_ms()
                receive = Receive(state, limit, bytes_max, now_ms, self._clock.now_ms())
                write = self._take(receive, reread, durability)
                more = bool(self.waiters.waiting) and (
                    bool(self._scanner.ahead) or receive.full or self._is_news()
                )
                dying = state.has_dying
        except BaseException:
            with self.lock:
                self._scanner.reset()
                for number, offsets in ready:
                    state.partitions[number].put_back(offsets)
            self.waiters.wake()
            raise
        if write is None:
            return None, news
        if more:
            self.waiters.wake()
        if dying:
            self._dying()
        self._journal.wait(write)
        if not receive.slices:
            return None, True
        return Received(state.epoch, tuple(receive.slices)), True

    def _take(
        self, receive: Receive, reread: Sequence[tuple[int, Reread]], durability: Durability
    ) -> QueueWrite | None:
        """Lease messages that were read again or read ahead; None if there are none. The caller
        holds the lock."""
        write = None
        if reread:
            gone = self.state.settle_gone([(number, each.gone) for number, each in reread])
            if gone:
                write = self._add(gone, durability, receive.now_ms)
        for number, each in reread:
            receive.take_again(number, each)
        if not (reread and any(each.left for _, each in reread)):
            receive.take_new(self._scanner)
        if receive.edits:
            write = self._add(receive.edits, durability, receive.now_ms)
        self.redelivered += receive.again
        return write

    def _is_news(self) -> bool:
        """True if the next waiter has to look: a message is ready, or is due before it would look,
        or no watch of the log would wake it. The caller holds the lock."""
        if self.state.has_ready:
            return True
        next_ms = self.state.next_ms()
        sooner = next_ms is not None and (self._due_ms is None or next_ms < self._due_ms)
        return sooner or not self._armed

    def _take_ready(self, now_ms: int, limit: int) -> list[tuple[int, list[int]]]:
        taken = []
        partitions = list(self.state.partitions.items())
        self._turn = (self._turn + 1) % max(1, len(partitions))
        for number, state in (*partitions[self._turn :], *partitions[: self._turn]):
            if limit > 0 and state.ready and (offsets := state.take_ready(now_ms, limit)):
                taken.append((number, offsets))
                limit -= len(offsets)
        return taken

    def _look_ahead(
        self, partitions: int, limit: int, reread: Sequence[tuple[int, Reread]]
    ) -> list[int]:
        """Read ahead, unless the messages that were read again fill the receive. Returns the
        partitions whose messages were read before this receive began, or may have been."""
        messages = sum(len(offsets) for _, each in reread for _, offsets in each.pieces)
        read = set[int]()
        if messages < limit and not any(each.left for _, each in reread):
            read = self._read_ahead(partitions)
        with self.lock:
            return [partition for partition in self._scanner.ahead if partition not in read]

    def _read_ahead(self, partitions: int) -> set[int]:
        """Read on unless messages are there that may be looked at; the partitions that were
        read."""
        with self._reading:
            if self._unknown_ends:
                self.rewind([*self._unknown_ends])
            with self.lock:
                scanner, state = self._scanner, self.state
                if self._may_look_at(scanner.ahead):
                    return set()
                wanted = {*range(partitions)} - {*scanner.ahead} - {*self._unknown_ends}
                positions = scanner.positions(state.partitions, self._may_look_at(sorted(wanted)))
            if not positions:
                return set()
            read = scanner.read(positions)
            with self.lock:
                if self.state is not state:
                    return set()
                news = read.damaged.keys() - scanner.damaged.keys()
                scanner.accept(read)
        for partition in news:
            self._log_damage(partition, read.damaged[partition])
        return {position.partition for position in positions}

    # -- damage ------------------------------------------------------------------------------------

    def _find_readable(
        self, again: Iterable[tuple[int, list[int]]], bytes_max: int
    ) -> list[tuple[int, Reread]]:
        """Read taken messages again, by partition, in blocks of about `bytes_max` bytes
        together."""
        readable, room = [], bytes_max
        for partition, offsets in again:
            if room <= 0:
                readable.append((partition, Reread([], [], {}, offsets)))
                continue
            with self._reading:
                part = self._scanner.find_readable(partition, offsets, room)
            room -= stored_bytes(part.pieces)
            readable.append((partition, part))
        return readable

    def _note_damaged(self, partition: int, again: Reread) -> None:
        """Put unreadable messages off. The caller holds the lock."""
        for offset in chain(again.gone, *(offsets for _, offsets in again.pieces)):
            self._unreadable.pop((partition, offset), None)
        if not again.damaged:
            return
        self.state.partitions[partition].put_off(again.damaged, self.now_ms() + DAMAGED_MS)
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
        """The partitions with unreadable messages, each with an error."""
        with self.lock:
            for partition, offset in [*self._unreadable]:
                if offset not in self.state.partitions[partition].out:
                    del self._unreadable[partition, offset]
            damaged = {partition: error for (partition, _), error in self._unreadable.items()}
            return {**damaged, **self._scanner.damaged, **self._unknown_ends}

    # -- waiting -----------------------------------------------------------------------------------

    def watch(self, partitions: int, callback: Callable[[], None]) -> tuple[Waiter, float | None]:
        """Call back once when a message may be there. Returns the waiter, and in how many seconds a
        lease or delay ends, None if none does. `waiters.remove` must follow."""
        waiter = self.waiters.add(callback)
        with self.lock:
            self._due_ms = next_ms = self.state.next_ms()
            left_ms = None if next_ms is None else next_ms - self.now_ms()
            ahead = self._may_look_at(self._scanner.ahead)
            at_once = self.deleted or self.state.has_ready or bool(ahead)
            damaged = {*self._scanner.damaged, *self._unknown_ends}  # which would wake at once
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
        """Let the log call when messages arrive."""
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
        """The partitions in which further messages may be looked at now. The caller holds the
        lock."""
        state = self.state
        if state.totals.outstanding >= state.settings.outstanding_max:
            self._is_full = True
            return []
        if state.settings.ordered_by != "key":
            return [*partitions]
        known = state.partitions
        return [
            partition
            for partition in partitions
            if partition not in known or not known[partition].is_stalled
        ]

    # -- tokens ------------------------------------------------------------------------------------

    def change(
        self,
        decide: Callable[[QueueState, Sequence[Token]], Decision],
        tokens: Sequence[Token],
        durability: Durability,
        settles: bool = False,
    ) -> TokenResult:
        """Make the change of leased messages that a decision about their tokens asks for. If it
        settles them, tokens that were settled lately count as done."""
        with self.lock:
            now_ms = self.now_ms()
            self.state.expire(now_ms)
            decision = decide(self.state, tokens)
            write = self._add(decision.edits, durability, now_ms)
            late, repeated = decision.late, 0
            if settles:
                if late:
                    late, repeated = self._not_repeated(late)
                self._remember(tokens, decision.late)
            news = bool(self.waiters.waiting) and self._has_news()
            dying = self.state.has_dying
        self._journal.wait(write)
        if news:
            self.waiters.wake()
        if dying:
            self._dying()
        return TokenResult(decision.done + repeated, tuple(map(str, late)))

    def end_transaction(self, pointer: int, settle: bool) -> None:
        """Settle or release the messages that a transaction holds, which has ended."""
        with self.lock:
            held = self.state.totals.held
            for partition in self.state.partitions.values():
                partition.end(pointer, settle, self.now_ms())
            news = self.state.totals.held < held and self._has_news()
        if news:
            self.waiters.wake()

    def _has_news(self) -> bool:
        """True if a waiter has to look: a change may have made messages ready, or room for further
        ones. The caller holds the lock."""
        news = self._is_full or self._is_news()
        self._is_full = False
        return news

    def _remember(self, tokens: Iterable[Token], late: Sequence[Token]) -> None:
        """Remember settled tokens, without the late ones."""
        if late:
            others = set(late)
            tokens = [single for token in tokens for single in token.each() if single not in others]
        for token in tokens:
            self._recent.append(token)
            self._recent_count += token.count
        while self._recent_count > RECENT_MAX:
            self._recent_count -= self._recent.popleft().count

    def _not_repeated(self, late: list[Token]) -> tuple[list[Token], int]:
        """The late tokens without those that just settled the same delivery, and how many those
        were."""
        if not self._recent:
            return late, 0
        recent = {single for token in self._recent for single in token.each()}
        left = [single for single in late if single not in recent]
        return left, len(late) - len(left)

    def _add(self, edits: Edits, durability: Durability, now_ms: int) -> QueueWrite:
        """Journal edits and apply them. The caller holds the lock, and waits for the write after
        it has released the lock. Raises `QueueNotFound`: a replay would apply the edits to a later
        queue of this name."""
        if self.deleted:
            raise not_found(self.group, self.topic)
        entries: list[Cells] = []
        for number, edit in edits:
            entries.append((queue_key(self.group, self.topic, number), encode(edit)))
        write = self._journal.add(entries, durability)
        for number, edit in edits:
            self.state.partitions[number].apply(edit, now_ms)
        return write

    # -- dead letters ------------------------------------------------------------------------------

    def take_dying(self, limit: int) -> list[Token]:
        """Take up to `limit` messages to be moved to the dead letters, each once until
        `return_dying`."""
        tokens: list[Token] = []
        with self.lock:
            self.state.expire(self.now_ms())
            for number, state in self.state.partitions.items():
                for offset in state.take_dying(limit - len(tokens)):
                    tokens.append(Token(number, offset, state.number(offset), self.state.epoch))
        return tokens

    def return_dying(self, tokens: Iterable[Token]) -> None:
        """Let taken messages be moved to the dead letters later."""
        with self.lock:
            for token in tokens:
                if token.epoch == self.state.epoch:
                    self.state.partitions[token.partition].return_dying((token.offset,))

    def cause_of(self, token: Token) -> str:
        """The cause for which a message goes to the dead letters."""
        return self.state.partitions[token.partition].causes.get(token.offset, "")

    def find(self, partition: int, offsets: Sequence[int], bytes_max: int) -> Reread:
        """Read the messages at these ascending offsets again, in blocks of about `bytes_max`
        bytes."""
        with self._reading:
            return self._scanner.find(partition, offsets, bytes_max)

    def settle_gone(self, epoch: int, partition: int, offsets: Sequence[int]) -> None:
        """Settle messages that are gone from the log, in this generation of the queue."""
        with self.lock:
            if self.state.epoch != epoch:
                return
            edits = self.state.settle_gone([(partition, offsets)])
            write = self._add(edits, Durability.WRITTEN, self.now_ms())
            news = bool(self.waiters.waiting) and self._has_news()
        self._journal.wait(write)
        if news:
            self.waiters.wake()

    # -- looking -----------------------------------------------------------------------------------

    def key(self, partition: int | None = None) -> bytes:
        """The key of the queue's journal entries."""
        return queue_key(self.group, self.topic, partition)

    def now_ms(self) -> int:
        """The time of leases."""
        return int(self._clock.monotonic_s() * 1_000)

    def expire(self) -> bool:
        """End leases and delays that are over; True if a message is dying."""
        with self.lock:
            news = self.state.expire(self.now_ms())
            ready, dying = self.state.has_ready, self.state.has_dying
        if news and ready:
            self.waiters.wake()
        return dying

    def info(self, bounds: Mapping[int, tuple[int, int]], dead: int) -> QueueInfo:
        """Describe the queue. `bounds` are the readable offsets by partition, and `dead` is the
        number of dead letters that can be moved back. A message that cannot be read counts only
        while it is leased; in a partition without bounds, messages before its last known start
        cannot be read."""
        with self.lock:
            now_ms = self.now_ms()
            state = self.state
            state.expire(now_ms)
            self._starts.update((number, start) for number, (start, _) in bounds.items())
            counts = [0, 0, 0, 0]
            ready = backlog = 0
            places = []
            for number in sorted({*bounds, *state.partitions}):
                partition = state.partitions[number]
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
