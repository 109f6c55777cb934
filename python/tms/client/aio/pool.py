"""Channels that several callers take in turns.

Invariants

* Each caller has a channel of its own as long as it needs one.
* A channel whose caller was cancelled is reset before the next one gets it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tms.client.aio.channels import AsyncChannel
from tms.errors import Closed, TMSError
from tms.runtime import forks


class ChannelPool:
    """Up to `channels_max` channels; further callers wait for their turn."""

    def __init__(self, open_channel: Callable[[], AsyncChannel], channels_max: int) -> None:
        self._open_channel = open_channel
        self._channels_max = channels_max
        self._closed = False
        self._begin()
        forks.in_child(self._begin)  # whoever has a channel is a task of the parent

    def _begin(self) -> None:
        self._places = asyncio.Semaphore(self._channels_max)
        self._channels: set[AsyncChannel] = set()
        self._idle: deque[AsyncChannel] = deque()

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[AsyncChannel]:
        """The newest idle channel for one caller, so that few stay in use. Raises `Closed`."""
        async with self._places:
            if self._closed:
                raise Closed("The bus was closed; open or connect a new one.")
            channel = self._idle.pop() if self._idle else self._open_channel()
            self._channels.add(channel)
            try:
                yield channel
            except BaseException as error:
                if not isinstance(error, TMSError):
                    channel.reset()  # cancelled: nobody waits for its answer any more
                raise
            finally:
                self._idle.append(channel)

    def end(self) -> None:
        """Let nobody in any more."""
        self._closed = True

    def close(self) -> None:
        """Close all channels: what is under way on them ends with `Closed`."""
        self.end()
        while self._channels:
            self._channels.pop().close()
