"""PUT, PATCH, GET and DELETE of queues."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tms.api import routes
from tms.api.queues import QueuesBody, QueueSettingsBody, queue_body
from tms.errors import Invalid, QueueNotFound
from tms.model.topic import TopicName
from tms.model.transaction import check_group
from tms.server.http.request import path_text
from tms.server.service import Service
from tms.server.topics import answer, json_body, json_parameters, topic_of

_SETTINGS = msgspec.json.Decoder(QueueSettingsBody)


def routes_of(service: Service) -> list[Route]:
    """The routes of queues, but for their messages."""
    here = QueueEndpoints(service)
    listing = f"{routes.PREFIX}/{{namespace:raw}}/topics/{{topic:raw}}/queues"
    queue = listing + "/{group:raw}"
    return [
        Route(listing, here.list, methods=["GET"]),
        Route(queue, here.declare, methods=["PUT"]),
        Route(queue, here.describe, methods=["GET"]),
        Route(queue, here.update, methods=["PATCH"]),
        Route(queue, here.delete, methods=["DELETE"]),
    ]


class QueueEndpoints:
    """Each method answers one route; what the engine may wait for is done in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._queues = service.engine.queues

    async def list(self, request: Request) -> Response:
        """GET …/topics/{topic}/queues"""
        name = topic_of(request)
        json_parameters(request)
        found = await self._service.in_thread(self._queues.list_queues, name)
        return answer(routes.OK, QueuesBody([queue_body(info) for info in found]))

    async def declare(self, request: Request) -> Response:
        """PUT …/queues/{group}"""
        group, name = _queue(request)
        name.require_writable()
        settings = (await json_body(self._service, request, _SETTINGS)).settings()
        try:
            await self._service.in_thread(self._queues.describe, group, name)
            status = routes.OK
        except QueueNotFound:
            status = routes.CREATED
        info = await self._service.in_thread(self._queues.declare, group, name, settings)
        return answer(status, queue_body(info))

    async def describe(self, request: Request) -> Response:
        """GET …/queues/{group}"""
        group, name = _queue(request)
        info = await self._service.in_thread(self._queues.describe, group, name)
        return answer(routes.OK, queue_body(info))

    async def update(self, request: Request) -> Response:
        """PATCH …/queues/{group}"""
        group, name = _queue(request)
        name.require_writable()
        changes = (await json_body(self._service, request, _SETTINGS)).changes()
        if not changes:
            raise Invalid("The body changes nothing; name at least one setting.")
        info = await self._service.in_thread(self._queues.update, group, name, changes)
        return answer(routes.OK, queue_body(info))

    async def delete(self, request: Request) -> Response:
        """DELETE …/queues/{group}"""
        group, name = _queue(request)
        await self._service.in_thread(self._queues.delete, group, name)
        return Response(status_code=routes.NO_CONTENT)


def _queue(request: Request) -> tuple[str, TopicName]:
    json_parameters(request)
    return check_group(path_text(request.path_params["group"].encode())), topic_of(request)
