"""What the parts of an asyncio bus have in common."""

from tms.client.client import Bus
from tms.client.known import PublishMemory


class AsyncCalls:
    """Calls that are rare and run on the synchronous bus, in a thread."""

    def __init__(self, bus: Bus, publishing: PublishMemory) -> None:
        self._bus = bus
        self._publishing = publishing
