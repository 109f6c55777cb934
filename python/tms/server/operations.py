"""Answers operations as they are declared: path, query and body are read strictly, the engine does
the work in a thread, and its result goes out as JSON.

* A request that can be refused without its body is refused before the body is read.
* Access to topics that an operation names beside its own resource is checked, too.
* The event loop itself settles tokens for a sole client, if the queue is at rest.
* A large body is read when it is its turn, in a thread, and memory for what is made of it is
  reserved. So is the turn of an operation that is declared `alone`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from tms.access.decisions import topic_resource
from tms.api import bodies, commits, routes
from tms.api.commits import MovesBody, PositionsBody
from tms.api.erasing import EraseBody, ErasedBody
from tms.api.operation import Operation, Resource
from tms.api.operations import OPERATIONS
from tms.api.queue_operations import QueuesApi
from tms.api.strict import decode_strict
from tms.engine.engine import Engine
from tms.errors import QueueNotFound, TopicNotFound
from tms.model.access import Access, NewToken
from tms.model.delayed import DelayedId
from tms.model.message import Buffer
from tms.model.queue import QueueSettings
from tms.model.topic import TopicName, TopicSettings
from tms.runtime.decoding import json_decoder
from tms.server import instances, listing
from tms.server.front import Front
from tms.server.http.exchange import Exchange
from tms.server.http.request import (
    accepted,
    content_type,
    parameters,
    path_arguments,
)
from tms.server.problems import JSON_HEAD
from tms.server.router import Route
from tms.server.service import Service

JSON_ONLY = (routes.JSON,)
INLINE_BYTES = 32 << 10  # a body up to this size is read by the event loop itself
UNPACKED_FACTOR = 4  # JSON as Python objects takes up to this many times its size
_Work = Callable[..., Any]
_Others = Callable[..., Iterable[tuple[Access, TopicName]]]


class OperationEndpoint:
    """Answers one operation."""

    def __init__(
        self,
        service: Service,
        operation: Operation,
        work: _Work,
        others: _Others | None,
        at_rest: Callable[..., object] | None,
    ) -> None:
        self._service = service
        self._operation = operation
        self._work = work
        self._others = others
        manages = operation.access is Access.MANAGE and operation.method != "GET"
        self._writes = manages and operation.on in (Resource.TOPIC, Resource.QUEUE)
        self._is_noted = operation.api == "access" and operation.method != "GET"
        self._at_rest = at_rest  # true of a queue at rest; None: its work may wait
        query, body = operation.form.query, operation.form.body.get(routes.JSON)
        self._parameters = () if query is None else query.__struct_fields__
        self._decoder = None if body is None else json_decoder(body)
        self._alone = asyncio.Lock() if operation.alone else None

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what was wrong."""
        operation = self._operation
        arguments = {**path_arguments(operation, tuple(varying))}
        accepted(exchange.headers.get(b"accept", b""), JSON_ONLY)
        if exchange.query or self._parameters:
            arguments |= operation.in_query(parameters(exchange.query, self._parameters))
        if operation.caller is not None:
            arguments[operation.caller] = exchange.principal
        if operation.shown is not None:
            arguments[operation.shown] = exchange.credential
        if operation.lists is not None:
            arguments["sees"] = exchange.sees or listing.everything
        if self._writes:
            name: TopicName = arguments.get("name") or arguments["topic"]
            name.require_writable()
        if self._decoder is None:
            result = await self._do(lambda: self._run(exchange, arguments))
        else:
            content_type(exchange.headers.get(b"content-type", b""), JSON_ONLY)
            body = None
            inline_sync = self._service.inline_sync
            at_rest = self._at_rest
            if at_rest is not None and inline_sync.may_sync(exchange, 1):
                body = self._service.small_body(exchange) if at_rest(**arguments) else None
            if body is not None:
                result = inline_sync.sync(partial(self._run_body, exchange, arguments, body))
            else:
                result = await self._with_body(exchange, arguments)
        await self._respond(exchange, result)

    async def _with_body(self, exchange: Exchange, arguments: dict[str, Any]) -> Any:
        operation, service = self._operation, self._service
        async with service.received(exchange, operation.body_bytes_max) as body:
            work = partial(self._run_body, exchange, arguments, body.data)
            if len(body.data) <= INLINE_BYTES:
                return await self._do(work)
            await body.reserve(UNPACKED_FACTOR * len(body.data))
            if operation.on is Resource.INSTANCE:
                return await service.for_peer(work)
            return await service.in_turn(service.checking, work)

    def _run_body(self, exchange: Exchange, arguments: dict[str, Any], body: Buffer) -> Any:
        assert self._decoder is not None, "only operations with a body have a decoder"
        whole = arguments | self._operation.in_body(decode_strict(body, self._decoder))
        if self._others is None and not self._is_noted:
            return self._work(**whole)
        return self._run(exchange, whole)

    def _run(self, exchange: Exchange, arguments: dict[str, Any]) -> Any:
        """Do the work, if the principal may do that with the other topics that it concerns, and
        write down how it changed access. Raises `Forbidden`."""
        guard = self._service.guard
        if guard is not None and self._others is not None:
            for verb, name in self._others(**arguments):
                guard.decisions.require(exchange, verb, topic_resource(name))
        result = self._work(**arguments)
        if guard is not None and self._is_noted:
            made = {"id": result.id} if isinstance(result, NewToken) else {}
            shown = exchange.credential
            by = {"session": shown.session} if shown is not None and shown.session else {}
            filled = (self._operation.caller, self._operation.shown)
            details = {key: value for key, value in arguments.items() if key not in filled}
            guard.decisions.write_change(exchange, details | made | by)
        return result

    async def _do(self, work: Callable[[], Any]) -> Any:
        if self._operation.on is Resource.INSTANCE:
            return await self._service.for_peer(work)
        if self._alone is None:
            return await self._service.in_thread(work)
        return await self._service.in_turn(self._alone, work)

    async def _respond(self, exchange: Exchange, result: Any) -> None:
        status = self._operation.statuses[0]
        if isinstance(result, _Made):
            status, result = routes.CREATED if result.new else routes.OK, result.value
        codec = self._operation.answer
        if status == routes.NO_CONTENT:
            exchange.respond(status, b"")
            return
        if codec is not None and not self._operation.by_hand:
            result = codec.encode(result)
        if exchange.coding is None:
            exchange.respond(status, JSON_HEAD, bodies.encode(result))
        else:
            await self._service.respond(exchange, status, JSON_HEAD, bodies.encode(result))


_RESTING = ("queues.ack", "queues.nack", "queues.release", "queues.extend")


def routes_of(service: Service, fronts: Sequence[Front] = ()) -> list[Route]:
    """The routes of all operations that need no function of their own."""
    works = _works_of(service)
    for front in fronts:
        works |= front.works
    queues = service.engine.queues
    resting = dict.fromkeys(_RESTING, queues.at_rest)
    others = others_of(queues)
    return [
        Route(
            operation,
            OperationEndpoint(service, operation, works[name], others.get(name), resting.get(name)),
        )
        for name, operation in OPERATIONS.items()
        if name in works
    ]


def others_of(queues: QueuesApi) -> dict[str, _Others]:
    """The topics that an operation concerns beside the resource it declares, each with the verb
    that it takes there. Topics of a commit are asked for by `AccessDecisions.require_commit`."""

    def chosen(
        topic: TopicName, group: str, dead_letter: str
    ) -> Iterable[tuple[Access, TopicName]]:
        """Dead letters are published, and their topic is made."""
        try:
            before = queues.describe(topic, group).settings.dead_letter
        except (QueueNotFound, TopicNotFound):
            before = ""
        if dead_letter not in ("", before):
            yield Access.PUBLISH, TopicName.parse(dead_letter)

    def declared(
        topic: TopicName, group: str, settings: QueueSettings
    ) -> Iterable[tuple[Access, TopicName]]:
        return chosen(topic, group, settings.dead_letter)

    def updated(
        topic: TopicName, group: str, changes: Mapping[str, object]
    ) -> Iterable[tuple[Access, TopicName]]:
        dead_letter = changes.get("dead_letter")
        return chosen(topic, group, dead_letter if isinstance(dead_letter, str) else "")

    def redriven(topic: TopicName, group: str, **_: Any) -> Iterable[tuple[Access, TopicName]]:
        """Dead letters are read, or leave the queue."""
        dead_letter = queues.describe(topic, group).settings.dead_letter
        if dead_letter:
            yield Access.CONSUME, TopicName.parse(dead_letter)

    return {
        "queues.declare": declared,
        "queues.update": updated,
        "queues.redrive": redriven,
        "queues.discard": redriven,
    }


class _Made:
    """The result of an operation that creates, and whether it is new."""

    def __init__(self, value: Any, new: bool) -> None:
        self.value = value
        self.new = new


def _works_of(service: Service) -> dict[str, _Work]:
    """The function of each operation: the engine's method of that name, or a function around it."""
    engine = service.engine
    ports = {"topics": engine, **instances.works_of(service)}

    works = {
        name: _work_of(ports, engine, operation)
        for name, operation in OPERATIONS.items()
        if operation.api != "service" and not operation.by_hand
        # A front end does the others.
        if operation.api != "peers" or hasattr(ports["peers"], operation.function)
    }
    around = _Around(engine, service.limits.publish_timeout_s)
    return (
        works
        | listing.works_of(service)
        | {
            "topics.create_topic": around.create_topic,
            "topics.erase": around.erase,
            "queues.declare": around.declare_queue,
            "groups.move": around.move,
            "groups.forget_positions": around.forget_positions,
            "delayed.cancel": around.cancel,
        }
    )


def _work_of(ports: Mapping[str, object], engine: Engine, operation: Operation) -> _Work:
    """The function of a port of the service or of the engine. The engine's port of transactions is
    another one each time that it begins to coordinate them."""
    if operation.api == "transactions":
        of_engine = attrgetter(f"transactions.{operation.function}")
        return lambda **arguments: of_engine(engine)(**arguments)
    port = ports[operation.api] if operation.api in ports else getattr(engine, operation.api)
    work: _Work = getattr(port, operation.function)
    return work


class _Around:
    """Operations that take more than one call of the engine."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s

    def create_topic(self, name: TopicName, settings: TopicSettings) -> _Made:
        """A topic, and whether it is new."""
        try:
            self._engine.describe_topic(name)
        except TopicNotFound:
            return _Made(self._engine.create_topic(name, settings), True)
        return _Made(self._engine.create_topic(name, settings), False)

    def declare_queue(self, topic: TopicName, group: str, settings: QueueSettings) -> _Made:
        """A queue, and whether it is new."""
        queues = self._engine.queues
        try:
            queues.describe(topic, group)
        except QueueNotFound:
            return _Made(queues.declare(topic, group, settings), True)
        return _Made(queues.declare(topic, group, settings), False)

    def erase(self, name: TopicName, body: EraseBody) -> ErasedBody:
        """Messages of a key, or one with an id."""
        return ErasedBody(self._engine.erase(name, *body.wanted()))

    def move(self, topic: TopicName, group: str, body: MovesBody) -> PositionsBody:
        """Positions of a group in a topic that exists."""
        self._engine.settings(topic)
        self._engine.groups.move(commits.decode_moves(topic, group, body))
        return PositionsBody(
            {p: at if isinstance(at, str) else at.position for p, at in body.positions.items()}
        )

    def forget_positions(
        self,
        topic: TopicName,
        group: str,
        partitions: list[int] | None = None,
        expected: Mapping[int, str] | None = None,
    ) -> None:
        """Those of a group in a topic that exists."""
        self._engine.settings(topic)
        self._engine.groups.forget_positions(topic, group, partitions, expected)

    def cancel(self, name: TopicName, id: DelayedId) -> bool:
        """A delayed message, within the time of a publish."""
        return self._engine.delayed.cancel(name, id, self._timeout_s)
