"""The cost of OpenTelemetry for a publishing program: CPU with spans and metrics beside without.

* Batches of 100 messages of 100 B, one after the other, in this process and to a service; the CPU
  is that of the program and of the service. Each variant is a process of its own, because a program
  has one provider.
* On: the SDK with its batch processor and a meter, each batch with a span, each message with a
  `traceparent`; exported spans are dropped in the SDK's exporting thread.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

import tms
from bench.report import Goal, Report, Sample, interleaved, measured, ratio
from bench.targets import TOPIC, Service, Setup, values
from tms.client.client import Bus

MESSAGES = 100  # of a batch
SIZE = 100
WARM_UP = 500  # batches
SAMPLED = {"off": 0.0, "every span": 1.0, "1 span in 100": 0.01}  # share of spans that are kept


class _Dropping(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def run(setup: Setup, report: Report) -> None:
    """In each run, publish without OpenTelemetry, with every span, and with one in a hundred."""
    report.title(f"Publishing batches of {MESSAGES}, {SIZE} B, with spans and metrics")
    batches = 2_000 if setup.quick else 10_000
    for place, is_service in (("embedded", False), ("HTTP", True)):
        samples = interleaved(
            {name: partial(_apart, setup, batches, is_service, name) for name in SAMPLED},
            setup.runs,
        )
        report.rates("tracing", f"publish {place}", samples)
        for name in list(SAMPLED)[1:]:
            cost = ratio(samples, name, "off", lambda sample: sample.cpu_s_per_million)
            what = f"{place}, CPU, {name} ÷ off"
            report.line("tracing", what, cost, "×", Goal(at_most=1.15), samples)


def _apart(setup: Setup, batches: int, is_service: bool, name: str) -> Sample:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as process:
        return process.submit(_publish, setup, batches, is_service, name).result()


def _publish(setup: Setup, batches: int, is_service: bool, name: str) -> Sample:
    sampled = SAMPLED[name]
    if sampled:
        provider = TracerProvider(ParentBased(TraceIdRatioBased(sampled)))
        provider.add_span_processor(BatchSpanProcessor(_Dropping()))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    with setup.directory() as path:
        if not is_service:
            with tms.open(path / "data") as bus:
                return _timed(bus, batches)
        with Service.start(path) as service:
            return _timed(service.bus, batches, service.pid)


def _timed(bus: Bus, batches: int, *pids: int) -> Sample:
    bus.create_topic(TOPIC, durability="written")
    cells = values(SIZE)[:MESSAGES]

    def work(count: int = batches) -> int:
        for _ in range(count):
            bus.publish_many(TOPIC, cells)
        return count * MESSAGES

    work(WARM_UP)
    return measured(work, *pids)
