"""One request for a page: its query and form, its questions to operations, and its answer."""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from tms.api import routes
from tms.api.operations import OPERATIONS
from tms.console.commands import SameAs, same_as
from tms.console.forms import TOKEN_FIELD, FormKey, fields_of, pairs_of
from tms.console.pace import ViewerPace
from tms.console.rendering import render, render_block, segment
from tms.errors import Invalid, TMSError, Unauthenticated
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.runtime.decoding import from_json
from tms.server.asking import AskedOperation, ask, asked_as
from tms.server.front import FrontApp
from tms.server.http.exchange import Exchange
from tms.server.service import Service

ROOT = routes.CONSOLE
PAGES_OF_TOPICS = ("/console/messages/", "/console/publish/")  # by their beginnings
NOTICE_CHARS_MAX = 600
NUMBER_CHARS_MAX = 19  # of a number in a query or path
DONE = "done"
PROBLEM = "problem"


class Notice(msgspec.Struct):
    """A sentence on the next page: about an action that was done, or about one that failed."""

    text: str
    kind: str = DONE


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page to show: a template and its values. `status`: of the answer; `session`: as of a
    `Redirect`."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another page to load. `session`: the text of the browser's session from now on; empty: it has
    none any more; None: as before."""

    location: str
    notice: Notice | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that goes on until it ends or the browser leaves, of this media type: events, if
    nothing else is said. `filename`: under which the
    browser keeps it; empty: it does not."""

    events: AsyncGenerator[bytes]
    media: str = routes.EVENTS
    filename: str = ""


@dataclass(frozen=True, slots=True)
class Download:
    """Bytes that the browser keeps under this name, and does not interpret."""

    content: bytes
    filename: str


PageAnswer = WebPage | Redirect | Streamed | Download


class Visit:
    """A request of a browser. Used by the event loop's thread."""

    def __init__(
        self,
        service: Service,
        app: FrontApp,
        exchange: Exchange,
        key: FormKey,
        url: str,
        pace: ViewerPace,
    ) -> None:
        self.exchange = exchange
        self.url = url
        self.key = key
        self.principal = ""  # empty until it is identified, and without access control
        self.fields: Mapping[str, list[str]] = {}  # of the form
        self.app = app
        self.pace = pace  # of pages that follow
        self._service = service

    # -- the request -------------------------------------------------------------------------------

    @property
    def is_guarded(self) -> bool:
        """True if access is controlled."""
        return self._service.guard is not None

    @property
    def authorization(self) -> bytes:
        """The header that shows the session to operations; empty without one."""
        return f"Bearer {self.key.session}".encode() if self.key.session else b""

    @cached_property
    def query(self) -> Mapping[str, list[str]]:
        """The values of the query, by name. Raises `Malformed`, `Invalid`."""
        return pairs_of(self.exchange.query)

    def asked(self, name: str, default: str = "") -> str:
        """A value of the query; an empty one is as good as none."""
        return self.query.get(name, [""])[-1] or default

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number of the query within bounds. Raises `Invalid`."""
        text = self.asked(name) or str(default)
        if (
            text.isascii()
            and text.isdigit()
            and len(text) <= NUMBER_CHARS_MAX
            and low <= int(text) <= high
        ):
            return int(text)
        raise Invalid(
            f"{name} is a whole number from {low} to {high}, got {text!r:.40}.", field=name
        )

    def given(self, name: str, default: str = "") -> str:
        """A field of the form."""
        return self.fields.get(name, [default])[-1]

    def read_form(self, content_type: bytes, body: bytes) -> None:
        """Take the fields of a form. Raises `Malformed`, `Invalid`, `UnsupportedMedia`."""
        self.fields = fields_of(content_type, body)

    def require_form(self) -> None:
        """Raise `Forbidden` unless the form is the console's, of this session."""
        self.key.require(self.given(TOKEN_FIELD), self._service.clock)

    def require_typed(self, name: str) -> None:
        """Raise `Invalid` unless the visitor has typed this name into the field `typed`."""
        if self.given("typed") != name:
            raise Invalid(
                f"Nothing was changed: type {name} to confirm, got {self.given('typed')!r:.80}.",
                field="typed",
            )

    @property
    def now_ms(self) -> int:
        """The service's time."""
        return self._service.clock.now_ms()

    # -- questions ---------------------------------------------------------------------------------

    def question(self, operation: str, arguments: Mapping[str, Any], **more: Any) -> AskedOperation:
        """A request for an operation of this name; see `AskedOperation`."""
        return AskedOperation(OPERATIONS[operation], arguments, **more)

    async def ask(self, operation: str, **arguments: Any) -> Any:
        """The result of an operation with these arguments. Raises its errors."""
        return await self.put(self.question(operation, arguments))

    async def put(self, question: AskedOperation) -> Any:
        """The result of a question. Raises the errors of its operation."""
        return await ask(self.app.answer, self.exchange, self.authorization, question)

    async def ask_with(self, credential: str, operation: str, **arguments: Any) -> Any:
        """The result of an operation for another credential than that of the session. Raises its
        errors."""
        question = self.question(operation, arguments)
        return await ask(self.app.answer, self.exchange, f"Bearer {credential}".encode(), question)

    async def tried(self, operation: str, **arguments: Any) -> tuple[Any, TMSError | None]:
        """The result of an operation, or its error in place of it: a part of a page may fail while
        the others are shown. Raises only `Unauthenticated`."""
        try:
            return await self.ask(operation, **arguments), None
        except Unauthenticated:
            raise
        except TMSError as error:
            return None, error

    async def tried_if(
        self, verb: Access, resource: str, operation: str, **arguments: Any
    ) -> tuple[Any, TMSError | None]:
        """As `tried`, if the visitor may do this; neither a result nor an error otherwise. A page
        does not ask in vain: the audit log would be full of refusals."""
        if not self.may(verb, resource):
            return None, None
        return await self.tried(operation, **arguments)

    async def identify(self) -> None:
        """Find out whose session it is. Raises `Unauthenticated`."""
        if self.is_guarded:
            self.principal = (await self.ask("access.whoami")).principal

    def may(self, verb: Access, resource: str) -> bool:
        """True if the visitor's principal may do this."""
        guard = self._service.guard
        return guard is None or guard.decisions.may(self.principal, verb, resource)

    def may_some(self, verb: Access, namespace: str) -> bool:
        """True if the visitor's principal may do this with some topics of a namespace."""
        guard = self._service.guard
        return guard is None or guard.decisions.may_some(self.principal, verb, namespace)

    def same_as(self, command: list[str], question: AskedOperation) -> SameAs:
        """The command, with its arguments behind `tms`, and the request that do the same."""
        return same_as(self.url, command, question, self.is_guarded)

    def at(self, target: str) -> "Visit":
        """A visit of the same browser and session to another address."""
        path, _, query = target.partition("?")
        exchange = asked_as(self.exchange, path.encode(), query.encode())
        visit = Visit(self._service, self.app, exchange, self.key, self.url, self.pace)
        visit.principal = self.principal
        return visit

    def is_at(self, path: str) -> bool:
        """True if this page belongs to the section at a path."""
        own = self.exchange.path.decode("ascii").rstrip("/")
        for pages in PAGES_OF_TOPICS:
            own = own.replace(pages, "/console/topics/", 1)
        section = path.rstrip("/")
        return own == section or (section != ROOT and own.startswith(f"{section}/"))

    def topic_path(self, name: str) -> str:
        """The address of a topic's page, by its full name."""
        topic = TopicName.parse(name)
        return path_of("topics", topic.namespace, topic.topic)

    def path(self, section: str, topic: str, *more: object) -> str:
        """The address of a section's page about a topic, by its full name, or about a part of it,
        such as a group."""
        name = TopicName.parse(topic)
        return path_of(section, name.namespace, name.topic, *more)

    # -- the answer --------------------------------------------------------------------------------

    def address(self, **changes: object) -> str:
        """This page's address with other values in its query; None takes one out."""
        values = {name: some[-1] for name, some in self.query.items()}
        values |= {name: str(one) for name, one in changes.items()}
        kept = {name: values[name] for name in values if changes.get(name, "") is not None}
        path = self.exchange.path.decode("ascii")
        return f"{path}?{urlencode(kept)}" if kept else path

    async def rendered(self, page: WebPage, notice: Notice | None = None) -> bytes:
        """The HTML of a page."""
        form = {"notice": notice, "form_token": self.key.token(self._service.clock)}
        values = self._values(page) | form
        return await self._service.in_thread(render, page.template, values)

    async def parts(self, page: WebPage, names: Sequence[str]) -> Mapping[str, str]:
        """The HTML of the parts of a page with these names. They have no forms: those are of one
        browser."""
        values = self._values(page)

        def render_all() -> Mapping[str, str]:
            return {name: render_block(page.template, name, values) for name in names}

        return await self._service.in_thread(render_all)

    def _values(self, page: WebPage) -> dict[str, Any]:
        """The values of a page with those that all pages have."""
        now_ms = self._service.clock.now_ms()
        common = {"visit": self, "principal": self.principal, "now_ms": now_ms}
        return common | dict(page.values)


def path_of(*parts: object) -> str:
    """The address of a page below `/console`."""
    return "/".join([ROOT, *map(segment, parts)])


def noted(notice: Notice) -> str:
    """A notice as the value of a cookie."""
    short = Notice(notice.text[:NOTICE_CHARS_MAX], notice.kind)
    return base64.urlsafe_b64encode(msgspec.json.encode(short)).decode().rstrip("=")


def notice_in(text: str) -> Notice | None:
    """The notice in a cookie; None if it has none that can be read."""
    try:
        return from_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), Notice)
    except (ValueError, msgspec.MsgspecError):
        return None


class PageRoute(NamedTuple):
    """A page or action. `show` takes the visit and what varies in the path; `is_open`: shown to
    visitors without a session."""

    method: str
    path: str
    show: Callable[..., Awaitable[PageAnswer]]
    is_open: bool = False
