"""The endpoints of operating: liveness, readiness, metrics, the OpenAPI document, and `/`."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import tms
from tms.api import bodies, routes
from tms.api.bodies import ReadinessBody, RootBody
from tms.api.openapi import document as openapi
from tms.server.metrics import GROUP_PARTITIONS_MAX
from tms.server.service import Service

_LINKS = {
    "topics": routes.topics_path("default"),
    "openapi": routes.OPENAPI,
    "metrics": routes.METRICS,
    "live": routes.LIVEZ,
    "ready": routes.READYZ,
}
PATHS = frozenset(("/", routes.LIVEZ, routes.READYZ, routes.METRICS, routes.OPENAPI))


def routes_of(service: Service) -> list[Route]:
    """The routes of operating."""

    async def root(request: Request) -> Response:
        body = bodies.encode(RootBody("TMS", tms.__version__, _LINKS))
        return Response(body, media_type=routes.JSON)

    async def live(request: Request) -> Response:
        return Response(bodies.encode(ReadinessBody(True, [])), media_type=routes.JSON)

    async def ready(request: Request) -> Response:
        reasons = service.reasons()
        warnings = service.engine.warnings()
        body = bodies.encode(ReadinessBody(not reasons, reasons, warnings))
        status = routes.NOT_READY if reasons else routes.OK
        return Response(body, status, media_type=routes.JSON)

    async def metrics(request: Request) -> Response:
        groups = service.engine.groups
        service.metrics.groups = await service.in_thread(groups.all, GROUP_PARTITIONS_MAX)
        body, media = service.metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media})

    async def document(request: Request) -> Response:
        body = msgspec.json.format(bodies.encode(openapi.document(tms.__version__)), indent=1)
        return Response(body, media_type=routes.JSON)

    return [
        Route("/", root, methods=["GET"]),
        Route(routes.LIVEZ, live, methods=["GET"]),
        Route(routes.READYZ, ready, methods=["GET"]),
        Route(routes.METRICS, metrics, methods=["GET"]),
        Route(routes.OPENAPI, document, methods=["GET"]),
    ]
