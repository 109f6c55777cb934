"""Fetch: batches of records from partitions on, with a wait for more.

* A block is sent as one batch. In place of messages that are gone or were rolled back, an empty
  batch carries the reader over their offsets.
* A wait ends when there are enough bytes, at its time-out, and when the client leaves or the
  service drains.
* Bytes are counted until the client has taken the answer: slow readers get less.
* A request stands alone: no fetch session is kept, which clients notice by the session id 0.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from tms.block import read_header
from tms.compat.kafka import codec, records
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import NO_ID, KafkaMessage
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import OffsetOutOfRange, TMSError, TopicNotFound
from tms.model.access import Access
from tms.model.message import Buffer, Fetched, Holder, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName
from tms.server.fetch import GRANT_BYTES_MIN
from tms.server.http.exchange import settle_from_thread

VERSIONS = (4, 17)
FetchResponse = codec.class_of("FetchResponse")
_Partition = FetchResponse.FetchableTopicResponse.PartitionData


class _Tail(NamedTuple):
    """The end of what was found in a partition, from which on a wait watches, and the bytes that
    were found."""

    name: TopicName
    position: PartitionPosition
    held: Mapping[int, Holder]
    size: int


class _Found(NamedTuple):
    """A look at all partitions: the response, its bytes of records, and whether it has to be sent
    without a wait."""

    topics: list[KafkaMessage]
    places: list[_Tail]
    size: int
    is_urgent: bool


async def answer(call: KafkaCall) -> KafkaMessage:
    """The batches that are there, or come within the wait."""
    message = call.message
    broker = call.broker
    if message.session_id:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    loop = asyncio.get_running_loop()
    wait_s = min(max(0, message.max_wait_ms), broker.service.limits.fetch_wait_ms_max) / 1_000
    deadline = loop.time() + wait_s
    isolation = Isolation.COMMITTED if message.isolation_level else Isolation.UNCOMMITTED
    while True:
        found = await _look(call, isolation)
        left_s = deadline - loop.time()
        enough = found.size >= message.min_bytes or found.is_urgent
        if enough or left_s <= 0 or broker.draining or call.connection.has_left:
            break
        woken = loop.create_future()
        wake = partial(settle_from_thread, loop, woken)
        with ExitStack() as watches:
            try:
                for place in found.places:
                    watches.callback(_watch(broker, place, wake, isolation))
            except TMSError:
                break  # the next request is told
            await broker.sleep(call.connection, woken, left_s)
        call = call._replace(doubt=await broker.doubt())
    call.hold(broker.service.fetching, found.size)
    metrics = broker.service.metrics
    metrics.bytes_out += found.size
    for place in found.places:
        metrics.sent[place.name] += place.size
    return FetchResponse(responses=found.topics)


def _watch(
    broker: Broker, place: _Tail, wake: Callable[[], None], isolation: Isolation
) -> Callable[[], None]:
    return broker.engine.watch(place.name, [place.position], wake, place.held, isolation)


async def _look(call: KafkaCall, isolation: Isolation) -> _Found:
    message = call.message
    budget = call.broker.service.fetching
    topics: list[KafkaMessage] = []
    places: list[_Tail] = []
    free = budget.bytes_max - budget.bytes
    left = min(message.max_bytes, max(free // 2, GRANT_BYTES_MIN))
    size = 0
    is_urgent = False
    for topic in message.topics:
        results = []
        for part in topic.partitions:
            result = _Partition(
                partition_index=part.partition, high_watermark=-1, aborted_transactions=None
            )
            result.records = []
            results.append(result)
            try:
                name = await call.named(topic.topic, topic.topic_id, Access.CONSUME)
                call.require_leader(name, part.partition)
                wanted = min(part.partition_max_bytes, left - size)
                wanted = wanted if size else max(1, wanted)  # an answer has at least one batch
                fetched = await _fetch(call.broker, name, part, wanted, isolation)
                if fetched is None:
                    is_urgent = True  # there is no room left, so nothing is waited for
                    continue
                filled = _fill(call.broker, name, result, part, fetched)
                size += filled
                if isolation is Isolation.COMMITTED:
                    await _tell_stable(call.broker, name, result, fetched)
                following = PartitionPosition(part.partition, fetched.next[part.partition])
                places.append(_Tail(name, following, fetched.held, filled))
            except TMSError as error:
                result.error_code = code_of(error)
                is_urgent = True
                if topic.topic_id != NO_ID and isinstance(error, TopicNotFound):
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        topics.append(
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=results
            )
        )
    return _Found(topics, places, size, is_urgent or size >= left)


async def _fetch(
    broker: Broker, name: TopicName, part: KafkaMessage, bytes_max: int, isolation: Isolation
) -> Fetched | None:
    """The blocks that are there in a partition. Without room for bytes only its end, and None if
    that would have to be read from the store."""
    engine = broker.engine
    service = broker.service
    if part.fetch_offset < 0:
        raise OffsetOutOfRange(f"An offset is 0 or more, got {part.fetch_offset}.")
    place = [PartitionPosition(part.partition, Position.offset(part.fetch_offset))]
    fetched = engine.fetch_cached(name, place, max(0, bytes_max), isolation)
    if fetched is not None:
        return fetched
    if bytes_max <= 0:
        return None
    await service.fetching.claim(bytes_max)
    try:
        return await service.in_thread(engine.fetch, name, place, bytes_max, 0, isolation)
    finally:
        service.fetching.release(bytes_max)


def _fill(
    broker: Broker, name: TopicName, result: KafkaMessage, part: KafkaMessage, fetched: Fetched
) -> int:
    """Fill in the batches of a partition and its end; returns their bytes."""
    at = part.fetch_offset
    size = 0
    for stored in fetched.blocks:
        header = read_header(stored.block)
        end = header.base_offset + header.count
        if end > at:
            batch = broker.batch(name, stored)
            result.records.append(batch)
            size += len(batch)
            at = end
    if (reached := fetched.reached[part.partition]) > at:
        gap: Buffer = records.gap(at, reached)
        result.records.append(gap)
        size += len(gap)
    result.high_watermark = fetched.ends[part.partition]
    return size


async def _tell_stable(
    broker: Broker, name: TopicName, result: KafkaMessage, fetched: Fetched
) -> None:
    """Fill in the ends for a reader of committed messages: its own, and that of all messages."""
    partition = result.partition_index
    result.last_stable_offset = fetched.ends[partition]
    if partition in fetched.held:
        end = broker.engine.topics.fetcher.end
        result.high_watermark, _ = await broker.in_thread(lambda: end(name, partition))
