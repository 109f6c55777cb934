"""Spans and metrics by OpenTelemetry's conventions for messaging, of the version in `SCHEMA_URL`.

    send     PRODUCER  of a call that publishes, of a request of a producer, of a transaction
    receive  CLIENT    of an answer with messages; linked to the spans that have sent them
    process  CONSUMER  of one message
    settle   CLIENT    of ack, nack, release, reject, and of a group's position (commit)

Invariants

* Whether a collector is there is the SDK's business, in a thread of its own: nothing here waits.
* Messages are counted here and read when the program's reader collects: adding costs a dictionary.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Self

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tms.block import Columns, Flags, decode, index_of, read_header
from tms.block.received import Received
from tms.client.telemetry import ReadMessage
from tms.client.telemetry.places import PARENT, STATE, Place
from tms.errors import Closed, TMSError
from tms.model.message import Fetched, Headers, StoredBlock
from tms.runtime.clock import SystemClock
from tms.runtime.version import VERSION

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


SEND, RECEIVE, PROCESS = "send", "receive", "process"
ACK, NACK, RELEASE, REJECT, COMMIT = "ack", "nack", "release", "reject", "commit"  # settle
_KINDS = {SEND: SpanKind.PRODUCER, PROCESS: SpanKind.CONSUMER}


class TracedSubject:
    """The subject of spans and metrics: an operation on a topic (empty: on several), for a group,
    at a service. Its attributes are not to be changed."""

    __slots__ = ("attributes", "key", "kind", "span")

    def __init__(
        self, operation: str, topic: str, group: str, server: tuple[str, int] | None
    ) -> None:
        self.key = operation, topic, group, server
        self.span = f"{operation} {topic}" if topic else operation
        self.kind = _KINDS.get(operation, SpanKind.CLIENT)
        is_settling = operation in (ACK, NACK, RELEASE, REJECT, COMMIT)
        self.attributes: Attributes = {
            "messaging.system": "tms",
            "messaging.operation.name": operation,
            "messaging.operation.type": "settle" if is_settling else operation,
        }
        if topic:
            self.attributes["messaging.destination.name"] = topic
        if group:
            self.attributes["messaging.consumer.group.name"] = group
        if server is not None:
            self.attributes["server.address"], self.attributes["server.port"] = server

    def with_error(self, error: str) -> Attributes:
        """Its attributes, and the type of an error if there is one."""
        return {**self.attributes, "error.type": error} if error else self.attributes


def is_used() -> bool:
    """True if the program has a provider, or is within a span. The providers of the API alone do
    nothing."""
    if _is_real(trace.get_tracer_provider()) or _is_real(metrics.get_meter_provider()):
        return True
    return trace.get_current_span().get_span_context().is_valid


def _is_real(provider: object) -> bool:
    return not type(provider).__module__.startswith(_API)


class MessageCounter:
    """Counts of messages, by subject and error. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[object, list[Any]] = {}  # attributes and the count of each

    def add(self, count: int, subject: TracedSubject, error: str = "") -> None:
        """So many more."""
        key: object = (subject.key, error)
        with self._lock:
            series = self._series.get(key)
            if series is None:
                attributes: Mapping[str, Any] = subject.with_error(error)
                if len(self._series) >= SERIES_MAX:
                    key, attributes = None, {"otel.metric.overflow": True}
                series = self._series.setdefault(key, [attributes, 0])
            series[1] += count

    def observe(self, _: metrics.CallbackOptions) -> list[metrics.Observation]:
        """All of them, for a reader that collects."""
        with self._lock:
            return [metrics.Observation(count, which) for which, count in self._series.values()]


class Instruments:
    """The metrics of one provider of meters; a program without one has none."""

    def __init__(self, provider: metrics.MeterProvider) -> None:
        meter = provider.get_meter("tms", VERSION, SCHEMA_URL)
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
    """The telemetry of one bus; `server` is the address of its service. Thread-safe."""

    def __init__(self, server: tuple[str, int] | None = None) -> None:
        self.tracer = trace.get_tracer("tms", VERSION, schema_url=SCHEMA_URL)
        provider = metrics.get_meter_provider()
        self.instruments = _instruments(provider) if _is_real(provider) else None
        self._subject = lru_cache(SUBJECTS_CACHED_MAX)(partial(TracedSubject, server=server))

    def operation(
        self, operation: str, topic: str, group: str = "", count: int | None = None
    ) -> "TracedOperation":
        """An operation that begins now; `count` of a batch, None of a lone message."""
        return TracedOperation(self, self._subject(operation, topic, group), count)

    def processing(self, message: ReadMessage, group: str = "") -> "TracedOperation":
        """Work on one message."""
        subject = self._subject(PROCESS, message.topic, group)
        operation = TracedOperation(self, subject, None, sender_of(message.headers))
        operation.note(message.id, message.partition)
        return operation

    def receiving(self, topic: str, group: str = "") -> "TracedReceive":
        """A call for messages that begins now."""
        return TracedReceive(self, self._subject(RECEIVE, topic, group))


class TracedOperation:
    """One operation: a span, which is the active one within the block, and what is counted. For one
    thread or task; `enter`, `leave` and `end` instead of the block where its end comes elsewhere.
    """

    __slots__ = ("_began_s", "_ended", "_subject", "_telemetry", "_token", "count", "span")

    def __init__(
        self,
        telemetry: Telemetry,
        subject: TracedSubject,
        count: int | None,
        sender: SpanContext | None = None,
    ) -> None:
        self._telemetry, self._subject, self.count = telemetry, subject, count
        self._ended = False
        self._began_s = _clock.monotonic_s()
        parent = None
        if sender is not None and not trace.get_current_span().get_span_context().is_valid:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(sender))
        attributes = subject.attributes
        if count is not None:
            attributes = {**attributes, _COUNT: count}
        links = () if sender is None else (Link(sender),)
        self.span = telemetry.tracer.start_span(
            subject.span, parent, subject.kind, attributes, links
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
        duration = told.process_duration if subject.kind is SpanKind.CONSUMER else told.duration
        duration.record(_clock.monotonic_s() - self._began_s, subject.with_error(why))
        if subject.kind is SpanKind.PRODUCER:
            told.sent.add(1 if self.count is None else self.count, subject, why)


class TracedReceive:
    """A call for messages: it becomes a span if some come, or it fails."""

    __slots__ = ("_began_s", "_subject", "_telemetry")

    def __init__(self, telemetry: Telemetry, subject: TracedSubject) -> None:
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
        """Messages were received from a queue."""
        if parts := [part.columns for part in received.slices]:
            each = max(1, LINKS_MAX // len(parts))
            firsts = (part.slice(0, min(each, part.count)) for part in parts[:LINKS_MAX])
            self._end(sum(part.count for part in parts), firsts, None)
        return received

    def _end(
        self, count: int | None, parts: Iterable[Columns], error: BaseException | None
    ) -> None:
        subject, attributes = self._subject, self._subject.attributes
        took_s = _clock.monotonic_s() - self._began_s
        span = self._telemetry.tracer.start_span(
            subject.span,
            None,
            subject.kind,
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
            told.duration.record(took_s, subject.with_error(why))
            if count is not None:
                told.consumed.add(count, subject)


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
    return _sender(bytes(parent), bytes(headers.get(STATE) or b"")) if headers and parent else None


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
