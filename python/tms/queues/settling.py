"""Messages that transactions settle, in the queues of a shard.

    verify ─▶ prepare: the offsets are held, the entry has the write pointer ─▶ committed: settled
                                            └─ the transaction fails ─▶ released: leases end again

Invariants

* A held message is neither delivered nor held by another transaction, whatever the time, until the
  outcome of its transaction is known. Each operation that meets a held message asks for the
  outcome.
* A commit settles all of its tokens, or fails with `Fenced`.
* No lock of a queue is held while the outcome of a transaction is asked for.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from tms.errors import Fenced, StorageUnavailable, TMSError
from tms.log.groups import Stamp
from tms.log.journaled import Cells
from tms.log.pending import PendingAppend
from tms.model.queue import Settlement, Token
from tms.model.snapshot import Fate
from tms.model.topic import Durability, TopicName, strongest
from tms.queues.checks import parse_tokens
from tms.queues.entries import Settled, encode
from tms.queues.journal import QueueJournal
from tms.queues.partition import QueuePartitionState
from tms.queues.queue import OpenQueue
from tms.queues.runs import offsets_in
from tms.queues.state import Decision
from tms.topics.decisions import Decisions

_SHOWN = 100  # tokens in an error


class Settling:
    """Messages of a shard's queues that transactions settle. Thread-safe."""

    def __init__(
        self,
        journal: QueueJournal,
        decisions: Callable[[], Decisions],
        find: Callable[[TopicName, str], tuple[OpenQueue, Durability]],
        peek: Callable[[TopicName, str], OpenQueue | None],
        opened: Callable[[], Iterable[OpenQueue]],
    ) -> None:
        self._journal = journal
        self._decisions = decisions
        self._find = find
        self._peek = peek  # never reads, and never waits
        self._opened = opened
        self.ends = 0  # of transactions that held messages

    # -- in commits --------------------------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        """The topic of the journal."""
        return self._journal.name

    @property
    def known(self) -> bool:
        """True if no journal has to be read."""
        return self._journal.journaled.known

    def verify(self, settlements: Iterable[Settlement]) -> Durability:
        """The durability that these settlements need. Raises an error if the transaction cannot
        settle them."""
        levels = [Durability.WRITTEN]
        for settlement in settlements:
            queue, level = self._find(settlement.topic, settlement.group)
            self.learn(queue)
            levels.append(level)
            with queue.lock:
                _require_all(settlement, queue.state.settle(parse_tokens(settlement.tokens)))
        return strongest(*levels)

    def prepare(
        self,
        settlements: Iterable[Settlement],
        id: int,
        durability: Durability,
        stamp: Stamp,
        inline: Durability,
    ) -> PendingAppend:
        """Hold and store the messages that a transaction settles; the calling thread writes if the
        write needs at most `inline`. Raises like `verify`."""
        entries: list[Cells] = []
        try:
            for settlement in settlements:
                queue, _ = self._find(settlement.topic, settlement.group)
                self.learn(queue)
                with queue.lock:
                    decision = queue.state.settle(parse_tokens(settlement.tokens))
                    _require_all(settlement, decision)
                    for number, edit in decision.edits:
                        assert isinstance(edit, Settled)
                        queue.state.partitions[number].hold(offsets_in(edit.runs), id)
                        entries.append((queue.key(number), encode(edit)))
            return self._journal.store(entries, durability, stamp, inline)
        except BaseException:
            if entries:  # held: the outcome must be asked for
                self.follow(id)
            raise

    def require_prepared(self, settlements: Iterable[Settlement], id: int) -> None:
        """Raise `StorageUnavailable` unless the transaction holds the messages that it settles."""
        for settlement in settlements:
            self._require_held(settlement, parse_tokens(settlement.tokens), id)

    def _require_held(self, settlement: Settlement, tokens: list[Token], id: int) -> None:
        queue = self._peek(settlement.topic, settlement.group)
        if queue is not None and self._journal.journaled.known:
            with queue.lock:
                if all(state.held.get(offset) == id for state, offset in _places(queue, tokens)):
                    return
        raise StorageUnavailable(
            f"The queue {settlement.group} of {settlement.topic} was deleted, or its journal read "
            f"again, while the transaction {id} was being committed. Do it again."
        )

    def committed(self, settlements: Iterable[Settlement], id: int) -> None:
        """Settle the messages of a committed transaction. Never waits."""
        for settlement in settlements:
            queue = self._peek(settlement.topic, settlement.group)
            if queue is not None:
                self._end(queue, id, settle=True)

    def invalidate(self) -> None:
        """Make the journal be read again: a write may or may not have been stored."""
        self._journal.journaled.invalidate()

    # -- transactions that are open ----------------------------------------------------------------

    def follow(self, pointer: int) -> None:
        """Settle or release the messages that a transaction holds, as soon as it has ended."""
        try:
            outcome = self._decisions().learn((pointer,))(pointer, True)
        except TMSError:  # the next operation that meets it asks again
            return
        if outcome is Fate.OPEN:
            self._decisions().watch_end(pointer, lambda: self.follow(pointer))
            return
        self._ended({pointer: outcome}, self._opened())

    def learn(self, queue: OpenQueue) -> None:
        """Learn the outcomes of the transactions that hold messages of a queue."""
        if not queue.state.totals.held:
            return
        with queue.lock:
            pointers = queue.state.holders()
        if pointers:
            self._ended(self._outcomes(pointers), (queue,))

    def learn_all(self) -> None:
        """Learn the outcomes of the transactions that hold messages of any queue."""
        for queue in self._opened():
            self.learn(queue)

    def _outcomes(self, pointers: Collection[int]) -> dict[int, Fate]:
        outcome_of = self._decisions().learn(pointers)
        return {pointer: outcome_of(pointer, True) for pointer in pointers}

    def _ended(self, outcomes: dict[int, Fate], queues: Iterable[OpenQueue]) -> None:
        ended = {
            pointer: outcome for pointer, outcome in outcomes.items() if outcome is not Fate.OPEN
        }
        for queue in queues if ended else ():
            for pointer, outcome in ended.items():
                self._end(queue, pointer, settle=outcome is Fate.VISIBLE)

    def _end(self, queue: OpenQueue, pointer: int, settle: bool) -> None:
        self.ends += 1
        queue.end_transaction(pointer, settle)


def _places(queue: OpenQueue, tokens: Iterable[Token]) -> Iterator[tuple[QueuePartitionState, int]]:
    for token in tokens:
        for offset in range(token.offset, token.offset + token.count):
            yield queue.state.partitions[token.partition], offset


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
