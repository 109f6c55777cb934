"""The endpoints of transactions, but for the commit, and of groups' positions."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tms.api import bodies, commits, routes
from tms.api.commits import (
    BeginBody,
    PositionsBody,
    PruneBody,
    PrunedBody,
    TransactionsBody,
)
from tms.errors import Invalid
from tms.model.ids import TIME_MS_MAX
from tms.model.transaction import PositionChange, PositionKey
from tms.server.commit import transaction_id
from tms.server.groups import group_of
from tms.server.http.exchange import Exchange
from tms.server.http.request import Body, content_type, header, parameters
from tms.server.service import Service, are_quick
from tms.server.topics import answer, json_body, json_parameters, topic_of

_BEGIN = msgspec.json.Decoder(BeginBody)
_PRUNE = msgspec.json.Decoder(PruneBody)
_POSITIONS = msgspec.json.Decoder(PositionsBody)


def routes_of(service: Service) -> list[Route]:
    """The routes of transactions and positions."""
    here = TransactionEndpoints(service)
    one = routes.TRANSACTIONS + "/{id:raw}"
    staged = f"{routes.PREFIX}/{{namespace:raw}}/topics/{{topic:raw}}/staged"
    positions = f"{routes.PREFIX}/{{namespace:raw}}/topics/{{topic:raw}}/positions/{{group:raw}}"
    return [
        Route(routes.TRANSACTIONS, here.list, methods=["GET"]),
        Route(routes.TRANSACTIONS, here.begin, methods=["POST"]),
        Route(routes.TRANSACTIONS + "/prune", here.prune, methods=["POST"]),
        Route(one, here.describe, methods=["GET"]),
        Route(one, here.abort, methods=["DELETE"]),
        Route(one + "/invalidate", here.invalidate, methods=["POST"]),
        Route(staged, here.stage, methods=["POST"]),
        Route(positions, here.positions, methods=["GET"]),
        Route(positions, here.move, methods=["PUT"]),
        Route(positions, here.forget, methods=["DELETE"]),
    ]


class TransactionEndpoints:
    """Each method answers one route; what the engine may wait for is done in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transactions = service.engine.transactions

    async def list(self, request: Request) -> Response:
        """GET /v2/transactions"""
        json_parameters(request)
        found = await self._service.in_thread(self._transactions.open)
        return answer(routes.OK, TransactionsBody(found))

    async def begin(self, request: Request) -> Response:
        """POST /v2/transactions"""
        json_parameters(request)
        asked = await json_body(self._service, request, _BEGIN)
        commits.check_token(asked.token)
        info = await self._service.in_thread(
            self._transactions.begin,
            long=asked.long,
            timeout_s=asked.timeout_s,
            token=asked.token,
        )
        return answer(routes.CREATED, info)

    async def describe(self, request: Request) -> Response:
        """GET /v2/transactions/{id}"""
        json_parameters(request)
        info = await self._service.in_thread(self._transactions.describe, _id(request))
        return answer(routes.OK, info)

    async def abort(self, request: Request) -> Response:
        """DELETE /v2/transactions/{id}"""
        json_parameters(request)
        info = await self._service.in_thread(self._transactions.abort, _id(request))
        return answer(routes.OK, info)

    async def invalidate(self, request: Request) -> Response:
        """POST /v2/transactions/{id}/invalidate"""
        json_parameters(request)
        info = await self._service.in_thread(self._transactions.invalidate, _id(request))
        return answer(routes.OK, info)

    async def prune(self, request: Request) -> Response:
        """POST /v2/transactions/prune"""
        json_parameters(request)
        asked = await json_body(self._service, request, _PRUNE)
        if not 0 <= asked.before_ms <= TIME_MS_MAX:
            raise Invalid("before_ms is a time in milliseconds since 1970.", field="before_ms")
        pruned = await self._service.in_thread(self._transactions.prune, asked.before_ms)
        return answer(routes.OK, PrunedBody(pruned))

    async def stage(self, request: Request) -> Response:
        """POST …/topics/{topic}/staged?transaction=ID: blocks that its commit will name."""
        name = topic_of(request)
        exchange: Exchange = request.scope["tms.exchange"]
        asked = parameters(exchange.scope["query_string"], ("transaction",)).get("transaction")
        id = transaction_id(asked or "")
        content_type(header(exchange, b"content-type"), (routes.BLOCKS,))
        service = self._service
        service.require_open()
        body = Body(service.publishing, service.limits.body_bytes_max)
        try:
            await body.read(exchange)
            await body.decompress(header(exchange, b"content-encoding").lower(), service.threads)
            service.metrics.bytes_in += len(body.data)
            blocks = bodies.unframe_new(body.data)
            info = await service.in_thread(self._transactions.describe, id)
            stage = self._transactions.stage
            if info.outcome != "open":
                raise self._transactions.manager.why_not_open(id)
            if are_quick(blocks):
                await service.in_thread(stage, name, blocks, id)
            else:
                await service.in_turn(service.checking, stage, name, blocks, id)
        finally:
            body.release()
        return Response(status_code=routes.NO_CONTENT)

    async def positions(self, request: Request) -> Response:
        """GET …/topics/{topic}/positions/{group}"""
        name, group = topic_of(request), group_of(request)
        json_parameters(request)
        found = await self._service.in_thread(self._transactions.positions, group, name)
        return answer(routes.OK, PositionsBody({str(p): str(at) for p, at in found.items()}))

    async def move(self, request: Request) -> Response:
        """PUT …/topics/{topic}/positions/{group}"""
        name, group = topic_of(request), group_of(request)
        json_parameters(request)
        asked = await json_body(self._service, request, _POSITIONS)
        await self._service.in_thread(self._service.engine.settings, name)
        changes = [
            PositionChange(
                PositionKey(group, name, p),
                at,
                asked.expected.get(str(p)),
                commits.owner_of(asked.owners.get(str(p))),
            )
            for p, at in commits.positions_of(asked.positions).items()
        ]
        await self._service.in_thread(self._transactions.move, changes)
        return answer(routes.OK, PositionsBody(asked.positions))

    async def forget(self, request: Request) -> Response:
        """DELETE …/topics/{topic}/positions/{group}"""
        name, group = topic_of(request), group_of(request)
        json_parameters(request)
        await self._service.in_thread(self._service.engine.settings, name)
        await self._service.in_thread(self._transactions.forget_positions, group, name)
        return Response(status_code=routes.NO_CONTENT)


def _id(request: Request) -> int:
    text: Any = request.path_params["id"]
    return transaction_id(text)
