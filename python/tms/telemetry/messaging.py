"""Spans and metrics by OpenTelemetry's conventions for messaging, of the version in `SCHEMA_URL`.

    send     PRODUCER  of a call that publishes, of a request of a producer, of a transaction
    receive  CLIENT    of an answer with messages; linked to the spans that have sent them
    process  CONSUMER  of one message
    settle   CLIENT    of ack, nack, reject, and of a group's position (commit)

Invariants

* Whether a collector is there is the SDK's business, in a thread of its own: nothing here waits.
* Messages are counted here and read when the program's reader collects: adding costs a dictionary.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, Self

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import tms
from tms.block import Columns, Flags, decode, index_of, read_header
from tms.block.received import Received
from tms.clock import SystemClock
from tms.errors import Closed, TMSError
from tms.model.message import Fetched, StoredBlock
from tms.telemetry import ReadMessage
from tms.telemetry.places import PARENT, STATE, Headers, Place

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
LINKS_MAX = 128  # messages of an answer that are looked at; the SDK keeps as many links
SUBJECTS_CACHED_MAX = 1_024
SERIES_MAX = 2_000  # of a counter; what comes beyond is counted together, as the SDK does it
PLACES_CACHED_MAX = 64
SENDERS_CACHED_MAX = 1_024
PROVIDERS_MAX = 8  # a program has one, tests have more
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_API = ("opentelemetry.trace", "opentelemetry.metrics")
_COUNT = "messaging.batch.message_count"
_W3C = TraceContextTextMapPropagator()
_clock = SystemClock()

Attributes = dict[str, str | int]


class Operation(NamedTuple):
    """An operation of a client: its name, its type by the conventions, and the kind of its span."""

    name: str
    type: str
    span: SpanKind


SEND = Operation("send", "send", SpanKind.PRODUCER)
RECEIVE = Operation("receive", "receive", SpanKind.CLIENT)
PROCESS = Operation("process", "process", SpanKind.CONSUMER)
SETTLE = {name: Operation(name, "settle", SpanKind.CLIENT) for name in ("ack", "nack", "reject")}
COMMIT = Operation("commit", "settle", SpanKind.CLIENT)


class Subject(NamedTuple):
    """An operation on a topic, for a group, at a service: what spans and metrics are about."""

    operation: Operation
    topic: str
    group: str
    server: tuple[str, int] | None


@lru_cache(SUBJECTS_CACHED_MAX)
def _named(subject: Subject) -> tuple[str, Attributes]:
    """The name of its spans, and the attributes of spans and metrics; not to be changed."""
    operation, topic, group, server = subject
    attributes: Attributes = {
        "messaging.system": "tms",
        "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.type,
    }
    if topic:
        attributes["messaging.destination.name"] = topic
    if group:
        attributes["messaging.consumer.group.name"] = group
    if server is not None:
        attributes["server.address"], attributes["server.port"] = server
    return f"{operation.name} {topic}" if topic else operation.name, attributes


def is_used() -> bool:
    """Whether the program has a provider, or is within a span. The providers of the API alone do
    nothing."""
    if _is_real(trace.get_tracer_provider()) or _is_real(metrics.get_meter_provider()):
        return True
    return trace.get_current_span().get_span_context().is_valid


def _is_real(provider: object) -> bool:
    return not type(provider).__module__.startswith(_API)


class MessageCounter:
    """How many messages there were, by subject and error. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[Subject, str] | None, int] = {}

    def add(self, count: int, subject: Subject, error: str = "") -> None:
        """So many more."""
        key = (subject, error)
        with self._lock:
            if key not in self._counts and len(self._counts) >= SERIES_MAX:
                self._counts[None] = self._counts.get(None, 0) + count
                return
            self._counts[key] = self._counts.get(key, 0) + count

    def observe(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        """All of them, for a reader that collects."""
        with self._lock:
            counts = dict(self._counts)
        for key, count in counts.items():
            attributes: Mapping[str, Any] = {"otel.metric.overflow": True}
            if key is not None:
                attributes = _with_error(_named(key[0])[1], key[1])
            yield metrics.Observation(count, attributes)


class Instruments:
    """What one provider of meters is told; of a program without one, nothing."""

    def __init__(self, provider: metrics.MeterProvider) -> None:
        meter = provider.get_meter("tms", tms.__version__, SCHEMA_URL)
        self.sent, self.consumed = MessageCounter(), MessageCounter()
        self.duration, self.process_duration = (
            meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=SECONDS)
            for name, text in (
                ("messaging.client.operation.duration", "Duration of operations of the client."),
                ("messaging.process.duration", "Duration of processing a message."),
            )
        )
        for name, counter, text in (
            ("sent", self.sent, "Messages that were sent, or failed."),
            ("consumed", self.consumed, "Messages that came."),
        ):
            meter.create_observable_counter(
                f"messaging.client.{name}.messages", [counter.observe], "{message}", text
            )


_instruments = lru_cache(PROVIDERS_MAX)(Instruments)


class Telemetry:
    """What one bus tells with; `server` is the address of its service. Thread-safe."""

    def __init__(self, server: tuple[str, int] | None = None) -> None:
        self.tracer = trace.get_tracer("tms", tms.__version__, schema_url=SCHEMA_URL)
        provider = metrics.get_meter_provider()
        self.instruments = _instruments(provider) if _is_real(provider) else None
        self._server = server

    def operation(
        self, operation: Operation, topic: str, group: str = "", count: int | None = None
    ) -> "TracedOperation":
        """An operation that begins now; `count` of a batch, None of a lone message. An empty topic:
        several."""
        return TracedOperation(self, Subject(operation, topic, group, self._server), count)

    def processing(self, message: ReadMessage, group: str = "") -> "TracedOperation":
        """Work on one message."""
        subject = Subject(PROCESS, message.topic, group, self._server)
        operation = TracedOperation(self, subject, None, sender_of(message.headers))
        operation.note(message.id, message.partition)
        return operation

    def receiving(self, topic: str, group: str = "") -> "TracedReceive":
        """A call for messages that begins now."""
        return TracedReceive(self, Subject(RECEIVE, topic, group, self._server))


class TracedOperation:
    """One operation: a span, which is the active one within the block, and what is counted. For one
    thread or task; `enter`, `leave` and `end` instead of the block where its end comes elsewhere.
    """

    __slots__ = ("_began_s", "_ended", "_subject", "_telemetry", "_token", "count", "span")

    def __init__(
        self,
        telemetry: Telemetry,
        subject: Subject,
        count: int | None,
        sender: SpanContext | None = None,
    ) -> None:
        self._telemetry, self._subject, self.count = telemetry, subject, count
        self._ended = False
        self._began_s = _clock.monotonic_s()
        parent = None
        if sender is not None and not trace.get_current_span().get_span_context().is_valid:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(sender))
        name, attributes = _named(subject)
        if count is not None:
            attributes = {**attributes, _COUNT: count}
        links = () if sender is None else (Link(sender),)
        self.span = telemetry.tracer.start_span(
            name, parent, subject.operation.span, attributes, links
        )

    def enter(self) -> Self:
        """The span is the active one, of this thread or task, until `leave`."""
        self._token = context.attach(trace.set_span_in_context(self.span))
        return self

    def leave(self) -> None:
        """The one before is active again."""
        context.detach(self._token)

    __enter__ = enter

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
        why = "" if error is None else fail(self.span, error)
        self.span.end()
        told, subject = self._telemetry.instruments, self._subject
        if told is None:
            return
        is_process = subject.operation is PROCESS
        duration = told.process_duration if is_process else told.duration
        duration.record(_clock.monotonic_s() - self._began_s, _with_error(_named(subject)[1], why))
        if subject.operation is SEND:
            told.sent.add(1 if self.count is None else self.count, subject, why)


class TracedReceive:
    """A call for messages: it becomes a span if some come, or it fails."""

    __slots__ = ("_began_s", "_subject", "_telemetry")

    def __init__(self, telemetry: Telemetry, subject: Subject) -> None:
        self._telemetry, self._subject = telemetry, subject
        self._began_s = _clock.monotonic_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TMSError):
            self.failed(error)

    def failed(self, error: TMSError) -> None:
        """It has raised, and not because whoever reads has closed."""
        if not isinstance(error, Closed):
            self._end(None, (), error)

    def fetched(self, fetched: Fetched) -> Fetched:
        """This came; it is given back."""
        if blocks := fetched.blocks:
            each = max(1, LINKS_MAX // len(blocks))
            self._end(
                sum(map(_count, blocks)), (_first(one, each) for one in blocks[:LINKS_MAX]), None
            )
        return fetched

    def received(self, received: Received) -> Received:
        """The same from a queue."""
        if parts := [part.columns for part in received.slices]:
            each = max(1, LINKS_MAX // len(parts))
            firsts = (part.slice(0, min(each, part.count)) for part in parts[:LINKS_MAX])
            self._end(sum(part.count for part in parts), firsts, None)
        return received

    def _end(
        self, count: int | None, parts: Iterable[Columns], error: BaseException | None
    ) -> None:
        name, attributes = _named(self._subject)
        took_s = _clock.monotonic_s() - self._began_s
        span = self._telemetry.tracer.start_span(
            name,
            None,
            SpanKind.CLIENT,
            attributes if count is None else {**attributes, _COUNT: count},
            start_time=_clock.now_ms() * 1_000_000 - int(took_s * 1e9),
        )
        if span.is_recording():
            with suppress(TMSError):  # of a damaged block, which who reads it is told
                for sender in _senders(parts):
                    span.add_link(sender)
        why = "" if error is None else fail(span, error)
        span.end()
        if (told := self._telemetry.instruments) is not None:
            told.duration.record(took_s, _with_error(attributes, why))
            if count is not None:
                told.consumed.add(count, self._subject)


def _with_error(attributes: Attributes, error: str) -> Attributes:
    return {**attributes, "error.type": error} if error else attributes


def fail(span: trace.Span, error: BaseException) -> str:
    """Mark a span as failed; the type of the error, of few values."""
    kind = error.code if isinstance(error, TMSError) else type(error).__qualname__
    if span.is_recording():
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, str(error)[:1_000]))
    return kind


def fail_active(error: BaseException) -> None:
    """Mark the active span as failed."""
    fail(trace.get_current_span(), error)


def _count(stored: StoredBlock) -> int:
    header = read_header(stored.block)
    sparse = header.flags & Flags.SPARSE
    return len(index_of(stored.block, header)) if sparse else header.count


def _first(stored: StoredBlock, count: int) -> Columns:
    columns = decode(stored.block)
    return columns.slice(0, min(count, columns.count))


def sender_of(headers: Headers | None) -> SpanContext | None:
    """The span that has sent a message, if its headers say so."""
    parent = headers and headers.get(PARENT)
    return _sender(bytes(parent), bytes(headers.get(STATE, b""))) if headers and parent else None


@lru_cache(SENDERS_CACHED_MAX)
def _sender(parent: bytes, state: bytes) -> SpanContext | None:
    carrier = {PARENT: parent.decode("latin-1"), STATE: state.decode("latin-1")}
    found = trace.get_current_span(_W3C.extract(carrier, context.Context())).get_span_context()
    return found if found.is_valid else None


def _senders(parts: Iterable[Columns]) -> Sequence[SpanContext]:
    """The spans that have sent messages, each once."""
    senders = (sender_of(row) for part in parts for row in part.headers())
    return list({(one.trace_id, one.span_id): one for one in senders if one is not None}.values())


def place() -> Place | None:
    """The place of the active span; None without one."""
    active = trace.get_current_span().get_span_context()
    if not active.is_valid:
        return None
    state = active.trace_state.to_header() if active.trace_state else ""
    return _place(active.trace_id, active.span_id, active.trace_flags, state)


@lru_cache(PLACES_CACHED_MAX)
def _place(trace_id: int, span_id: int, flags: int, state: str) -> Place:
    headers = {PARENT: f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}".encode()}
    if state:
        headers[STATE] = state.encode("latin-1", "replace")
    return Place(headers, sum(len(name) + len(text) for name, text in headers.items()))
