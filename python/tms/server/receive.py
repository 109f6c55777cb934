"""POST …/queues/{group}/receive: messages of a queue, leased to the caller.

* A waiting receive takes no thread; it ends with the first messages, at its time-out, when the
  client leaves and when the service drains.
* A client that is gone gets no lease; messages leased for a client that left at that moment are
  released.
* The memory of an answer is reserved before anything is leased; when memory is short, answers get
  smaller. At most as many receives look at once as there are threads.
* A sole client gets a few messages that were read ahead from the event loop itself.
* Compressed blocks that get large are unpacked by one receive at a time, and counted meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import lru_cache, partial

from msgspec import Struct

from tms.api import bodies, queues, routes
from tms.api.operation import BODY_BYTES_MAX
from tms.api.queues import ReceiveBody
from tms.api.strict import decode_strict
from tms.block.received import Received
from tms.errors import DataCorrupt, TMSError
from tms.model.message import Buffer
from tms.model.topic import TopicName
from tms.model.transaction import check_group
from tms.queues import Queues
from tms.runtime.decoding import json_decoder
from tms.server.fetch import GRANT_BYTES_MIN
from tms.server.http.exchange import JOIN_BYTES_MAX, Disconnected, Exchange
from tms.server.http.request import (
    answer_media,
    content_type,
    parameters,
    path_text,
    topic_name,
)
from tms.server.operations import JSON_ONLY, UNPACKED_FACTOR
from tms.server.queue_waiting import QueueWaiters
from tms.server.service import UNPACKED_BYTES_MIN, Service

AT_ONCE_MAX = 16  # messages that the event loop leases itself
_MADE = (routes.JSON, routes.BLOCKS)
_NO_SNIFFING = "x-content-type-options: nosniff\r\n"  # a payload is never a page
_HEADS = {media: f"content-type: {media}\r\n{_NO_SNIFFING}".encode() for media in _MADE}
_FACTORS = {
    routes.JSON: UNPACKED_FACTOR,
    routes.BLOCKS: 1,
}  # of an answer's memory while it is made


class _ReceiveParameters(Struct, frozen=True):
    topic: TopicName
    group: str
    media: str
    limit: int
    wait_s: float
    bytes_max: int


class _LeasedBody(Struct, frozen=True):
    """Leased messages, and the body that carries them."""

    received: Received
    chunks: list[Buffer]

    def __bool__(self) -> bool:
        """True if there are messages, as `QueueWaiters.until` asks."""
        return bool(self.received.slices)


class Receiving:
    """Answers receives."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting = QueueWaiters(lambda *wanted: self._queues.watch(*wanted))
        self._decoder = json_decoder(ReceiveBody)
        decode = partial(decode_strict, decoder=self._decoder)
        self._wanted = lru_cache(maxsize=64)(decode)  # the bodies of one worker are the same
        self._turns = asyncio.Semaphore(service.limits.threads)  # else memory is kept for a queue

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what was wrong; nothing is leased then."""
        media = answer_media(exchange, _MADE)
        content_type(exchange.headers.get(b"content-type", b""), JSON_ONLY)
        place = _queue_named(*varying, exchange.query)
        small = self._service.small_body(exchange)
        if small is not None:
            wanted = self._wanted(bytes(small))
        else:
            async with self._service.received(exchange, BODY_BYTES_MAX) as body:
                wanted = decode_strict(body.data, self._decoder)
        limits, budget, held = self._service.limits, self._service.fetching, 0
        wait_s = min(wanted.wait_s, limits.fetch_wait_ms_max / 1_000)
        bytes_max = min(wanted.bytes_max, limits.fetch_bytes_max)
        request = _ReceiveParameters(*place, media, wanted.limit, wait_s, bytes_max)
        answer = await self._found(exchange, request)
        try:
            held = sum(map(len, answer.chunks))
            budget.bytes += held
            if not exchange.disconnected:
                await self._send(exchange, request, answer.chunks)
        finally:
            budget.release(held)
            if answer.received.slices and not exchange.response_complete:
                await self._return(request, answer.received)

    async def _send(
        self, exchange: Exchange, request: _ReceiveParameters, chunks: list[Buffer]
    ) -> None:
        head, service = _HEADS[request.media], self._service
        if exchange.coding is not None and request.media == routes.JSON:
            head, body = await service.compressed(exchange.coding, head, b"".join(chunks))
            chunks = [body]
        size = sum(map(len, chunks))
        service.metrics.bytes_out += size
        service.metrics.sent[request.topic] += size
        if size <= JOIN_BYTES_MAX:
            exchange.respond(routes.OK, head, b"".join(chunks))
        else:
            await exchange.stream(routes.OK, head, size, chunks)

    @property
    def _queues(self) -> Queues:
        return self._service.engine.queues

    async def _found(self, exchange: Exchange, request: _ReceiveParameters) -> _LeasedBody:
        damage: DataCorrupt | None = None  # others may have messages before the wait is over
        try:
            leased = self._leased_here(exchange, request)
            if leased is not None and leased.unpacked_bytes < UNPACKED_BYTES_MIN:
                return _answer(leased, request.media)
            if leased is not None:
                return await self._unpacked(leased, request.media)
        except DataCorrupt as error:
            damage = error

        async def look() -> _LeasedBody:
            nonlocal damage
            try:
                answer, damage = await self._look(exchange, request), None
            except DataCorrupt as error:
                answer, damage = _answer(Received(0), request.media), error
            return answer

        answer = await look()
        if not answer and request.wait_s:
            queue = request.topic, request.group
            self._service.metrics.long_polls += 1
            try:
                answer = await self._waiting.until(exchange, queue, look, request.wait_s, answer)
            finally:
                self._service.metrics.long_polls -= 1
        if damage is not None and not answer:
            raise damage
        return answer

    async def _look(self, exchange: Exchange, request: _ReceiveParameters) -> _LeasedBody:
        """Lease messages that are ready. Raises `Disconnected`, `Overloaded`."""
        budget = self._service.fetching
        factor = _FACTORS[request.media]

        def lease() -> _LeasedBody | Received:
            leased = self._queues.receive(request.topic, request.group, request.limit, 0, grant)
            large = leased.unpacked_bytes >= UNPACKED_BYTES_MIN
            return leased if large else _answer(leased, request.media)

        async with self._turns:
            if exchange.disconnected:
                raise Disconnected
            free = budget.bytes_max - budget.bytes
            grant = min(request.bytes_max, max(free // (2 * factor), GRANT_BYTES_MIN))
            await budget.claim(factor * grant)
            try:
                leased = await self._service.in_thread(lease)
                if isinstance(leased, Received):
                    leased = await self._unpacked(leased, request.media)
                return leased
            finally:
                budget.release(factor * grant)

    def _leased_here(self, exchange: Exchange, request: _ReceiveParameters) -> Received | None:
        """Lease messages that were read ahead, for a sole client; None if that may wait for
        memory, for another thread or for the log. Nothing else runs meanwhile, so the memory is
        not reserved."""
        service = self._service
        budget = service.fetching
        grant = (budget.bytes_max - budget.bytes) // (2 * _FACTORS[request.media])
        if exchange.disconnected or request.limit > AT_ONCE_MAX or grant < GRANT_BYTES_MIN:
            return None
        if not service.inline_sync.may_sync(exchange, 1):
            return None
        handle = service.engine.queues.at_rest(request.topic, request.group, True)
        if handle is None:
            return None
        receive = partial(handle.receive, request.limit, min(request.bytes_max, grant))
        return service.inline_sync.sync(receive)

    async def _unpacked(self, leased: Received, media: str) -> _LeasedBody:
        return await self._service.unpack(leased.unpacked_bytes, _answer, leased, media)

    async def _return(self, request: _ReceiveParameters, leased: Received) -> None:
        """Release messages that no client got."""
        release = self._queues.release
        with contextlib.suppress(TMSError):  # then their leases end by themselves
            await self._service.in_thread(release, request.topic, request.group, leased.tokens())


@lru_cache(maxsize=1_024)
def _queue_named(
    namespace: bytes, topic: bytes, group: bytes, query: bytes
) -> tuple[TopicName, str]:
    """The queue that the path of a request names; a query is refused. Raises `Malformed` or
    `Invalid`."""
    parameters(query, ())
    return topic_name(namespace, topic), check_group(path_text(group))


def _answer(leased: Received, media: str) -> _LeasedBody:
    if media == routes.BLOCKS:
        return _LeasedBody(leased, queues.encode_received(leased))
    body, size = memoryview(queues.received_json(leased)), bodies.CHUNK_BYTES
    return _LeasedBody(leased, [body[at : at + size] for at in range(0, len(body), size)])
