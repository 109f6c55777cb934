"""Back-pressure of one connection, in both directions.

* Reading pauses while nobody takes what has arrived; writing while the other side does not read.
"""

import asyncio


class FlowControl:
    """Whether a connection reads, and may write. Used by the event loop's thread only."""

    __slots__ = ("_transport", "_writable", "read_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None  # while it is paused
        self.read_paused = False

    @property
    def write_paused(self) -> bool:
        """Whether the transport has more to send than it should."""
        return self._writable is not None

    async def drain(self) -> None:
        """Wait until more may be written, or the connection is lost."""
        if self._writable is not None:
            await self._writable.wait()

    def pause_reading(self) -> None:
        """Take nothing more from the network."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what comes again."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The transport's call: there is enough to send."""
        if self._writable is None:
            self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """The transport's call: there is room, or nobody to send to."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None
