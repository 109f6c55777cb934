"""Transactions of an engine: commits over topics and positions, all or nothing.

Invariants

* A repeated commit, by id or token, is answered like the first one and does nothing, also while the
  first is under way: looking for an earlier commit and beginning a new one is one step.
* A transaction whose messages an abort takes back is invalid before, and can never be committed.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from tms.errors import Conflict, TimedOut, TMSError, TransactionNotFound, again
from tms.log.pending import Pending, PendingAppend
from tms.model.message import Appended, NewBlock
from tms.model.snapshot import POINTERS_PER_MS, TransactionType
from tms.model.topic import Durability, TopicName
from tms.model.transaction import (
    Commit,
    CommitResult,
    HeldPartition,
    TopicAppended,
    TransactionInfo,
    TransactionStats,
)
from tms.topics.sharding import TRANSACTIONS
from tms.topics.topics import Topics
from tms.transactions.commit import CommitAttempt, CommitUnderWay, Parts
from tms.transactions.edits import Outcome
from tms.transactions.manager import LATE_MS, TransactionManager
from tms.transactions.participants import CommitParticipant, CommitParticipants
from tms.transactions.stored_image import StoredImage
from tms.transactions.tephra import TephraOperations
from tms.transactions.uncommitted import StoredRange, UncommittedMessages

RESULTS_REMEMBERED = 10_000
EDITS_MAX = 20_000  # of the journal that a start reads


class Transactions:
    """The transactions of one engine. Thread-safe. `lifetime_ms` bounds transactions begun
    elsewhere; `participants` returns the participants of a commit; `reloaded` is called after the
    outcomes were read from the journal again."""

    def __init__(
        self,
        topics: Topics,
        lifetime_ms: int,
        participants: CommitParticipants,
        reloaded: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._registry = registry = topics.registry
        self._participants = participants
        self.manager = TransactionManager(
            topics, topics.journal(TRANSACTIONS), reloaded, lifetime_ms
        )
        topics.decide_by(self.manager)
        self._uncommitted = UncommittedMessages(self.manager, topics)
        self.tephra = TephraOperations(
            self.manager,
            self._uncommitted.writes,
            self._uncommitted.take_back,
            topics.run_in_background,
        )
        self._parts = Parts(
            self.manager,
            topics.publisher,
            registry,
            self._uncommitted,
            topics.run_in_background,
            self._note,
        )
        self._lifetime_ms = lifetime_ms
        self._lock = threading.Lock()  # guards what follows
        self._attempts: dict[int | str, Pending[CommitResult]] = {}  # by id or token
        self._results: OrderedDict[int, CommitResult] = OrderedDict()
        self._image: StoredImage | None = None
        if topics.store.shared:  # where others look
            self._image = StoredImage(topics.metadata, self.manager, topics.clock)

    def is_ready(self, request: Commit) -> bool:
        """True if a commit can begin without reading a journal, or waiting for one."""
        known = request.token in self.manager.state.tokens
        return (
            self.manager.known
            and not known
            and all(one.known for one in self._participants(request))
        )

    # -- transactions ----------------------------------------------------------------------------

    def begin(
        self,
        *,
        long: bool = False,
        timeout_s: float | None = None,
        token: str = "",
        caller: str = "",
    ) -> TransactionInfo:
        """Begin a transaction, for the principal `caller` if there is one. Raises `Invalid` for a
        time-out that is none."""
        kind = TransactionType.LONG if long else TransactionType.SHORT
        began = self.manager.begin(
            type=kind, timeout_s=timeout_s, client=caller or None, token=token
        )
        return self._info(began.id, Outcome.OPEN)

    def describe(self, id: int) -> TransactionInfo:
        """The state of a transaction. Raises `TransactionNotFound`."""
        try:
            return self._info(id, self.manager.outcome(id))
        except TransactionNotFound:
            if (elsewhere := self._elsewhere().get(id)) is not None:
                return elsewhere
            if self.manager.is_barred(id):
                return TransactionInfo(id, Outcome.INVALID.value)
            raise

    def open(self) -> list[TransactionInfo]:
        """The transactions in progress, and those begun elsewhere that hold readers back; oldest
        first."""
        here = [self._info(id, Outcome.OPEN) for id in sorted(self.manager.state.open)]
        return sorted([*here, *self._elsewhere().values()], key=lambda info: info.transaction_id)

    def _elsewhere(self) -> dict[int, TransactionInfo]:
        """The transactions begun elsewhere that readers of committed messages wait for."""
        held: dict[int, list[HeldPartition]] = {}
        for one in self._uncommitted.held():
            held.setdefault(one.pointer, []).append(one)
        clients = self._uncommitted.clients
        return {
            pointer: TransactionInfo(
                pointer,
                Outcome.OPEN.value,
                expires_ms=pointer // POINTERS_PER_MS + self._lifetime_ms,
                client=clients.get(pointer),
                held=tuple(places),
            )
            for pointer, places in held.items()
        }

    def abort(self, id: int) -> TransactionInfo:
        """Abort a transaction; one that was aborted or is invalid stays so. What it published
        before is rolled back; where that is not known, because the engine was started since, or
        fails, it becomes invalid. Raises `TransactionNotFound`, `TransactionEnded`, and `Conflict`
        for one that was begun elsewhere."""
        with self._uncommitted.writes.ending(id) as writes:
            outcome = self._outcome_here(id)
            if outcome is Outcome.COMMITTED:
                raise self.manager.state.why_not_open(id)
            if outcome is Outcome.OPEN:
                long = self.manager.state.find(id).began.type is TransactionType.LONG
                writes.sure &= not self.manager.is_intended(id)  # its commit may have stored more
                clean = writes.sure and not writes.ranges
                if not clean:
                    self.manager.invalidate(id)  # nobody can commit what is taken back from now on
                if clean or (self._uncommitted.take_back(writes) and not long):
                    self.manager.abort(id)
                    writes.settle()
                self._uncommitted.forget(id, committed=False)
        return self.describe(id)

    def invalidate(self, id: int) -> TransactionInfo:
        """Make a transaction invalid, whatever it may have stored. What one that was begun
        elsewhere stored is rolled back."""
        if not self.manager.invalidate(id):
            self._uncommitted.invalidate_elsewhere(id)
        return self.describe(id)

    def _outcome_here(self, id: int) -> Outcome:
        try:
            return self.manager.outcome(id)
        except TransactionNotFound:
            if id not in self._elsewhere():
                raise
            raise Conflict(
                f"The transaction {id} was begun elsewhere; its manager aborts it. To let readers "
                f"here go on without its messages: `tms tx invalidate {id}`.",
                transaction=id,
            ) from None

    def commit(self, request: Commit, timeout_s: float = 30.0) -> CommitResult:
        """Store and commit everything of a transaction. The request may be repeated as it is: its
        blocks are copied. Raises `TransactionConflict`, `Conflict` for a position that is not the
        expected one, `TransactionEnded`, and the error that prevents a block from being stored;
        none of its messages is ever seen then."""
        pending = self.submit_commit(request, Durability.SYNCED, repeatable=True)
        return pending.result(timeout_s)[0]

    def submit_commit(
        self,
        request: Commit,
        inline: Durability,
        begun: Callable[[], None] | None = None,
        repeatable: bool = False,
        waits: bool = True,
    ) -> Pending[CommitResult]:
        """Begin a commit. The calling thread writes what takes at most the durability `inline`; it
        waits for other writers only with `synced`, and never unless `waits`. Raises, or answers
        with, the errors of `commit`. Blocks are filled in where they stand, unless the request is
        `repeatable`. A repetition of a request that is under way gets its answer. With `begun` the
        blocks are the engine's own, which are not checked again; `begun` is called once the
        transaction has begun, and may raise."""
        answer: Pending[CommitResult] = Pending(1)
        name = request.transaction_id or request.token
        with self._lock:
            first = self._attempts.setdefault(name, answer) if name else answer
        if first is not answer:
            return first
        close = partial(self._attempts.pop, name, None)
        attempt = CommitAttempt(request, inline, waits, begun, repeatable, answer, close)
        try:
            under_way = self._begin(attempt)
        except BaseException as error:
            attempt.close()
            interrupted = TimedOut("The commit was interrupted; ask for its outcome.")
            answer.fail(1, again(error) if isinstance(error, TMSError) else interrupted)
            raise
        if under_way is not None:
            under_way.start()
        return answer

    def _begin(self, attempt: CommitAttempt) -> CommitUnderWay | None:
        """The commit, intended; None if it was done before, and is answered. Until the attempt is
        closed no other caller ends the transaction."""
        request = attempt.request
        id = request.transaction_id or (request.token and self.manager.of_token(request.token)) or 0
        if id and self._is_done(id, attempt):
            return None
        for topic, new in request.blocks:
            if new.expect is not None:
                self._parts.publisher.look(topic, new, id)
        changes = [*request.changes]
        participants: Sequence[CommitParticipant] = self._participants(request)
        levels: list[Durability] = []
        for participant in participants:
            levels.append(participant.verify())
            changes += () if request.overtakes else participant.keys()
        durability = request.durability or self._strongest(request, levels)
        if id:
            self.manager.intend(id, changes)
        else:
            id = self.manager.begin_intended(request.token)
        return CommitUnderWay(self._parts, id, attempt, changes, durability, participants)

    def _is_done(self, id: int, attempt: CommitAttempt) -> bool:
        """True if the commit of a transaction that began before is done, and answered; otherwise no
        other caller ends the transaction until the attempt is closed."""
        ending = contextlib.ExitStack()
        ending.callback(attempt.close)
        attempt.close = ending.close
        writes = attempt.writes = ending.enter_context(self._uncommitted.writes.ending(id))
        if writes.failed:
            self.manager.invalidate(id)  # which failed as well when the append did
        done = self._done(id)
        if done is None:
            return False
        attempt.close()
        attempt.answer.settle(0, done)
        return True

    def _note(self, result: CommitResult) -> None:
        """Remember the answer to a repetition of this commit."""
        with self._lock:
            self._results[result.transaction_id] = result
            if len(self._results) > RESULTS_REMEMBERED:
                self._results.popitem(last=False)

    def _done(self, id: int) -> CommitResult | None:
        """The answer if this was committed already, None if it is open. Raises `TransactionEnded`
        if it ended otherwise."""
        outcome = self.manager.outcome(id)
        if outcome is Outcome.COMMITTED:
            with self._lock:
                known = self._results.get(id)
            return known or CommitResult(id, self._appended(id))
        if outcome is not Outcome.OPEN:
            raise self.manager.state.why_not_open(id)
        if self.manager.is_intended(id):  # and nobody goes on, so it will be given up
            raise TimedOut(f"The commit of {id} takes too long; ask for its outcome.")
        return None

    def _appended(self, id: int) -> tuple[TopicAppended, ...]:
        """The places of the blocks of a commit, from the journal; none if the topic of one is
        gone."""
        appended = []
        for block in self.manager.committed_blocks(id):
            if not block.count:
                continue
            name = self._registry.name_of(block.uid)
            if name is None:
                return ()
            base_offset = block.end_offset - block.count
            place = Appended(
                block.partition, block.time_ms, block.sequence, block.count, base_offset
            )
            appended.append(TopicAppended(name, place))
        return tuple(appended)

    def _strongest(self, request: Commit, levels: list[Durability]) -> Durability:
        for written in (request.blocks, request.staged):
            for block in written:
                topic = self._registry.known.get(block.topic) or self._registry.find(block.topic)
                levels.append(topic.durability)
        is_synced = not levels or Durability.SYNCED in levels
        return Durability.SYNCED if is_synced else Durability.WRITTEN

    def tidy(self) -> None:
        """Do the regular work: time-outs, and a snapshot of a journal that has grown long."""
        self.manager.expire()
        if self._image is not None:
            self._image.keep()
        self.manager.shorten(EDITS_MAX)

    def close(self) -> None:
        """Write the image for other readers; no transaction begins or ends any more."""
        if self._image is not None:
            self._image.close()

    def _info(self, id: int, outcome: Outcome) -> TransactionInfo:
        transaction = self.manager.state.open.get(id)
        if transaction is None:
            return TransactionInfo(id, outcome.value)
        began = transaction.began
        return TransactionInfo(
            id, outcome.value, self.manager.state.read_pointer, began.expires_ms, began.client
        )

    def prune(self, before_ms: int) -> int:
        """Take transactions that began before a time off the invalid list, so that snapshots get
        shorter; how many. Their messages are still never seen: here they are remembered, and where
        others read the store by snapshots it is only done once nothing of them is left in it.
        Raises `InvalidTruncateTime` while older ones are in progress."""
        cleaned_ms = self._topics.store.cleaned_ms()
        if cleaned_ms is not None:  # it may have written as long as it lived, or was on its way
            before_ms = max(0, min(before_ms, cleaned_ms - self._lifetime_ms - LATE_MS))
        return self.tephra.truncate_before(before_ms)

    def undecided_since_ms(self, foreign: bool) -> int:
        """A time before which no undecided transaction published; as in `Decisions`."""
        self.settle()
        return self.manager.undecided_since_ms(self._topics.clock.now_ms(), foreign)

    def stats(self, now_ms: int) -> TransactionStats:
        """Counts, for metrics."""
        state = self.manager.state
        oldest = next(iter(state.in_progress), None)
        age_ms = 0 if oldest is None else max(0, now_ms - oldest // POINTERS_PER_MS)
        return TransactionStats(
            len(state.open),
            age_ms,
            len(state.invalid),
            self._uncommitted.writes.places(),
            self.manager.commits.done,
        )

    # -- publishing before the commit --------------------------------------------------------------

    def submit(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        write_pointer: int,
        client: str = "",
        repeats: bool = False,
    ) -> PendingAppend:
        """Store blocks of a transaction that may still commit: synced, whatever the topic says,
        because the commit may be. `client` is named if readers have to wait for one that was begun
        elsewhere. With `repeats` the blocks are of a producer, and a partition whose owner goes
        meanwhile gets them from its next one; otherwise that ends the transaction. Raises
        `TransactionEnded` when it was given here and has ended, or was begun elsewhere and
        invalidated here."""
        return self._uncommitted.submit(name, blocks, write_pointer, client, repeats)

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None:
        """Store blocks of a transaction out of sight, synced, until `refer` or its commit names
        them; a block that is repeated by producer id and sequence is stored once. Raises like
        `submit`."""
        self._uncommitted.stage(name, blocks, write_pointer)

    def refer(
        self, name: TopicName, partition: int, write_pointer: int, client: str = ""
    ) -> list[Appended]:
        """Publish what was staged since the last time, like `submit`; where it went."""
        return self._uncommitted.refer(name, partition, write_pointer, client)

    def roll_back(self, range: StoredRange) -> int:
        """Take back the messages of a transaction in a range, synced; how many blocks there
        were."""
        return self._uncommitted.roll_back(range)

    def settle(self) -> None:
        """Look up the outcome of every commit that has ended."""
        self.manager.look(lambda _: None)
