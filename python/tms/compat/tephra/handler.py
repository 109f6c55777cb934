"""Tephra's service, method by method: Thrift's values in and out, the engine's operations between.

The names of the methods are those of `transaction.thrift`. They raise errors of TMS, which
`messages` translates to exceptions that the method declares.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tms.compat.tephra.messages import NO_CLIENT
from tms.errors import Invalid, Malformed, TooLarge, TransactionConflict
from tms.model.snapshot import Snapshot, TransactionType, VisibilityLevel
from tms.model.transaction_image import encode_image
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.transactions.tephra import TephraOperations
from tms.transactions.transactions import Transactions
from tms.transactions.uncommitted import StoredRange

I32_MAX = 2**31 - 1
_SHORT, _LONG = TransactionType.SHORT, TransactionType.LONG
_log = EventLog("tms.server")


class ThriftHandler:
    """The methods of `TTransactionServer`. Thread-safe."""

    def __init__(
        self,
        types: Any,
        transactions: Callable[[], Transactions],
        clock: Clock,
        ready: Callable[[], bool],
    ) -> None:
        self._types = types
        self._transactions = transactions  # as long as they are kept here
        self._clock = clock
        self._ready = ready

    @property
    def _tephra(self) -> TephraOperations[StoredRange]:
        return self._transactions().tephra

    # -- starting --------------------------------------------------------------------------------

    def startLong(self) -> Any:
        return self._start(_LONG)

    def startLongClientId(self, client: str | None) -> Any:
        return self._start(_LONG, _client(client))

    def startShort(self) -> Any:
        return self._start(_SHORT)

    def startShortTimeout(self, timeout_s: int | None) -> Any:
        return self._start(_SHORT, timeout_s=timeout_s or 0)

    def startShortWithTimeout(self, timeout_s: int | None) -> Any:
        return self._start(_SHORT, timeout_s=timeout_s or 0)

    def startShortClientId(self, client: str | None) -> Any:
        return self._start(_SHORT, _client(client))

    def startShortWithClientIdAndTimeOut(self, client: str | None, timeout_s: int | None) -> Any:
        return self._start(_SHORT, _client(client), timeout_s or 0)

    def checkpoint(self, tx: Any) -> Any:
        return self._sent(self._tephra.checkpoint(_snapshot(tx)))

    # -- committing ------------------------------------------------------------------------------

    def canCommitTx(self, tx: Any, changes: Sequence[bytes] | None) -> Any:
        return self._is_done(lambda: self._tephra.can_commit(_id(tx), changes or ()))

    def canCommitOrThrow(self, id: int | None, changes: Sequence[bytes] | None) -> None:
        self._tephra.can_commit(id or 0, changes or ())

    def commitTx(self, tx: Any) -> Any:
        return self._is_done(lambda: self._tephra.commit(_id(tx), tx.writePointer or _id(tx)))

    def commitOrThrow(self, id: int | None, pointer: int | None) -> None:
        self._tephra.commit(id or 0, pointer or 0)

    # -- ending otherwise ------------------------------------------------------------------------

    def abortTx(self, tx: Any) -> None:
        self._tephra.abort(
            _id(tx), long=tx.type == _LONG, checkpoints=tx.checkpointWritePointers or ()
        )

    def invalidateTx(self, id: int | None) -> bool:
        return self._tephra.invalidate(id or 0)

    # -- operating -------------------------------------------------------------------------------

    def getSnapshot(self) -> bytes:
        return encode_image(self._tephra.image(self._clock.now_ms()))

    def resetState(self) -> None:
        _log.warning("transactions_reset")
        self._tephra.reset()

    def status(self) -> str:
        return "OK" if self._ready() else "NOTOK"

    def truncateInvalidTx(self, ids: Sequence[int] | None) -> Any:
        return self._types.TBoolean(bool(self._tephra.truncate(ids or ())))

    def truncateInvalidTxBefore(self, time_ms: int | None) -> Any:
        return self._types.TBoolean(bool(self._tephra.truncate_before(time_ms or 0)))

    def invalidTxSize(self) -> int:
        return min(self._tephra.invalid_count(), I32_MAX)

    def pruneNow(self) -> None:
        """Do nothing, as Tephra's server does by default: its pruning is turned off."""

    # -- values ----------------------------------------------------------------------------------

    def _start(
        self, type: TransactionType, client: str = NO_CLIENT, timeout_s: int | None = None
    ) -> Any:
        return self._sent(self._tephra.start(type, client, timeout_s))

    def _is_done(self, work: Callable[[], None]) -> Any:
        try:
            work()
        except (TransactionConflict, TooLarge, Invalid):
            return self._types.TBoolean(False)
        return self._types.TBoolean(True)

    def _sent(self, snapshot: Snapshot) -> Any:
        return self._types.TTransaction(
            transactionId=snapshot.transaction_id,
            readPointer=snapshot.read_pointer,
            invalids=snapshot.invalid,
            inProgress=snapshot.in_progress,
            firstShort=snapshot.first_short,
            type=snapshot.type,
            writePointer=snapshot.write_pointer,
            checkpointWritePointers=snapshot.checkpoints,
            visibilityLevel=snapshot.level,
        )


def _client(client: str | bytes | None) -> str:
    if client is None:
        raise Invalid("clientId must not be null")
    return client if isinstance(client, str) else client.decode("utf-8", "replace")


def _id(tx: Any) -> int:
    if tx is None or tx.transactionId is None:
        raise Malformed("The transaction has no transactionId.")
    id: int = tx.transactionId
    return id


def _snapshot(tx: Any) -> Snapshot:
    id = _id(tx)
    try:
        return Snapshot(
            id,
            tx.readPointer or 0,
            tuple(tx.invalids or ()),
            tuple(tx.inProgress or ()),
            tx.firstShort or 0,
            TransactionType(tx.type or _SHORT),
            tx.writePointer or id,
            tuple(tx.checkpointWritePointers or ()),
            VisibilityLevel(tx.visibilityLevel or VisibilityLevel.SNAPSHOT),
        )
    except ValueError as exc:
        raise Malformed(f"The transaction {id} has a type or visibility that is none.") from exc
