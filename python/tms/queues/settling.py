"""Messages that transactions settle: a participant of commits.

    verify ─▶ store: the offsets are held, the entry has the write pointer ─▶ committed: settled
                                         └─ the transaction fails ─▶ let go: time counts again

Invariants

* What is held is neither delivered nor given to another commit, whatever the time, until the fate
  of its transaction is known.
* A commit settles all of its tokens, or fails with `Fenced`.
* No lock of a queue is held while something of the transaction manager is asked that may wait.
"""

from collections.abc import Callable, Iterable, Iterator

from tms.errors import Fenced, StorageUnavailable
from tms.journal.journaled import Cells
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.queue import Settlement, Token
from tms.model.snapshot import Fate
from tms.model.topic import Durability, TopicName, strongest
from tms.model.transaction import Commit
from tms.queues.checks import parsed
from tms.queues.entries import Settled, encode
from tms.queues.journal import QueueJournal
from tms.queues.partition import QueuePartitionState
from tms.queues.queue import OpenQueue
from tms.queues.runs import offsets_in
from tms.queues.state import Decision
from tms.transactions.manager import TransactionManager

_SHOWN = 100  # tokens in an error


class Settling:
    """What commits settle in queues. Thread-safe."""

    def __init__(
        self,
        journal: QueueJournal,
        manager: TransactionManager,
        find: Callable[[str, TopicName], OpenQueue],
        peek: Callable[[str, TopicName], OpenQueue | None],
        opened: Callable[[], Iterable[OpenQueue]],
        durability: Callable[[OpenQueue], Durability],
    ) -> None:
        self._journal = journal
        self._manager = manager
        self._find = find
        self._peek = peek  # never reads, and never waits
        self._opened = opened
        self._durability = durability

    # -- as a participant of commits ---------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        return self._journal.name

    @property
    def known(self) -> bool:
        return self._journal.known

    def concerns(self, request: Commit) -> bool:
        return bool(request.settlements)

    def durability_of(self, request: Commit) -> Durability:
        return strongest(
            *(
                self._durability(self._find(settlement.group, settlement.topic))
                for settlement in request.settlements
            )
        )

    def keys_of(self, request: Commit) -> Iterable[bytes]:
        return ()  # holding keeps others out

    def verify(self, request: Commit, id: int) -> None:
        for settlement in request.settlements:
            tokens = parsed(settlement.tokens)
            if id:
                self._require_held(settlement, tokens, id)
                continue
            queue = self._find(settlement.group, settlement.topic)
            with queue.lock:
                _require_all(settlement, queue.state.settle(tokens))

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

    def store(
        self, request: Commit, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        entries: list[Cells] = []
        for settlement in request.settlements:
            queue = self._find(settlement.group, settlement.topic)
            with queue.lock:
                decision = queue.state.settle(parsed(settlement.tokens))
                _require_all(settlement, decision)
                for number, edit in decision.edits:
                    assert isinstance(edit, Settled)
                    queue.state.partition(number).hold(offsets_in(edit.runs), id)
                    entries.append((queue.key(number), encode(edit)))
        return self._journal.store(entries, durability, stamp, inline)

    def committed(self, request: Commit, id: int) -> None:
        for settlement in request.settlements:
            queue = self._peek(settlement.group, settlement.topic)
            if queue is not None:
                self._end(queue, id, settle=True)

    def ended(self, request: Commit, id: int) -> None:
        self.follow(id)

    def invalidate(self) -> None:
        self._journal.invalidate()

    # -- transactions that are open ----------------------------------------------------------------

    def follow(self, pointer: int) -> None:
        """Settle what a transaction holds, or let it go, as soon as it has ended."""
        fate = self._manager.fate(pointer, True)
        if fate is Fate.OPEN:
            self._manager.watch_end(pointer, lambda: self.follow(pointer))
            return
        for queue in self._opened():
            self._end(queue, pointer, settle=fate is Fate.VISIBLE)

    def _end(self, queue: OpenQueue, pointer: int, settle: bool) -> None:
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
