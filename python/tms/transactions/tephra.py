"""Transactions as Apache Tephra's clients ask for them: the whole sequence over one manager.

    start ─▶ can_commit(changes) ─▶ commit          a conflict leaves it in progress: abort it
      └ checkpoint, invalidate, abort               without its changes

Invariants

* An answer survives a power loss: pointers that the client may write with elsewhere, and changes
  that others must not collide with, are synced before it. Requests that come together share a sync.
* An aborted transaction leaves the lists only after its messages here were taken back. If these are
  not all known, it leaves them as `Forgotten`: its messages are never seen.
* Ending a transaction that has ended, or never was, changes nothing.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from tms.errors import Invalid, TimedOut, TMSError, TooLarge
from tms.log.group_commit import GroupCommit, Lead
from tms.model.snapshot import Snapshot, TransactionType
from tms.model.topic import MESSAGE_BYTES_MAX, Durability
from tms.model.transaction import TIMEOUT_S_MAX
from tms.model.transaction_image import TransactionImage
from tms.transactions.edits import Edit, Forgotten, Invalidated, Reserved, Reset
from tms.transactions.images import image_of
from tms.transactions.manager import WRITE_TIMEOUT_S, TransactionManager
from tms.transactions.pruning import checkpoints_of, forget, forget_before
from tms.transactions.state import TransactionState
from tms.transactions.writes import UncommittedWrites, Writes

CLIENT_CHARS_MAX = 1_024
CHANGES_BYTES_MAX = MESSAGE_BYTES_MAX // 4 * 3 - 65_536  # the journal has them in base64
CHANGE_OVERHEAD_BYTES = 5  # of each, there
_NOTHING = Reserved(0)
_T = TypeVar("_T")
_A = TypeVar("_A")
_Decide = Callable[[TransactionState, int], Iterable[Edit]]


class _TephraRequest(Struct, eq=False):
    """A change that waits for its turn."""

    decide: _Decide
    answer: Callable[[TransactionState], Any]
    found: Any = None
    error: TMSError | None = None
    done: threading.Event = field(default_factory=threading.Event)


class TephraOperations(Generic[_T]):
    """Tephra's operations. Thread-safe."""

    def __init__(
        self,
        manager: TransactionManager,
        published: UncommittedWrites[_T],
        take_back: Callable[[Writes[_T]], bool],
        run_in_background: Callable[[Callable[[], None]], object],
    ) -> None:
        self._manager = manager
        self._published = published
        self._take_back = take_back
        self._requests = GroupCommit(threading.Lock(), self._carry_out, run_in_background)

    # -- the sequence ----------------------------------------------------------------------------

    def start(
        self, type: TransactionType, client: str | None, timeout_s: int | None = None
    ) -> Snapshot:
        """Begin a transaction. Raises `Invalid`."""
        if client is not None and len(client) > CLIENT_CHARS_MAX:
            raise Invalid(f"clientId must not exceed {CLIENT_CHARS_MAX} characters")
        if timeout_s is not None and timeout_s > TIMEOUT_S_MAX:
            raise Invalid(
                f"timeout must not exceed {TIMEOUT_S_MAX} seconds but is {timeout_s} seconds"
            )
        id = 0

        def decide(state: TransactionState, now_ms: int) -> Iterable[Edit]:
            nonlocal id
            began = state.begin(now_ms, type=type, timeout_s=timeout_s, client=client)
            id = began.id
            return [began]

        return self._synced(decide, lambda state: state.snapshot(id))

    def checkpoint(self, seen: Snapshot) -> Snapshot:
        """Give a transaction with this snapshot one more pointer; returns the snapshot with it,
        which shows the same as before. Raises `TransactionNotFound`, `TransactionEnded`."""
        id = seen.transaction_id

        def answer(state: TransactionState) -> Snapshot:
            transaction = state.find(id)
            return replace(
                seen, write_pointer=transaction.write_pointer, checkpoints=transaction.checkpoints
            )

        return self._synced(lambda state, now_ms: [state.checkpoint(id, now_ms)], answer)

    def can_commit(self, id: int, changes: Sequence[bytes]) -> None:
        """Remember the changes for the commit. Raises `TransactionConflict`, `TooLarge`,
        `TransactionNotFound`, `TransactionEnded`."""
        changes = list(dict.fromkeys(changes))
        size = sum(map(len, changes)) + CHANGE_OVERHEAD_BYTES * len(changes)
        if size > CHANGES_BYTES_MAX:
            raise TooLarge(
                f"Change set for transaction {id} has total size of {size} bytes and exceeds the "
                f"limit of {CHANGES_BYTES_MAX} bytes"
            )
        self._synced(lambda state, _: [state.prepare(id, changes)], lambda _: None)

    def commit(self, id: int, pointer: int) -> None:
        """Commit with the changes remembered, if any. `pointer`: the one last written with. Raises
        `TransactionConflict`, `Invalid`, `TransactionNotFound`, `TransactionEnded`."""
        with self._published.ending(id) as writes:
            transaction = self._manager.state.open.get(id)
            if transaction is not None and pointer not in transaction.pointers:
                raise Invalid(f"{pointer} is no write pointer of the transaction {id}")
            if writes.failed:
                self._manager.invalidate(id)  # which failed as well when the append did
            self._manager.commit_and_wait(id, writes.stored)
            writes.settle()

    def abort(self, id: int, *, long: bool, checkpoints: Sequence[int]) -> None:
        """Abort: a short one leaves the lists, with the invalid ones among these checkpoints; a
        long one becomes invalid."""
        with self._published.ending(id) as writes:
            if not self._is_listed(self._manager.state, id):
                return
            if writes.ranges:
                self._manager.invalidate(id)  # from now on nobody can commit what is taken back
            sure = self._take_back(writes)

            def decide(state: TransactionState, _: int) -> Iterable[Edit]:
                if not self._is_listed(state, id):
                    return []
                transaction = state.open.get(id)
                if transaction is None:
                    stays, own = long, checkpoints_of(state, id, checkpoints)
                else:
                    stays, own = (
                        transaction.began.type is TransactionType.LONG,
                        transaction.checkpoints,
                    )
                if sure or stays:
                    edit = state.abort(id, long=long, checkpoints=own)
                    return [] if edit is None else [edit]
                ended: list[Edit] = [] if transaction is None else [Invalidated((id,))]
                return [*ended, Forgotten((id, *own))]

            self._manager.change(decide, lambda _: None)
            writes.settle()

    def invalidate(self, id: int) -> bool:
        """Make a transaction in progress invalid; whether it was in progress."""
        return self._manager.invalidate(id)

    # -- operating -------------------------------------------------------------------------------

    def truncate(self, ids: Iterable[int]) -> int:
        """Take transactions off the invalid list; how many were on it."""
        wanted = set(ids)
        return self._forget(lambda state: forget(state, wanted))

    def truncate_before(self, time_ms: int) -> int:
        """Take all that began before a time off the invalid list; how many. Raises
        `InvalidTruncateTime`."""
        return self._forget(lambda state: forget_before(state, time_ms))

    def invalid_count(self) -> int:
        """The number of pointers on the invalid list."""
        return len(self._manager.state.invalid)

    def reset(self) -> None:
        """Forget what is in progress, invalid and a conflict; nothing of it is ever seen here."""
        self._manager.change(lambda *_: [Reset()], lambda _: None, Durability.SYNCED)

    def image(self, now_ms: int) -> TransactionImage:
        """Everything that stands, at one moment."""
        return self._manager.change(lambda *_: [], lambda state: image_of(state, now_ms))

    def _forget(self, decide: Callable[[TransactionState], list[Forgotten]]) -> int:
        edits: list[Forgotten] = []

        def decided(state: TransactionState, _: int) -> Iterable[Edit]:
            edits.extend(decide(state))
            return edits

        self._manager.change(decided, lambda _: None, Durability.SYNCED)
        return sum(len(edit.ids) for edit in edits)

    @staticmethod
    def _is_listed(state: TransactionState, id: int) -> bool:
        return id in state.open or id in state.invalid

    # -- sharing a sync --------------------------------------------------------------------------

    def _synced(self, decide: _Decide, answer: Callable[[TransactionState], _A]) -> _A:
        mine = _TephraRequest(decide, answer)
        self._requests.submit(mine, Lead.YES)
        if not mine.done.wait(WRITE_TIMEOUT_S):
            raise TimedOut("The journal of transactions takes too long. Try again.")
        if mine.error is not None:
            raise mine.error
        found: _A = mine.found
        return found

    def _carry_out(self, group: Sequence[_TephraRequest]) -> None:
        """Only the last of them is synced, which syncs what came before."""
        synced = True
        try:
            for request in group:
                last = request is group[-1]
                durability = Durability.SYNCED if last else Durability.WRITTEN
                try:
                    request.found = self._manager.change(request.decide, request.answer, durability)
                    synced = last
                except TMSError as error:
                    request.error = error
            if not synced:
                self._manager.change(lambda *_: [_NOTHING], lambda _: None, Durability.SYNCED)
        except BaseException as error:
            interrupted = TimedOut("The journal of transactions was interrupted.")
            for request in group:
                request.error = request.error or (
                    error if isinstance(error, TMSError) else interrupted
                )
            if not isinstance(error, TMSError):
                raise
        finally:
            for request in group:
                request.done.set()
