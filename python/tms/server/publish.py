"""POST …/messages: blocks as a producer packed them, or messages in JSON and as CloudEvents.

* Memory for the body is reserved before it is read; blocks are views of the body, and the engine
  fills in their headers where they stand.
* A publish that the engine finishes at once never leaves the event loop's thread, unless checking
  it takes long: such ones are checked by another thread, one at a time.
* All messages of a request are checked before one is stored.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import count
from typing import NamedTuple

import msgspec

from tms.api import bodies, messages, routes
from tms.api.bodies import AppendedBody
from tms.api.parameters import PublishQuery
from tms.errors import Invalid, SequenceReused, TMSError
from tms.model.ids import MessageId
from tms.model.message import Appended, NewBlock
from tms.model.preconditions import ANSWERED, ONE_BLOCK, parse_expected
from tms.model.topic import Durability, TopicName
from tms.server.http.exchange import Exchange
from tms.server.http.request import Body, query_of, writable_topic
from tms.server.idempotency import (
    Counts,
    RecentKeys,
    idempotency_key,
    pack_like_before,
    producer_id,
    reused,
    turn_of,
)
from tms.server.new_messages import Brought, Parser, brought, brought_as, is_plain
from tms.server.operations import INLINE_BYTES, UNPACKED_FACTOR
from tms.server.problems import JSON_HEAD
from tms.server.routing import owners_told
from tms.server.service import Service, are_quick
from tms.topics.owners import OwnerRoute


class Publishing:
    """Answers publishes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turns = count()
        self._recent_keys = RecentKeys()

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what was wrong; nothing is stored then."""
        service = self._service
        name = writable_topic(*varying)
        options = _options(exchange.query)
        headers = exchange.headers
        plain = is_plain(headers)  # looked at here: `brought` would be one more call for each
        sent = brought_as(headers.get(b"content-type", b"")) if plain else brought(headers)
        head = JSON_HEAD
        async with service.received(exchange) as body:
            service.metrics.bytes_in += len(body.data)
            if service.routing is not None:
                route = await self._route(exchange, name, body, sent)
                if route is None:
                    return
                head += owners_told(route)
            if b"idempotency-key" in headers:
                answer = await self._once(exchange, name, body, options, sent)
            elif sent.read is None:
                blocks = bodies.unframe_new(body.data)
                answer = bodies.encode(
                    AppendedBody(await self._append(exchange, name, blocks, options))
                )
            else:
                answer = await self._messages(exchange, name, body, sent.read, options)
        if exchange.coding is None:
            exchange.respond(routes.OK, head, answer)
        else:
            await service.respond(exchange, routes.OK, head, answer)

    async def _route(
        self, exchange: Exchange, name: TopicName, body: Body, sent: Brought
    ) -> OwnerRoute[int] | None:
        """The route of a publish by its partitions; None if another instance has answered."""
        service, headers = self._service, exchange.headers
        exchange.be_patient()
        assert service.routing is not None, "only a service that others may replace routes"
        topics = service.engine.topics
        topic, partitions = topics.registry.known.get(name), {-1}  # any
        if sent.read is None:
            partitions = {new.partition for new in bodies.unframe_new(body.data)}
        elif topic is not None and len(body.data) <= INLINE_BYTES:
            new = sent.read(body.data)
            partitions = messages.destinations(new, topic.partitions, topic.partitioner)
        # A key is remembered here, and the body of a coded request is not as it was sent.
        may_leave = b"idempotency-key" not in headers and b"content-encoding" not in headers
        if may_leave:
            exchange.body = body.data if isinstance(body.data, bytearray) else bytearray(body.data)
        find = partial(topics.route, name, partitions)
        return await service.routing.confirmed(exchange, find, may_leave)

    async def _once(
        self,
        exchange: Exchange,
        name: TopicName,
        body: Body,
        options: "_PublishParameters",
        sent: Brought,
    ) -> bytes:
        """Publish messages under an Idempotency-Key."""
        key = idempotency_key(exchange)
        if sent.read is None:
            raise Invalid(
                "An Idempotency-Key goes with JSON and CloudEvents; a block carries a producer id "
                "and sequence instead.",
                header="Idempotency-Key",
            )
        uid, counts = self._service.engine.growth(name)
        counts = self._recent_keys.remember(uid, key, (sent.beside, body.data), counts)
        try:
            keyed = producer_id(key), counts
            return await self._messages(exchange, name, body, sent.read, options, keyed)
        except SequenceReused as exc:
            raise reused(key) from exc
        except TMSError as error:
            if not error.retriable:
                self._recent_keys.forget(uid, key)
            raise

    async def _append(
        self,
        exchange: Exchange,
        name: TopicName,
        blocks: Sequence[NewBlock],
        options: "_PublishParameters",
    ) -> list[Appended]:
        service = self._service
        submit, durability = service.engine.submit, options.durability
        quick = are_quick(blocks)
        if options.expect is not None:
            if len(blocks) > 1:
                raise Invalid(ONE_BLOCK, field="expect")
            blocks = [msgspec.structs.replace(blocks[0], expect=options.expect)]
        if not quick:
            pending = await service.in_turn(service.checking, submit, name, blocks, durability)
        elif options.expect is not None:
            pending = await service.in_thread(submit, name, blocks, durability)
        else:
            syncs = len({new.partition for new in blocks})
            do = partial(submit, name, blocks, durability)
            pending = service.inline_sync.write(exchange, syncs, do)
        return pending.result(0) if pending.done() else await service.outcome(pending)

    async def _messages(
        self,
        exchange: Exchange,
        name: TopicName,
        body: Body,
        read: Parser,
        options: "_PublishParameters",
        keyed: tuple[int, Counts] | None = None,
    ) -> bytes:
        """Publish messages; under the producer id of a key, where that went before: with it come
        the numbers of partitions that the topic had."""
        service = self._service
        settings = service.engine.settings(name)
        producer, counts = keyed or (0, (settings.partitions,))
        turn = turn_of(producer) if producer else next(self._turns)

        def pack() -> messages.PackedRequest:
            new = read(body.data)

            def pack_for(partitions: int) -> messages.PackedRequest:
                spread = turn % partitions
                return messages.pack(new, partitions, spread, settings, producer)

            count_stored = partial(service.engine.topics.publisher.count_stored, name)
            return pack_like_before(pack_for, counts, count_stored)

        if len(body.data) <= INLINE_BYTES and len(counts) == 1:
            packed = pack()
        else:
            await body.reserve(UNPACKED_FACTOR * len(body.data))
            packed = await service.in_turn(service.checking, pack)
        new = packed.blocks
        appended = await self._append(exchange, name, new, options) if new else []
        return messages.placed(packed, appended)


class _PublishParameters(NamedTuple):
    """The parameters of a publish."""

    durability: Durability | None
    expect: MessageId | None


@lru_cache(maxsize=64)
def _options(query: bytes) -> _PublishParameters:
    read = query_of(query, PublishQuery)
    expect = None if read.expect is None else parse_expected(read.expect)
    options = _PublishParameters(read.durability, expect)
    if options.expect is not None and options.durability is Durability.NONE:
        raise Invalid(ANSWERED, field="expect")
    return options
