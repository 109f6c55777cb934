"""The bus, its producers, transactions and queues, with spans for what is published and worked on.

Invariants

* The span of a publish is the active one while its messages are packed, so they carry its place;
  those of a producer that were sent within a span carry the place of that one.
* A lone publish that goes with those of other threads carries the place of its own span.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from tms.block.received import Delivered
from tms.client.client import Bus
from tms.client.leases import HeldMessage
from tms.client.producer import Producer
from tms.client.queue import Queue
from tms.client.traced.transport import Traced, TracedAnswer, telemetry_of
from tms.client.transaction import WAITING_BYTES, Transaction
from tms.client.worker import Handler, Worker, WorkerOptions
from tms.errors import TMSError
from tms.model.serializer import V
from tms.model.transaction import CommitResult
from tms.telemetry.messaging import COMMIT, SEND, Telemetry, TracedOperation, fail_active
from tms.telemetry.places import PlacedMessages, PlaceRoom

TRANSACTION_PLACES_BYTES_MAX = 256 << 10  # what is added to a commit, which has little more room

P = ParamSpec("P")
T = TypeVar("T")


def sending(method: Callable[P, T]) -> Callable[P, T]:
    """A method of a bus that publishes to a topic, of the same signature, within a span."""
    is_many = "values" in inspect.signature(method).parameters

    def begin(bus: Any, args: tuple[Any, ...], named: dict[str, Any]) -> TracedOperation:
        topic = args[0] if args else named.get("topic", "")
        values = args[1] if len(args) > 1 else named.get("values")
        count = len(values) if is_many and isinstance(values, Sized) else None
        telemetry = telemetry_of(getattr(bus, "_sync", bus))
        return telemetry.operation(SEND, topic if type(topic) is str else "", "", count)

    def told(operation: TracedOperation, result: object) -> None:
        if not is_many:
            operation.note(result)

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def traced_async(self: Any, *args: Any, **named: Any) -> Any:
            with begin(self, args, named) as operation:
                result = await method(self, *args, **named)
                told(operation, result)
                return result

        return cast(Callable[P, T], traced_async)

    @wraps(method)
    def traced(self: Any, *args: Any, **named: Any) -> Any:
        with begin(self, args, named) as operation:
            result = method(self, *args, **named)
            told(operation, result)
            return result

    return cast(Callable[P, T], traced)


class TracedProducer(Producer[V]):
    """See `Producer`. Each request has a span, from when it leaves until it is acknowledged."""

    def __init__(self, transport: Any, *parts: Any) -> None:
        self._telemetry: Telemetry = transport.telemetry
        super().__init__(transport, *parts)

    def _push(self, until_s: float | None = None) -> None:
        operation = begin_request(self._telemetry, self)
        try:
            super()._push(until_s)
        except BaseException as error:
            operation.end(error)
            raise
        finally:
            operation.leave()
        flight = self._sending.flights.pop()
        answer = TracedAnswer(flight.pending, lambda _: operation.end(), operation.end)
        self._sending.flights.append(flight._replace(pending=answer))

    def _recover(self, error: TMSError, deadline_s: float) -> None:
        for flight in self._sending.flights:
            if isinstance(flight.pending, TracedAnswer):
                flight.pending.failed(error)
        super()._recover(error, deadline_s)


def begin_request(telemetry: Telemetry, producer: Any) -> TracedOperation:
    """The span of what a producer sends now; it is the active one until `leave`."""
    name, count = str(producer._delivery.name), producer._batcher.count
    return telemetry.operation(SEND, name, count=count).enter()


class TracedTransaction(Transaction):
    """See `Transaction`. Its span lasts while it commits."""

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


class TracedWorker(Worker[V]):
    """See `Worker`. A message has a span, in which it is handled and settled."""

    def __init__(self, queue: Queue[V], handler: Handler[V], options: WorkerOptions) -> None:
        self._telemetry = queue_telemetry(queue)
        super().__init__(queue, watched(handler), options)

    def _handle(self, message: Delivered[V], held: HeldMessage) -> None:
        with self._telemetry.processing(message, self._queue.group):
            super()._handle(message, held)


def watched(handler: Callable[P, T]) -> Callable[P, T]:
    """The same function, whose errors are told to the active span."""

    @wraps(handler)
    def told(*args: P.args, **named: P.kwargs) -> T:
        try:
            return handler(*args, **named)
        except BaseException as error:
            fail_active(error)
            raise

    return told


def watched_async(handler: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The same for a coroutine function."""

    @wraps(handler)
    async def told(*args: P.args, **named: P.kwargs) -> T:
        try:
            return await handler(*args, **named)
        except BaseException as error:
            fail_active(error)
            raise

    return told


class TracedQueue(Queue[V]):
    """See `Queue`."""

    _worker_type = TracedWorker

    @contextmanager
    def settling(self, message: Delivered[V]) -> Iterator[Delivered[V]]:
        """See `Queue.settling`; within a span of the message."""
        processing = queue_telemetry(self).processing(message, self.group)
        with processing, super().settling(message):
            yield message


def queue_telemetry(queue: Queue[Any]) -> Telemetry:
    """What a traced queue tells with."""
    port = queue._port()
    assert isinstance(port, Traced), "traced queues are made for traced transports"
    return port.telemetry


class TracedBus(Bus):
    """See `Bus`."""

    _producer_type, _transaction_type, _queue_type = TracedProducer, TracedTransaction, TracedQueue

    publish = sending(Bus.publish)
    publish_many = sending(Bus.publish_many)
    publish_later_many = sending(Bus.publish_later_many)
