"""Retries and dead letters of a group: a handler that raises gets its message again, in its place,
and after the last time the message goes to the topic of the group's dead letters.

    handler raises ─▶ pause ─▶ again … ─▶ one transaction: the letter, and the position behind it

Invariants

* Letter and position commit together: wherever the program dies, the message is before the group
  or among its dead letters, never both, never neither.
* The order of a partition is kept: what is behind the message waits until it is handled, or a dead
  letter.
* What is away is not the message's fault: errors of TMS that repeating may mend do not count, nor
  does `TransactionConflict`; `Fenced` and `Closed` are the consumer's.
* An error does not tell that a transaction has not committed: after `is_in_doubt` the consumer
  looks where the group stands before the handler gets the message again.
* Failures are counted by the consumer, of the newest message of each partition. Another one, also
  after a restart, counts anew.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, Self

from tms.client.committed import KnownPositions
from tms.client.group_options import Group
from tms.client.transaction import Transaction
from tms.errors import (
    Closed,
    Conflict,
    Fenced,
    Invalid,
    TopicExists,
    TopicNotFound,
    TransactionConflict,
)
from tms.model.ids import MessageId
from tms.model.message import Message
from tms.model.position import Position
from tms.model.quantity import seconds, whole
from tms.model.queue import (
    DEAD_CAUSE,
    DEAD_DELIVERIES,
    DEAD_GROUP,
    DEAD_ORIGIN,
    DELAY_S_MAX,
    DELIVERIES_MAX,
    dead_letter_topic,
    error_text,
)
from tms.model.serializer import V
from tms.model.topic import MESSAGE_BYTES_MAX, TopicName
from tms.runtime.events import EventLog
from tms.runtime.retrying import is_retriable

_DOUBLINGS_MAX = 32
_CAUSE_BYTES_MAX = 4_096
_log = EventLog(__name__)


def is_in_doubt(error: Exception) -> bool:
    """True if a commit that ends with this error may have been done, by itself or by an earlier
    attempt whose answer was lost."""
    return is_retriable(error) or (isinstance(error, Conflict) and not isinstance(error, Fenced))


class RetryOptions(NamedTuple):
    """The number of times a message is handed to its handler, the pauses between, and the topic of
    dead letters; without one (None) the handler's last error ends the consumer."""

    dead_letter: str | None
    deliveries_max: int
    backoff_first_s: float
    backoff_max_s: float

    @classmethod
    def of(cls, group: Group) -> Self:
        """The checked options of a group. Raises `Invalid`."""
        whole("deliveries_max", group.deliveries_max, 0, DELIVERIES_MAX)
        if group.dead_letter is not None:
            if not isinstance(group.dead_letter, str):
                raise Invalid(
                    'dead_letter is the name of a topic, or "" for TOPIC-GROUP-dead, got '
                    f"{group.dead_letter!r:.80}.",
                    field="dead_letter",
                )
            if group.dead_letter:
                TopicName.parse(group.dead_letter).require_writable()
            if not group.deliveries_max:
                raise Invalid(
                    "With deliveries_max=0 a message is handed to its handler for ever, so that "
                    "there are no dead letters: leave dead_letter out, or give a number from 1 on.",
                    field="deliveries_max",
                )
        first_s = seconds("backoff_first_s", group.backoff_first_s, 0, DELAY_S_MAX)
        max_s = seconds("backoff_max_s", group.backoff_max_s, 0, DELAY_S_MAX)
        return cls(group.dead_letter, group.deliveries_max, first_s, max(first_s, max_s))


class BusOfGroup(Protocol):
    """The bus of a consumer."""

    def transaction(self) -> Transaction: ...

    def create_topic(
        self, topic: str, partitions: int = 1, *, retention: str, message_bytes_max: int
    ) -> object: ...


class GroupReading(Protocol):
    """A consumer."""

    committed: KnownPositions

    def positions(self) -> dict[int, Position]: ...


class _Failing(NamedTuple):
    """The newest message of a partition whose handler has raised, and how often."""

    id: MessageId
    failures: int


class GroupDeadLetters:
    """The dead letters that one consumer makes. For one thread at a time."""

    def __init__(self, name: TopicName, group: str, options: RetryOptions, bus: BusOfGroup) -> None:
        self._name = name
        self._group = group
        self._options = options
        self._bus = bus
        self._topic: TopicName | None = None
        if options.dead_letter is not None:
            self._topic = dead_letter_topic(group, name, options.dead_letter)
            if self._topic == name:
                raise Invalid(
                    f"{name} cannot have its own dead letters: they would come again. Name another "
                    "topic.",
                    field="dead_letter",
                )
        self._failing: dict[int, _Failing] = {}
        self._away = 0  # failures in a row that do not count

    def handled(self, message: Message[V]) -> None:
        """The handler returned."""
        self._away = 0
        if self._failing:
            self._failing.pop(message.partition, None)

    def failed(self, message: Message[V], error: Exception) -> float | None:
        """The handler raised: how many seconds to wait before it gets the message again; None: it
        was the last time. Raises the error when it is to end the consumer."""
        if isinstance(error, Fenced | Closed):
            raise error
        options = self._options
        before = self._failing.get(message.partition)
        failures = 0 if before is None or before.id != message.id else before.failures
        if is_retriable(error) or isinstance(error, TransactionConflict):
            self._away += 1
            _log.warning("handler_waits", **self._facts(message), error=error_text(error))
            return self._pause_s(self._away)
        self._away = 0
        failures += 1
        self._failing[message.partition] = _Failing(message.id, failures)
        _log.exception("handler_failed", **self._facts(message), error=error_text(error))
        if options.deliveries_max == 0 or failures < options.deliveries_max:
            return self._pause_s(failures)
        if self._topic is None:
            raise error
        return None

    def mover(
        self, message: Message[V], error: Exception, source: GroupReading
    ) -> Callable[[], object]:
        """A call that makes the message a dead letter and moves the group behind it, and may be
        made again when it has failed. Raises `Conflict` when others have moved the group, `Fenced`
        when the partition is another's by now."""
        begun: list[Transaction] = []

        def move() -> None:
            if not begun:
                begun.append(self._begin(message, error, source))
            begun[0].commit()
            _log.warning("dead_letter", **self._facts(message), to=str(self._topic))
            self.handled(message)

        return move

    def _begin(self, message: Message[V], error: Exception, source: GroupReading) -> Transaction:
        assert self._topic is not None, "else nothing is moved"
        topic, failing = str(self._topic), self._failing[message.partition]
        place = f"{message.partition}/{message.offset}/{message.id}"
        headers = {
            **message.headers,
            DEAD_CAUSE: error_text(error).encode(errors="replace")[:_CAUSE_BYTES_MAX],
            DEAD_DELIVERIES: b"%d" % failing.failures,
            DEAD_ORIGIN: f"{self._name.namespace}:{self._name.topic}/{place}".encode(),
            DEAD_GROUP: self._group.encode(),
        }
        cells = topic, message.value, message.key, headers
        tx = self._bus.transaction()
        try:
            tx.send(*cells, event_time_ms=message.event_time_ms)
        except TopicNotFound:
            with suppress(TopicExists):  # another consumer was faster
                self._bus.create_topic(
                    topic, retention="forever", message_bytes_max=MESSAGE_BYTES_MAX
                )
            tx.send(*cells, event_time_ms=message.event_time_ms)
        tx.ack(source)
        return tx

    def _pause_s(self, failures: int) -> float:
        options = self._options
        pause_s = options.backoff_first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX)
        return min(pause_s, options.backoff_max_s)

    def _facts(self, message: Message[V]) -> dict[str, object]:
        failing = self._failing.get(message.partition)
        return {
            "group": self._group,
            "topic": str(self._name),
            "partition": message.partition,
            "offset": message.offset,
            "deliveries": 0 if failing is None else failing.failures,
        }
