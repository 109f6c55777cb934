"""Publish, store, rollback and poll of `/v1`.

* What is published is synced as the topic says; in a transaction always.
* A poll is answered while it is read: one chunk of HTTP for each block of the Avro array, so that
  any number of messages takes the memory of a few. It ends at what was there when it began.
* A staged message has an id with a payload half; its first ten bytes alone are its position.
"""

import zlib
from collections.abc import AsyncIterator, Iterator

from tms.errors import BadMessageId
from tms.model.block import MESSAGES_MAX, decode, encode, read_header
from tms.model.ids import ID_BYTES, TIME_MS_MAX, MessageId
from tms.model.log import Appended, Buffer, Fetched, NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS, Isolation, Snapshot, decode_snapshot
from tms.model.topic import TopicName
from tms.server.cdap import answers
from tms.server.cdap.answers import Said
from tms.server.cdap.names import full
from tms.server.http.exchange import Exchange
from tms.server.http.request import Body, header
from tms.server.service import Service
from tms.transactions.early import Range
from tms.wire import avro, routes
from tms.wire.avro import ConsumeRequest, PublishRequest, RollbackDetail

BLOCK_BYTES = 1 << 20
FETCH_BYTES = 256 << 10
_ENTRY_BYTES = ID_BYTES + 8  # what CDAP counts for a message besides its payload
_GZIP = 31


class Messages:
    """The messages of topics."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def publish(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/publish"""
        request = avro.decode_publish(await self._avro(exchange))
        if request.write_pointer is None:
            if not request.payloads:
                raise _wrong(
                    "Empty payload is only allowed for publishing transactional message. "
                    f"Topic: topic:{full(name, '.')}"
                )
            await self._service.in_thread(self._append, name, request.payloads)
            answers.nothing(exchange)
            return
        self._require_young(request.write_pointer)
        detail = await self._service.in_thread(self._publish_in, name, request)
        answers.avro(exchange, avro.encode_rollback(detail))

    async def store(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/store"""
        request = avro.decode_publish(await self._avro(exchange))
        if request.write_pointer is None or not request.payloads:
            raise _wrong(
                f"Store request must be transactional with payload. Topic: topic:{full(name, '.')}"
            )
        blocks = list(_blocks(request.payloads))
        stage = self._service.engine.transactions.stage
        await self._service.in_thread(stage, name, blocks, request.write_pointer)
        answers.nothing(exchange)

    async def roll_back(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/rollback"""
        detail = avro.decode_rollback(await self._body(exchange))
        if detail.write_pointer is None:
            raise Said(routes.INTERNAL, "Only a transaction can be rolled back.")
        first = (detail.start_ms, detail.start_sequence)
        last = (detail.end_ms, detail.end_sequence)
        if first > last or min(*first, *last) < 0 or last[0] > TIME_MS_MAX:
            raise _wrong("The messages to roll back begin after they end.")
        range = Range(name, 0, first, last, detail.write_pointer)
        await self._service.in_thread(self._service.engine.transactions.roll_back, range)
        answers.nothing(exchange)

    async def poll(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/poll"""
        asked = avro.decode_consume(await self._avro(exchange))
        poll = _Poll(asked, self._service.cdap.chunk_bytes)
        head = f"content-type: {answers.AVRO}\r\n"
        gzip = "gzip" in header(exchange, b"accept-encoding").lower()
        if gzip:
            head += "content-encoding: gzip\r\n"
        budget = self._service.fetching
        budget.take(2 * FETCH_BYTES)
        try:
            fetched = await self._service.in_thread(poll.fetch, self._service, name)
            chunks = self._chunks(poll, fetched, name)
            await exchange.stream_chunks(
                routes.OK, head.encode(), _compressed(chunks) if gzip else chunks
            )
        finally:
            budget.give_back(2 * FETCH_BYTES)

    async def _chunks(
        self, poll: "_Poll", fetched: Fetched, name: TopicName
    ) -> AsyncIterator[bytes]:
        """Blocks of the array, the last one with the array's end."""
        waiting: bytes | None = None
        while fetched.blocks:
            for block in await self._service.in_thread(poll.take, fetched):
                if waiting is not None:
                    yield waiting
                waiting = block
            if poll.done:
                break
            fetched = await self._service.in_thread(poll.fetch, self._service, name)
        rest = poll.rest()
        if rest and waiting is not None:
            yield waiting
            waiting = None
        self._service.metrics.bytes_out += poll.bytes
        yield (rest or waiting or b"") + avro.END

    def _append(self, name: TopicName, payloads: list[Buffer]) -> list[Appended]:
        return self._service.engine.append(name, list(_blocks(payloads)))

    def _publish_in(self, name: TopicName, request: PublishRequest) -> RollbackDetail:
        transactions, pointer = self._service.engine.transactions, request.write_pointer
        assert pointer is not None
        if request.payloads:
            pending = transactions.submit(name, list(_blocks(request.payloads)), pointer)
            places = pending.result(self._service.limits.publish_timeout_s)
        else:
            self._service.engine.settings(name)  # raises when there is no such topic
            places = transactions.refer(name, 0, pointer)
        if not places:  # nothing was stored before, so there is nothing to take back
            return RollbackDetail(pointer, 0, 0, 0, 0)
        first, last = places[0], places[-1]
        end = last.sequence + last.count - 1
        return RollbackDetail(pointer, first.time_ms, first.sequence, last.time_ms, end)

    def _require_young(self, write_pointer: int) -> None:
        lifetime_ms = self._service.cdap.tx_max_lifetime_ms
        if write_pointer // POINTERS_PER_MS + lifetime_ms <= self._service.clock.now_ms():
            raise Said(
                routes.INTERNAL,
                f"Transaction {write_pointer} has exceeded max lifetime {lifetime_ms} ms",
            )

    async def _avro(self, exchange: Exchange) -> Buffer:
        if header(exchange, b"content-type") != answers.AVRO:
            raise _wrong("Only avro/binary content type is supported.")
        return await self._body(exchange)

    async def _body(self, exchange: Exchange) -> Buffer:
        service = self._service
        service.require_open()
        body = Body(service.publishing, service.limits.body_bytes_max)
        try:
            await body.read(exchange)
            coding = header(exchange, b"content-encoding").lower()
            if coding:
                await body.decompress(coding, service.threads)
            service.metrics.bytes_in += len(body.data)
            return body.data
        finally:
            body.release()


class _Poll:
    """One poll, and how far it has come."""

    def __init__(self, asked: ConsumeRequest, chunk_bytes: int) -> None:
        if asked.limit is not None and asked.limit <= 0:
            raise _wrong("Invalid message fetching limit. Limit must be > 0")
        self._left = asked.limit
        self._chunk_bytes = chunk_bytes
        self._isolation: Isolation | Snapshot = Isolation.UNCOMMITTED
        if asked.transaction is not None:
            self._isolation = decode_snapshot(asked.transaction)
        self._position = _position(asked)
        self._end: int | None = None  # the offset behind the last message when it began
        self._messages: list[tuple[bytes, Buffer]] = []
        self._size = 0
        self.bytes = 0
        self.done = False

    def fetch(self, service: Service, name: TopicName) -> Fetched:
        """What comes next."""
        if self._position is None:
            service.engine.settings(name)
            return Fetched([], {}, {})
        at = [PartitionPosition(0, self._position)]
        if service.engine.settings(name).partitions != 1:
            raise _wrong(f"The topic {name} has several partitions; use /v2 for it.")
        fetched = service.engine.fetch(name, at, FETCH_BYTES, 0, self._isolation)
        if self._end is None:
            self._end = fetched.ends[0]
        return fetched

    def take(self, fetched: Fetched) -> list[bytes]:
        """The blocks of the array that are full now."""
        full: list[bytes] = []
        for id, payload in self._new(fetched):
            self._messages.append((id, payload))
            self._size += _ENTRY_BYTES + len(payload)
            if self._size >= self._chunk_bytes:
                full.append(self.rest())
        self._position = fetched.next[0]
        return full

    def rest(self) -> bytes:
        """What is not in a full block."""
        if not self._messages:
            return b""
        block = avro.encode_messages(self._messages)
        self.bytes += len(block)
        self._messages, self._size = [], 0
        return block

    def _new(self, fetched: Fetched) -> Iterator[tuple[bytes, Buffer]]:
        first = _first(self._position)
        for stored in fetched.blocks:
            header = read_header(stored.block)
            if self._end is not None and header.base_offset >= self._end:
                self.done = True
                return
            for sequence, payload in _messages(stored, header.count):
                if (stored.time_ms, sequence) < first:
                    continue
                if self._left is not None:
                    self._left -= 1
                payload_at = sequence - (stored.last_sequence - header.count + 1)
                time_ms, start = stored.payload
                half = (time_ms, start + payload_at) if time_ms else (0, 0)
                yield bytes(MessageId(stored.time_ms, sequence, *half)), payload
                if self._left == 0:
                    self.done = True
                    return


def _messages(stored: StoredBlock, count: int) -> Iterator[tuple[int, Buffer]]:
    start = stored.last_sequence - count + 1
    for number, value in enumerate(decode(stored.block).values()):
        yield start + number, value or b""


def _first(position: Position | None) -> tuple[int, int]:
    """The smallest time and sequence at a position."""
    if position is None:
        return (0, 0)
    if position.id is not None:
        time_ms, sequence = position.id[:2]
        return (time_ms, sequence + 1) if str(position).startswith("after") else (time_ms, sequence)
    return (position.number, 0)


def _position(asked: ConsumeRequest) -> Position | None:
    """Where a poll begins; None behind everything that there can be."""
    if asked.start is None:
        return Position.earliest()
    if isinstance(asked.start, int):
        if asked.start < 0:
            raise _wrong("Invalid message fetching start time. Start time must be >= 0")
        return None if asked.start > TIME_MS_MAX else Position.time(asked.start)
    try:
        id = MessageId.from_bytes(asked.start)
    except BadMessageId as exc:
        raise _wrong(exc.message) from exc
    place = MessageId(*id[:2])
    return Position.at(place) if asked.inclusive else Position.after(place)


def _blocks(payloads: list[Buffer]) -> Iterator[NewBlock]:
    """The payloads packed, in order."""
    some: list[bytes] = []
    size = 0
    for payload in payloads:
        if some and (size + len(payload) > BLOCK_BYTES or len(some) == MESSAGES_MAX):
            yield NewBlock(0, encode(some))
            some, size = [], 0
        some.append(bytes(payload))
        size += len(payload)
    if some:
        yield NewBlock(0, encode(some))


async def _compressed(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks as one gzip stream, each flushed."""
    machine = zlib.compressobj(wbits=_GZIP)
    waiting: bytes | None = None
    async for chunk in chunks:
        if waiting is not None:
            yield waiting
        waiting = machine.compress(chunk) + machine.flush(zlib.Z_SYNC_FLUSH)
    yield (waiting or b"") + machine.flush(zlib.Z_FINISH)


def _wrong(sentence: str) -> Said:
    return Said(routes.BAD_REQUEST, sentence)
