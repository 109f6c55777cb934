"""The routes of `/v1`, and `/ping`.

    PUT GET DELETE  /v1/namespaces/{ns}/topics/{t}              GET  /v1/namespaces/{ns}/topics
    PUT             /v1/namespaces/{ns}/topics/{t}/properties   GET  /ping
    POST            /v1/namespaces/{ns}/topics/{t}/publish · store · rollback · poll

* Names and content types are checked before bodies, bodies before topics are looked for.
* Every error leaves as one sentence of plain text.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tms.access.decisions import topic_resource
from tms.api.operation import Resource
from tms.api.operations import TRANSACTIONS
from tms.api.routes import CONFLICT, OK
from tms.compat.cdap import answers, names
from tms.compat.cdap.answers import Refusal
from tms.compat.cdap.poll import Polling
from tms.compat.cdap.publish import CdapPublishing
from tms.errors import TMSError, TopicNotFound, Unavailable
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.server.front import FrontApp
from tms.server.guard import Guard
from tms.server.http.exchange import Exchange
from tms.server.router import RouteTable
from tms.server.service import DRAINING, Service

PROPERTIES_BYTES_MAX = 64 << 10
_PAGE = 1_000
CDAP = "cdap"  # in metrics and logs
_TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
# The namespace or topic of a path, by its number of variable parts.
_SUBJECTS: tuple[Callable[..., Any], ...] = (lambda: None, names.namespace_of, names.topic_of)


_OF_TOPIC = {"GET": "describe", "PUT": "create", "DELETE": "delete"}


def _operation(exchange: Exchange) -> str:
    """The name of a request in the audit log."""
    parts = exchange.path.decode("ascii").split("/")[5:]  # the topic, and what of it
    names = ("list", _OF_TOPIC.get(exchange.method, ""), parts[-1] if parts else "")
    return f"{CDAP}.{names[len(parts)]}"


@dataclass(frozen=True, slots=True)
class CdapLimits:
    """Bounds and defaults of CDAP's protocol."""

    chunk_bytes: int = 60_000
    tx_max_lifetime_ms: int = 25 * 3_600_000
    ttl_s: int = 604_800  # of topics that are created without one, as CDAP's are


class Cdap:
    """Answers CDAP's clients; see `server.front.Paths`."""

    def __init__(self, service: Service, limits: CdapLimits) -> None:
        self._service = service
        self._ttl_s = limits.ttl_s
        messages = CdapPublishing(service, limits.tx_max_lifetime_ms)
        routes: list[tuple[str, str, Callable[[Exchange, Any], Awaitable[None]]]] = [
            ("GET", "/ping", self._ping),
            ("GET", "/v1/namespaces/{namespace}/topics", self._list),
            ("PUT", _TOPIC, self._create),
            ("GET", _TOPIC, self._describe),
            ("DELETE", _TOPIC, self._delete),
            ("PUT", f"{_TOPIC}/properties", self._update),
            ("POST", f"{_TOPIC}/publish", messages.publish),
            ("POST", f"{_TOPIC}/store", messages.store),
            ("POST", f"{_TOPIC}/rollback", messages.roll_back),
            ("POST", f"{_TOPIC}/poll", Polling(service, limits.chunk_bytes)),
        ]
        self._routes = RouteTable(routes)

    def has(self, path: bytes) -> bool:
        """True for `/ping` and everything below `/v1`."""
        return path == b"/ping" or path.split(b"/", 2)[1:2] == [b"v1"]

    def refuse(self, exchange: Exchange, error: TMSError) -> None:
        """Answer with an error in one sentence of plain text."""
        answers.refuse(exchange, error)

    async def answer(self, exchange: Exchange, app: FrontApp) -> None:
        """Answer a request, once its principal is known: here, unless another instance coordinates
        transactions. Raises `Refusal`, and errors of the engine."""
        methods, varying = self._routes.find(exchange.path)
        answer = methods.get(exchange.method)
        if answer is None:
            (answers.not_so if methods else answers.nowhere)(exchange)
            return
        subject = _SUBJECTS[len(varying)](*varying)
        if self._service.guard is not None and subject is not None:
            await self._admit(self._service.guard, exchange, subject)
        if subject is not None and await app.forwarded(TRANSACTIONS):
            return
        if self._service.draining and subject is not None:
            raise Unavailable(DRAINING)
        try:
            await answer(exchange, subject)
        except TopicNotFound as error:
            raise names.missing(subject) from error

    async def _admit(self, guard: Guard, exchange: Exchange, subject: str | TopicName) -> None:
        """Raises `Unauthenticated`, `Forbidden`."""
        exchange.operation = _operation(exchange)
        if isinstance(subject, str):
            namespace = f"namespace:{subject}"
            await guard.admit_foreign(exchange, Access.OBSERVE, namespace, Resource.TOPIC)
            return
        verb = Access.OBSERVE if exchange.method == "GET" else Access.MANAGE
        if exchange.method == "POST":
            is_poll = exchange.path.endswith(b"/poll")
            verb = Access.CONSUME if is_poll else Access.PUBLISH
        await guard.admit_foreign(exchange, verb, topic_resource(subject))

    async def _ping(self, exchange: Exchange, _: None) -> None:
        exchange.respond(OK, b"content-type: text/plain\r\n", b"OK.\n")

    async def _list(self, exchange: Exchange, namespace: str) -> None:
        listed = await self._service.in_thread(self._all, namespace)
        if exchange.sees is not None:
            listed = [topic for topic in listed if exchange.sees(topic)]
        answers.json(exchange, json.dumps(listed, separators=(",", ":")).encode())

    def _all(self, namespace: str) -> list[str]:
        topics: list[str] = []
        after = None
        while page := self._service.engine.list_topics(namespace, after, _PAGE):
            topics += [info.topic for info in page if names.is_topic(info.topic)]
            after = page[-1].topic
        return topics

    async def _create(self, exchange: Exchange, name: TopicName) -> None:
        properties = await self._properties(exchange)
        settings = names.settings_of(name, properties, self._ttl_s)
        create = self._service.engine.create_new_topic
        try:
            _, new = await self._service.in_thread(create, name, settings, properties)
        except TMSError as error:
            if error.code != "topic-exists":
                raise
            new = False
        if not new:
            raise Refusal(CONFLICT, f"Topic {names.full(name)} already exists.")
        answers.nothing(exchange)

    async def _update(self, exchange: Exchange, name: TopicName) -> None:
        properties = await self._properties(exchange)
        settings = names.settings_of(name, properties, self._ttl_s)
        update = self._service.engine.update_topic
        changes = {"retention_ms": settings.retention_ms}
        await self._service.in_thread(update, name, changes, properties)
        answers.nothing(exchange)

    async def _describe(self, exchange: Exchange, name: TopicName) -> None:
        engine = self._service.engine

        def look() -> bytes:
            return names.described(engine.describe_topic(name), engine.properties(name))

        answers.json(exchange, await self._service.in_thread(look))

    async def _delete(self, exchange: Exchange, name: TopicName) -> None:
        await self._service.in_thread(self._service.engine.delete_topic, name)
        answers.nothing(exchange)

    async def _properties(self, exchange: Exchange) -> dict[str, str]:
        async with self._service.received(exchange, PROPERTIES_BYTES_MAX) as body:
            return names.properties_in(body.data)
