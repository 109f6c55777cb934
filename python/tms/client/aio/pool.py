"""Lanes that several callers take in turns.

Invariants

* Each caller has a lane of its own as long as it needs one.
* A lane whose caller was cancelled is reset before the next one gets it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tms import forks
from tms.client.aio.channels import AsyncLane
from tms.errors import Closed, TMSError


class LanePool:
    """Up to `lanes_max` lanes; further callers wait for their turn."""

    def __init__(self, open_lane: Callable[[], AsyncLane], lanes_max: int) -> None:
        self._open_lane = open_lane
        self._lanes_max = lanes_max
        self._closed = False
        self._begin()
        forks.in_child(self._begin)  # whoever has a lane is a task of the parent

    def _begin(self) -> None:
        self._places = asyncio.Semaphore(self._lanes_max)
        self._lanes: set[AsyncLane] = set()
        self._idle: deque[AsyncLane] = deque()

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[AsyncLane]:
        """A lane for one caller; the newest idle one, so that few stay in use. Raises `Closed`."""
        async with self._places:
            if self._closed:
                raise Closed("The bus was closed; open or connect a new one.")
            lane = self._idle.pop() if self._idle else self._open_lane()
            self._lanes.add(lane)
            try:
                yield lane
            except BaseException as error:
                if not isinstance(error, TMSError):
                    lane.reset()  # cancelled: nobody waits for its answer any more
                raise
            finally:
                self._idle.append(lane)

    def end(self) -> None:
        """Let nobody in any more."""
        self._closed = True

    def close(self) -> None:
        """Close all lanes: what is under way on them ends with `Closed`."""
        self.end()
        while self._lanes:
            self._lanes.pop().close()
