"""Bugs to plant in transactional ids."""

from collections.abc import Callable

from sim.replacing import Replacement
from tms.model.transaction import Commit
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactional_state import (
    ProducerEpoch,
    RefusalCode,
    Refused,
    TransactionalRecord,
)


def _move_what_aborts() -> list[Replacement]:
    """The positions of a transaction that is aborted are moved all the same."""
    right = TransactionalIds._abort

    def abort(self: TransactionalIds, id: str, record: TransactionalRecord) -> None:
        changes = tuple(one.change for one in record.positions)
        right(self, id, record)
        if changes:
            self._transactions.commit(Commit(positions=changes, overtakes=True))

    return [(TransactionalIds, "_abort", abort)]


def _any_epoch() -> list[Replacement]:
    """A producer is not refused when a later one has its id."""

    def require(self: TransactionalRecord, producer: ProducerEpoch) -> None:
        if producer.number != self.producer.number:
            raise Refused(RefusalCode.INVALID_PRODUCER_ID_MAPPING)

    return [(TransactionalRecord, "require", require)]


def _ids_in_memory() -> list[Replacement]:
    """A change of an id is answered before the journal has it."""

    def write(self: TransactionalIds, id: str, record: TransactionalRecord) -> None:
        self._note(id, record)

    return [(TransactionalIds, "_write", write)]


STREAMS: dict[str, Callable[[], list[Replacement]]] = {
    "any-epoch": _any_epoch,
    "ids-in-memory": _ids_in_memory,
    "move-what-aborts": _move_what_aborts,
}
