"""Signing in with a token or by a one-time link, and signing out.

    token ─▶ access.create_session ─▶ session in a cookie
    link  ─▶ a page, with a button ─▶ access.redeem_link ─▶ session in a cookie

* Each sign-in makes a new session: none that a browser had before goes on.
* Loading the page of a link uses nothing up: whatever looks at addresses ahead loads it, too.
* A sign-in leads to a page of the console only.
"""

import re
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

from tms.api import routes
from tms.console.live import ended
from tms.console.visit import (
    ROOT,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Streamed,
    Visit,
    WebPage,
)
from tms.errors import NotFound, TMSError, Unauthenticated

SIGN_IN = f"{ROOT}/sign-in"
SIGN_OUT = f"{ROOT}/sign-out"
ENTER = f"{ROOT}/enter"
HOME = f"{ROOT}/"
TARGET_CHARS_MAX = 2_000
_FETCH_MODE = b"sec-fetch-mode"
_NAVIGATES = b"navigate"
_TARGET = re.compile(rf"{ROOT}/[!-~]{{0,{TARGET_CHARS_MAX}}}")
_OVER = (
    "You are not signed in any more: the session was ended, its token was revoked, or its time is "
    "over."
)
_UNSENT = " The form was not carried out."


def to_sign_in(visit: Visit, error: Unauthenticated) -> PageAnswer:
    """The page on which a visitor signs in, and then gets to the page that was asked for; to a page
    that is open and goes on, the event that it does so no more."""
    exchange = visit.exchange
    if exchange.headers.get(b"accept", b"").decode("latin-1") == routes.EVENTS:
        return Streamed(_end())
    wanted = exchange.target.decode("ascii")
    problem = ""
    session: str | None = None
    if exchange.path.decode("ascii") in (SIGN_IN, ENTER):
        wanted = visit.given("to")
        problem = error.message
    elif visit.key.session:
        problem = _OVER
        # A certificate counts from now on. A request of a script may be late: it takes no cookie of
        # a later sign-in away.
        if exchange.headers.get(_FETCH_MODE, _NAVIGATES) == _NAVIGATES:
            session = ""
    if exchange.method == "POST" and not visit.fields:
        problem += _UNSENT
        wanted = _target_of(exchange.headers.get(b"referer", b"").decode("latin-1"))
    values = {"problem": problem.strip(), "to": own_target(wanted), "is_needed": True}
    return WebPage("sign_in.html", values, 401, session)


def own_target(text: str) -> str:
    """The address itself if it is one of the console to which a sign-in may lead, else its first
    page."""
    leads = _TARGET.fullmatch(text) and not text.startswith((SIGN_IN, SIGN_OUT, ENTER))
    return text if leads else HOME


async def show_sign_in(visit: Visit) -> PageAnswer:
    """The page with the form."""
    values = {"problem": "", "to": own_target(visit.asked("to")), "is_needed": visit.is_guarded}
    return WebPage("sign_in.html", values)


async def sign_in(visit: Visit) -> PageAnswer:
    """Begin a session with the token in the form."""
    token = visit.given("token").strip()
    if not token:
        raise Unauthenticated("Paste a token.")
    new = await visit.ask_with(token, "access.create_session")
    return Redirect(own_target(visit.given("to")), session=new.token)


async def show_link(visit: Visit, link: str) -> PageAnswer:
    """The page whose button begins the session of a link."""
    return WebPage("enter.html", {"link": link, "is_needed": visit.is_guarded})


async def enter(visit: Visit) -> PageAnswer:
    """Begin the session of a link."""
    new = await visit.ask_with(visit.given("link"), "access.redeem_link")
    return Redirect(HOME, session=new.token)


async def sign_out(visit: Visit) -> PageAnswer:
    """End the session of the browser, if it is not over already."""
    try:
        await visit.ask("access.end_session")
    except (NotFound, Unauthenticated):
        pass  # it is over, or the cookie has another credential: it goes in any case
    except TMSError as error:
        said = Notice(f"The session goes on at the service: {error.message}", "problem")
        return Redirect(SIGN_IN, said, session="")
    return Redirect(SIGN_IN, Notice("You are signed out."), session="")


async def _end() -> AsyncGenerator[bytes]:
    yield ended(_OVER)


def _target_of(address: str) -> str:
    """Path and query of an address; empty if it has none."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


ROUTES = (
    PageRoute("GET", SIGN_IN, show_sign_in, is_open=True),
    PageRoute("POST", SIGN_IN, sign_in, is_open=True),
    PageRoute("POST", SIGN_OUT, sign_out, is_open=True),
    PageRoute("GET", f"{ENTER}/{{link}}", show_link, is_open=True),
    PageRoute("POST", ENTER, enter, is_open=True),
)
