"""A log in memory for one test: engine, clock, faults, and the buses on it.

Invariants

* The engine works in the threads of its callers: what is due happens while a call is made that may
  make something due, or while the clock is advanced. A test never has to wait for it.
* Everything is gone with the object, so tests of one process, or of several, share nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from tms.client.aio.bus import AsyncBus
from tms.client.aio.channels import AsyncLocalChannel, AsyncLocalTransport
from tms.client.client import Bus
from tms.client.transport import LocalTransport
from tms.engine.engine import Engine
from tms.model.message import Message
from tms.store.memory import MemoryStore
from tms.testing.clock import ClientClock, MovableClock
from tms.testing.faults import Faults, FaultyEngine

PLACE = "in memory"


class MemoryLog:
    """An engine in memory, with a bus whose calls can fail. Close it."""

    def __init__(self, clock: MovableClock | None = None) -> None:
        self.clock = clock or MovableClock()
        self.engine = Engine(MemoryStore(), self.clock)
        self.clock.watch(self._pass)
        client_clock = ClientClock(self.clock)
        self.faults = Faults(client_clock)
        faulty = FaultyEngine(self.engine, self.faults, self._settle)
        transport = cast(LocalTransport, faulty)
        self.bus = Bus(transport, clock=client_clock, place=PLACE)
        local = cast(AsyncLocalTransport, faulty)
        self.aio_bus = AsyncBus(self.bus, lambda: AsyncLocalChannel(local))

    def close(self) -> None:
        """Forget everything. A second call does nothing."""
        self.faults.end()
        self.bus.close()

    def _settle(self) -> None:
        """Deliver delayed messages that are due, end leases, move dead letters."""
        self.engine.delayed.move()
        self.engine.queues.tidy()

    def _pass(self) -> None:
        """Run the engine's own work that falls due as time passes."""
        self._settle()
        self.engine.maintenance.clean()


@dataclass(frozen=True, slots=True)
class TopicUnderTest:
    """A topic of a bus in memory."""

    bus: Bus
    name: str

    def __str__(self) -> str:
        return self.name

    def messages(self) -> list[Message]:
        """All messages that can be read now, partition by partition."""
        return list(self.bus.consumer(self.name, stop_at_end=True))

    def values(self) -> list[bytes | None]:
        """Their values."""
        return [message.value for message in self.messages()]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())
