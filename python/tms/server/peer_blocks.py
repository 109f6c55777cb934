"""Operations that other instances request of this one, with bodies of blocks."""

from collections.abc import Callable, Sequence

import msgspec

from tms.api import bodies, commits, routes
from tms.api.bodies import AppendedBody
from tms.api.instances import StampQuery
from tms.api.operations import OPERATIONS
from tms.errors import Invalid, TMSError
from tms.model.message import Buffer, NewBlock
from tms.model.preconditions import parse_expected
from tms.model.topic import Durability, TopicName
from tms.server.http.exchange import Exchange
from tms.server.http.request import content_type, parameters, query_of, topic_name
from tms.server.problems import JSON_HEAD
from tms.server.router import Answer, Route
from tms.server.service import Service

_BLOCKS_ONLY, _COMMITS_ONLY = (routes.BLOCKS,), (routes.COMMIT,)
COMMIT_TIMEOUT_S = 30.0


def routes_of(service: Service) -> list[Route]:
    """The routes of these operations."""
    own = service.engine.topics.own

    async def store(exchange: Exchange, varying: Sequence[bytes]) -> None:
        query = query_of(exchange.query, StampQuery)
        stamp = query.durability, query.flags, query.write_pointer, bool(query.internal)

        def do(name: TopicName, blocks: list[NewBlock]) -> bytes:
            blocks = _expecting(blocks, query.expect)
            return bodies.encode(AppendedBody(own.store(name, blocks, *stamp)))

        await _with_blocks(service, exchange, varying, do)

    async def stage(exchange: Exchange, varying: Sequence[bytes]) -> None:
        query = query_of(exchange.query, StampQuery)

        def do(name: TopicName, blocks: list[NewBlock]) -> bytes:
            own.stage(name, blocks, query.flags, query.write_pointer)
            return b""

        await _with_blocks(service, exchange, varying, do)

    async def count_stored(exchange: Exchange, varying: Sequence[bytes]) -> None:
        parameters(exchange.query, ())

        def do(name: TopicName, blocks: list[NewBlock]) -> bytes:
            return bodies.encode({"stored": own.count_stored(name, blocks)})

        await _with_blocks(service, exchange, varying, do)

    answers = {
        "partitions.store": store,
        "partitions.stage": stage,
        "partitions.count_stored": count_stored,
        "peers.commit_own": _committing(service),
    }
    return [Route(OPERATIONS[name], answer) for name, answer in answers.items()]


def _committing(service: Service) -> Answer:
    """Commits blocks that another instance made."""

    async def commit_own(exchange: Exchange, varying: Sequence[bytes]) -> None:
        parameters(exchange.query, ())
        content_type(exchange.headers.get(b"content-type", b""), _COMMITS_ONLY)

        def do(data: Buffer) -> bytes:
            request = commits.decode_commit(data, 0, own=True)
            commit = service.engine.transactions.submit_commit
            [result] = commit(request, Durability.SYNCED, _nothing).result(COMMIT_TIMEOUT_S)
            return commits.encode_result(result)

        async with service.received(exchange) as body:
            answer = await service.for_peer(do, body.data)
        exchange.respond(routes.OK, JSON_HEAD, answer)

    return commit_own


def _nothing() -> None:
    """Do nothing: the operation has begun."""


async def _with_blocks(
    service: Service,
    exchange: Exchange,
    varying: Sequence[bytes],
    do: Callable[[TopicName, list[NewBlock]], bytes],
) -> None:
    name = topic_name(*varying)
    content_type(exchange.headers.get(b"content-type", b""), _BLOCKS_ONLY)
    async with service.received(exchange) as body:
        service.metrics.bytes_in += len(body.data)
        answer = await service.for_peer(do, name, bodies.unframe_new(body.data))
    if answer:
        exchange.respond(routes.OK, JSON_HEAD, answer)
    else:
        exchange.respond(routes.NO_CONTENT, b"")


def _expecting(blocks: list[NewBlock], text: str | None) -> list[NewBlock]:
    """The blocks with what they expect: `NUMBER:ID`, separated by commas."""
    try:
        for part in (text or "").split(",") if text else ():
            number, _, id = part.partition(":")
            expect = parse_expected(id)
            blocks[int(number)] = msgspec.structs.replace(blocks[int(number)], expect=expect)
    except TMSError:
        raise
    except (ValueError, IndexError) as exc:
        raise Invalid(f"`expect` is NUMBER:ID, got {text!r:.80}.", field="expect") from exc
    return blocks
