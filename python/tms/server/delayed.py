"""POST …/delayed?delay_s=…|deliver_at_ms=…: messages or blocks that are due later."""

from collections.abc import Sequence
from itertools import count

from tms.api import bodies, delayed, messages, routes
from tms.api.delayed import DeferredBody
from tms.api.parameters import DelayQuery
from tms.errors import IdempotencyKeyReused, PartitionNotFound
from tms.model.delayed import Deferred, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName
from tms.server.http.exchange import Exchange
from tms.server.http.request import Body, query_of, writable_topic
from tms.server.idempotency import idempotency_key, producer_id, turn_of
from tms.server.new_messages import Parser, brought
from tms.server.operations import UNPACKED_FACTOR
from tms.server.problems import JSON_HEAD
from tms.server.service import Service, are_quick


class DelayedPublishing:
    """Answers publishes of messages that are due later."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turns = count()

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what was wrong; nothing is stored then."""
        name = writable_topic(*varying)
        due, durability = _due(exchange)
        read, _ = brought(exchange.headers)
        key = idempotency_key(exchange) if b"idempotency-key" in exchange.headers else ""
        service = self._service
        async with service.received(exchange) as body:
            service.metrics.bytes_in += len(body.data)
            if read is None:
                blocks = bodies.unframe_new(body.data)
                deferred = await self._store(name, blocks, due, durability, key)
                answer = bodies.encode(DeferredBody(deferred))
            else:
                packed, deferred = await self._pack_and_store(
                    name, body, read, (due, durability, key)
                )
                answer = delayed.placed(packed, deferred)
        await service.respond(exchange, routes.OK, JSON_HEAD, answer)

    async def _store(
        self,
        name: TopicName,
        blocks: list[NewBlock],
        due: Due,
        durability: Durability | None,
        key: str,
    ) -> list[Deferred]:
        service, submit = self._service, self._service.engine.delayed.submit
        if are_quick(blocks):
            pending = submit(name, blocks, due, durability, key)
        else:
            turn = service.checking
            pending = await service.in_turn(turn, submit, name, blocks, due, durability, key)
        (deferred,) = await service.outcome(pending)
        return deferred

    async def _pack_and_store(
        self, name: TopicName, body: Body, read: Parser, how: tuple[Due, Durability | None, str]
    ) -> tuple[messages.PackedRequest, list[Deferred]]:
        """Store messages. Under a key they may be there already, for as many partitions as the
        topic had then."""
        service, key = self._service, how[-1]
        settings = service.engine.settings(name)
        turn = turn_of(producer_id(key)) if key else next(self._turns)
        counts = service.engine.growth(name)[1] if key else (settings.partitions,)
        await body.reserve(UNPACKED_FACTOR * len(body.data))

        def pack(partitions: int) -> messages.PackedRequest:
            return messages.pack(read(body.data), partitions, turn % partitions, settings)

        refused: IdempotencyKeyReused | None = None
        for partitions in counts:
            try:
                packed = await service.in_turn(service.checking, pack, partitions)
                if not packed.blocks:
                    return packed, []
                return packed, await self._store(name, packed.blocks, *how)
            except IdempotencyKeyReused as error:
                refused = refused or error
            except PartitionNotFound:
                if refused is None:
                    raise
        assert refused is not None
        raise refused


def _due(exchange: Exchange) -> tuple[Due, Durability | None]:
    query = query_of(exchange.query, DelayQuery)
    delay_ms = None if query.delay_s is None else round(query.delay_s * 1_000)
    return Due(query.deliver_at_ms, delay_ms), query.durability
