"""The endpoints of delayed messages."""

import asyncio
from itertools import count

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tms.api import bodies, delayed, messages, routes
from tms.api.bodies import PublishBody
from tms.api.delayed import CancelledBody, DeferredBody
from tms.api.strict import decode_strict
from tms.errors import IdempotencyKeyReused, Invalid, PartitionNotFound
from tms.model.delayed import Deferred, DelayedId, Due
from tms.model.ids import TIME_MS_MAX
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, parse_durability
from tms.server.http.exchange import Exchange
from tms.server.http.request import (
    Body,
    content_type,
    header,
    parameters,
    path_text,
    received,
    whole_number,
)
from tms.server.idempotency import producer_id
from tms.server.service import Service, are_quick
from tms.server.topics import answer, json_parameters, topic_of

LIST_DEFAULT, LIST_MAX = 100, 1_000
_READABLE = (routes.JSON, routes.BLOCKS)
_PUBLISH = msgspec.json.Decoder(PublishBody)
_UNPACKED_FACTOR = 4  # JSON as Python strings takes up to this many times its size


def routes_of(service: Service) -> list[Route]:
    """The routes of delayed messages."""
    here = DelayedEndpoints(service)
    path = f"{routes.PREFIX}/{{namespace:raw}}/topics/{{topic:raw}}/delayed"
    return [
        Route(path, here.look, methods=["GET"]),
        Route(path, here.publish, methods=["POST"]),
        Route(path + "/{id:raw}", here.cancel, methods=["DELETE"]),
    ]


class DelayedEndpoints:
    """Each method answers one route; what the engine may wait for is done in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._delayed = service.engine.delayed
        self._turns = count()
        self._looking = asyncio.Lock()

    async def publish(self, request: Request) -> Response:
        """POST …/delayed?delay_ms=…|deliver_at_ms=…: messages in JSON, or blocks."""
        name = topic_of(request)
        exchange: Exchange = request.scope["tms.exchange"]
        due, durability = _asked(exchange.scope["query_string"])
        media = content_type(header(exchange, b"content-type"), _READABLE)
        key = _idempotency_key(exchange)
        name.require_writable()
        service = self._service
        service.require_open()
        limit = service.limits.body_bytes_max
        async with received(exchange, service.publishing, limit, service.threads) as body:
            service.metrics.bytes_in += len(body.data)
            if media == routes.BLOCKS:
                blocks = bodies.unframe_new(body.data)
                deferred = await self._store(name, blocks, due, durability, key)
                return answer(routes.OK, DeferredBody(deferred))
            packed, deferred = await self._pack_and_store(name, body, due, durability, key)
            return Response(delayed.placed(packed, deferred), media_type=routes.JSON)

    async def look(self, request: Request) -> Response:
        """GET …/delayed"""
        name = topic_of(request)
        given = json_parameters(request, "after", "limit")
        limit = whole_number(given, "limit", LIST_DEFAULT, 0, LIST_MAX)
        after = DelayedId.parse(given["after"]) if "after" in given else None

        def found() -> delayed.WaitingBody:
            info = self._delayed.info(name)
            shown = self._delayed.messages(name, after, limit) if limit else []
            return delayed.waiting_body(info, shown)

        return answer(routes.OK, await self._service.in_turn(self._looking, found))

    async def cancel(self, request: Request) -> Response:
        """DELETE …/delayed/{id}"""
        name = topic_of(request)
        json_parameters(request)
        id = DelayedId.parse(path_text(request.path_params["id"].encode()))
        self._service.require_open()
        timeout_s = self._service.limits.publish_timeout_s
        done = await self._service.in_thread(self._delayed.cancel, name, id, timeout_s)
        return answer(routes.OK, CancelledBody(done))

    async def _store(
        self,
        name: TopicName,
        blocks: list[NewBlock],
        due: Due,
        durability: Durability | None,
        key: str,
    ) -> list[Deferred]:
        service, submit = self._service, self._delayed.submit
        if are_quick(blocks):
            pending = submit(name, blocks, due, durability, key)
        else:
            turn = service.checking
            pending = await service.in_turn(turn, submit, name, blocks, due, durability, key)
        (deferred,) = await service.outcome(pending)
        return deferred

    async def _pack_and_store(
        self, name: TopicName, body: Body, due: Due, durability: Durability | None, key: str
    ) -> tuple[messages.PackedRequest, list[Deferred]]:
        """Store JSON. Under a key it may be there already, for as many partitions as the topic had
        then."""
        service = self._service
        settings = service.engine.settings(name)
        turn = producer_id(key) if key else next(self._turns)
        counts = service.engine.growth(name)[1] if key else (settings.partitions,)
        await body.reserve(_UNPACKED_FACTOR * len(body.data))

        def pack(partitions: int) -> messages.PackedRequest:
            asked = decode_strict(body.data, _PUBLISH).messages
            return messages.pack(asked, partitions, turn % partitions, settings.message_bytes_max)

        refused: IdempotencyKeyReused | None = None
        for partitions in counts:
            try:
                packed = await service.in_turn(service.checking, pack, partitions)
                return packed, await self._store(name, packed.blocks, due, durability, key)
            except IdempotencyKeyReused as error:
                refused = refused or error
            except PartitionNotFound:
                if refused is None:
                    raise
        assert refused is not None
        raise refused


def _asked(query: bytes) -> tuple[Due, Durability | None]:
    given = parameters(query, ("delay_ms", "deliver_at_ms", "durability"))
    times = {
        name: whole_number(given, name, 0, 0, TIME_MS_MAX) if name in given else None
        for name in ("deliver_at_ms", "delay_ms")
    }
    text = given.get("durability")
    return Due(*times.values()), None if text is None else parse_durability(text)


def _idempotency_key(exchange: Exchange) -> str:
    """The key of a request, empty when there is none. Raises `Invalid`."""
    keys = [value for name, value in exchange.scope["headers"] if name == b"idempotency-key"]
    if not keys:
        return ""
    if len(keys) > 1:
        raise Invalid("Idempotency-Key is given twice.", header="Idempotency-Key")
    key = str(keys[0].decode("latin-1").strip())
    producer_id(key)
    return key
