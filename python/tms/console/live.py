"""Parts of pages that are rendered anew while somebody looks at them, as server-sent events.

    page and parts ─▶ one task for all who look at the same ─▶ what has changed ─▶ each browser

* Equal questions of one session share a task, or of one principal with a certificate; of a service
  without access control all do. Nobody gets parts that were made for another principal.
* All tasks together take a share of a core (`ViewerPace`): pages that take longer to make, or many
  different ones, change more seldom.
* A part is sent if it has changed. Parts have no forms, which are of one browser.
* A browser that leaves, a session that ends and a service that drains end the events; the page says
  so and offers to load again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from tms.console.pace import ViewerPace
from tms.console.visit import ROOT, Visit, WebPage
from tms.errors import Invalid, Overloaded, TMSError
from tms.runtime.events import EventLog
from tms.server.http.exchange import settle
from tms.server.service import Service

_log = EventLog("tms.console")
LIVE = f"{ROOT}/live".encode()
LIVE_S = 2.0  # between two looks, at least
VIEWERS_MAX = 1_000
VIEWERS_OF_ONE_MAX = 100  # of a principal
PARTS_MAX = 20
QUIET_S = 15.0  # after which a line tells that the connection is alive
_Parts = Mapping[str, str]
_Key = tuple[str, str, str, tuple[str, ...]]  # address, principal, session, names of parts
_PageOf = Callable[[Visit], Awaitable[WebPage]]


def ended(problem: str) -> bytes:
    """The last event of a page, with the reason."""
    return b"event: ended\ndata: %b\n\n" % msgspec.json.encode(problem)


class _LivePage:
    """A page with parts at which at least one viewer looks."""

    def __init__(self, visit: Visit, names: Sequence[str], page_of: _PageOf) -> None:
        self._visit = visit
        self._names = names
        self._page_of = page_of
        self.parts: _Parts = {}
        self.problem = ""  # the reason for which it ended
        self.viewers = 0
        self.waiting: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, pace: ViewerPace) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._look(pace))

    async def end(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look(self, pace: ViewerPace) -> None:
        """Render the parts again and again; ends with the first error."""
        loop = asyncio.get_running_loop()
        with pace.viewer():
            while True:
                started_s = loop.time()
                try:
                    page = await self._page_of(self._visit)
                    self._changed(await self._visit.parts(page, self._names))
                except TMSError as error:
                    self._fail(error.message)
                    return
                except Exception:
                    _log.exception(
                        "live_parts_broke", page=self._visit.exchange.path.decode("ascii")
                    )
                    self._fail("The service met an error of its own; its log has it.")
                    return
                await asyncio.sleep(pace.pause_s(loop.time() - started_s))

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._wake()

    def _changed(self, parts: _Parts) -> None:
        if parts != self.parts:
            self.parts = parts
            self._wake()

    def _wake(self) -> None:
        for one in self.waiting:
            settle(one)
        self.waiting.clear()


class LiveParts:
    """Renders parts for all viewers. Used by the event loop's thread. `page_of`: the page at the
    address of a visit."""

    def __init__(self, service: Service, page_of: _PageOf) -> None:
        self._service = service
        self._page_of = page_of
        self._watched: dict[_Key, _LivePage] = {}
        self._pace = ViewerPace(LIVE_S)
        self._viewers_of: Counter[str] = Counter()  # by principal
        self.viewers = 0

    def events(self, visit: Visit) -> AsyncGenerator[bytes]:
        """The events of a viewer: `parts` with a JSON object of HTML by the parts' names, `ended`
        with the reason. Raises `Invalid`, `Overloaded`."""
        target = visit.asked("page")
        names = tuple(visit.asked("parts").split(","))
        is_page = target.startswith(f"{ROOT}/") and target.isascii()
        if not (is_page and all(names) and len(names) <= PARTS_MAX):
            raise Invalid("`page` is the address of a page, `parts` are the names of its parts.")
        if self.viewers >= VIEWERS_MAX:
            raise Overloaded(f"{VIEWERS_MAX} pages are looked at already; load this one again.")
        if visit.principal and self._viewers_of[visit.principal] >= VIEWERS_OF_ONE_MAX:
            raise Overloaded(
                f"{visit.principal} looks at {VIEWERS_OF_ONE_MAX} pages already; close some."
            )
        return self._events(visit, (target, visit.principal, visit.key.session, names))

    async def _events(self, visit: Visit, key: _Key) -> AsyncGenerator[bytes]:
        watched = self._watched.get(key)
        if watched is None or watched.problem:
            watched = _LivePage(visit.at(key[0]), key[-1], self._page_of)
            watched.start(self._pace)
            self._watched[key] = watched
        self.viewers += 1
        self._viewers_of[visit.principal] += 1
        watched.viewers += 1
        try:
            async for event in self._changes(visit, watched):
                yield event
        finally:
            self.viewers -= 1
            self._viewers_of -= Counter((visit.principal,))  # drops a principal without any
            watched.viewers -= 1
            if not watched.viewers:
                await self._end(key, watched)

    async def _end(self, key: _Key, watched: _LivePage) -> None:
        if self._watched.get(key) is watched:
            del self._watched[key]
        await watched.end()

    async def _changes(self, visit: Visit, watched: _LivePage) -> AsyncGenerator[bytes]:
        exchange = visit.exchange
        sent: _Parts = {}
        yield b": the parts of this page\n\n"
        while not exchange.hurried:
            changed = {name: html for name, html in watched.parts.items() if sent.get(name) != html}
            if changed:
                sent = watched.parts
                yield b"event: parts\ndata: %b\n\n" % msgspec.json.encode(changed)
            if watched.problem:
                yield ended(watched.problem)
                return
            woken = asyncio.get_running_loop().create_future()
            watched.waiting.add(woken)
            await exchange.sleep(woken, QUIET_S)
            watched.waiting.discard(woken)
            if watched.parts is sent and not watched.problem:
                yield b": still here\n\n"
