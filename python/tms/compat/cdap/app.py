"""The routes of `/v1`, and `/ping`.

    PUT GET DELETE  /v1/namespaces/{ns}/topics/{t}              GET  /v1/namespaces/{ns}/topics
    PUT             /v1/namespaces/{ns}/topics/{t}/properties   GET  /ping
    POST            /v1/namespaces/{ns}/topics/{t}/publish · store · rollback · poll

* Names and content types are checked before bodies, bodies before topics are looked for.
* Every error leaves as one sentence of plain text; one that nobody expected says no more than its
  request id, and the log has the rest.
"""

import json
from collections.abc import Awaitable, Callable

from tms.api import routes
from tms.compat.cdap import answers, names
from tms.compat.cdap.answers import Said
from tms.compat.cdap.poll import Polling
from tms.compat.cdap.publish import CdapPublishing
from tms.errors import TMSError, TopicNotFound, without_frames
from tms.events import EventLog
from tms.model.topic import TopicName
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.http.request import received
from tms.server.service import Service

PROPERTIES_BYTES_MAX = 64 << 10
_PAGE = 1_000
_BROKE = "The service met an error of its own. Its log has the details under the request id {}."
_log = EventLog("tms.server")
Answer = Callable[[Exchange, TopicName], Awaitable[None]]


def is_cdap(parts: list[bytes]) -> bool:
    """Whether a path is one of CDAP's."""
    return parts[1:2] == [b"v1"] or parts[1:] == [b"ping"]


class Cdap:
    """Answers CDAP's clients."""

    def __init__(self, service: Service) -> None:
        self._service = service
        messages = CdapPublishing(service)
        self._topic: dict[str, Answer] = {
            "PUT": self._create,
            "GET": self._describe,
            "DELETE": self._delete,
        }
        self._below: dict[bytes, tuple[str, Answer]] = {
            b"properties": ("PUT", self._update),
            b"publish": ("POST", messages.publish),
            b"store": ("POST", messages.store),
            b"rollback": ("POST", messages.roll_back),
            b"poll": ("POST", Polling(service)),
        }

    async def __call__(self, exchange: Exchange, parts: list[bytes]) -> None:
        """Answer a request."""
        name: list[TopicName] = []
        try:
            await self._answer(exchange, parts, name)
        except Said as answer:
            answers.refuse(exchange, answer)
        except TopicNotFound as error:
            answers.refuse(exchange, names.missing(name[0]) if name else answers.said(error))
        except TMSError as error:
            if error.kind in answers.OURS:
                _log.warning(
                    "request_failed",
                    request_id=exchange.request_id,
                    route="cdap",
                    path=exchange.path.decode("ascii")[:300],
                    code=error.code,
                    why=str(error),
                )
            answers.refuse(exchange, answers.said(error))
            without_frames(error)
        except Disconnected:
            raise
        except Exception as exc:
            _log.exception("request_broke", request_id=exchange.request_id, route="cdap")
            answers.refuse(exchange, Said(routes.INTERNAL, _BROKE.format(exchange.request_id)))
            without_frames(exc)

    async def _answer(self, exchange: Exchange, parts: list[bytes], found: list[TopicName]) -> None:
        method = exchange.method
        match parts[1:]:
            case [b"ping"]:
                if method == "GET":
                    answers.pong(exchange)
                else:
                    answers.not_so(exchange)
            case [b"v1", b"namespaces", namespace, b"topics"]:
                if method == "GET":
                    await self._list(exchange, names.namespace_of(namespace))
                else:
                    answers.not_so(exchange)
            case [b"v1", b"namespaces", namespace, b"topics", topic]:
                if method not in self._topic:
                    answers.not_so(exchange)
                else:
                    found.append(names.topic_of(namespace, topic))
                    await self._topic[method](exchange, found[0])
            case [b"v1", b"namespaces", namespace, b"topics", topic, below] if below in self._below:
                wanted, answer = self._below[below]
                if method != wanted:
                    answers.not_so(exchange)
                else:
                    found.append(names.topic_of(namespace, topic))
                    await answer(exchange, found[0])
            case _:
                answers.nowhere(exchange)

    async def _list(self, exchange: Exchange, namespace: str) -> None:
        listed = await self._service.in_thread(self._all, namespace)
        answers.json(exchange, json.dumps(listed, separators=(",", ":")).encode())

    def _all(self, namespace: str) -> list[str]:
        found: list[str] = []
        while page := self._service.engine.list_topics(
            namespace, found[-1] if found else None, _PAGE
        ):
            found += [info.topic for info in page]
        return found

    async def _create(self, exchange: Exchange, name: TopicName) -> None:
        properties = await self._properties(exchange)
        settings = names.settings_of(name, properties, self._service.cdap.ttl_s)
        create = self._service.engine.create_new_topic
        try:
            _, new = await self._service.in_thread(create, name, settings, properties)
        except TMSError as error:
            if error.code != "topic-exists":
                raise
            new = False
        if not new:
            raise Said(routes.CONFLICT, f"Topic {names.full(name)} already exists.")
        answers.nothing(exchange)

    async def _update(self, exchange: Exchange, name: TopicName) -> None:
        properties = await self._properties(exchange)
        settings = names.settings_of(name, properties, self._service.cdap.ttl_s)
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
        service = self._service
        service.require_open()
        bytes_max = min(PROPERTIES_BYTES_MAX, service.limits.body_bytes_max)
        async with received(exchange, service.publishing, bytes_max, service.threads) as body:
            return names.properties_in(body.data)
