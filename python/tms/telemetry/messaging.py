"""Spans and metrics by OpenTelemetry's conventions for messaging, of the version in `SCHEMA_URL`.

    send     PRODUCER  of a call that publishes, of a block of a producer, of a transaction
    receive  CLIENT    of an answer with messages; linked to the spans that have sent them
    process  CONSUMER  of one message
    settle   CLIENT    of ack, nack, reject, and of a group's position (commit)

Invariants

* What a user has put into headers stays as it is: a message with a `traceparent` keeps it.
* No message is refused for what is added to it: one without room for it goes without.
* Whether a collector is there is the SDK's business, in a thread of its own: nothing here waits.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from types import TracebackType
from typing import NamedTuple, ParamSpec, Self, TypeVar

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import tms
from tms.block import HEADERS_MAX, Columns, Flags, decode, index_of, read_header
from tms.clock import SystemClock
from tms.errors import TMSError
from tms.model.message import StoredBlock
from tms.telemetry import ReadMessage

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM = "tms"
PARENT, STATE = "traceparent", "tracestate"
LINKS_MAX = 128  # messages of an answer that are looked at; the SDK keeps as many links
PLACES_CACHED_MAX = 1_024  # topics whose attributes are kept
STAMPS_CACHED_MAX = 16
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_API = ("opentelemetry.trace", "opentelemetry.metrics")
_W3C = TraceContextTextMapPropagator()
_clock = SystemClock()

P = ParamSpec("P")
T = TypeVar("T")
Headers = Mapping[str, bytes]
Cells = Sequence[bytes | None]
Rows = Sequence[Headers | None]
Block = tuple[Cells, Cells | None, Rows | None]  # values, keys, headers


class OperationKind(NamedTuple):
    """An operation of a client: its name, its type by the conventions, and the kind of its span."""

    name: str
    type: str
    span: SpanKind


SEND = OperationKind("send", "send", SpanKind.PRODUCER)
RECEIVE = OperationKind("receive", "receive", SpanKind.CLIENT)
PROCESS = OperationKind("process", "process", SpanKind.CONSUMER)
ACK = OperationKind("ack", "settle", SpanKind.CLIENT)
NACK = OperationKind("nack", "settle", SpanKind.CLIENT)
REJECT = OperationKind("reject", "settle", SpanKind.CLIENT)
COMMIT = OperationKind("commit", "settle", SpanKind.CLIENT)


def is_used() -> bool:
    """Whether the program has a provider, or is within a span. The providers of the API alone do
    nothing."""
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    if any(not type(one).__module__.startswith(_API) for one in providers):
        return True
    return trace.get_current_span().get_span_context().is_valid


class Telemetry:
    """The tracer and the instruments of one bus. Thread-safe."""

    def __init__(self, server: tuple[str, int] | None = None) -> None:
        self.tracer = trace.get_tracer("tms", tms.__version__, schema_url=SCHEMA_URL)
        meter = metrics.get_meter("tms", tms.__version__, schema_url=SCHEMA_URL)
        self.duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self.process_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )
        self._server = server
        self.place = lru_cache(PLACES_CACHED_MAX)(self._place)

    def sending(self, topic: str, count: int | None = None) -> "TracedOperation":
        """Publishing; `count` of a batch, None of a lone message. An empty topic: several."""
        return TracedOperation(self, SEND, topic, "", count)

    def receiving(self, topic: str, group: str = "") -> "TracedReceive":
        """An answer that may have messages."""
        return TracedReceive(self, topic, group)

    def settling(
        self, kind: OperationKind, topic: str, group: str, count: int | None = None
    ) -> "TracedOperation":
        """ACK, NACK, REJECT or COMMIT."""
        return TracedOperation(self, kind, topic, group, count)

    def processing(self, message: ReadMessage, group: str = "") -> "TracedOperation":
        """Work on one message."""
        sender = sender_of(message.headers)
        operation = TracedOperation(self, PROCESS, message.topic, group, None, sender)
        operation.note(message.id, message.partition)
        return operation

    def watched(self, handler: Callable[P, T]) -> Callable[P, T]:
        """The same function, whose errors are told to the active span."""

        @wraps(handler)
        def told(*args: P.args, **named: P.kwargs) -> T:
            try:
                return handler(*args, **named)
            except BaseException as error:
                fail(trace.get_current_span(), error)
                raise

        return told

    def watched_async(self, handler: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """The same for a coroutine function."""

        @wraps(handler)
        async def told(*args: P.args, **named: P.kwargs) -> T:
            try:
                return await handler(*args, **named)
            except BaseException as error:
                fail(trace.get_current_span(), error)
                raise

        return told

    def stamped(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        message_bytes_max: int,
    ) -> Headers | None:
        """The headers of a message with the place of the active span, if there is one, and room for
        it."""
        stamp = current_stamp()
        if stamp is None:
            return headers
        rows, _ = self.stamp(([value], [key], [headers]), message_bytes_max, message_bytes_max)
        return None if rows is None else rows[0]

    def stamp(
        self, columns: Block, message_bytes_max: int, stamps_bytes_max: int
    ) -> tuple[Rows | None, int]:
        """The same for the messages of a block: those that have room for it within
        `message_bytes_max`, if it is not more than `stamps_bytes_max` for all; how much it may be.
        """
        stamp = current_stamp()
        if stamp is None:
            return columns[2], 0
        try:
            return _stamped(columns, stamp, message_bytes_max, stamps_bytes_max)
        except (TypeError, ValueError, AttributeError):  # these are no messages: packing says why
            return columns[2], 0

    def _place(self, kind: OperationKind, topic: str, group: str) -> dict[str, str | int]:
        """The attributes of an operation, of spans and metrics."""
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": kind.name,
            "messaging.operation.type": kind.type,
        }
        if topic:
            attributes["messaging.destination.name"] = topic
        if group:
            attributes["messaging.consumer.group.name"] = group
        if self._server is not None:
            attributes["server.address"], attributes["server.port"] = self._server
        return attributes


class TracedOperation:
    """One operation: a span, which is the active one within the block, and what is counted. For one
    thread or task; `enter` and `leave` instead of the block where its end comes elsewhere."""

    __slots__ = (
        "_attributes",
        "_began_s",
        "_ended",
        "_kind",
        "_telemetry",
        "_token",
        "count",
        "span",
    )

    def __init__(
        self,
        telemetry: Telemetry,
        kind: OperationKind,
        topic: str,
        group: str,
        count: int | None,
        sender: SpanContext | None = None,
    ) -> None:
        self._telemetry, self._kind, self.count = telemetry, kind, count
        self._attributes = telemetry.place(kind, topic, group)
        self._ended = False
        self._began_s = _clock.monotonic_s()
        parent = None
        if sender is not None and not trace.get_current_span().get_span_context().is_valid:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(sender))
        self.span = telemetry.tracer.start_span(
            f"{kind.name} {topic}" if topic else kind.name,
            parent,
            kind.span,
            self._attributes if count is None else _with_count(self._attributes, count),
            () if sender is None else (Link(sender),),
        )

    def enter(self) -> None:
        """The span is the active one, of this thread or task, until `leave`."""
        self._token = context.attach(trace.set_span_in_context(self.span))

    def leave(self) -> None:
        """The one before is active again."""
        context.detach(self._token)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        self.end(error)

    def note(self, id: object, partition: int | None = None) -> None:
        """Which message it is about."""
        if self.span.is_recording():
            if id is not None:
                self.span.set_attribute("messaging.message.id", str(id))
            if partition is not None:
                self.span.set_attribute("messaging.destination.partition.id", str(partition))

    def end(self, error: BaseException | None = None) -> None:
        """It is over. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        attributes, telemetry, kind = self._attributes, self._telemetry, self._kind
        if error is not None:
            attributes = {**attributes, "error.type": fail(self.span, error)}
        self.span.end()
        took_s = _clock.monotonic_s() - self._began_s
        messages = 1 if self.count is None else self.count
        if kind is PROCESS:
            telemetry.process_duration.record(took_s, attributes)
            return
        telemetry.duration.record(took_s, attributes)
        if kind is SEND:
            telemetry.sent.add(messages, attributes)


class TracedReceive:
    """A call for messages: it becomes a span if some come, or it fails."""

    __slots__ = ("_attributes", "_began_s", "_group", "_telemetry", "_topic")

    def __init__(self, telemetry: Telemetry, topic: str, group: str) -> None:
        self._telemetry, self._topic, self._group = telemetry, topic, group
        self._attributes = telemetry.place(RECEIVE, topic, group)
        self._began_s = _clock.monotonic_s()

    def failed(self, error: BaseException) -> None:
        """It has raised."""
        operation = TracedOperation(self._telemetry, RECEIVE, self._topic, self._group, 0)
        operation._began_s = self._began_s
        operation.end(error)

    def fetched(self, blocks: Sequence[StoredBlock]) -> None:
        """These blocks came."""
        if blocks:
            each = max(1, LINKS_MAX // len(blocks))
            self._came(
                sum(map(_count, blocks)),
                (_first(one, each) for one in blocks[:LINKS_MAX]),
            )

    def received(self, parts: Sequence[Columns]) -> None:
        """These cells of blocks came."""
        if parts:
            each = max(1, LINKS_MAX // len(parts))
            self._came(
                sum(part.count for part in parts),
                (part.slice(0, min(each, part.count)) for part in parts[:LINKS_MAX]),
            )

    def _came(self, count: int, parts: Iterable[Columns]) -> None:
        telemetry = self._telemetry
        took_s = _clock.monotonic_s() - self._began_s
        span = telemetry.tracer.start_span(
            f"{RECEIVE.name} {self._topic}",
            None,
            RECEIVE.span,
            _with_count(self._attributes, count),
            start_time=_clock.now_ms() * 1_000_000 - int(took_s * 1e9),
        )
        if span.is_recording():
            with suppress(TMSError):  # of a damaged block, which who reads it is told
                for sender in _senders(parts):
                    span.add_link(sender)
        span.end()
        telemetry.duration.record(took_s, self._attributes)
        telemetry.consumed.add(count, self._attributes)


def fail(span: trace.Span, error: BaseException) -> str:
    """Mark a span as failed; the type of the error, of few values."""
    kind = error.code if isinstance(error, TMSError) else type(error).__qualname__
    if span.is_recording():
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, str(error)[:1_000]))
    return kind


def _count(stored: StoredBlock) -> int:
    header = read_header(stored.block)
    sparse = header.flags & Flags.SPARSE
    return len(index_of(stored.block, header)) if sparse else header.count


def _first(stored: StoredBlock, count: int) -> Columns:
    columns = decode(stored.block)
    return columns.slice(0, min(count, columns.count))


def sender_of(headers: Headers | None) -> SpanContext | None:
    """The span that has sent a message, if its headers say so."""
    parent = None if headers is None else headers.get(PARENT)
    if not headers or parent is None:
        return None
    carrier = {PARENT: parent.decode("latin-1")}
    if state := headers.get(STATE):
        carrier[STATE] = state.decode("latin-1")
    found = trace.get_current_span(_W3C.extract(carrier, context.Context())).get_span_context()
    return found if found.is_valid else None


def _senders(parts: Iterable[Columns]) -> Iterable[SpanContext]:
    """The spans that have sent messages, each once."""
    found = {}
    for part in parts:
        for row in part.headers():
            sender = sender_of(row)
            if sender is not None:
                found[sender.trace_id, sender.span_id] = sender
    return found.values()


def current_stamp() -> dict[str, bytes] | None:
    """The place of the active span as headers; None without one. Not to be changed."""
    active = trace.get_current_span().get_span_context()
    if not active.is_valid:
        return None
    state = active.trace_state.to_header() if active.trace_state else ""
    return _stamp_of(active.trace_id, active.span_id, active.trace_flags, state)


@lru_cache(STAMPS_CACHED_MAX)
def _stamp_of(trace_id: int, span_id: int, flags: int, state: str) -> dict[str, bytes]:
    stamp = {PARENT: f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}".encode()}
    return {**stamp, STATE: state.encode("latin-1", "replace")} if state else stamp


def _with_stamp(headers: Headers | None, stamp: Mapping[str, bytes]) -> Headers | None:
    """Headers and a stamp, unless they have one, or are as many as they may be."""
    if not headers:
        return stamp
    if not isinstance(headers, Mapping) or len(headers) + len(stamp) > HEADERS_MAX:
        return headers
    if any(isinstance(name, str) and name.lower() in (PARENT, STATE) for name in headers):
        return headers
    return {**headers, **stamp}


def _stamped(
    columns: Block, stamp: Mapping[str, bytes], message_bytes_max: int, stamps_bytes_max: int
) -> tuple[Rows | None, int]:
    values, keys, headers = columns
    each = sum(len(name) + len(text) for name, text in stamp.items())
    if each * len(values) > stamps_bytes_max:
        return headers, 0
    room = message_bytes_max - each
    size = sum(map(len, filter(None, values)))
    if keys is not None:
        size += sum(map(len, filter(None, keys)))
    if headers is None and size <= room:
        return [stamp] * len(values), each * len(values)
    stamped: list[Headers | None] = []
    for at, value in enumerate(values):
        row = headers[at] if headers is not None else None
        key = keys[at] if keys is not None else None
        fits = _message_bytes(value, key, row) <= room
        stamped.append(_with_stamp(row, stamp) if fits else row)
    return stamped, each * len(values)


def _message_bytes(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    size = len(value or b"") + len(key or b"")
    return size + sum(len(name.encode()) + len(text) for name, text in (headers or {}).items())


def _with_count(attributes: Mapping[str, str | int], count: int) -> dict[str, str | int]:
    return {**attributes, "messaging.batch.message_count": count}
