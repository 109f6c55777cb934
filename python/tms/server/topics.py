"""The endpoints of topics: list, create, describe, update, delete, truncate, inspect."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tms.api import bodies, routes
from tms.api.bodies import OffsetsBody, SettingsBody, TopicsBody, TruncateBody
from tms.api.erasing import EraseBody, ErasedBody
from tms.api.strict import decode_strict
from tms.errors import Invalid, TopicNotFound
from tms.model.position import Position
from tms.model.snapshot import Isolation, as_view
from tms.model.topic import PARTITIONS_MAX, TopicName, check_namespace
from tms.server.http.exchange import Exchange
from tms.server.http.request import (
    Body,
    accepted,
    content_type,
    header,
    parameters,
    path_text,
    topic_name,
    whole_number,
)
from tms.server.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]
_T = TypeVar("_T")

TOPICS_DEFAULT = 1_000
TOPICS_MAX = 10_000
BLOCKS_DEFAULT = 20
BLOCKS_MAX = 1_000
BODY_BYTES_MAX = 64 << 10
_JSON_ONLY = (routes.JSON,)
_SETTINGS = msgspec.json.Decoder(SettingsBody)
_ERASE = msgspec.json.Decoder(EraseBody)
_TRUNCATE = msgspec.json.Decoder(TruncateBody)


class _RawSegment(Convertor[str]):
    """A path segment as it was sent, also an empty one: names are checked, not missed."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("raw", _RawSegment())


def routes_of(service: Service) -> list[Route]:
    """The routes of topics."""
    topics = TopicEndpoints(service)
    listing = f"{routes.PREFIX}/{{namespace:raw}}/topics"
    topic = listing + "/{topic:raw}"
    return [
        Route(listing, topics.list, methods=["GET"]),
        Route(topic, topics.create, methods=["PUT"]),
        Route(topic, topics.describe, methods=["GET"]),
        Route(topic, topics.update, methods=["PATCH"]),
        Route(topic, topics.delete, methods=["DELETE"]),
        Route(topic + "/truncate", topics.truncate, methods=["POST"]),
        Route(topic + "/erase", topics.erase, methods=["POST"]),
        Route(topic + "/offsets", topics.offsets, methods=["GET"]),
        Route(topic + "/inspect", topics.inspect, methods=["GET"]),
    ]


class TopicEndpoints:
    """Each method answers one route; what the engine may wait for is done in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine
        self._erasing = asyncio.Lock()  # each unpacks blocks, and keeps a thread for long

    async def list(self, request: Request) -> Response:
        """GET …/topics"""
        namespace = check_namespace(path_text(request.path_params["namespace"].encode()))
        given = json_parameters(request, "after", "limit")
        limit = whole_number(given, "limit", TOPICS_DEFAULT, 1, TOPICS_MAX)
        after = given.get("after")
        if after is not None:
            after = TopicName.of(namespace, after).topic
        found = await self._service.in_thread(self._engine.list_topics, namespace, after, limit)
        following = found[-1].topic if len(found) == limit else None
        return answer(routes.OK, TopicsBody(found, following))

    async def create(self, request: Request) -> Response:
        """PUT …/topics/{topic}"""
        name = topic_of(request)
        json_parameters(request)
        name.require_writable()
        settings = (await json_body(self._service, request, _SETTINGS)).settings()
        try:
            await self._service.in_thread(self._engine.describe_topic, name)
            status = routes.OK
        except TopicNotFound:
            status = routes.CREATED
        info = await self._service.in_thread(self._engine.create_topic, name, settings)
        return answer(status, info)

    async def describe(self, request: Request) -> Response:
        """GET …/topics/{topic}"""
        name = topic_of(request)
        json_parameters(request)
        info = await self._service.in_thread(self._engine.describe_topic, name)
        return answer(routes.OK, info)

    async def update(self, request: Request) -> Response:
        """PATCH …/topics/{topic}"""
        name = topic_of(request)
        json_parameters(request)
        name.require_writable()
        changes = (await json_body(self._service, request, _SETTINGS)).changes()
        if not changes:
            raise Invalid("The body changes nothing; name at least one setting.")
        info = await self._service.in_thread(self._engine.update_topic, name, changes)
        return answer(routes.OK, info)

    async def delete(self, request: Request) -> Response:
        """DELETE …/topics/{topic}"""
        name = topic_of(request)
        json_parameters(request)
        await self._service.in_thread(self._engine.delete_topic, name)
        return Response(status_code=routes.NO_CONTENT)

    async def truncate(self, request: Request) -> Response:
        """POST …/topics/{topic}/truncate"""
        name = topic_of(request)
        json_parameters(request)
        name.require_writable()
        before = Position.parse((await json_body(self._service, request, _TRUNCATE)).before)
        info = await self._service.in_thread(self._engine.truncate_topic, name, before)
        return answer(routes.OK, info)

    async def erase(self, request: Request) -> Response:
        """POST …/topics/{topic}/erase"""
        name = topic_of(request)
        json_parameters(request)
        name.require_writable()
        wanted = (await json_body(self._service, request, _ERASE)).wanted()
        erased = await self._service.in_turn(self._erasing, self._engine.erase, name, *wanted)
        return answer(routes.OK, ErasedBody(erased))

    async def offsets(self, request: Request) -> Response:
        """GET …/topics/{topic}/offsets"""
        name = topic_of(request)
        given = json_parameters(request, "at", "isolation")
        at = Position.parse(given.get("at", "latest"))
        view = as_view(given.get("isolation", Isolation.COMMITTED))
        found = await self._service.in_thread(self._engine.offsets, name, at, view)
        return answer(routes.OK, OffsetsBody(found))

    async def inspect(self, request: Request) -> Response:
        """GET …/topics/{topic}/inspect"""
        name = topic_of(request)
        given = json_parameters(request, "partition", "limit")
        partition = whole_number(given, "partition", 0, 0, PARTITIONS_MAX - 1)
        limit = whole_number(given, "limit", BLOCKS_DEFAULT, 1, BLOCKS_MAX)
        found = await self._service.in_thread(self._engine.inspect, name, partition, limit)
        return answer(routes.OK, found)


async def json_body(service: Service, request: Request, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """The body of a request in strict JSON, small ones only."""
    exchange: Exchange = request.scope["tms.exchange"]
    content_type(header(exchange, b"content-type"), _JSON_ONLY)
    service.require_open()
    body = Body(service.publishing, min(BODY_BYTES_MAX, service.limits.body_bytes_max))
    try:
        await body.read(exchange)
        await body.decompress(header(exchange, b"content-encoding").lower(), service.threads)
        return decode_strict(body.data, decoder)
    finally:
        body.release()


def topic_of(request: Request) -> TopicName:
    """The topic in the path. Raises `Invalid`, `BadEncoding`."""
    given = request.path_params
    return topic_name(given["namespace"].encode(), given["topic"].encode())


def json_parameters(request: Request, *allowed: str) -> dict[str, str]:
    """The parameters, once it is clear that the answer can be JSON."""
    accepted(header(request.scope["tms.exchange"], b"accept"), _JSON_ONLY)
    return parameters(request.scope["query_string"], allowed)


def answer(status: int, value: Any) -> Response:
    """An answer in JSON."""
    return Response(bodies.encode(value), status, media_type=routes.JSON)
