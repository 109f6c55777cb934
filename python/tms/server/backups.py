"""GET /v2/backups/{id}/bytes: a piece of a file of a backup."""

from collections.abc import Sequence

from tms.api import routes
from tms.api.backups import ChunkQuery
from tms.api.operations import OPERATIONS
from tms.server.http.exchange import Exchange
from tms.server.http.request import accepted, path_text, query_of
from tms.server.router import Route
from tms.server.service import Service

_BYTES_ONLY = (routes.BYTES,)
_HEAD = f"content-type: {routes.BYTES}\r\n".encode()


def routes_of(service: Service) -> list[Route]:
    """The route of reading a backup; its pieces count as answers of fetches in memory."""

    async def answer(exchange: Exchange, varying: Sequence[bytes]) -> None:
        query = query_of(exchange.query, ChunkQuery)
        accepted(exchange.headers.get(b"accept", b""), _BYTES_ONLY)
        id = path_text(varying[0])
        images = service.engine.backups
        await service.fetching.claim(query.bytes_max)
        try:
            read = images.read
            chunk = await service.in_thread(read, id, query.file, query.start, query.bytes_max)
            await service.respond(exchange, routes.OK, _HEAD, chunk)
        finally:
            service.fetching.release(query.bytes_max)

    return [Route(OPERATIONS["backups.read"], answer)]
