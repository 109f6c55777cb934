"""Factories of buses: plain ones, or, in a program that uses OpenTelemetry, traced ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tms.client import telemetry
from tms.client.client import Bus
from tms.client.http.transport import HttpTransport
from tms.client.transport import LocalTransport

if TYPE_CHECKING:
    from tms.client.aio.bus import AsyncBus
    from tms.client.aio.channels import AsyncChannel


def make_bus(
    transport: LocalTransport | HttpTransport, timeout_s: float, outage_s: float | None, place: str
) -> Bus:
    """A bus over an engine in this process, or a service; `place` names it for people."""
    address = transport.addresses.now if isinstance(transport, HttpTransport) else None
    found = telemetry.found(None if address is None else (address.host, address.port))
    if found is None:
        return Bus(transport, timeout_s=timeout_s, outage_s=outage_s, place=place)
    from tms.client.telemetry.bus import TracedBus
    from tms.client.telemetry.transport import traced

    return TracedBus(traced(transport, found), timeout_s=timeout_s, outage_s=outage_s, place=place)


def make_async_bus(bus: Bus, open_channel: "Callable[[], AsyncChannel]") -> "AsyncBus":
    """A bus for asyncio, beside a synchronous one. Other programs do not load its modules."""
    from tms.client.aio.bus import AsyncBus

    if type(bus) is Bus:
        return AsyncBus(bus, open_channel)
    from tms.client.telemetry.aio import TracedAsyncBus
    from tms.client.telemetry.transport import telemetry_of, traced_channels

    return TracedAsyncBus(bus, traced_channels(telemetry_of(bus), open_channel))
