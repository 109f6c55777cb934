"""Messages that transactions settle, in the queues of a shard.

    verify ─▶ prepare: the offsets are held, the entry has the write pointer ─▶ committed: settled
                                            └─ the transaction fails ─▶ let go: time counts again

Invariants

* What is held is neither delivered nor given to another commit, whatever the time, until the fate
  of its transaction is known. Who comes upon it asks, and has to be told nothing.
* A commit settles all of its tokens, or fails with `Fenced`.
* No lock of a queue is held while something of transactions is asked.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from tms.errors import Fenced, StorageUnavailable, TMSError
from tms.journal.journaled import Cells
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.queue import Settlement, Token
from tms.model.snapshot import Fate
from tms.model.topic import Durability, TopicName, strongest
from tms.queues.checks import parsed
from tms.queues.entries import Settled, encode
from tms.queues.journal import QueueJournal
from tms.queues.partition import QueuePartitionState
from tms.queues.queue import OpenQueue
from tms.queues.runs import offsets_in
from tms.queues.state import Decision
from tms.topics.fetching import Decisions

_SHOWN = 100  # tokens in an error


class Settling:
    """What commits settle in the queues of a shard. Thread-safe."""

    def __init__(
        self,
        journal: QueueJournal,
        decisions: Callable[[], Decisions],
        find: Callable[[str, TopicName], OpenQueue],
        peek: Callable[[str, TopicName], OpenQueue | None],
        opened: Callable[[], Iterable[OpenQueue]],
        durability: Callable[[OpenQueue], Durability],
    ) -> None:
        self._journal = journal
        self._decisions = decisions
        self._find = find
        self._peek = peek  # never reads, and never waits
        self._opened = opened
        self._durability = durability
        self.ends = 0  # of transactions that held something

    # -- in commits --------------------------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        """Its topic."""
        return self._journal.name

    @property
    def known(self) -> bool:
        """Whether asking needs no reading."""
        return self._journal.known

    def verify(self, settlements: Iterable[Settlement]) -> Durability:
        """How durable settling these has to be. Raises what keeps a transaction from it."""
        levels = [Durability.WRITTEN]
        for settlement in settlements:
            queue = self._find(settlement.group, settlement.topic)
            self.learn(queue)
            levels.append(self._durability(queue))
            with queue.lock:
                _require_all(settlement, queue.state.settle(parsed(settlement.tokens)))
        return strongest(*levels)

    def prepare(
        self,
        settlements: Iterable[Settlement],
        id: int,
        durability: Durability,
        stamp: Stamp,
        inline: Durability,
    ) -> PendingAppend:
        """Hold and store what a transaction settles; the calling thread writes what needs at most
        `inline`. Raises like `verify`."""
        entries: list[Cells] = []
        try:
            for settlement in settlements:
                queue = self._find(settlement.group, settlement.topic)
                self.learn(queue)
                with queue.lock:
                    decision = queue.state.settle(parsed(settlement.tokens))
                    _require_all(settlement, decision)
                    for number, edit in decision.edits:
                        assert isinstance(edit, Settled)
                        queue.state.partition(number).hold(offsets_in(edit.runs), id)
                        entries.append((queue.key(number), encode(edit)))
            return self._journal.store(entries, durability, stamp, inline)
        except BaseException:
            if entries:  # held, and nobody may ever say how it ended
                self.follow(id)
            raise

    def require_prepared(self, settlements: Iterable[Settlement], id: int) -> None:
        """Raise `StorageUnavailable` unless a transaction holds what it settles."""
        for settlement in settlements:
            self._require_held(settlement, parsed(settlement.tokens), id)

    def _require_held(self, settlement: Settlement, tokens: list[Token], id: int) -> None:
        queue = self._peek(settlement.group, settlement.topic)
        if queue is not None and self._journal.known:
            with queue.lock:
                if all(state.held.get(offset) == id for state, offset in _places(queue, tokens)):
                    return
        raise StorageUnavailable(
            f"The queue {settlement.group} of {settlement.topic} was deleted, or its journal read "
            f"again, while the transaction {id} was being committed. Do it again."
        )

    def committed(self, settlements: Iterable[Settlement], id: int) -> None:
        """A transaction is committed. Never waits."""
        for settlement in settlements:
            queue = self._peek(settlement.group, settlement.topic)
            if queue is not None:
                self._end(queue, id, settle=True)

    def invalidate(self) -> None:
        """Read the journal again: what was written may be there, or not."""
        self._journal.invalidate()

    # -- transactions that are open ----------------------------------------------------------------

    def follow(self, pointer: int) -> None:
        """Settle what a transaction holds, or let it go, as soon as it has ended."""
        try:
            fate = self._decisions().learn((pointer,))(pointer, True)
        except TMSError:  # who comes upon it asks again
            return
        if fate is Fate.OPEN:
            self._decisions().watch_end(pointer, lambda: self.follow(pointer))
            return
        self._ended({pointer: fate}, self._opened())

    def learn(self, queue: OpenQueue) -> None:
        """Ask what became of the transactions that hold something of a queue."""
        with queue.lock:
            pointers = queue.state.holders()
        if pointers:
            self._ended(self._fates(pointers), (queue,))

    def learn_all(self) -> None:
        """The same of all queues."""
        for queue in self._opened():
            self.learn(queue)

    def _fates(self, pointers: Collection[int]) -> dict[int, Fate]:
        fate_of = self._decisions().learn(pointers)
        return {pointer: fate_of(pointer, True) for pointer in pointers}

    def _ended(self, fates: dict[int, Fate], queues: Iterable[OpenQueue]) -> None:
        ended = {pointer: fate for pointer, fate in fates.items() if fate is not Fate.OPEN}
        for queue in queues if ended else ():
            for pointer, fate in ended.items():
                self._end(queue, pointer, settle=fate is Fate.VISIBLE)

    def _end(self, queue: OpenQueue, pointer: int, settle: bool) -> None:
        self.ends += 1
        with queue.lock:
            for state in queue.state.partitions.values():
                state.end(pointer, settle, queue.now_ms())
            ready = queue.state.has_ready
        if ready:
            queue.waiters.wake()


def _places(queue: OpenQueue, tokens: Iterable[Token]) -> Iterator[tuple[QueuePartitionState, int]]:
    for token in tokens:
        for offset in range(token.offset, token.offset + token.count):
            yield queue.state.partition(token.partition), offset


def _require_all(settlement: Settlement, decision: Decision) -> None:
    if not decision.late:
        return
    late = [str(token) for token in decision.late]
    raise Fenced(
        f"{len(late)} of the messages that the transaction settles in the queue "
        f"{settlement.group} of {settlement.topic} are no longer its own, the first by the token "
        f"{late[0]}: the lease has ended and they were delivered again or settled. Roll back; they "
        "are handled elsewhere.",
        group=settlement.group,
        topic=str(settlement.topic),
        tokens=late[:_SHOWN],
    )
