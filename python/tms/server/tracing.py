"""A span for each request that belongs to a trace, by OpenTelemetry's conventions for HTTP.

* It is on where the process has a provider, such as `opentelemetry-instrument tms serve` gives it,
  or where OpenTelemetry's own environment says where spans go to. Otherwise nothing here is called
  by a request, and nothing of OpenTelemetry is loaded.
* Exporting is the SDK's business, in a thread of its own: no request waits for a collector.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tms.access.tokens import without_secrets
from tms.api import routes
from tms.runtime.events import EventLog
from tms.runtime.version import VERSION
from tms.server.app import App
from tms.server.http.exchange import Exchange
from tms.server.http.protocol import Application

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
LIBRARIES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_API = "opentelemetry.trace"
_FIELDS = ("traceparent", "tracestate")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_log = EventLog("tms.server")


def traced(app: App, scheme: str) -> Application:
    """The application, with spans where the process has a provider; `scheme` is that of its
    URLs."""
    if not _has_provider():
        return app
    from opentelemetry import trace

    tracer = trace.get_tracer("tms.server", VERSION, schema_url=SCHEMA_URL)
    return TracedApp(app, tracer, scheme)


def provide(environ: Mapping[str, str]) -> None:
    """Give the process the provider that the environment asks for, unless it has one."""
    if _has_provider() or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporter == "otlp" or (not exporter and any(map(environ.get, _ENDPOINTS))):
        _provide(environ)


def _has_provider() -> bool:
    if _API not in sys.modules:
        return False
    from opentelemetry import trace

    return not type(trace.get_tracer_provider()).__module__.startswith(_API)


def _provide(environ: Mapping[str, str]) -> None:
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        _log.warning("tracing_off", library=error.name, next=f"pip install {' '.join(LIBRARIES)}")
        return
    name = {} if environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "tms"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class TracedApp:
    """An application whose requests with a `traceparent` have a span."""

    def __init__(self, app: App, tracer: "Tracer", scheme: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = tracer
        self._scheme = scheme
        self._trace, self._nowhere = trace, context.Context()
        self._extract = TraceContextTextMapPropagator().extract

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        headers, trace = exchange.headers, self._trace
        if b"traceparent" not in headers:
            await self._app(exchange)
            return
        sent = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _FIELDS}
        parent = self._extract(sent, self._nowhere)
        if not trace.get_current_span(parent).get_span_context().is_valid:
            await self._app(exchange)
            return
        route = self._app.routes.find(exchange.path)[0].get(exchange.method)
        path = "" if route is None else route.operation.path
        attributes = {
            "http.request.method": exchange.method,
            "url.path": without_secrets(exchange.path),
            "url.scheme": self._scheme,
            "network.protocol.version": exchange.version,
        }
        if route is not None:
            attributes |= {"http.route": path, "tms.operation": route.operation.name}
        # It is not made the active one: a request may be answered in several contexts of asyncio.
        name = f"{exchange.method} {path}".rstrip()
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes)
        try:
            await self._app(exchange)
        finally:
            if status := exchange.status:
                span.set_attribute("http.response.status_code", status)
            if status >= routes.INTERNAL or not status:  # none: who asked is gone
                span.set_attribute("error.type", str(status or "disconnected"))
                span.set_status(trace.StatusCode.ERROR)
            span.end()
