"""Answers requests below `/console`.

    GET   a page, a file, or a part of a page that is looked at
    POST  an action: the form is read, its token and its origin are checked, then the answer leads
          to a page (303)

* Answers are not stored by browsers and proxies, except the style sheet and the script, whose
  addresses have the version.
* An error is a page: its sentence, what was not done, the request id, and a way on.
"""

from collections.abc import Mapping
from contextlib import aclosing
from http.cookies import CookieError, SimpleCookie

from tms.api import routes
from tms.api.routes import MethodNotAllowed
from tms.console.forms import FORM_BYTES_MAX, OPEN_BYTES_MAX, FormKey, new_browser_key
from tms.console.live import LIVE, LiveParts
from tms.console.pace import ViewerPace
from tms.console.pages.problems import problem_page
from tms.console.pages.signing_in import to_sign_in
from tms.console.pages.table import ROUTES
from tms.console.rendering import STATIC, render, static
from tms.console.visit import (
    Download,
    PageAnswer,
    PageRoute,
    Redirect,
    Streamed,
    Visit,
    WebPage,
    noted,
    notice_in,
)
from tms.errors import Forbidden, NotFound, TMSError, Unauthenticated
from tms.server.front import FrontApp
from tms.server.http.compression import coding_of
from tms.server.http.exchange import Exchange
from tms.server.http.request import path_text
from tms.server.router import RouteTable
from tms.server.service import Service

SESSION = "tms_session"
BROWSER = "tms_browser"
NOTICE = "tms_notice"
_GONE = "; Max-Age=0"
SEE_OTHER = 303
FOLLOW_S = 0.25  # between two events of a page that follows, at least
BYTES = "application/octet-stream"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE = (
    f"content-security-policy: {POLICY}\r\n"
    "x-content-type-options: nosniff\r\n"
    "x-frame-options: DENY\r\n"
    "referrer-policy: same-origin\r\n"
    "cross-origin-opener-policy: same-origin\r\n"
    "cross-origin-resource-policy: same-origin\r\n"
).encode()
_HTML = _SAFE + b"content-type: text/html; charset=utf-8\r\ncache-control: no-store\r\n"
_UNSTORED = "content-type: {}\r\ncache-control: no-store\r\n"
_FILE = _SAFE + b"cache-control: public, max-age=31536000, immutable\r\n"
_ACCEPT_ENCODING = b"accept-encoding"
_STATIC = b"/console/static/"


class Console:
    """Answers browsers. Used by the event loop's thread."""

    def __init__(self, service: Service, has_tls: bool) -> None:
        self._service = service
        self._scheme = "https" if has_tls else "http"
        self._secure = "; Secure" if has_tls else ""
        # A cookie of this prefix is of this host and of TLS only.
        self._prefix = "__Host-" if has_tls else ""
        self._routes: RouteTable[PageRoute] = RouteTable(
            (one.method, one.path, one) for one in ROUTES
        )
        self._pace = ViewerPace(FOLLOW_S)
        self._live = LiveParts(service, self._page)

    def refuse(self, exchange: Exchange, error: TMSError) -> None:
        """Answer with an error that left no page to show."""
        status = routes.status_of(error)
        values = {"error": error, "status": status, "request_id": exchange.request_id}
        exchange.respond(status, _HTML, render("broken.html", values))

    async def answer(self, exchange: Exchange, app: FrontApp) -> None:
        """Answer a request. Raises `Disconnected`."""
        exchange.also = b""  # pages of other origins read nothing here, whatever `cors` allows
        if _ACCEPT_ENCODING in exchange.headers:
            exchange.coding = coding_of(exchange.headers[_ACCEPT_ENCODING])
        if exchange.path.startswith(_STATIC):
            await self._send_file(exchange, exchange.path.decode("ascii").rpartition("/")[2])
            return
        cookies = _cookies(exchange)
        if self._comes_from_elsewhere(exchange, cookies):
            values = {"at": exchange.target.decode("ascii")}
            await self._service.respond(exchange, routes.OK, _HTML, render("again.html", values))
            return
        browser = cookies.get(self._prefix + BROWSER) or new_browser_key()
        session = cookies.get(self._prefix + SESSION, "")
        host = exchange.headers.get(b"host", b"").decode("latin-1")
        url = f"{self._scheme}://{host}"
        visit = Visit(self._service, app, exchange, FormKey(browser, session), url, self._pace)
        try:
            shown = await self._shown(visit)
        except Unauthenticated as error:
            shown = to_sign_in(visit, error)
        except TMSError as error:
            if exchange.response_started:
                raise
            shown = problem_page(error, exchange.request_id)
        await self._send(visit, shown, cookies)

    def _comes_from_elsewhere(self, exchange: Exchange, cookies: Mapping[str, str]) -> bool:
        """True if the browser follows a link of another site: it leaves the cookies out, which
        says nothing of what it has. Loaded again by itself, the page gets them."""
        has_none = not cookies.keys() & {self._prefix + SESSION, self._prefix + BROWSER}
        return has_none and exchange.headers.get(b"sec-fetch-site") == b"cross-site"

    async def _send_file(self, exchange: Exchange, name: str) -> None:
        content = static(name)
        if content is None:
            raise NotFound(f"There is no file {name!r:.100} here.")
        head = _FILE + b"content-type: %b\r\n" % STATIC[name]
        await self._service.respond(exchange, routes.OK, head, content)

    async def _shown(self, visit: Visit) -> PageAnswer:
        exchange = visit.exchange
        if exchange.path == LIVE:
            await visit.identify()
            return Streamed(self._live.events(visit))
        route, varying = self._route(exchange)
        if exchange.method == "POST":
            self._require_own_origin(exchange)
        if not route.is_open:
            await visit.identify()
        if exchange.method == "POST":
            bytes_max = OPEN_BYTES_MAX if route.is_open else FORM_BYTES_MAX
            async with self._service.received(exchange, bytes_max) as body:
                visit.read_form(exchange.headers.get(b"content-type", b""), bytes(body.data))
            visit.require_form()
        return await route.show(visit, *varying)

    def _route(self, exchange: Exchange) -> tuple[PageRoute, list[str]]:
        """The page or action of a request, and what varies in its path. Raises `NotFound`,
        `MethodNotAllowed`."""
        methods, varying = self._routes.find(exchange.path)
        if not methods:
            raise NotFound(f"There is no page at {exchange.path.decode('ascii')[:200]!r}.")
        route = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if route is None:
            allowed = sorted(methods)
            raise MethodNotAllowed(f"This page takes {' and '.join(allowed)}.", allowed=allowed)
        return route, [path_text(one) for one in varying]

    async def _page(self, visit: Visit) -> WebPage:
        """The page at which a visitor looks, for its live parts. Raises `NotFound`."""
        route, varying = self._route(visit.exchange)
        shown = await route.show(visit, *varying)
        if not isinstance(shown, WebPage):
            raise NotFound("This page has no parts that change.")
        return shown

    def _require_own_origin(self, exchange: Exchange) -> None:
        """Raise `Forbidden` unless a form comes from a page of the console. Browsers name the
        origin of every form that is posted."""
        origin = exchange.headers.get(b"origin", b"")
        host = exchange.headers.get(b"host", b"")
        if not host or origin.partition(b"://")[2] != host:
            raise Forbidden(
                f"A form of {origin.decode('latin-1')!r:.100} changes nothing here; open the "
                "console at the address at which the form is sent.",
                header="Origin",
            )

    async def _send(self, visit: Visit, shown: PageAnswer, cookies: Mapping[str, str]) -> None:
        exchange = visit.exchange
        prefix = self._prefix
        if isinstance(shown, Streamed):
            head = _SAFE + _UNSTORED.format(shown.media).encode() + _kept_as(shown.filename)
            if exchange.method == "HEAD":
                exchange.respond(routes.OK, head)
                return
            async with aclosing(shown.events) as events:
                await exchange.stream_chunks(routes.OK, head, events)
            return
        if isinstance(shown, Download):
            head = _SAFE + _UNSTORED.format(BYTES).encode() + _kept_as(shown.filename)
            await self._service.respond(exchange, routes.OK, head, shown.content)
            return
        head = b""
        if not cookies.get(prefix + BROWSER):
            head += self._cookie(BROWSER, visit.key.browser)
        if shown.session is not None:
            head += self._cookie(SESSION, shown.session, "" if shown.session else _GONE)
            visit.key = visit.key._replace(session=shown.session)
        if isinstance(shown, Redirect):
            if shown.notice is not None:
                head += self._cookie(NOTICE, noted(shown.notice))
            head += f"location: {shown.location}\r\n".encode()
            exchange.respond(SEE_OTHER, _HTML + head)
            return
        notice = None
        if prefix + NOTICE in cookies:
            notice = notice_in(cookies[prefix + NOTICE])
            head += self._cookie(NOTICE, "", _GONE)
        body = await visit.rendered(shown, notice)
        await self._service.respond(exchange, shown.status, _HTML + head, body)

    def _cookie(self, name: str, value: str, more: str = "") -> bytes:
        line = (
            f"{self._prefix}{name}={value}; Path=/; HttpOnly; SameSite=Strict{self._secure}{more}"
        )
        return f"set-cookie: {line}\r\n".encode()


def _kept_as(filename: str) -> bytes:
    """The header line of an answer that the browser keeps; none without a name."""
    line = f'content-disposition: attachment; filename="{filename}"\r\n' if filename else ""
    return line.encode()


def _cookies(exchange: Exchange) -> Mapping[str, str]:
    """The cookies of a request; none if they cannot be read."""
    try:
        found = SimpleCookie(exchange.headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return {}
    return {name: one.value for name, one in found.items()}
