"""OpenTelemetry for whoever publishes and reads: the place of a trace in headers of messages, spans
and metrics.

`messaging` is the only file of clients that imports OpenTelemetry, and it is loaded only where the
program has set a provider, or a span is active, before it makes a bus. Without that nothing here is
called again.
"""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tms.telemetry.messaging import Telemetry

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
    def headers(self) -> Mapping[str, bytes]: ...


def found(server: tuple[str, int] | None = None) -> "Telemetry | None":
    """What a new bus tells OpenTelemetry with, if the program uses that; `server` is the address of
    the service."""
    if not any(name in sys.modules for name in _API):
        return None
    from tms.telemetry import messaging

    return messaging.Telemetry(server) if messaging.is_used() else None


def processing(message: ReadMessage, group: str = "") -> AbstractContextManager[object]:
    """A span for the time in which a message is worked on, for the loop over a consumer; workers
    and `Queue.settling` have theirs. It is linked to the span that has sent the message, and its
    child where no other span is active. Does nothing where OpenTelemetry is not used."""
    telemetry = found()
    return nullcontext() if telemetry is None else telemetry.processing(message, group)
