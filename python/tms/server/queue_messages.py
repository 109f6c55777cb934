"""POST …/receive, ack, nack, extend, reject and redrive: what workers do with messages of queues.

* A receive that waits costs a place in a line and no thread; it ends with the first messages, at
  its time-out, when the client leaves and when the service drains.
* Whoever is gone gets no lease; what was leased for somebody who left at that moment is given back.
* The memory of an answer is reserved before anything is leased; when memory is short, answers get
  smaller. No more receives look at once than there are threads.
* Compressed blocks that get large are unpacked by one receive at a time, and counted meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from tms.api import bodies, queues, routes
from tms.api.queues import (
    REDRIVE_MAX,
    AckBody,
    ExtendBody,
    NackBody,
    ReceiveBody,
    RedriveBody,
    RedrivenBody,
    RejectBody,
    TokensBody,
)
from tms.api.strict import decode_strict
from tms.block.received import Received
from tms.errors import DataCorrupt, Invalid, TMSError
from tms.model.message import Buffer
from tms.model.queue import (
    DELAY_S_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    RECEIVE_MAX,
    TokenResult,
    check_cause,
    check_seconds,
)
from tms.model.topic import TopicName
from tms.model.transaction import check_group
from tms.server.fetch import FETCH_BYTES_ASKED_MAX, GRANT_BYTES_MIN, WAIT_MS_ASKED_MAX
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.http.request import (
    accepted,
    content_type,
    header,
    parameters,
    path_text,
    received,
    topic_name,
)
from tms.server.queue_waiting import QueueWaiters
from tms.server.service import UNPACKED_BYTES_MIN, Service

_B = TypeVar("_B")
_MADE = (routes.JSON, routes.BLOCKS)
_JSON_ONLY = (routes.JSON,)
_HEAD = f"content-type: {routes.JSON}\r\n".encode()
_NO_SNIFFING = b"x-content-type-options: nosniff\r\n"  # a payload is never a page
_INLINE_BYTES = 32 << 10  # JSON up to this size is read by the event loop itself
_UNPACKED_FACTOR = 4  # JSON as Python strings, and messages as text, take so many times their size
_ACK, _NACK = msgspec.json.Decoder(AckBody), msgspec.json.Decoder(NackBody)
_EXTEND, _REJECT = msgspec.json.Decoder(ExtendBody), msgspec.json.Decoder(RejectBody)
_RECEIVE, _REDRIVE = msgspec.json.Decoder(ReceiveBody), msgspec.json.Decoder(RedriveBody)


class _ReceiveParameters(NamedTuple):
    group: str
    topic: TopicName
    media: str
    limit: int
    wait_s: float
    bytes_max: int


class _LeasedBody(NamedTuple):
    """What was leased, and the body that says so."""

    received: Received
    chunks: list[Buffer]

    def __bool__(self) -> bool:
        return bool(self.received.slices)


class QueueMessages:
    """Answers what workers ask."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._queues = service.engine.queues
        self._waiting = QueueWaiters(self._queues.watch)
        self._turns = asyncio.Semaphore(service.limits.threads)  # else memory is kept for a queue
        self._redriving = asyncio.Lock()
        self._calls: dict[bytes, Callable[[Exchange, str, TopicName], Awaitable[None]]] = {
            b"receive": self._receive,
            b"ack": self._ack,
            b"nack": self._nack,
            b"extend": self._extend,
            b"reject": self._reject,
            b"redrive": self._redrive,
        }

    def knows(self, parts: list[bytes]) -> bool:
        """Whether a path, in parts, is one of these."""
        return (
            len(parts) == 9
            and parts[8] in self._calls
            and parts[6] == b"queues"
            and parts[4] == b"topics"
            and parts[2] == b"namespaces"
            and parts[1] == b"v2"
        )

    async def __call__(self, exchange: Exchange, parts: list[bytes]) -> None:
        """Raises what was wrong."""
        name, group = topic_name(parts[3], parts[5]), check_group(path_text(parts[7]))
        parameters(exchange.scope["query_string"], ())
        self._service.require_open()
        await self._calls[parts[8]](exchange, group, name)

    # -- receive -------------------------------------------------------------------------------

    async def _receive(self, exchange: Exchange, group: str, name: TopicName) -> None:
        media = accepted(header(exchange, b"accept"), _MADE)
        asked = self._checked(group, name, media, await self._body(exchange, _RECEIVE))
        budget, held = self._service.fetching, 0
        answer = await self._found(exchange, asked)
        try:
            held = sum(map(len, answer.chunks))
            budget.bytes += held
            if not exchange.disconnected:
                self._service.metrics.bytes_out += held
                head = f"content-type: {media}\r\n".encode() + _NO_SNIFFING
                await exchange.stream(routes.OK, head, held, answer.chunks)
        finally:
            budget.give_back(held)
            if answer and not exchange.response_complete:
                await self._give_back(asked, answer.received)

    def _checked(
        self, group: str, name: TopicName, media: str, body: ReceiveBody
    ) -> _ReceiveParameters:
        limits = self._service.limits
        _whole("max", body.max, RECEIVE_MAX)
        _whole("bytes_max", body.bytes_max, FETCH_BYTES_ASKED_MAX)
        wait_s = check_seconds("wait_s", body.wait_s, 0, WAIT_MS_ASKED_MAX / 1_000)
        wait_s = min(wait_s, limits.fetch_wait_ms_max / 1_000)
        return _ReceiveParameters(
            group, name, media, body.max, wait_s, min(body.bytes_max, limits.fetch_bytes_max)
        )

    async def _found(self, exchange: Exchange, asked: _ReceiveParameters) -> _LeasedBody:
        damage: DataCorrupt | None = None  # others may have messages before the wait is over

        async def look() -> _LeasedBody:
            nonlocal damage
            try:
                answer, damage = await self._look(exchange, asked), None
            except DataCorrupt as error:
                answer, damage = _answer(Received(0), asked.media), error
            return answer

        answer = await look()
        if not answer and asked.wait_s:
            queue = asked.group, asked.topic
            self._service.metrics.long_polls += 1
            try:
                answer = await self._waiting.until(exchange, queue, look, asked.wait_s, answer)
            finally:
                self._service.metrics.long_polls -= 1
        if damage is not None and not answer:
            raise damage
        return answer

    async def _look(self, exchange: Exchange, asked: _ReceiveParameters) -> _LeasedBody:
        """Lease what is there. Raises `Disconnected`, `Overloaded`."""
        budget = self._service.fetching
        factor = 1 if asked.media == routes.BLOCKS else _UNPACKED_FACTOR

        def lease() -> _LeasedBody | Received:
            found = self._queues.receive(asked.group, asked.topic, asked.limit, 0, grant)
            large = found.unpacked_bytes >= UNPACKED_BYTES_MIN
            return found if large else _answer(found, asked.media)

        async with self._turns:
            if exchange.disconnected:
                raise Disconnected
            free = budget.bytes_max - budget.bytes
            grant = min(asked.bytes_max, max(free // (2 * factor), GRANT_BYTES_MIN))
            await budget.claim(factor * grant)
            try:
                leased = await self._service.in_thread(lease)
                if isinstance(leased, Received):
                    size = leased.unpacked_bytes
                    leased = await self._service.unpack(size, _answer, leased, asked.media)
                return leased
            finally:
                budget.give_back(factor * grant)

    async def _give_back(self, asked: _ReceiveParameters, leased: Received) -> None:
        """Nobody got these: others may have them at once."""
        nack = self._queues.nack
        with contextlib.suppress(TMSError):  # then their leases end by themselves
            await self._service.in_thread(nack, asked.group, asked.topic, leased.tokens(), 0)

    # -- tokens --------------------------------------------------------------------------------

    async def _ack(self, exchange: Exchange, group: str, name: TopicName) -> None:
        def work(body: AckBody) -> TokenResult:
            return self._queues.ack(group, name, queues.check_tokens(body.tokens))

        await self._tokens(exchange, _ACK, work)

    async def _nack(self, exchange: Exchange, group: str, name: TopicName) -> None:
        def work(body: NackBody) -> TokenResult:
            if body.delay_s is not None:
                check_seconds("delay_s", body.delay_s, 0, DELAY_S_MAX)
            return self._queues.nack(group, name, queues.check_tokens(body.tokens), body.delay_s)

        await self._tokens(exchange, _NACK, work)

    async def _extend(self, exchange: Exchange, group: str, name: TopicName) -> None:
        def work(body: ExtendBody) -> TokenResult:
            if body.lease_s is not None:
                check_seconds("lease_s", body.lease_s, LEASE_S_MIN, LEASE_S_MAX)
            return self._queues.extend(group, name, queues.check_tokens(body.tokens), body.lease_s)

        await self._tokens(exchange, _EXTEND, work)

    async def _reject(self, exchange: Exchange, group: str, name: TopicName) -> None:
        def work(body: RejectBody) -> TokenResult:
            check_cause(body.cause)
            return self._queues.reject(group, name, queues.check_tokens(body.tokens), body.cause)

        await self._tokens(exchange, _REJECT, work)

    async def _tokens(
        self,
        exchange: Exchange,
        decoder: "msgspec.json.Decoder[_B]",
        work: Callable[[_B], TokenResult],
    ) -> None:
        def done(body: _B) -> bytes:
            result = work(body)
            return bodies.encode(TokensBody(result.done, list(result.fenced)))

        await self._answer(exchange, decoder, done)

    async def _redrive(self, exchange: Exchange, group: str, name: TopicName) -> None:
        accepted(header(exchange, b"accept"), _JSON_ONLY)
        body, redrive = await self._body(exchange, _REDRIVE), self._queues.redrive
        _whole("max", body.max, REDRIVE_MAX)
        moved = await self._service.in_turn(self._redriving, redrive, group, name, body.max)
        exchange.respond(routes.OK, _HEAD, bodies.encode(RedrivenBody(moved)))

    async def _answer(
        self, exchange: Exchange, decoder: "msgspec.json.Decoder[_B]", work: Callable[[_B], bytes]
    ) -> None:
        """Answer with what `work` makes of the body."""
        service = self._service
        accepted(header(exchange, b"accept"), _JSON_ONLY)
        content_type(header(exchange, b"content-type"), _JSON_ONLY)
        bytes_max = service.limits.body_bytes_max
        async with received(exchange, service.publishing, bytes_max, service.threads) as body:
            read = partial(decode_strict, body.data, decoder)
            if len(body.data) > _INLINE_BYTES:
                await body.reserve(_UNPACKED_FACTOR * len(body.data))
                answer = await service.in_turn(service.checking, lambda: work(read()))
            else:
                answer = await service.in_thread(lambda: work(read()))
        exchange.respond(routes.OK, _HEAD, answer)

    async def _body(self, exchange: Exchange, decoder: "msgspec.json.Decoder[_B]") -> _B:
        """A small body."""
        service = self._service
        content_type(header(exchange, b"content-type"), _JSON_ONLY)
        async with received(exchange, service.publishing, _INLINE_BYTES, service.threads) as body:
            return decode_strict(body.data, decoder)


def _answer(found: Received, media: str) -> _LeasedBody:
    if media == routes.BLOCKS:
        return _LeasedBody(found, queues.encode_received(found))
    body, size = memoryview(queues.received_json(found)), bodies.CHUNK_BYTES
    return _LeasedBody(found, [body[at : at + size] for at in range(0, len(body), size)])


def _whole(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise Invalid(f"{name} is a whole number from 1 to {high}, got {value}.", field=name)
