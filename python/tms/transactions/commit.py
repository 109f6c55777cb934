"""One commit on its way.

    check ─▶ intend ─▶ store the blocks with the write pointer ─▶ journal the commit ─▶ visible
                 └─ anything fails ─▶ invalid: what is stored already is never seen

Each step begins when the one before has its answer, in the thread that brings it; nothing waits. So
the event loop of the service carries a commit through by itself if nothing has to be synced.

Invariants

* The messages of a commit are stored before it is journaled, and shown only after that.
* It gets exactly one answer, and is over for the manager before that.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence

from tms.block import Flags
from tms.errors import Conflict, StorageUnavailable, TimedOut, TMSError, TransactionEnded
from tms.log.groups import Stamp
from tms.log.pending import Pending, PendingAppend
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, TopicAppended, TopicStaged
from tms.topics.internal_topic import end_of
from tms.topics.publishing import Publisher
from tms.topics.registry import Registry
from tms.transactions.commit_queue import Finish
from tms.transactions.edits import Stored
from tms.transactions.manager import TransactionManager
from tms.transactions.participants import CommitParticipant
from tms.transactions.uncommitted import StoredRange, UncommittedMessages, Unnamed
from tms.transactions.writes import Writes


class Parts:
    """What a commit needs of the engine; the same for all."""

    def __init__(
        self,
        manager: TransactionManager,
        publisher: Publisher,
        registry: Registry,
        others: Sequence[CommitParticipant],
        early: UncommittedMessages,
        run_in_background: Callable[[Callable[[], None]], object],
    ) -> None:
        self.manager = manager
        self.publisher = publisher
        self.registry = registry
        self.others = others
        self.early = early
        self.run_in_background = run_in_background


class CommitUnderWay:
    """The commit of a transaction that is intended."""

    def __init__(
        self,
        parts: Parts,
        id: int,
        request: Commit,
        changes: Sequence[bytes],
        durability: Durability,
        inline: Durability,
        note: Callable[[CommitResult], None],
        begun: Callable[[], None] | None = None,
    ) -> None:
        self._parts = parts
        self._begun = begun
        self._id = id
        self._request = request
        self._changes = changes
        self._durability = durability
        self._inline = inline
        self._note = note
        self._others = [part for part in parts.others if part.concerns(request)]
        self._under_way: list[tuple[TopicName, PendingAppend]] = []
        self._writes: Writes[StoredRange] | None = None
        self._ending = contextlib.ExitStack()
        self._unnamed: list[Unnamed] = []
        self._left = 1  # answers to wait for, and `start` itself
        self._lock = threading.Lock()
        self._result: CommitResult  # once everything is stored
        self._answer: Pending[CommitResult] = Pending(1)

    def ends(
        self,
        writes: Writes[StoredRange] | None,
        ending: contextlib.ExitStack,
        answer: Pending[CommitResult],
    ) -> None:
        """What the transaction stored before, what to close once it has ended, and who waits."""
        self._writes, self._ending, self._answer = writes, ending, answer

    def start(self) -> None:
        """Store the blocks; everything else follows."""
        parts, request = self._parts, self._request
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, self._id)
        by_topic: dict[TopicName, list[NewBlock]] = {}
        for topic, new in request.blocks:
            by_topic.setdefault(topic, []).append(new)
        try:
            if self._begun is not None:
                self._begun()
            self._unnamed = parts.early.unnamed(self._id, request.staged)
            for staged in request.staged:
                self._refer(staged, stamp)
            for topic, blocks in by_topic.items():
                pending = parts.publisher.submit(
                    topic, blocks, self._durability, self._inline, stamp, self._begun is not None
                )
                self._under_way.append((topic, pending))
            for part in self._others:
                pending = part.store(request, self._id, self._durability, stamp, self._inline)
                self._under_way.append((part.journal_name, pending))
        except TMSError as error:
            self._fail(error, self._inline)
            return
        except BaseException:
            self._ended()
            self._answer.fail(1, TimedOut("The commit was interrupted; ask for its outcome."))
            raise
        waiting = [pending for _, pending in self._under_way if not pending.done()]
        self._left += len(waiting)
        for pending in waiting:
            pending.add_done_callback(self._stored_by_another)
        self._stored_one(self._inline)

    def _stored_by_another(self) -> None:
        """The thread that brings this owns a partition: it must not wait for the journal."""
        self._stored_one(Durability.NONE)

    def _refer(self, staged: TopicStaged, stamp: Stamp) -> None:
        """Store references to what was staged in a partition."""
        parts = self._parts
        blocks = parts.early.references(staged.topic, staged.partition, self._id, staged.producers)
        if len(blocks) != staged.blocks:
            whose = " by the producers that its commit names" if staged.producers else ""
            raise Conflict(
                f"The transaction {self._id} staged {len(blocks)} blocks{whose} in partition "
                f"{staged.partition} of {staged.topic}, its commit names {staged.blocks}. Stage "
                "the missing ones again, or abort it."
            )
        stamp = Stamp(stamp.flags | Flags.STAGED, stamp.write_pointer)
        pending = parts.publisher.submit(
            staged.topic, blocks, self._durability, self._inline, stamp, internal=True
        )
        self._under_way.append((staged.topic, pending))

    def _stored_one(self, inline: Durability) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        appended: list[TopicAppended] = []
        stored: list[Stored] = [] if self._writes is None else self._writes.stored
        journals = [part.journal_name for part in self._others]
        try:
            for topic, pending in self._under_way:
                uid = self._parts.registry.find(topic).uid
                for place in pending.result(0):
                    if topic in journals:
                        stored.append(Stored(uid, place.partition, end_of(place)))
                        continue
                    first = place.time_ms, place.sequence, place.count
                    stored.append(Stored(uid, place.partition, end_of(place), *first))
                    appended.append(TopicAppended(topic, place))
        except TMSError as error:
            self._fail(error, inline)
            return
        self._result = CommitResult(self._id, tuple(appended))
        self._note(self._result)
        self._parts.manager.commit(
            Finish(
                self._id,
                self._finished,
                self._changes,
                stored,
                self._durability,
                self._verify,
                self._applied,
            ),
            inline,
        )

    def _verify(self) -> None:
        for part in self._others:
            part.verify(self._request, self._id)

    def _applied(self) -> None:
        for part in self._others:
            part.committed(self._request, self._id)
        self._parts.early.forget(self._id, committed=True)

    def _finished(self, error: TMSError | None) -> None:
        if error is not None:
            self._fail(error, Durability.NONE)
            return
        if self._writes is not None:
            self._writes.settle()
        self._over()
        self._answer.settle(0, self._result)
        if self._unnamed:
            with contextlib.suppress(RuntimeError):  # the engine is closing: they cost room only
                self._parts.run_in_background(lambda: self._parts.early.drop(self._unnamed))

    def _over(self) -> None:
        self._parts.manager.finished(self._id)
        self._ending.close()

    def _ended(self) -> None:
        for part in self._others:
            part.ended(self._request, self._id)
        self._over()

    def _fail(self, error: TMSError, inline: Durability) -> None:
        """Nothing of it may ever be seen. Journaling that waits, unless `inline` allows it."""
        if isinstance(error, TransactionEnded) and not self._request.transaction_id:
            error = StorageUnavailable(  # which forgot that it had begun
                "The journal of transactions failed meanwhile; nothing was committed. Try again."
            )
        if self._writes is not None:
            self._writes.sure = False  # what this commit stored cannot be taken back

        def give_up() -> None:
            with contextlib.suppress(TMSError):  # else `expire` does it
                self._parts.manager.invalidate(self._id)
            self._ended()
            self._answer.fail(1, error)

        if inline is Durability.SYNCED:
            give_up()
            return
        try:
            self._parts.run_in_background(give_up)
        except RuntimeError:  # the engine is closing
            give_up()
