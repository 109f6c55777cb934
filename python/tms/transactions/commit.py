"""One commit on its way.

    check ─▶ intend ─▶ store the blocks with the write pointer ─▶ journal the commit ─▶ visible
                 └─ anything fails ─▶ invalid: what is stored already is never seen

Each step begins when the one before has its answer, in the thread that brings it; nothing waits. So
the event loop of the service carries a commit through by itself if nothing has to be synced.

Invariants

* The messages of a commit are stored before it is journaled, and shown only after that.
* A commit gets exactly one answer, and is over for the manager before that.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from tms.block import Flags
from tms.errors import Conflict, StorageUnavailable, TimedOut, TMSError, TransactionEnded
from tms.log.group_commit import Lead
from tms.log.groups import Stamp
from tms.log.pending import Pending, PendingAppend
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, TopicAppended, TopicStaged
from tms.topics.publishing import Publisher
from tms.topics.registry import Registry
from tms.transactions.commit_queue import Finish
from tms.transactions.edits import Stored
from tms.transactions.manager import TransactionManager
from tms.transactions.participants import CommitParticipant
from tms.transactions.uncommitted import StoredRange, UncommittedMessages, Unnamed
from tms.transactions.writes import Writes


class Parts(NamedTuple):
    """The parts of the engine that every commit needs."""

    manager: TransactionManager
    publisher: Publisher
    registry: Registry
    uncommitted: UncommittedMessages
    run_in_background: Callable[[Callable[[], None]], object]
    remember: Callable[[CommitResult], None]  # what to answer if it is, or was, committed


class CommitAttempt(Struct, eq=False):
    """A request to commit, with the caller's answer. The calling thread writes what takes at most
    the durability `inline`; it waits for other writers only if `waits`. With `begun` the blocks are
    the engine's own, which are not checked again; `begun` is called once the transaction has begun,
    and may raise. The blocks of a `repeatable` request are copied."""

    request: Commit
    inline: Durability
    waits: bool
    begun: Callable[[], None] | None
    repeatable: bool
    answer: Pending[CommitResult]
    close: Callable[[], object]  # others may attempt it again, and end the transaction
    writes: Writes[StoredRange] | None = None  # what the transaction stored before


class CommitUnderWay:
    """The commit of a transaction that is intended."""

    def __init__(
        self,
        parts: Parts,
        id: int,
        attempt: CommitAttempt,
        changes: Sequence[bytes],
        durability: Durability,
        participants: Sequence[CommitParticipant],
    ) -> None:
        self._parts = parts
        self._id = id
        self._attempt = attempt
        self._request = attempt.request
        self._changes = changes
        self._durability = durability
        self._participants = participants
        self._under_way: list[tuple[TopicName, PendingAppend, CommitParticipant | None]] = []
        self._unnamed: list[Unnamed] = []
        self._left = 1  # answers to wait for, and `start` itself
        self._lock = threading.Lock()
        self._result: CommitResult  # once everything is stored

    def start(self) -> None:
        """Store the blocks; everything else follows."""
        parts, request, attempt = self._parts, self._request, self._attempt
        inline, own = attempt.inline, attempt.begun is not None
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, self._id)
        by_topic: dict[TopicName, list[NewBlock]] = {}
        for topic, new in request.blocks:
            if attempt.repeatable:
                new = NewBlock(new.partition, bytearray(new.block), new.expect)
            by_topic.setdefault(topic, []).append(new)
        try:
            if attempt.begun is not None:
                attempt.begun()
            if request.staged:
                self._unnamed = parts.uncommitted.unnamed(self._id, request.staged)
            for staged in request.staged:
                self._refer(staged, stamp)
            for topic, blocks in by_topic.items():
                pending = parts.publisher.submit(
                    topic, blocks, self._durability, inline, stamp, own
                )
                self._under_way.append((topic, pending, None))
            for participant in self._participants:
                pending = participant.prepare(self._id, self._durability, stamp, inline)
                self._under_way.append((participant.journal_name, pending, participant))
        except TMSError as error:
            self._fail(error, inline)
            return
        except BaseException:
            self._ended()
            attempt.answer.fail(1, TimedOut("The commit was interrupted; ask for its outcome."))
            raise
        waiting: list[PendingAppend] = []
        for _, pending, _ in self._under_way:
            if not pending.done():
                waiting.append(pending)
        self._left += len(waiting)
        for pending in waiting:
            pending.add_done_callback(self._stored_by_another)
        self._stored_one(inline)

    def _stored_by_another(self) -> None:
        """The thread that brings this owns a partition: it must not wait for the journal."""
        self._stored_one(Durability.NONE)

    def _refer(self, staged: TopicStaged, stamp: Stamp) -> None:
        """Store references to what was staged in a partition."""
        parts = self._parts
        blocks = parts.uncommitted.references(
            staged.topic, staged.partition, self._id, staged.producers
        )
        if len(blocks) != staged.blocks:
            whose = " by the producers that its commit names" if staged.producers else ""
            raise Conflict(
                f"The transaction {self._id} staged {len(blocks)} blocks{whose} in partition "
                f"{staged.partition} of {staged.topic}, its commit names {staged.blocks}. Stage "
                "the missing ones again, or abort it."
            )
        stamp = Stamp(stamp.flags | Flags.STAGED, stamp.write_pointer)
        pending = parts.publisher.submit(
            staged.topic, blocks, self._durability, self._attempt.inline, stamp, internal=True
        )
        self._under_way.append((staged.topic, pending, None))

    def _stored_one(self, inline: Durability) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        parts, writes = self._parts, self._attempt.writes
        appended: list[TopicAppended] = []
        stored: list[Stored] = [] if writes is None else writes.stored
        try:
            for topic, pending, participant in self._under_way:
                uid = (parts.registry.known.get(topic) or parts.registry.find(topic)).uid
                try:
                    places = pending.result(0)
                except TMSError:
                    if participant is not None:
                        participant.invalidate()
                    raise
                for place in places:
                    end = place.base_offset + place.count
                    if participant is not None:
                        stored.append(Stored(uid, place.partition, end))
                        continue
                    first = place.time_ms, place.sequence, place.count
                    stored.append(Stored(uid, place.partition, end, *first))
                    appended.append(TopicAppended(topic, place))
        except TMSError as error:
            self._fail(error, inline)
            return
        self._result = CommitResult(self._id, tuple(appended))
        parts.remember(self._result)
        began_before = writes is not None  # else it began with this request
        finish = Finish(
            self._id,
            self._finished,
            self._changes,
            stored,
            self._durability,
            self._verify if self._participants else None,
            self._applied if self._participants or began_before else None,
        )
        lead = Lead.IF_FREE if self._durability.rank <= inline.rank else Lead.NO
        parts.manager.commits.submit(finish, Lead.YES if self._may_wait(inline) else lead)

    def _may_wait(self, inline: Durability) -> bool:
        return inline is Durability.SYNCED and self._attempt.waits

    def _verify(self) -> None:
        for participant in self._participants:
            participant.require_prepared(self._id)

    def _applied(self) -> None:
        for participant in self._participants:
            participant.committed(self._id)
        self._parts.uncommitted.forget(self._id, committed=True)

    def _finished(self, error: TMSError | None) -> None:
        if error is not None:
            self._fail(error, Durability.NONE)
            return
        attempt, parts = self._attempt, self._parts
        if attempt.writes is not None:
            attempt.writes.settle()
        parts.manager.finished(self._id)
        attempt.close()
        attempt.answer.settle(0, self._result)
        if self._unnamed:
            with contextlib.suppress(RuntimeError):  # the engine is closing: they cost room only
                parts.run_in_background(lambda: parts.uncommitted.drop(self._unnamed))

    def _ended(self) -> None:
        for participant in self._participants:
            participant.ended(self._id)
        self._parts.manager.finished(self._id)
        self._attempt.close()

    def _fail(self, error: TMSError, inline: Durability) -> None:
        """Make the transaction invalid, so that none of its messages is ever seen. A thread that
        must not wait leaves that to another one."""
        if isinstance(error, TransactionEnded) and not self._request.transaction_id:
            error = StorageUnavailable(  # which forgot that it had begun
                "The journal of transactions failed meanwhile; nothing was committed. Try again."
            )
        if self._attempt.writes is not None:
            self._attempt.writes.sure = False  # what this commit stored cannot be taken back

        def give_up() -> None:
            try:
                with contextlib.suppress(TMSError):  # else `expire` does it
                    self._parts.manager.invalidate(self._id)
            finally:  # or whoever repeats it waits for an answer for ever
                self._ended()
                self._attempt.answer.fail(1, error)

        if self._may_wait(inline):
            give_up()
            return
        try:
            self._parts.run_in_background(give_up)
        except RuntimeError:  # the engine is closing
            give_up()
