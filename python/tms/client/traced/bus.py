"""The bus, its producers, transactions and queues, with spans for what is published and worked on.

Invariants

* The span of a publish is the active one while its messages are packed, so they carry its place;
  those of a producer that were sent within a span carry the place of that one.
* A lone publish that goes with those of other threads carries the place of its own span.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tms.block import Compression
from tms.block.received import Delivered
from tms.client.batching import STAMPS_BYTES_MAX, Expect, Headers
from tms.client.client import Bus
from tms.client.delayed import At
from tms.client.http.transport import HttpTransport
from tms.client.leases import HeldMessage
from tms.client.producer import Producer
from tms.client.queue import Queue
from tms.client.traced.transport import TracedQueues, TracedService, TracedTransport
from tms.client.transaction import WAITING_BYTES, Transaction
from tms.client.transport import LocalTransport, PendingAnswer, RemoteTransport
from tms.client.worker import Handler, Worker, WorkerOptions
from tms.errors import TMSError
from tms.model.delayed import DelayedId
from tms.model.ids import MessageId
from tms.model.message import Appended
from tms.model.quantity import Duration
from tms.model.transaction import CommitResult
from tms.telemetry.messaging import COMMIT, Telemetry, TracedOperation

TRANSACTION_STAMPS_BYTES_MAX = 256 << 10  # what is added to a commit, which has little more room


def telemetry_of(transport: object) -> Telemetry:
    """What a traced transport tells with."""
    assert isinstance(transport, TracedTransport), "traced objects are made for traced transports"
    return transport.telemetry


def traced(
    transport: LocalTransport | HttpTransport, telemetry: Telemetry
) -> LocalTransport | RemoteTransport:
    """A transport that tells of what it brings and settles."""
    made = (
        TracedService(transport, telemetry)
        if isinstance(transport, HttpTransport)
        else TracedTransport(transport, telemetry)
    )
    return cast(LocalTransport | RemoteTransport, made)  # what is not its own is the plain one's


class TracedProducer(Producer):
    """See `Producer`. Each request has a span, from when it leaves until it is acknowledged."""

    def __init__(self, transport: LocalTransport | RemoteTransport, *parts: Any) -> None:
        self._telemetry = telemetry_of(transport)
        super().__init__(transport, *parts)

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """See `Producer.send`."""
        limit = self._batcher.message_bytes_max
        headers = self._telemetry.stamped(value, key, headers, limit)
        super().send(value, key, headers, partition)

    def send_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """See `Producer.send_many`."""
        limit = self._batcher.message_bytes_max
        headers, _ = self._telemetry.stamp((values, keys, headers), limit, STAMPS_BYTES_MAX)
        super().send_many(values, keys, headers, partition)

    def _push(self) -> None:
        operation = self._telemetry.sending(str(self._delivery.name), self._batcher.count)
        operation.enter()
        try:
            super()._push()
        except BaseException as error:
            operation.end(error)
            raise
        finally:
            operation.leave()
        flight = self._sending.flights.pop()
        answer = _TracedAppend(flight.pending, operation)
        self._sending.flights.append(flight._replace(pending=answer))


class _TracedAppend:
    """A request under way, whose span ends with the first that is known of its answer."""

    def __init__(self, plain: PendingAnswer[list[Appended]], operation: TracedOperation) -> None:
        self._plain = plain
        self._operation = operation

    def done(self) -> bool:
        return self._plain.done()

    def result(self, timeout_s: float | None = None) -> list[Appended]:
        try:
            appended = self._plain.result(timeout_s)
        except TMSError as error:
            self._operation.end(error)
            raise
        self._operation.end()
        return appended


class TracedTransaction(Transaction):
    """See `Transaction`. Its span lasts while it commits."""

    def __init__(self, publishing: Any, refresh: Any, transport: Any, *parts: Any) -> None:
        self._telemetry = telemetry_of(transport)
        super().__init__(publishing, refresh, transport, *parts)

    def _commit(self) -> CommitResult:
        topics = {batch.name for batch in self._batches.all} | {name for name, _ in self._staged}
        topic = str(min(topics)) if len(topics) == 1 else ""
        operation = (
            self._telemetry.sending(topic, self._count)
            if topics
            else self._telemetry.settling(COMMIT, "", "")
        )
        with operation:
            self._stamp()
            return super()._commit()

    def _make_room(self, size: int) -> None:
        if self._bytes + size > WAITING_BYTES:  # some are staged
            self._stamp()
        super()._make_room(size)

    def _stamp(self) -> None:
        """Messages that wait get the place of the active span, as many as there is room for."""
        limits = {known.name: known.message_bytes_max for known in self._topics.values()}
        left = TRANSACTION_STAMPS_BYTES_MAX
        for batch in self._batches.all:
            columns = batch.values, batch.keys or None, batch.headers or None
            rows, used = self._telemetry.stamp(columns, limits[batch.name], left)
            batch.headers = [*(rows or ())]
            left -= used


class TracedWorker(Worker):
    """See `Worker`. A message has a span, in which it is handled and settled."""

    def __init__(self, queue: Queue, handler: Handler, options: WorkerOptions) -> None:
        self._telemetry = queue_telemetry(queue)
        super().__init__(queue, self._telemetry.watched(handler), options)

    def _handle(self, message: Delivered, held: HeldMessage) -> None:
        with self._telemetry.processing(message, self._queue.group):
            super()._handle(message, held)


class TracedQueue(Queue):
    """See `Queue`."""

    _worker_type = TracedWorker

    @contextmanager
    def settling(self, message: Delivered) -> Iterator[Delivered]:
        """See `Queue.settling`; within a span of the message."""
        processing = queue_telemetry(self).processing(message, self.group)
        with processing, super().settling(message):
            yield message


def queue_telemetry(queue: Queue) -> Telemetry:
    """What a traced queue tells with."""
    port = queue._port()
    assert isinstance(port, TracedQueues), "traced queues are made for traced transports"
    return port.telemetry


class TracedBus(Bus):
    """See `Bus`."""

    _producer_type, _transaction_type, _queue_type = TracedProducer, TracedTransaction, TracedQueue

    @property
    def telemetry(self) -> Telemetry:
        """What it tells with."""
        return telemetry_of(self._transport)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        durability: str | None = None,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
    ) -> MessageId | None:
        """See `Bus.publish`."""
        with self.telemetry.sending(topic) as operation:
            limit = (self._publishing.known(topic) or self.refresh_topic(topic)).message_bytes_max
            headers = self.telemetry.stamped(value, key, headers, limit)
            id = super().publish(
                topic, value, key, headers, partition, durability, timeout_s, expect
            )
            operation.note(id, partition)
            return id

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        durability: str | None = None,
        compression: str = Compression.NONE,
        timeout_s: Duration | None = None,
        expect: Expect | None = None,
    ) -> list[MessageId]:
        """See `Bus.publish_many`."""
        with self.telemetry.sending(topic, len(values)):
            return super().publish_many(
                topic, values, keys, headers, partition, durability, compression, timeout_s, expect
            )

    def publish_later_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        *,
        at: At | None = None,
        delay: Duration | None = None,
        durability: str | None = None,
        compression: str = Compression.NONE,
        timeout_s: Duration | None = None,
    ) -> list[DelayedId]:
        """See `Bus.publish_later_many`."""
        with self.telemetry.sending(topic, len(values)):
            return super().publish_later_many(
                topic,
                values,
                keys,
                headers,
                partition,
                at=at,
                delay=delay,
                durability=durability,
                compression=compression,
                timeout_s=timeout_s,
            )
