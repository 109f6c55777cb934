"""The bus, its producers, transactions and queues, with spans for what is published and worked on.

Invariants

* The span of a publish is the active one while its messages are packed, so they carry its place;
  those of a producer that were sent within a span carry the place of that one.
* A lone publish that goes with those of other threads carries the place of its own span.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import wraps
from math import inf
from typing import Any, ParamSpec, TypeVar, cast

from tms.block.received import Delivered
from tms.client.client import Bus
from tms.client.delivery import Unacknowledged
from tms.client.queue import MarkFailed, Queue
from tms.client.sending import Flight, Pending, ProducerPlan, Sending
from tms.client.telemetry.messaging import COMMIT, SEND, Telemetry, TracedOperation, fail_active
from tms.client.telemetry.places import PlacedMessages, PlaceRoom
from tms.client.telemetry.transport import Traced, telemetry_of
from tms.client.transaction import WAITING_BYTES, Transaction
from tms.errors import TMSError
from tms.model.message import Appended, NewBlock
from tms.model.serializer import V
from tms.model.transaction import CommitResult

TRANSACTION_PLACES_BYTES_MAX = 256 << 10  # what is added to a commit, which has little more room

P = ParamSpec("P")
T = TypeVar("T")


def sending(method: Callable[P, T]) -> Callable[P, T]:
    """A method of a bus that publishes to a topic, of the same signature, within a span."""
    call: Any = method
    is_many = "values" in inspect.signature(method).parameters

    def begin(bus: Any, args: tuple[Any, ...], named: dict[str, Any]) -> TracedOperation:
        topic = args[0] if args else named.get("topic", "")
        values = args[1] if len(args) > 1 else named.get("values")
        count = len(values) if is_many and isinstance(values, Sized) else None
        telemetry = telemetry_of(getattr(bus, "_sync", bus))
        return telemetry.operation(SEND, topic if type(topic) is str else "", "", count)

    def told(operation: TracedOperation, result: object) -> object:
        if not is_many:
            operation.note(result)
        return result

    def traced(self: Any, *args: Any, **named: Any) -> Any:
        with begin(self, args, named) as operation:
            return told(operation, call(self, *args, **named))

    async def traced_async(self: Any, *args: Any, **named: Any) -> Any:
        with begin(self, args, named) as operation:
            return told(operation, await call(self, *args, **named))

    is_async = inspect.iscoroutinefunction(method)
    return cast(Callable[P, T], wraps(method)(traced_async if is_async else traced))


class TracedSending(Sending[Pending]):
    """As `Sending`. Each request has a span, from when its messages are packed until its outcome is
    known; it is the active one while the request leaves."""

    def __init__(self, telemetry: Telemetry, plan: ProducerPlan, batcher: Any) -> None:
        self._telemetry = telemetry
        super().__init__(plan.delivery, plan.pace, batcher)

    def begin_anew(self) -> None:
        """As `Sending.begin_anew`."""
        super().begin_anew()
        self._operations: deque[TracedOperation] = deque()  # of the requests under way

    def launch(self, begin: Callable[[Sequence[NewBlock]], Pending], due_s: float = inf) -> None:
        """As `Sending.launch`."""
        count = 0 if self.batcher is None else self.batcher.count
        operation = self._telemetry.operation(SEND, str(self.delivery.name), count=count).enter()
        try:
            super().launch(begin, due_s)
        except BaseException as error:
            operation.end(error)
            raise
        finally:
            operation.leave()
        self._operations.append(operation)

    def landed(self, appended: Sequence[Appended]) -> None:
        """As `Sending.landed`."""
        super().landed(appended)
        self._operations.popleft().end()

    def repeat(
        self, failed: Sequence[tuple[Flight[Pending], TMSError]], now_s: float
    ) -> Unacknowledged:
        """As `Sending.repeat`; the spans of the requests that failed end."""
        errors = {id(flight): error for flight, error in failed}
        for flight, operation in zip(self.flights, self._operations, strict=True):
            operation.end(errors.get(id(flight)))
        self._operations.clear()
        return super().repeat(failed, now_s)

    def give_up(self, error: TMSError) -> None:
        """As `Sending.give_up`."""
        super().give_up(error)
        while self._operations:
            self._operations.popleft().end(error)


class TracedTransaction(Transaction):
    """As `Transaction`. Its span lasts while it commits."""

    def _commit(self) -> CommitResult:
        topics = {batch.name for batch in self._batches.all} | {name for name, _ in self._staged}
        topic = str(min(topics)) if len(topics) == 1 else ""
        telemetry: Telemetry = self._transport.telemetry  # type: ignore[attr-defined]
        with (
            telemetry.operation(SEND, topic, count=self._count)
            if topics
            else telemetry.operation(COMMIT, "")
        ):
            self._place()
            return super()._commit()

    def _make_room(self, size: int) -> None:
        if self._bytes + size > WAITING_BYTES:  # some are staged
            self._place()
        super()._make_room(size)

    def _place(self) -> None:
        """Messages that wait get the place of the active span, as many as there is room for."""
        place = self._transport.place()  # type: ignore[attr-defined]
        limits = {known.name: known.message_bytes_max for known in self._topics.values()}
        left = TRANSACTION_PLACES_BYTES_MAX
        for batch in self._batches.all:
            if batch.number != (0, 0):  # it may be stored already, and is repeated as it is
                continue
            messages = PlacedMessages(
                batch.values, batch.keys or None, batch.headers or None, [(0, place)], batch.bytes
            )
            rows, added = messages.placed(lambda: place, PlaceRoom(limits[batch.name], left))
            batch.headers = [*(rows or ())]
            left -= added


class TracedQueue(Queue[V]):
    """As `Queue`. A message has a span, in which it is handled and settled."""

    @contextmanager
    def _processing(self, message: Delivered[V]) -> Iterator[MarkFailed]:
        port = self._port
        assert isinstance(port, Traced), "traced queues are made for traced transports"
        with port.telemetry.processing(message, self.group):
            yield fail_active


class TracedBus(Bus):
    """As `Bus`."""

    _transaction_type, _queue_type = TracedTransaction, TracedQueue

    publish = sending(Bus.publish)
    publish_many = sending(Bus.publish_many)
    publish_later_many = sending(Bus.publish_later_many)

    def _sending(self, plan: ProducerPlan, batcher: Any) -> TracedSending[Any]:
        return TracedSending(telemetry_of(self), plan, batcher)
