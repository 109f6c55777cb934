"""Those who wait for messages of queues, without a thread and one behind the other.

    news ──▶ the first of the line looks ──▶ it found some: it leaves, and the next one looks
                                         └─▶ it found none: it stays the first, and sleeps

Invariants

* News wake one who waits, not all of them: a thousand idle workers cost what one does.
* Whoever leaves the line lets the next one look, so that no news end with somebody who is gone.
* News that come while the first one looks make him look again.
* A queue is watched while somebody waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from tms.model.topic import TopicName
from tms.server.http.exchange import Disconnected, Exchange, settle

_T = TypeVar("_T")
_Key = tuple[str, TopicName]
Watch = Callable[[str, TopicName, Callable[[], None]], Callable[[], None]]


class _Line:
    """Who waits for one queue."""

    def __init__(self, watch: Watch, key: _Key) -> None:
        self.places: dict[int, asyncio.Future[None]] = {}  # in the order of their coming
        self.joined = 0
        self.end_watch = watch(*key, partial(_knock, asyncio.get_running_loop(), self.wake))

    def wake(self) -> None:
        """Let the first one look; if he is looking, once more."""
        first = next(iter(self.places.values()), None)
        if first is not None:
            settle(first)


class Waiting:
    """Everybody who waits, by queue. Used by the event loop's thread only. `watch` calls back from
    any thread when something may be there for a queue, until what it returns is called."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lines: dict[_Key, _Line] = {}

    async def until(
        self, exchange: Exchange, key: _Key, look: Callable[[], Awaitable[_T]], wait_s: float
    ) -> _T:
        """What `look` found: something, or nothing when the wait is over. Raises `Disconnected`
        rather than to look for a client that is gone, and what `look` raises."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(self._watch, key)
        line.joined += 1
        place = line.joined
        try:
            while True:
                woken = line.places[place] = loop.create_future()
                found = await look()
                if found or exchange.hurried or loop.time() >= deadline:
                    return found
                await exchange.sleep(woken, deadline - loop.time())
                if exchange.disconnected:
                    raise Disconnected
        finally:
            line.places.pop(place, None)
            if line.places:
                line.wake()
            else:
                line.end_watch()
                self._lines.pop(key, None)


def _knock(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)
