"""POST …/staged: blocks of a transaction, stored unseen until its commit names them."""

from collections.abc import Sequence

from tms.api import bodies, routes
from tms.api.parameters import StageQuery
from tms.server.http.exchange import Exchange
from tms.server.http.request import content_type, query_of, topic_name
from tms.server.service import Service, are_quick

_BLOCKS_ONLY = (routes.BLOCKS,)


class Staging:
    """Answers requests that stage."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what was wrong; nothing of the request is stored then."""
        service, name = self._service, topic_name(*varying)
        id = query_of(exchange.query, StageQuery).transaction
        content_type(exchange.headers.get(b"content-type", b""), _BLOCKS_ONLY)
        async with service.received(exchange) as body:
            service.metrics.bytes_in += len(body.data)
            blocks = bodies.unframe_new(body.data)
            transactions = service.engine.transactions
            info = await service.in_thread(transactions.describe, id)
            if service.guard is not None:
                service.guard.decisions.require_own(exchange, id, info.client)
            if info.outcome != "open":
                raise transactions.manager.state.why_not_open(id)
            stage = transactions.stage
            if are_quick(blocks):
                await service.in_thread(stage, name, blocks, id)
            else:
                await service.in_turn(service.checking, stage, name, blocks, id)
        exchange.respond(routes.NO_CONTENT, b"")
