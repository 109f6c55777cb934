"""Poll of `/v1`.

    fetch ─▶ unpack ─▶ blocks of the Avro array ─▶ gzip, if wanted ─▶ one chunk of HTTP each

* A poll is answered while it is read, so that any number of messages takes the memory of a few. It
  ends at the last message that was there when it began.
* Compressed blocks are unpacked a portion at a time, large ones by one answer at a time.
* The event loop answers small polls from the cache itself; a thread makes larger answers.
* Messages that a publish takes from the stage share its publish time and sequence, as in CDAP; the
  payload half of their ids tells them apart. So a poll that continues within a publish reads that
  publish from its beginning, and leaves out the messages that its client already has.
* An id without payload half lies between publishes: a publish that began before it is left out
  whole. If the first message at such an id was staged, the poll starts again at the first id of
  that time, to find the beginning of its publish.
"""

import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing

from tms.api import routes
from tms.block import BlockHeader, decode, read_header
from tms.block.placing import place_of, skipped
from tms.compat.cdap import answers, avro, names
from tms.compat.cdap.answers import wrong
from tms.compat.cdap.avro import ConsumeRequest
from tms.compat.cdap.publish import require_avro
from tms.errors import BadMessageId, NotAcceptable
from tms.model.ids import SEQUENCES_PER_MS, TIME_MS_MAX, MessageId
from tms.model.message import Fetched, PartitionPosition, StoredBlock
from tms.model.position import Position, PositionKind
from tms.model.snapshot import Isolation, Snapshot, decode_snapshot
from tms.model.topic import TopicName
from tms.server.http.exchange import Exchange
from tms.server.http.request import accepted
from tms.server.service import UNPACKED_BYTES_MIN, Service

FETCH_BYTES = 256 << 10
PORTION_BYTES = 4 << 20  # of messages, unpacked at a time
_INLINE_BYTES = 32 << 10  # blocks up to this size are unpacked by the event loop itself
_UNPACKED_FACTOR = 2  # blocks, and the answer that is made of them
_SNAPSHOT_FACTOR = 5  # pointers as Python's numbers, which a poll keeps until it ends
_GZIP, _GZIP_LEVEL = 31, 1
_HEAD = f"content-type: {answers.AVRO}\r\n".encode()
_GZIP_HEAD = _HEAD + b"content-encoding: gzip\r\n"


class Polling:
    """Answers polls."""

    def __init__(self, service: Service, chunk_bytes: int) -> None:
        self._service = service
        self._chunk_bytes = chunk_bytes

    async def __call__(self, exchange: Exchange, name: TopicName) -> None:
        """POST …/poll"""
        require_avro(exchange)
        service, budget = self._service, self._service.fetching
        async with service.received(exchange) as body:
            if len(body.data) > _INLINE_BYTES:
                await body.reserve(_SNAPSHOT_FACTOR * len(body.data))
            request = avro.decode_consume(body.data)
            names.require_one_partition(service.engine.settings(name), name)
            gzip = _takes_gzip(exchange)
            poll = _Poll(request, self._chunk_bytes, gzip)
            await budget.claim(_UNPACKED_FACTOR * FETCH_BYTES)
            try:
                fetched = await self._fetch(poll, name)
                async with aclosing(self._chunks(poll, fetched, name)) as chunks:
                    head = _GZIP_HEAD if gzip else _HEAD
                    await exchange.stream_chunks(routes.OK, head, chunks)
            finally:
                budget.release(_UNPACKED_FACTOR * FETCH_BYTES)

    async def _chunks(
        self, poll: "_Poll", fetched: Fetched, name: TopicName
    ) -> AsyncGenerator[bytes, None]:
        service = self._service
        while True:
            size = sum(len(stored.block) for stored in fetched.blocks)
            surplus = _UNPACKED_FACTOR * max(0, size - FETCH_BYTES)
            service.fetching.bytes += surplus
            try:
                chunks = await self._take(poll, fetched, size)
                held = max(0, sum(map(len, chunks)) - FETCH_BYTES)
                service.fetching.bytes += held
                surplus += held
                for chunk in chunks:
                    service.metrics.bytes_out += len(chunk)
                    service.metrics.sent[name] += len(chunk)
                    yield chunk
            finally:
                service.fetching.release(surplus)
            if poll.done:
                return
            fetched = await self._fetch(poll, name)

    async def _take(self, poll: "_Poll", fetched: Fetched, size: int) -> list[bytes]:
        service = self._service
        if size <= _INLINE_BYTES and _unpacked_bytes(fetched) <= _INLINE_BYTES:
            return poll.take(fetched)

        def take() -> list[bytes] | int:
            large = _unpacked_bytes(fetched)
            return large if large >= UNPACKED_BYTES_MIN else poll.take(fetched)

        taken = await service.in_thread(take)
        if isinstance(taken, int):
            taken = await service.unpack(taken, poll.take, fetched)
        return taken

    async def _fetch(self, poll: "_Poll", name: TopicName) -> Fetched:
        engine, at = self._service.engine, [PartitionPosition(0, poll.position)]
        fetched = engine.fetch_cached(name, at, FETCH_BYTES, poll.isolation)
        if fetched is None:
            fetched = await self._service.in_thread(
                engine.fetch, name, at, FETCH_BYTES, 0, poll.isolation
            )
        return fetched


class _Poll:
    """One poll, and how far it has come."""

    def __init__(self, request: ConsumeRequest, chunk_bytes: int, gzip: bool) -> None:
        self.position, self._had = _position(request)
        self._from = (0, 0)  # time and sequence, where the poll begins at an id without payload
        if self._had is None and self.position.id is not None:
            time_ms, sequence, *_ = self.position.id
            self._from = (time_ms, sequence + (self.position.kind is PositionKind.AFTER))
        self._begun = self._from == (0, 0)  # whether `_from` decides over a publish that is known
        self._publish: tuple[int, int, int] | None = None  # pointer, time, sequence of all its ids
        if request.limit is not None and request.limit <= 0:
            raise wrong("Invalid message fetching limit. Limit must be > 0")
        self._left = request.limit
        self.isolation: Isolation | Snapshot = Isolation.UNCOMMITTED
        if request.transaction is not None:
            self.isolation = decode_snapshot(request.transaction)
        self._end: int | None = None  # the offset behind the last message when it began
        self._array = avro.MessageArray(chunk_bytes)
        self._gzip = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP) if gzip else None
        self._room = PORTION_BYTES
        self._rest: Position | None = None  # where the next portion begins
        self.done = False

    def take(self, fetched: Fetched) -> list[bytes]:
        """The chunks that are complete with these blocks, or with a portion of them, the last one
        with the array's end. Empty if blocks are to be fetched from an earlier position first."""
        if not self._begun:
            self._begun = True
            first = next(iter(fetched.blocks), None)
            if first is not None and first.payload != (0, 0) and first.time_ms == self._from[0]:
                self.position = Position.at(MessageId(first.time_ms, 0))
                return []
        if self._end is None:
            self._end = fetched.ends[0]
        chunks: list[bytes] = []
        self._room, self._rest = PORTION_BYTES, None
        for stored in fetched.blocks:
            chunks += map(self._chunk, self._of(stored, self._end))
            if self._left == 0 or self._rest is not None:
                break
        self.position = self._rest or fetched.next[0]
        ended = self._rest is None and fetched.reached[0] >= self._end
        self.done = self._left == 0 or ended
        if self.done:
            chunks.append(self._chunk(self._array.end(), zlib.Z_FINISH))
        return chunks

    def _of(self, stored: StoredBlock, end: int) -> Iterator[bytes]:
        """The blocks of the array that are full with the messages of this block."""
        block_header = read_header(stored.block)
        if block_header.base_offset >= end:  # it came later
            return
        count = block_header.count
        distance = skipped(stored, block_header, self.position)
        ids, distance = self._ids(stored, block_header, distance)
        if distance < count:
            columns = decode(stored.block)
            start = place_of(columns.index, distance)
            stop = columns.count if self._left is None else start + self._left
            part = columns.slice(start, stop).about(self._room)
            self._room -= part.cell_bytes
            if start + part.count < columns.count or self._room <= 0:
                first = stored.last_sequence - count + 1
                self._rest = Position.after(MessageId(stored.time_ms, first + part.index[-1]))
            yield from self._array.add(ids(part.index), (value or b"" for value in part.values()))
            if self._left is not None:
                self._left -= part.count

    def _ids(
        self, stored: StoredBlock, block_header: BlockHeader, distance: int
    ) -> tuple[Callable[[Iterable[int]], Iterator[bytes]], int]:
        """The function that makes the ids of a block's messages, and the number of its messages
        that were polled before."""
        first = stored.last_sequence - block_header.count + 1
        if stored.payload == (0, 0):
            self._had = None
            if stored.time_ms == self._from[0]:
                distance = max(distance, min(block_header.count, self._from[1] - first))
            return MessageId(stored.time_ms, first).run, distance
        pointer, time_ms = block_header.write_pointer, stored.time_ms
        if self._publish is None or self._publish[:2] != (pointer, time_ms):
            if self._publish is not None or (self._had and self._had[0] != time_ms):
                self._had = None  # another publish than the one that the poll went on in
            self._publish = (pointer, time_ms, first)
        shared = self._publish[2]
        if (time_ms, shared) < self._from:
            distance = block_header.count
        payload_ms, payload_first = stored.payload
        if self._had is not None and self._had[1:] >= (payload_ms, payload_first):
            last = self._had[2] if self._had[1] == payload_ms else SEQUENCES_PER_MS
            distance = max(distance, min(block_header.count, last - payload_first + 1))

        def ids(distances: Iterable[int]) -> Iterator[bytes]:
            for at in distances:
                yield bytes(MessageId(time_ms, shared, payload_ms, payload_first + at))

        return ids, distance

    def _chunk(self, block: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> bytes:
        if self._gzip is None:
            return block
        return self._gzip.compress(block) + self._gzip.flush(flush)


def _unpacked_bytes(fetched: Fetched) -> int:
    """The bytes of memory that unpacking the largest of these blocks takes."""
    return max((decode(stored.block).unpacked_bytes for stored in fetched.blocks), default=0)


def _takes_gzip(exchange: Exchange) -> bool:
    accepts = exchange.headers.get(b"accept-encoding", b"").strip()
    try:
        return bool(accepts) and bool(accepted(accepts, ("gzip",)))
    except NotAcceptable:
        return False


def _position(request: ConsumeRequest) -> tuple[Position, tuple[int, int, int] | None]:
    """The position at which a poll begins; and the payload time and sequence up to which messages
    of the publish there, by its time, are left out."""
    if request.start is None:
        return Position.earliest(), None
    if isinstance(request.start, int):
        if request.start < 0:
            raise wrong("Invalid message fetching start time. Start time must be >= 0")
        return Position.time(min(request.start, TIME_MS_MAX)), None
    try:
        id = MessageId.from_bytes(request.start)
    except BadMessageId as exc:
        raise wrong(exc.message) from exc
    first = MessageId(*id[:2])
    if id.payload_time_ms:
        had = (id.time_ms, id.payload_time_ms, id.payload_sequence - request.inclusive)
        return Position.at(first), had
    return (Position.at(first) if request.inclusive else Position.after(first)), None
