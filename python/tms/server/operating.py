"""Operations of operators on the service itself: liveness, start, readiness, metrics, the OpenAPI
document, and `/`."""

import asyncio
from collections.abc import Sequence

import msgspec

from tms.api import bodies, openapi, routes
from tms.api.bodies import LivenessBody, ReadinessBody, RootBody, StartedBody
from tms.api.operations import OPERATIONS
from tms.runtime.version import VERSION
from tms.server.http.exchange import Exchange
from tms.server.http.request import header
from tms.server.metrics import POSITIONS_LOOKED_MAX, QUEUES_SHOWN
from tms.server.problems import JSON_HEAD
from tms.server.router import Route
from tms.server.service import Service

LOOK_S = 3.0
_LINKS = {
    "topics": f"{routes.PREFIX}/default/topics",
    "openapi": routes.OPENAPI,
    "metrics": routes.METRICS,
    "live": routes.LIVEZ,
    "started": routes.STARTUPZ,
    "ready": routes.READYZ,
}


class _Looks:
    """The metrics of groups and queues, which may read the store: one look at a time, and no scrape
    waits longer than `LOOK_S`. After that a scrape gets the result of the last look, so that an
    unreachable store does not delay all other metrics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._look: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Look, or wait for the look that is under way."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._see())
        done, _ = await asyncio.wait([self._look], timeout=LOOK_S)
        for look in done:
            look.result()

    async def _see(self) -> None:
        service = self._service
        engine, metrics = service.engine, service.metrics
        find, oldest = engine.groups.lags_here, engine.queues.oldest
        metrics.groups, metrics.groups_unseen = await service.in_thread(find, POSITIONS_LOOKED_MAX)
        metrics.waiting = await service.in_thread(oldest, QUEUES_SHOWN)


def routes_of(service: Service) -> list[Route]:
    """The routes of operating."""

    async def root(exchange: Exchange, _: Sequence[bytes]) -> None:
        body = bodies.encode(RootBody("TMS", VERSION, _LINKS))
        await service.respond(exchange, routes.OK, JSON_HEAD, body)

    async def live(exchange: Exchange, _: Sequence[bytes]) -> None:
        await service.respond(exchange, routes.OK, JSON_HEAD, bodies.encode(LivenessBody(True)))

    async def started(exchange: Exchange, _: Sequence[bytes]) -> None:
        await service.respond(exchange, routes.OK, JSON_HEAD, bodies.encode(StartedBody(True, [])))

    async def ready(exchange: Exchange, _: Sequence[bytes]) -> None:
        reasons = service.reasons()
        issuer = [] if service.issuer is None else service.issuer.warnings()
        cluster = service.engine.cluster
        clocks = [] if cluster is None else cluster.skews.warnings()
        warnings = [*service.warnings, *issuer, *clocks, *service.engine.warnings()]
        body = ReadinessBody(not reasons, reasons, warnings)
        status = routes.NOT_READY if reasons else routes.OK
        await service.respond(exchange, status, JSON_HEAD, bodies.encode(body))

    looks = _Looks(service)

    async def metrics(exchange: Exchange, _: Sequence[bytes]) -> None:
        await looks.refresh()
        body, media = service.metrics.exposition(header(exchange, b"accept"))
        await service.respond(exchange, routes.OK, f"content-type: {media}\r\n".encode(), body)

    async def document(exchange: Exchange, _: Sequence[bytes]) -> None:
        page = openapi.document(VERSION, service.guard is not None)
        body = msgspec.json.format(bodies.encode(page), indent=1)
        await service.respond(exchange, routes.OK, JSON_HEAD, body)

    answers = {"root": root, "live": live, "started": started, "ready": ready}
    answers |= {"metrics": metrics, "openapi": document}
    return [Route(OPERATIONS[f"service.{name}"], answer) for name, answer in answers.items()]
