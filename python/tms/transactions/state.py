"""The state of all transactions, and every rule about them: Tephra's, to the letter.

Pure: time comes in with each decision; nothing is read, written or waited for here. A decision
(`begin`, `commit`, …) looks at the state and returns an edit, or raises; `apply` carries an edit
out. The caller writes the edit to the journal between the two, so that replaying the journal
gives the same state.

    begin ─▶ in progress ─▶ prepare ─▶ commit ─▶ committed
                 │  └ checkpoint: one more pointer
                 ├─▶ abort: its data was taken back; as if it had never been
                 └─▶ invalid: its data may still be there and must never be seen
                     (time-out, abort of a long one, invalidate)

Invariants

* A pointer is given once, in ascending order, and never at or above `reserved`.
* Everything in progress, checkpoints included, stands in `in_progress` in ascending order.
* A transaction that begins now sees every pointer at or below the read pointer that is neither in
  progress nor invalid.
* A commit has a conflict if one of its changes was also committed with a commit pointer above its
  id. Changes are kept while a short transaction is in progress that could conflict with them.
* The outcomes of the newest `ENDED_REMEMBERED` transactions are remembered.
* A barred pointer was given elsewhere. It says nothing of a transaction of TMS with this number.
* A transaction that leaves the invalid list without having been aborted is `forgotten`: snapshots
  do not name it, and its messages are never visible.
* Before the first transaction, everything that other systems wrote earlier is visible.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Sequence

from tms.errors import Invalid, Overloaded, TMSError, TransactionConflict
from tms.model.snapshot import (
    NONE_IN_PROGRESS,
    POINTERS_PER_MS,
    Fate,
    Snapshot,
    TransactionType,
)
from tms.model.transaction import TIMEOUT_S_MAX, unknown_transaction
from tms.transactions.edits import (
    Aborted,
    Barred,
    Began,
    Checkpointed,
    Committed,
    Edit,
    Forgotten,
    Intended,
    Invalidated,
    Lost,
    Open,
    Outcome,
    Prepared,
    Reserved,
    Reset,
    Stored,
)
from tms.transactions.in_progress import not_open

TIMEOUT_S_DEFAULT = 30
LONG_TIMEOUT_S = 86_400
ENDED_REMEMBERED = 200_000
BARRED_REMEMBERED = 10_000
OPEN_MAX = 2_000  # transactions in progress of a principal
INVALID_MAX = 1_000  # of a principal that become invalid within
INVALID_MS = 86_400_000
CLIENTS_MAX = 10_000  # whose invalid transactions are counted
RETRY_AFTER_S = 5


class ClientCounts:
    """The number of transactions that each client has in progress, and that became invalid lately
    as far as the journal says: a snapshot of the journal has no clients of invalid ones. Pure."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._invalid: OrderedDict[str, deque[int]] = OrderedDict()

    def began(self, client: str) -> None:
        """Count a transaction that is in progress."""
        self._open[client] = self._open.get(client, 0) + 1

    def ended(self, client: str) -> None:
        """Count a transaction that is in progress no more."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def invalidated(self, id: int, client: str) -> None:
        """Count a transaction that became invalid."""
        self._invalid.setdefault(client, deque(maxlen=INVALID_MAX)).append(id)
        self._invalid.move_to_end(client)
        if len(self._invalid) > CLIENTS_MAX:
            self._invalid.popitem(last=False)

    def require_room(self, client: str, now_ms: int) -> None:
        """Raise `Overloaded` unless a client may begin one more."""
        if self._open.get(client, 0) >= OPEN_MAX:
            raise Overloaded(
                f"{client} has {OPEN_MAX} transactions in progress, as many as a principal may "
                "have. Commit or abort some, or wait for their time-outs; `tms tx list` shows "
                "them.",
                retry_after_s=RETRY_AFTER_S,
            )
        invalid = self._invalid.get(client)
        while invalid and invalid[0] < (now_ms - INVALID_MS) * POINTERS_PER_MS:
            invalid.popleft()
        if invalid is not None and len(invalid) >= INVALID_MAX:
            raise Overloaded(
                f"{INVALID_MAX} transactions of {client} have become invalid within a day, as many "
                "as a principal may leave: commit or abort each before its time-out. More can "
                "begin a day after the oldest of them began.",
                retry_after_s=RETRY_AFTER_S,
            )


class TransactionState:
    """All transactions. Not thread-safe."""

    def __init__(self) -> None:
        self.read_pointer = 0
        self.last_pointer = 0
        self.reserved = 0
        self.open: dict[int, Open] = {}
        # Pointer → transaction. A plain dict looks for its first entry among all removed ones.
        self.in_progress: OrderedDict[int, int] = OrderedDict()
        self.clients = ClientCounts()
        self.invalid: set[int] = set()
        self.forgotten: set[int] = set()
        self.barred: dict[int, None] = {}  # oldest first
        self.lost: list[tuple[int, int]] = []
        self.ended: OrderedDict[int, tuple[Outcome, int]] = OrderedDict()  # id → how, commit
        self.tokens: OrderedDict[str, int] = OrderedDict()
        self.shorts: OrderedDict[int, None] = OrderedDict()
        self.committed: OrderedDict[int, set[bytes]] = OrderedDict()  # commit pointer → changes
        self.winner: dict[bytes, tuple[int, str | None]] = {}  # change → newest commit, client
        self.sorted_invalid: tuple[int, ...] | None = ()

    # -- asking --------------------------------------------------------------------------------

    def snapshot(self, id: int) -> Snapshot:
        """The snapshot of a transaction that began now. O(in progress)."""
        transaction = self.find(id)
        if self.sorted_invalid is None:
            self.sorted_invalid = tuple(sorted(self.invalid))
        own = transaction.pointers
        others = tuple([pointer for pointer in self.in_progress if pointer not in own])
        return Snapshot(
            id,
            self.read_pointer,
            self.sorted_invalid,
            others,
            next((short for short in self.shorts if short != id), NONE_IN_PROGRESS),
            transaction.began.type,
            transaction.write_pointer,
            transaction.checkpoints,
        )

    def first_short(self) -> int:
        """The oldest short transaction in progress."""
        return next(iter(self.shorts), NONE_IN_PROGRESS)

    def fate(self, pointer: int) -> Fate:
        """The fate, as far as it is known, of a message with a pointer that was issued here."""
        if pointer in self.in_progress:
            return Fate.OPEN
        if self.is_invalid(pointer) or pointer > self.last_pointer or self.is_lost(pointer):
            return Fate.SKIPPED
        ended = self.ended.get(pointer)
        aborted = ended is not None and ended[0] is Outcome.ABORTED
        return Fate.SKIPPED if aborted else Fate.VISIBLE

    def is_invalid(self, pointer: int) -> bool:
        """True if no message with this pointer is ever seen, because its transaction is invalid."""
        return pointer in self.invalid or pointer in self.forgotten

    def find(self, id: int) -> Open:
        """The transaction in progress. Raises why there is none."""
        transaction = self.open.get(id)
        if transaction is None:
            raise self.why_not_open(id)
        return transaction

    def outcome(self, id: int) -> Outcome:
        """The outcome of a transaction. Raises `TransactionNotFound`."""
        if id in self.open:
            return Outcome.OPEN
        ended = self.ended.get(id)
        if ended is not None:
            return ended[0]
        if self.is_invalid(id) or self.is_lost(id):
            return Outcome.INVALID
        raise self.why_not_open(id)

    def why_not_open(self, id: int) -> TMSError:
        """The error for a transaction that is not in progress."""
        ended = self.ended.get(id)
        if ended is None and not self.is_invalid(id) and not self.is_lost(id):
            return unknown_transaction(id)
        return not_open(id, Outcome.INVALID if ended is None else ended[0])

    def is_lost(self, pointer: int) -> bool:
        """True if the pointer may have been issued, and was forgotten when the power failed."""
        at = bisect_right(self.lost, (pointer, NONE_IN_PROGRESS))
        return at > 0 and pointer < self.lost[at - 1][1]

    # -- deciding ------------------------------------------------------------------------------

    def begin(
        self,
        now_ms: int,
        *,
        type: TransactionType = TransactionType.SHORT,
        timeout_s: float | None = None,
        client: str | None = None,
        token: str = "",
        intended: bool = False,
    ) -> Began:
        """Begin a transaction; with the token of one in progress, return that one. Raises `Invalid`
        for a wrong time-out."""
        if token and (known := self.open.get(self.tokens.get(token, 0))) is not None:
            return known.began
        if timeout_s is None:
            timeout_s = TIMEOUT_S_DEFAULT if type is TransactionType.SHORT else LONG_TIMEOUT_S
        elif not 0 < timeout_s <= TIMEOUT_S_MAX:
            what = "positive" if timeout_s <= 0 else f"at most {TIMEOUT_S_MAX}"
            raise Invalid(f"timeout must be {what} but is {timeout_s:g} seconds", field="timeout_s")
        id = self.next_pointer(now_ms)
        first = next(iter(self.in_progress), None)
        read_pointer = self.read_pointer if self.last_pointer else id - 1
        bound = read_pointer if first is None else first - 1
        return Began(id, type, now_ms + int(timeout_s * 1_000), bound, client, token, intended)

    def next_pointer(self, now_ms: int) -> int:
        """The pointer that the next begin or checkpoint gets."""
        return max(self.last_pointer + 1, now_ms * POINTERS_PER_MS)

    def checkpoint(self, id: int, now_ms: int) -> Checkpointed:
        """Give a transaction one more pointer."""
        self.find(id)
        return Checkpointed(id, self.next_pointer(now_ms))

    def prepare(self, id: int, changes: Iterable[bytes]) -> Prepared:
        """Note changes that could be committed now. Raises `TransactionConflict`."""
        self.find(id)
        prepared = tuple(changes)
        self._check(id, prepared)
        return Prepared(id, prepared)

    def commit(
        self,
        id: int,
        changes: Iterable[bytes] | None = None,
        blocks: Sequence[Stored] = (),
    ) -> Committed:
        """Commit, with the changes that were prepared unless others are given. Raises
        `TransactionConflict`: the transaction is then still in progress, and the caller removes its
        changes by `Prepared(id, ())`."""
        transaction = self.find(id)
        final = (transaction.changes or ()) if changes is None else tuple(changes)
        if final:
            self._check(id, final)
        return Committed(id, self.last_pointer + 1, final, tuple(blocks))

    def abort(
        self, id: int, *, long: bool = False, checkpoints: Iterable[int] = ()
    ) -> Aborted | Invalidated | None:
        """Abort: a long one becomes invalid, a short one is forgotten even if it was invalid, then
        with these checkpoints. None when there is nothing to do. Raises why it cannot be aborted.
        `long` and `checkpoints` say what is not known of an invalid one."""
        transaction = self.open.get(id)
        if transaction is not None:
            long = transaction.began.type is TransactionType.LONG
            return Invalidated((id,)) if long else Aborted(id)
        if id in self.invalid:
            return None if long else Aborted(id, tuple(checkpoints))
        ended = self.ended.get(id)
        if ended is not None and ended[0] is Outcome.ABORTED:
            return None
        raise self.why_not_open(id)

    def invalidate(self, id: int) -> Invalidated | None:
        """Make a transaction in progress invalid; None when it is not in progress."""
        return Invalidated((id,)) if id in self.open else None

    def expired(self, now_ms: int, committing: Container[int] = ()) -> Invalidated | None:
        """The transactions that have been open for too long, or whose commit was given up halfway,
        apart from commits under way; None if there are none."""
        late = tuple(
            id
            for id, transaction in self.open.items()
            if (transaction.intended or transaction.began.expires_ms < now_ms)
            and id not in committing
        )
        return Invalidated(late, timed_out=True) if late else None

    def recovered(self, now_ms: int) -> list[Edit]:
        """The edits that a start after a crash has to journal: pointers that may have been issued
        and forgotten, and commits that no process will finish."""
        edits: list[Edit] = []
        stop = max(self.reserved, self.next_pointer(now_ms))
        if self.reserved:
            edits.append(Lost(self.last_pointer + 1, stop))
        halfway = tuple(id for id, transaction in self.open.items() if transaction.intended)
        if halfway:
            edits.append(Invalidated(halfway))
        return edits

    def _check(self, id: int, changes: Iterable[bytes]) -> None:
        for change in changes:
            winner = self.winner.get(change)
            if winner is not None and winner[0] > id:
                raise self.conflict(id, change, winner[1])

    def conflict(self, id: int, change: bytes, client: str | None) -> TransactionConflict:
        """The error for a transaction that changed what another one did meanwhile."""
        return TransactionConflict(
            f"Transaction {id} and another one that committed meanwhile changed the same key. "
            "Roll back, and do it again.",
            transaction=id,
            key=change.hex(),
            client=client,
        )

    # -- carrying out ----------------------------------------------------------------------------

    def apply(self, edit: Edit) -> None:
        """Carry out an edit. Late and repeated ones change nothing."""
        match edit:
            case Began():
                self._began(edit)
            case Committed():
                self._commit(edit)
            case Intended():
                if (transaction := self.open.get(edit.id)) is not None:
                    transaction.intended = True
            case Prepared():
                if (transaction := self.open.get(edit.id)) is not None:
                    transaction.changes = edit.changes
            case Checkpointed():
                self._checkpointed(edit)
            case Aborted():
                self._aborted(edit)
            case Invalidated():
                for id in edit.ids:
                    self._invalidated(id, edit.timed_out)
            case Forgotten():
                self.forgotten.update(edit.ids)  # before they leave the others: readers look
                self.invalid.difference_update(edit.ids)
                self.sorted_invalid = None
            case Barred():
                self._bar(edit.pointers)
            case Reserved():
                self.reserved = max(self.reserved, edit.upto)
            case Lost():
                self.lost.append((edit.start, edit.stop))
                self.last_pointer = max(self.last_pointer, edit.stop - 1)
                self.reserved = max(self.reserved, edit.stop)
            case Reset():
                self._reset()

    def _began(self, edit: Began) -> None:
        if edit.id <= self.last_pointer:
            return
        if not self.last_pointer:
            self.read_pointer = edit.bound
        self.last_pointer = edit.id
        self.open[edit.id] = Open(edit, intended=edit.intended)
        self.in_progress[edit.id] = edit.id
        if edit.client:
            self.clients.began(edit.client)
        if edit.type is TransactionType.SHORT:
            self.shorts[edit.id] = None
        if edit.token:
            self.tokens[edit.token] = edit.id
            while len(self.tokens) > max(ENDED_REMEMBERED, len(self.open)):
                token, id = self.tokens.popitem(last=False)
                if id in self.open:  # whoever begins with it again must find it
                    self.tokens[token] = id

    def _checkpointed(self, edit: Checkpointed) -> None:
        transaction = self.open.get(edit.id)
        if transaction is not None and edit.pointer > self.last_pointer:
            self.last_pointer = edit.pointer
            transaction.checkpoints = (*transaction.checkpoints, edit.pointer)
            self.in_progress[edit.pointer] = edit.id

    def _commit(self, edit: Committed) -> None:
        transaction = self.open.get(edit.id)
        if transaction is None:
            return
        if edit.changes:
            kept = self.committed.setdefault(edit.pointer, set())
            kept.update(edit.changes)
            winner = (edit.pointer, transaction.began.client)
            for change in edit.changes:
                self.winner[change] = winner
        pointers = self._close(transaction)
        self.read_pointer = max(self.read_pointer, pointers[-1])
        for pointer in pointers:
            self._remember(pointer, Outcome.COMMITTED, edit.pointer)
        if self.committed:
            self._drop_changes()

    def _aborted(self, edit: Aborted) -> None:
        transaction = self.open.get(edit.id)
        if transaction is None and edit.id not in self.invalid:
            return
        pointers = (edit.id, *edit.checkpoints) if transaction is None else transaction.pointers
        for pointer in pointers:  # before they leave what is in progress or invalid
            self._remember(pointer, Outcome.ABORTED)
        if transaction is not None:
            self._close(transaction)
        self.invalid.difference_update(pointers)
        self.sorted_invalid = None
        self.read_pointer = max(self.read_pointer, pointers[-1])
        self._drop_changes()

    def _invalidated(self, id: int, timed_out: bool) -> None:
        transaction = self.open.get(id)
        if transaction is None:
            return
        # before it leaves what is in progress: readers look
        self.invalid.update(transaction.pointers)
        self.sorted_invalid = None
        self._close(transaction)
        if transaction.began.type is TransactionType.SHORT:
            self.read_pointer = max(self.read_pointer, transaction.write_pointer)
        if transaction.began.client:
            self.clients.invalidated(id, transaction.began.client)
        self._remember(id, Outcome.TIMED_OUT if timed_out else Outcome.INVALID)
        self._drop_changes()

    def _bar(self, pointers: Iterable[int]) -> None:
        self.barred |= dict.fromkeys(pointers)
        while len(self.barred) > BARRED_REMEMBERED:
            del self.barred[next(iter(self.barred))]

    def _reset(self) -> None:
        self.forgotten.update(self.invalid, self.in_progress)
        for pointer in self.in_progress:
            self._remember(pointer, Outcome.INVALID)
        for kept in (self.open, self.in_progress, self.invalid, self.shorts):
            kept.clear()
        self.clients = ClientCounts()
        self.committed.clear()
        self.winner.clear()
        self.sorted_invalid = None
        self.read_pointer = 0

    def _close(self, transaction: Open) -> tuple[int, ...]:
        """The pointers of a transaction that is not in progress any more."""
        id, pointers = transaction.began.id, transaction.pointers
        del self.open[id]
        if transaction.began.client:
            self.clients.ended(transaction.began.client)
        for pointer in pointers:
            del self.in_progress[pointer]
        self.shorts.pop(id, None)
        return pointers

    def _remember(self, id: int, outcome: Outcome, pointer: int = 0) -> None:
        self.ended[id] = (outcome, pointer)
        if len(self.ended) > ENDED_REMEMBERED:
            self.ended.popitem(last=False)

    def _drop_changes(self) -> None:
        """Forget changes that no short transaction in progress can conflict with."""
        first = self.first_short()
        while self.committed:
            pointer = next(iter(self.committed))
            if pointer >= first:
                return
            for change in self.committed.pop(pointer):
                winner = self.winner.get(change)
                if winner is not None and winner[0] == pointer:
                    del self.winner[change]
