"""The calls of transactional producers, with their outcomes as Kafka's error codes."""

from collections.abc import Callable
from typing import TypeVar

from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode, coordinator_code
from tms.compat.kafka.requests import KafkaCall
from tms.errors import Forbidden, TMSError
from tms.transactions.transactional_state import ProducerEpoch, RefusalCode, Refused

T = TypeVar("T")


def producer_of(message: KafkaMessage) -> ProducerEpoch:
    """The producer that a request names."""
    return ProducerEpoch(message.producer_id, message.producer_epoch)


def require_id(call: KafkaCall, id: str) -> None:
    """Raise `Refused`, as for an id that does not exist, unless the caller may use a transactional
    id. Later requests of another owner have another epoch, so the decision stays right. May read
    the store."""
    owner = call.broker.producers.owner(id)
    require_owner(call, owner, RefusalCode.INVALID_PRODUCER_ID_MAPPING)


def require_owner(call: KafkaCall, owner: str, unknown: RefusalCode) -> None:
    """Raise `Refused` with the code of an unknown id unless the caller may use the transactional
    ids of a principal; the audit log has the reason."""
    try:
        call.require_owner(owner)
    except Forbidden:
        raise Refused(unknown) from None


async def attempted(
    call: KafkaCall, work: Callable[[], T], fenced_from: int = 0
) -> tuple[ErrorCode, T | None]:
    """Do the work of a request outside of the event loop; returns its result, or the code that
    refuses it. `fenced_from` is the version from which on clients know `PRODUCER_FENCED`."""
    try:
        return ErrorCode.NONE, await call.broker.in_thread(work)
    except Refused as refused:
        code = ErrorCode(refused.code)
        if code is ErrorCode.PRODUCER_FENCED and call.version < fenced_from:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return code, None
    except TMSError as error:
        return coordinator_code(error), None
