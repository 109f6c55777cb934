"""A user's own data in a transaction.

    start ─▶ the user writes ─▶ changes ─▶ persist ─▶ the messages, and the commit ─▶ post_commit
                   └──────────── anything fails ─▶ roll_back

Invariants

* Messages are the last to persist: they go with the commit itself.
* After a failure every participant is rolled back, the last one first; then the transaction is
  aborted, or made invalid if one could not be.
* Once the commit was sent, participants are rolled back only when it is known that it failed, and
  what is not committed then never will be.
* What happens after the commit cannot undo it.
* A `Decider` is alone in its transaction: what it has committed is never rolled back, and never
  left without its messages.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

from tms.api.operations import TransactionsApi
from tms.errors import (
    CommitUnfinished,
    Invalid,
    PostCommitFailed,
    TimedOut,
    TMSError,
    TransactionEnded,
    TransactionNotFound,
)
from tms.model.transaction import Commit, CommitResult

COMMITTED = "committed"
C_co = TypeVar("C_co", covariant=True)


class Transacted(Protocol):
    """The transaction, as participants know it."""

    @property
    def id(self) -> int:
        """Its id, which is also its write pointer; begins it."""
        ...


class Participant(Protocol[C_co]):
    """Data that commits with one transaction, or not at all. For one transaction only."""

    def start(self, transaction: Transacted) -> C_co:
        """The transaction begins here; what the user writes with."""
        ...

    def changes(self) -> Iterable[bytes]:
        """The keys that were changed: of two transactions at a time that changed the same one,
        only one commits."""
        ...

    def persist(self, request: Commit) -> Commit:
        """Store what was written, as durably as the commit will be. `request` is what follows;
        returns it, or what is to be sent in its place."""
        ...

    def post_commit(self) -> None:
        """The transaction is committed."""
        ...

    def roll_back(self) -> None:
        """Take back what was written and what was stored. May be called more than once."""
        ...


@runtime_checkable
class Decider(Protocol):
    """A participant whose own commit, in `persist`, decides: afterwards it cannot be rolled back,
    and sees to it that the messages follow. It needs no transaction that has begun."""

    @property
    def decided(self) -> bool:
        """True if the transaction has committed, or may have."""
        ...


class Participants:
    """The participants of one transaction, in the order in which they joined."""

    def __init__(self, transactions: Callable[[], TransactionsApi]) -> None:
        self._transactions = transactions
        self.all: list[Participant[Any]] = []
        self._sent: Commit | None = None  # a commit of which it is not known what became

    @property
    def unknown(self) -> bool:
        """True if a commit was sent whose outcome is not known."""
        return self._sent is not None

    def join(self, participant: Participant[C_co], transaction: Transacted) -> C_co:
        """Start it in this transaction. Raises `Invalid` for a decider that is not alone."""
        decides = isinstance(participant, Decider)
        if self.all and (decides or isinstance(self.all[0], Decider)):
            raise Invalid(
                "A participant whose own commit decides, such as a SQL database, is the only one "
                "of its transaction. Take one transaction for each."
            )
        if not decides:
            _ = transaction.id  # begins it, so that its outcome can be asked for
        context = participant.start(transaction)
        self.all.append(participant)
        return context

    def changes(self, id: int) -> set[bytes]:
        """The keys that were changed. When that fails, everything is taken back."""
        try:
            return set[bytes]().union(*(one.changes() for one in self.all))
        except BaseException as error:
            if not self.unknown:
                self.roll_back(id, error)
            raise

    def commit(self, request: Commit, send: Callable[[Commit], CommitResult]) -> CommitResult:
        """Persist everything, and commit. When this raises nothing of it is ever visible, but for
        `CommitUnfinished`, and while `unknown`: then it may be called again."""
        id = request.transaction_id
        if self._sent is None:
            self._sent = self._persist(request)
        try:
            result = send(self._sent)
        except TMSError as error:
            if self._is_decided():
                self._sent = None
                raise CommitUnfinished(
                    "The database has committed the rows, and the request with the messages is "
                    f"kept beside them: {error.message} Do not do the transaction again; recover "
                    "the database, which sends them.",
                    token=request.token,
                ) from error
            if not self._is_committed(id, error):
                self._sent = None
                _note(self._taken_back(), error)
                raise
            result = CommitResult(id)
        self._sent = None
        return result

    def after_commit(self, id: int) -> None:
        """Tell everybody. Raises `PostCommitFailed` when all were told."""
        failures = []
        for participant in self.all:
            try:
                participant.post_commit()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise PostCommitFailed(
                f"Transaction {id} is committed and stays so, but afterwards: "
                f"{'; '.join(map(repr, failures))}. Do not do it again.",
                transaction=id,
            ) from failures[0]

    def roll_back(self, id: int, error: BaseException | None = None) -> None:
        """Take everything back, and end the transaction. What fails is noted on the error, and
        raised when there is none. Raises `TransactionEnded` when it is committed after all."""
        sent = self._sent is not None
        if sent and self._is_committed(id, error):
            raise TransactionEnded(
                f"Transaction {id} is committed. Call commit() again for the rest.",
                transaction=id,
                outcome=COMMITTED,
            )
        self._sent = None
        failures = self._taken_back()
        try:
            if id and failures:
                self._transactions().invalidate(id)
            elif id and not sent:
                self._transactions().abort(id)
        except TMSError as failure:
            failures.append(failure)
        if error is not None:
            _note(failures, error)
        elif failures:
            _note(failures[1:], failures[0])
            raise failures[0]

    def _is_decided(self) -> bool:
        return any(isinstance(one, Decider) and one.decided for one in self.all)

    def _persist(self, request: Commit) -> Commit:
        """Send everything but the messages; what is left to send."""
        id = request.transaction_id
        try:
            for participant in self.all:
                request = participant.persist(request)
        except BaseException as error:
            if not self._is_decided():
                self.roll_back(id, error)
            raise
        return request

    def _is_committed(self, id: int, error: BaseException | None) -> bool:
        """The outcome of a commit whose answer was an error: what is not committed yet never will
        be."""
        try:
            return self._transactions().invalidate(id).outcome == COMMITTED
        except TransactionNotFound:
            return False
        except TMSError as failure:
            raise TimedOut(
                f"It is not known whether transaction {id} is committed: {failure.message} Call "
                "commit() again, or ask for its outcome.",
                transaction=id,
            ) from error

    def _taken_back(self) -> list[Exception]:
        """Roll back, the last one first; the failures."""
        failures = []
        for participant in reversed(self.all):
            try:
                participant.roll_back()
            except Exception as failure:
                failures.append(failure)
        return failures


def _note(failures: Iterable[Exception], error: BaseException) -> None:
    for failure in failures:
        error.add_note(f"While it was rolled back: {failure!r}")
