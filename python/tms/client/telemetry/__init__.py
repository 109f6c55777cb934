"""OpenTelemetry in clients: spans, metrics, and the trace context in headers of messages.

    messaging  spans and metrics by the semantic conventions of messaging
    places     the topic, partition and group that a span or a metric names
    transport  a transport with spans around fetch, receive and settle
    bus        a bus with spans around publish and process
    aio        the same for asyncio

`messaging` is the only file of clients that imports OpenTelemetry. It is loaded only if the program
has set a provider, or a span is active, before it makes a bus; a bus made without them costs
nothing more.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from tms.model.message import Headers

if TYPE_CHECKING:
    from tms.client.telemetry.messaging import Telemetry

__all__ = ["found", "processing"]
_API = ("opentelemetry.trace", "opentelemetry.metrics")


class ReadMessage(Protocol):
    """A message as a consumer or a queue gives it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def id(self) -> object: ...

    @property
    def headers(self) -> Headers: ...


def found(server: tuple[str, int] | None = None) -> "Telemetry | None":
    """The telemetry of a new bus, if the program uses OpenTelemetry; `server` is the address of
    the service."""
    if not any(name in sys.modules for name in _API):
        return None
    from tms.client.telemetry import messaging

    return messaging.Telemetry(server) if messaging.is_used() else None


def processing(message: ReadMessage, group: str = "") -> AbstractContextManager[object]:
    """A span for the time in which a message is worked on, for the loop over a consumer; workers
    and `Queue.settling` have theirs. It is linked to the span that has sent the message, and its
    child where no other span is active. Does nothing where OpenTelemetry is not used."""
    telemetry = found()
    return nullcontext() if telemetry is None else telemetry.processing(message, group)
