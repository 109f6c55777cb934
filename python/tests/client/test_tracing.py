"""OpenTelemetry: the spans and metrics of a client, in this process and through HTTP, in threads
and on a loop; and their cost without a provider."""

import asyncio
import inspect
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import _internal as meters
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, TraceState

import tms
import tms.aio
import tms.serializers
from tests.grouping import grouped
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.block import HEADERS_MAX
from tms.client import telemetry
from tms.client.client import Bus
from tms.client.http.connection import HttpConnection
from tms.client.telemetry import messaging
from tms.client.telemetry.bus import TRANSACTION_PLACES_BYTES_MAX
from tms.errors import Invalid, TopicNotFound
from tms.model.message import Buffer

TRACER = "program"
MINE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Told:
    """The spans and metrics of the client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self.provider)
        monkeypatch.setattr(meters, "_METER_PROVIDER", MeterProvider([self._reader]))
        self.tracer = self.provider.get_tracer(TRACER)

    def spans(self, operation: str = "") -> list[ReadableSpan]:
        """The client's spans, in the order in which they ended."""
        return [
            span
            for span in self._exporter.get_finished_spans()
            if span.instrumentation_scope is not None and span.instrumentation_scope.name == "tms"
            if not operation or attributes(span)["messaging.operation.name"] == operation
        ]

    def clear(self) -> None:
        self._exporter.clear()

    def points(self, metric: str) -> list[Any]:
        found = self._reader.get_metrics_data()
        assert found is not None
        return [
            point
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]

    def counted(self, metric: str, operation: str) -> int:
        points = self.points(metric)
        chosen = [p for p in points if p.attributes["messaging.operation.name"] == operation]
        return sum(p.count if hasattr(p, "count") else p.value for p in chosen)


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def place(span: ReadableSpan) -> bytes:
    """The `traceparent` of messages that were sent within a span."""
    trace_id, span_id = ids(span)
    assert span.context is not None
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, span.context.trace_flags)


def linked(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


class Side:
    """A bus whose calls are the same in threads and on a loop."""

    def __init__(self, bus: Any, run: Callable[[Any], Any]) -> None:
        self._bus, self._run = bus, run

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        return self.on(self._bus, name, *args, **named)

    def on(self, part: Any, name: str, *args: Any, **named: Any) -> Any:
        made = getattr(part, name)(*args, **named)
        return self._run(made) if inspect.isawaitable(made) else made

    def read(self, count: int, **options: Any) -> list[tms.Message]:
        async def from_loop() -> list[tms.Message]:
            consumer = self._bus.consumer("t", **grouped(**options))
            found = []
            async with consumer:
                async for message in consumer:
                    found.append(message)
                    if len(found) == count:
                        break
            return found

        if self._run is not None and isinstance(self._bus, tms.aio.AsyncBus):
            found: list[tms.Message] = self._run(from_loop())
            return found
        with self._bus.consumer("t", **grouped(**options)) as consumer:
            return list(islice(consumer, count))

    def produce(self, *sends: tuple[str, tuple[Any, ...]]) -> None:
        async def on_loop() -> None:
            async with self._bus.producer("t") as producer:
                for name, args in sends:
                    await getattr(producer, name)(*args)

        if isinstance(self._bus, tms.aio.AsyncBus):
            self._run(on_loop())
            return
        with self._bus.producer("t") as producer:
            for name, args in sends:
                getattr(producer, name)(*args)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.fixture(params=["embedded", "http", "aio-embedded", "aio-http"])
def side(request: pytest.FixtureRequest, told: Told, tmp_path: Path) -> Iterator[Side]:
    opened: Any
    with serving() as served:
        url = served.url
        on_loop, _, where = request.param.rpartition("-")
        if on_loop:
            with asyncio.Runner() as runner:

                async def enter() -> tms.aio.AsyncBus:
                    if where == "http":
                        return await tms.aio.connect(url).__aenter__()
                    return await tms.aio.open(tmp_path / "data").__aenter__()

                opened = runner.run(enter())
                side = Side(opened, runner.run)
                side.call("create_topic", "t")
                told.clear()
                yield side
                side.call("close")
        else:
            opened = tms.connect(url) if where == "http" else tms.open(tmp_path / "data")
            with opened:
                side = Side(opened, lambda made: made)
                side.call("create_topic", "t")
                told.clear()
                yield side


def test_a_publish_is_a_span_whose_place_the_message_carries(side: Side, told: Told) -> None:
    id = side.call("publish", "t", b"1", headers={"a": b"b"})
    (span,) = told.spans()
    assert (span.name, span.kind) == ("send t", SpanKind.PRODUCER)
    expected = {
        "messaging.system": "tms",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.message.id": str(id),
    }
    assert expected.items() <= attributes(span).items()
    (message,) = side.read(1)
    assert message.headers == {"a": b"b", "traceparent": place(span)}


def test_a_span_of_the_program_is_the_parent_of_a_publish(side: Side, told: Told) -> None:
    with told.tracer.start_as_current_span("mine") as mine:
        if isinstance(side._bus, tms.aio.AsyncBus):

            async def within() -> None:  # a task has the context in which it was made
                with trace.use_span(mine):
                    await side._bus.publish("t", b"1")

            side._run(within())
        else:
            side.call("publish", "t", b"1")
    (span,) = told.spans("send")
    assert span.parent is not None and span.parent.span_id == mine.get_span_context().span_id


def test_a_batch_is_one_span_and_counts_its_messages(side: Side, told: Told) -> None:
    side.call("publish_many", "t", [b"%d" % n for n in range(100)])
    (span,) = told.spans()
    assert attributes(span)["messaging.batch.message_count"] == 100
    assert {m.headers["traceparent"] for m in side.read(100)} == {place(span)}
    assert told.counted("messaging.client.sent.messages", "send") == 100
    assert told.counted("messaging.client.operation.duration", "send") == 1


def test_a_header_of_the_user_stays_as_it_is(side: Side, told: Told) -> None:
    side.call("publish", "t", b"1", headers={"traceparent": MINE})
    side.call("publish", "t", b"2", headers={"Traceparent": MINE})
    rows = [{"traceparent": MINE, "x": b"y"}, {"tracestate": b"a=b"}, None]
    side.call("publish_many", "t", [b"3", b"4", b"5"], headers=rows)
    side.produce(("send", (b"6", None, {"TRACEPARENT": MINE})))
    found = {m.value: m.headers for m in side.read(6)}
    assert found[b"1"] == {"traceparent": MINE}
    assert found[b"2"] == {"Traceparent": MINE}
    assert found[b"3"] == rows[0]
    assert found[b"4"] == rows[1]
    assert set(found[b"5"]) == {"traceparent"}
    assert found[b"6"] == {"TRACEPARENT": MINE}


def test_a_message_without_room_for_the_place_goes_without_it(side: Side) -> None:
    side.call("create_topic", "small", message_bytes_max=100)
    side.call("publish", "small", b"x" * 100)
    side.call("publish_many", "small", [b"x" * 100, b"y"])
    full = {f"h{n}": b"" for n in range(HEADERS_MAX)}
    side.call("publish", "t", b"1", headers=full)
    (message,) = side.read(1)
    assert message.headers == full


def test_a_producer_has_a_span_of_each_request(side: Side, told: Told) -> None:
    side.produce(("send", (b"1",)), ("send_many", ([b"2", b"3"],)))
    spans = told.spans("send")
    assert sum(attributes(s)["messaging.batch.message_count"] for s in spans) == 3
    assert {m.headers["traceparent"] for m in side.read(3)} == set(map(place, spans))


def test_what_is_received_is_linked_to_the_spans_that_have_sent_it(side: Side, told: Told) -> None:
    side.call("publish", "t", b"1")
    side.call("publish_many", "t", [b"2", b"3"])
    sent = set(map(ids, told.spans("send")))
    side.read(3, stop_at_end=True)
    received = told.spans("receive")
    assert set().union(*map(linked, received)) == sent
    assert {span.kind for span in received} == {SpanKind.CLIENT}
    assert sum(attributes(s)["messaging.batch.message_count"] for s in received) == 3
    assert told.counted("messaging.client.consumed.messages", "receive") == 3


def test_a_queue_receives_and_settles(side: Side, told: Told) -> None:
    queue = side.call("queue", "t", group="g", deliveries_max=5)
    side.call("publish_many", "t", [b"1", b"2", b"3", b"4"])
    sent = set(map(ids, told.spans("send")))
    taken: list[Any] = []
    while len(taken) < 4:
        taken += side.on(queue, "receive", 4 - len(taken), wait_s=5)
    side.on(queue, "ack", taken[0])
    side.on(queue, "nack", taken[1], 60)
    side.on(queue, "reject", taken[2])
    side.on(queue, "release", taken[3])
    received = told.spans("receive")
    assert set().union(*map(linked, received)) == sent
    assert {attributes(s)["messaging.consumer.group.name"] for s in received} == {"g"}
    for operation in ("ack", "nack", "reject", "release"):
        (span,) = told.spans(operation)
        assert span.name == f"{operation} t"
        assert attributes(span)["messaging.operation.type"] == "settle"
        assert attributes(span)["messaging.batch.message_count"] == 1


def test_each_receive_carries_the_place_of_its_own_span_only(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []
    send = HttpConnection.send

    def noted(self: HttpConnection, chunks: Sequence[Buffer], deadline_s: float) -> None:
        heads.append(bytes(chunks[0]))
        send(self, chunks, deadline_s)

    monkeypatch.setattr(HttpConnection, "send", noted)
    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("t")
        queue = bus.queue("t", group="g")
        heads.clear()
        for name in ("one", "two"):
            with told.tracer.start_as_current_span(name):
                queue.receive()
        queue.receive()
    one, two = [head.partition(b"traceparent: ")[2][:55] for head in heads[:2]]
    assert one != two
    assert [head.count(b"traceparent: ") for head in heads] == [1, 1, 0]


def test_a_worker_handles_each_message_within_a_span(side: Side, told: Told) -> None:
    queue = side.call("queue", "t", group="g", deliveries_max=1)
    side.call("publish_many", "t", [b"good", b"bad"])
    (sent,) = told.spans("send")
    active: dict[bytes, int] = {}

    def handle(message: Any) -> None:
        active[message.value] = trace.get_current_span().get_span_context().span_id
        if len(active) == 2:
            worker.stop()
        if message.value == b"bad":
            raise ValueError("bad flight")

    if isinstance(side._bus, tms.aio.AsyncBus):

        async def handle_on_loop(message: Any) -> None:
            handle(message)

        worker = queue.worker(handle_on_loop)
    else:
        worker = queue.worker(handle)
    side.on(worker, "run")
    spans = told.spans("process")
    assert {ids(span)[1] for span in spans} == set(active.values())
    for span in spans:
        failed = ids(span)[1] == active[b"bad"]
        assert span.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
        assert attributes(span).get("error.type") == ("ValueError" if failed else None)
        assert linked(span) == {ids(sent)} and span.kind is SpanKind.CONSUMER
        assert ids(span)[0] == ids(sent)[0], "with no other span active it continues the trace"
    assert told.counted("messaging.process.duration", "process") == 2


def test_a_group_commits_its_position(side: Side, told: Told) -> None:
    side.call("publish", "t", b"1")
    side.read(2, group="g", delivery="at-least-once", stop_at_end=True)
    committed = told.spans("commit")
    assert committed and all(
        attributes(s)["messaging.consumer.group.name"] == "g" for s in committed
    )


def test_a_transaction_is_one_span_when_it_commits(side: Side, told: Told) -> None:
    if isinstance(side._bus, tms.aio.AsyncBus):

        async def work() -> None:
            async with side._bus.transaction() as tx:
                await tx.send("t", b"1")
                await tx.send("t", b"2", headers={"traceparent": MINE})

        side._run(work())
    else:
        with side._bus.transaction() as tx:
            tx.send("t", b"1")
            tx.send("t", b"2", headers={"traceparent": MINE})
    (span,) = told.spans("send")
    assert attributes(span)["messaging.batch.message_count"] == 2
    assert [m.headers["traceparent"] for m in side.read(2)] == [place(span), MINE]


def test_a_transaction_with_more_messages_than_places_commits(side: Side) -> None:
    if isinstance(side._bus, tms.aio.AsyncBus):
        pytest.skip("the asyncio bus runs the same transaction in a thread")
    count = TRANSACTION_PLACES_BYTES_MAX // 66 + 10
    with side._bus.transaction() as tx:
        for _ in range(count):
            tx.send("t", b"1")
    assert len(side.read(count)) == count


def test_an_error_is_in_the_span_and_in_the_metrics(side: Side, told: Told) -> None:
    with pytest.raises(TopicNotFound):
        side.call("publish", "nowhere", b"1")
    (span,) = told.spans("send")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "topic-not-found"
    (point,) = told.points("messaging.client.operation.duration")
    assert point.attributes["error.type"] == "topic-not-found"


def test_a_service_is_named_in_spans(told: Told) -> None:
    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("t")
        bus.publish("t", b"1")
    (span,) = told.spans("send")
    assert attributes(span)["server.address"] == "127.0.0.1"
    assert attributes(span)["server.port"] == served.address[1]


def test_the_state_of_a_trace_travels_too(told: Told, tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        remote = trace.SpanContext(
            1 << 90, 7, True, trace.TraceFlags(1), TraceState([("vendor", "on")])
        )
        with trace.use_span(trace.NonRecordingSpan(remote)):
            bus.publish("t", b"1")
        (message,) = bus.consumer("t", stop_at_end=True)
    assert message.headers["tracestate"] == b"vendor=on"


def test_a_loop_over_a_consumer_has_spans_of_its_own(told: Told, tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        id = bus.publish("t", b"1")
        for message in bus.consumer("t", stop_at_end=True):
            with telemetry.processing(message):
                pass
    (span,) = told.spans("process")
    assert attributes(span)["messaging.message.id"] == str(id)
    assert linked(span) == set(map(ids, told.spans("send")))


@pytest.mark.parametrize("text", [b"", b"junk", b"\xff" * 55, MINE[:-1], b"00-" + b"0" * 52])
def test_a_header_that_is_no_place_links_nothing(told: Told, tmp_path: Path, text: bytes) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        bus.publish("t", b"1", headers={"traceparent": text, "tracestate": b"\xfe="})
        (message,) = bus.consumer("t", stop_at_end=True)
        with telemetry.processing(message):
            pass
    assert message.headers["traceparent"] == text
    assert not any(span.links for span in told.spans())


def test_a_bus_without_a_provider_is_the_plain_one(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        assert type(bus) is Bus
        bus.create_topic("t")
        bus.publish("t", b"1")
        (message,) = bus.consumer("t", stop_at_end=True)
    assert message.headers == {}


def test_a_program_without_opentelemetry_does_not_load_it(tmp_path: Path) -> None:
    program = (
        "import sys, tms, tms.aio\n"
        "with tms.open(sys.argv[1]) as bus:\n"
        "    bus.create_topic('t'); bus.publish('t', b'1')\n"
        "    with bus.producer('t') as producer: producer.send(b'2')\n"
        "    assert len(list(bus.consumer('t', stop_at_end=True))) == 2\n"
        "loaded = [name for name in sys.modules if 'opentelemetry' in name or 'traced' in name]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "data"], check=True, timeout=60)


def test_a_fetch_that_fails_is_an_error_of_its_span(side: Side, told: Told) -> None:
    side.call("publish", "t", b"1")
    first = side.read(1)
    side.call("delete_topic", "t")
    told.clear()
    with pytest.raises(TopicNotFound):
        side.read(1, start=first[0].id, partitions=[0])
    spans = told.spans("receive")
    assert spans, "nothing is told of a fetch that failed"
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "topic-not-found"
    errors = [p for p in told.points("messaging.client.operation.duration") if p.count]
    assert any(p.attributes.get("error.type") == "topic-not-found" for p in errors)


def test_a_producer_sends_the_place_in_which_send_was_called(side: Side, told: Told) -> None:
    with told.tracer.start_as_current_span("mine") as mine:
        if isinstance(side._bus, tms.aio.AsyncBus):

            async def within() -> None:
                with trace.use_span(mine):
                    async with side._bus.producer("t") as producer:
                        await producer.send_many([b"1", b"2"])
                        await producer.send(b"3", headers={"a": b"b"})

            side._run(within())
        else:
            side.produce(("send_many", ([b"1", b"2"],)), ("send", (b"3", None, {"a": b"b"})))
    messages = side.read(3)
    active = mine.get_span_context()
    expected = b"00-%032x-%016x-%02x" % (active.trace_id, active.span_id, active.trace_flags)
    assert [message.headers["traceparent"] for message in messages] == [expected] * 3
    assert messages[2].headers["a"] == b"b"


def test_a_producer_with_a_serializer_has_places_too(told: Told, tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        with bus.producer("t", serializer=tms.serializers.Json(dict)) as producer:
            producer.send({"a": 1})
        (message,) = bus.consumer("t", stop_at_end=True)
    (span,) = told.spans("send")
    assert (message.value, message.headers) == (b'{"a":1}', {"traceparent": place(span)})


def test_what_is_no_message_is_refused_as_without_a_trace(side: Side) -> None:
    for headers in ({"a": "text"}, {7: b""}, "text"):
        with pytest.raises(Invalid):
            side.call("publish", "t", b"1", headers=headers)
    with pytest.raises(Invalid) as caught:
        side.call("publish_many", "t", [b"1", "text"])
    assert caught.value.details["index"] == 1


class _Raising(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("no collector")


class _Blocking(SpanExporter):
    """Never returns, until the test ends."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun.set()
        self.over.wait(60)
        return SpanExportResult.FAILURE


def publish_with(
    exporter: SpanExporter, path: Path, monkeypatch: pytest.MonkeyPatch, count: int = 200
) -> float:
    """The time of the slowest of many publishes, many more than the processor keeps."""
    processor = BatchSpanProcessor(
        exporter, max_queue_size=64, max_export_batch_size=16, schedule_delay_millis=10
    )
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    slowest_s = 0.0
    with tms.open(path) as bus:
        bus.create_topic("t", durability="written")
        for _ in range(count):
            began_s = time.monotonic()
            bus.publish("t", b"1")
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert len(list(bus.consumer("t", stop_at_end=True))) == count
    return slowest_s


def test_an_exporter_that_raises_fails_no_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish_with(_Raising(), tmp_path / "data", monkeypatch) < PATIENCE_S / 2


def test_an_exporter_that_never_returns_slows_no_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = _Blocking()
    try:
        assert publish_with(exporter, tmp_path / "data", monkeypatch) < PATIENCE_S / 2
        assert exporter.begun.is_set()
    finally:
        exporter.over.set()


def test_a_collector_that_never_answers_slows_no_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        exporter = OTLPSpanExporter(url, timeout=2 * PATIENCE_S)
        assert publish_with(exporter, tmp_path / "data", monkeypatch) < PATIENCE_S / 2
        connection, _ = silent.accept()  # the exporter did try
        exporter.shutdown()
        connection.close()


def test_counts_go_on_over_several_buses(told: Told, tmp_path: Path) -> None:
    for count in (1, 3):
        with tms.open(tmp_path / "data") as bus:
            bus.create_topic("t", partitions=1) if count == 1 else None
            bus.publish_many("t", [b"1"] * count)
    assert told.counted("messaging.client.sent.messages", "send") == 4


def test_series_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "SERIES_MAX", 2)
    counter = messaging.MessageCounter()
    for topic in "abcd":
        counter.add(5, messaging.TracedSubject("send", topic, "", None))
        counter.add(1, messaging.TracedSubject("send", topic, "", None))
    observed = [(o.attributes, o.value) for o in counter.observe(CallbackOptions())]
    assert [value for _, value in observed] == [6, 6, 12]
    assert observed[-1][0] == {"otel.metric.overflow": True}
