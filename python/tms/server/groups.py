"""The endpoints of log groups: a member's poll, leaving, and how groups stand."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tms.api import groups, routes
from tms.api.groups import GroupsBody, PollBody
from tms.model.group import SESSION_S, check_group, check_member
from tms.server.http.request import path_text
from tms.server.service import Service
from tms.server.topics import answer, json_body, json_parameters, topic_of

_POLL = msgspec.json.Decoder(PollBody)


def routes_of(service: Service) -> list[Route]:
    """The routes of log groups."""
    here = Groups(service)
    listing = f"{routes.PREFIX}/{{namespace:raw}}/topics/{{topic:raw}}/groups"
    group = listing + "/{group:raw}"
    member = group + "/members/{member:raw}"
    return [
        Route(listing, here.list, methods=["GET"]),
        Route(group, here.describe, methods=["GET"]),
        Route(member, here.poll, methods=["POST"]),
        Route(member, here.leave, methods=["DELETE"]),
    ]


class Groups:
    """Each method answers one route; what the engine may wait for is done in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._groups = service.engine.groups

    async def list(self, request: Request) -> Response:
        """GET …/topics/{topic}/groups"""
        name = topic_of(request)
        json_parameters(request)
        found = await self._service.in_thread(self._groups.of, name)
        return answer(routes.OK, GroupsBody(found))

    async def describe(self, request: Request) -> Response:
        """GET …/topics/{topic}/groups/{group}"""
        name, group = topic_of(request), group_of(request)
        json_parameters(request)
        return answer(routes.OK, await self._service.in_thread(self._groups.describe, group, name))

    async def poll(self, request: Request) -> Response:
        """POST …/topics/{topic}/groups/{group}/members/{member}"""
        name, group, member = topic_of(request), group_of(request), _member(request)
        json_parameters(request)
        asked = await json_body(self._service, request, _POLL)
        standing = await self._service.in_thread(
            self._groups.poll,
            group,
            name,
            member,
            asked.session_s,
            groups.holding_of(asked.holding),
            reading=asked.reading,
        )
        return answer(routes.OK, groups.standing_body(standing))

    async def leave(self, request: Request) -> Response:
        """DELETE …/topics/{topic}/groups/{group}/members/{member}"""
        name, group, member = topic_of(request), group_of(request), _member(request)
        json_parameters(request)
        await self._service.in_thread(
            self._groups.poll, group, name, member, SESSION_S, {}, leaving=True
        )
        return Response(status_code=routes.NO_CONTENT)


def group_of(request: Request) -> str:
    """The group in the path. Raises `Invalid`, `BadEncoding`."""
    return check_group(path_text(request.path_params["group"].encode()))


def _member(request: Request) -> str:
    return check_member(path_text(request.path_params["member"].encode()))
