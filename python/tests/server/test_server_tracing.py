"""Spans of the service: of requests that carry a trace context, if the process has a provider."""

import contextlib
import gzip
import http.server
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tms
from tests.http_kit import Client, serving
from tests.server.test_server_main import running
from tests.waiting import PATIENCE_S
from tms.server import tracing
from tms.server.app import App

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOPICS = "/v2/namespaces/default/topics"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def test_a_request_with_a_place_in_a_trace_has_a_span(spans: InMemorySpanExporter) -> None:
    with serving() as served:
        answer = served.connect().request("PUT", f"{TOPICS}/t", b"{}", traceparent=PARENT)
    (span,) = spans.get_finished_spans()
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == PARENT[3:35]
    assert f"{span.parent.span_id:016x}" == PARENT[36:52]
    route = "/v2/namespaces/{namespace}/topics/{topic}"
    assert (span.name, span.kind) == (f"PUT {route}", SpanKind.SERVER)
    assert attributes(span) == {
        "http.request.method": "PUT",
        "http.response.status_code": answer.status,
        "http.route": route,
        "network.protocol.version": "1.1",
        "tms.operation": "topics.create_topic",
        "url.path": f"{TOPICS}/t",
        "url.scheme": "http",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_token_in_a_path_is_in_no_span(spans: InMemorySpanExporter) -> None:
    id, secret = "0a" * 6, "1b" * 32
    with serving() as served:
        path = f"/console/enter/tms_{id}_{secret}"
        served.connect().request("GET", path, traceparent=PARENT)
    (span,) = spans.get_finished_spans()
    assert attributes(span)["url.path"] == f"/console/enter/tms_{id}"
    assert secret not in span.to_json()


@pytest.mark.parametrize("parent", [{}, {"traceparent": "junk"}])
def test_a_request_without_a_place_in_a_trace_begins_none(
    spans: InMemorySpanExporter, parent: dict[str, str]
) -> None:
    with serving() as served:
        assert served.connect().request("GET", "/livez", **parent).status == 200
    assert not spans.get_finished_spans()


def test_a_fault_of_the_request_is_none_of_the_service(spans: InMemorySpanExporter) -> None:
    with serving() as served:
        served.connect().request("GET", f"{TOPICS}/t", traceparent=PARENT)
        served.connect().request("GET", "/nowhere", traceparent=PARENT)
    topic, nowhere = spans.get_finished_spans()
    for span in (topic, nowhere):
        assert attributes(span)["http.response.status_code"] == 404
        assert span.status.status_code is StatusCode.UNSET
    assert nowhere.name == "GET" and "http.route" not in attributes(nowhere)


def test_a_fault_of_the_service_is_an_error_of_its_span(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as served, monkeypatch.context() as before_its_end:
        registry = served.service.engine.topics.registry
        before_its_end.setattr(registry, "find", lambda *_: 1 // 0)
        served.connect().request("GET", f"{TOPICS}/t", traceparent=PARENT)
    (span,) = spans.get_finished_spans()
    assert attributes(span)["http.response.status_code"] == 500
    assert attributes(span)["error.type"] == "500"
    assert span.status.status_code is StatusCode.ERROR


def test_a_publish_of_a_client_is_one_trace_with_the_service(spans: InMemorySpanExporter) -> None:
    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("t")
        bus.publish("t", b"1")
        spans.clear()
        bus.publish("t", b"2")
        service, client = spans.get_finished_spans()
    assert client.context is not None and service.parent is not None
    assert service.parent.span_id == client.context.span_id
    assert attributes(service)["tms.operation"] == "publish"


def test_without_a_provider_requests_are_answered_by_the_application_itself() -> None:
    with serving() as served:
        assert type(served.server._http._application) is App


@pytest.mark.parametrize(
    ("environ", "is_wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "log"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
    ],
)
def test_the_environment_of_opentelemetry_decides(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], is_wanted: bool
) -> None:
    provided: list[Mapping[str, str]] = []
    monkeypatch.setattr(tracing, "_provide", provided.append)
    tracing.provide(environ)
    assert provided == [environ] * is_wanted


class Collector(http.server.BaseHTTPRequestHandler):
    """Receives spans."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        self.server.came.set()  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Do nothing."""


@contextlib.contextmanager
def collecting() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.bodies, server.came = [], threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_service_sends_spans_to_the_collector_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        url = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with running(tmp_path / "data") as (_, address):
            assert create_topic(address) == 201
            assert collector.came.wait(PATIENCE_S)
    body = b"".join(collector.bodies)
    assert b"service.name" in body and b"topics.create_topic" in body


def test_a_collector_that_is_away_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with running(tmp_path / "data") as (_, address):
        assert create_topic(address) == 201


def create_topic(address: tuple[str, int]) -> int:
    with Client(address) as client:
        return client.request("PUT", f"{TOPICS}/t", b"{}", traceparent=PARENT).status


def test_a_service_without_the_sdk_says_so_and_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def warning(self, event: str, **facts: Any) -> None:
            said.append((event, facts))

    monkeypatch.setattr(tracing, "_log", Log())
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # type: ignore[arg-type]
    tracing.provide({"OTEL_TRACES_EXPORTER": "otlp"})
    ((event, facts),) = said
    assert event == "tracing_off" and facts["library"] == "opentelemetry.sdk.trace"
    assert "opentelemetry-sdk" in facts["next"]
    with serving() as served:
        assert type(served.server._http._application) is App
