"""Produce: batches of records for partitions; each partition has an answer of its own.

* The batch of a partition is stored as a whole or not at all, and a repeated one once.
* The batch of a transaction is stored, synced, only while its partition is in the open transaction
  of its producer. Nothing else is stored for the producer in such a partition.
* acks: 0 no answer, and no durability; 1 durability `written`; -1 that of the topic.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from tms.block import Flags
from tms.compat.kafka import codec, records
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import BadRecords, ErrorCode, code_of
from tms.compat.kafka.records import RecordLimits
from tms.compat.kafka.requests import KafkaCall
from tms.compat.kafka.transactions import require_id
from tms.errors import TMSError, Unavailable
from tms.model.access import Access
from tms.model.message import Appended, Buffer, NewBlock
from tms.model.topic import Durability
from tms.transactions.transactional_state import ProducerEpoch, RefusalCode, Refused

VERSIONS = (3, 12)
ADVERTISED_FROM = 0  # older librdkafka sends without compression unless it sees these versions
ProduceResponse = codec.class_of("ProduceResponse")
_Result = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_DURABILITIES = {0: Durability.NONE, 1: Durability.WRITTEN, -1: None}
QUICK_BYTES = 256 << 10  # of a batch that the event loop itself converts
QUICK_RECORDS = 2_000  # of such a batch, which may be compressed
_COUNT = slice(57, 61)  # of a batch: the number of its records
BATCH_BYTES_MAX = 32 << 20  # of a batch, decompressed
_REFUSALS = {
    RefusalCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "The batch belongs to a transaction, but the request has no transactional id.",
    ),
    RefusalCode.INVALID_PRODUCER_ID_MAPPING: (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "The transactional id has another producer, or has not been used for 7 days.",
    ),
    RefusalCode.PRODUCER_FENCED: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "A later producer has the transactional id, or the transaction has timed out.",
    ),
    RefusalCode.INVALID_TXN_STATE: (
        ErrorCode.INVALID_TXN_STATE,
        "The partition is in no open transaction of the producer, or the batch belongs to none.",
    ),
    RefusalCode.CONCURRENT_TRANSACTIONS: (
        ErrorCode.REQUEST_TIMED_OUT,  # which clients repeat
        "The transaction is being ended at this moment.",
    ),
}


class _Started(NamedTuple):
    """A batch that was handed to its partition, and the way to wait for its places; with event
    times, or with its append time."""

    result: KafkaMessage
    places: Callable[[], Awaitable[list[Appended]]]
    has_times: bool


async def answer(call: KafkaCall) -> KafkaMessage | None:
    """Store every batch; None if the client wants no answer."""
    message = call.message
    topics = []
    started: list[_Started] = []
    for topic in message.topic_data:
        results = []
        for part in topic.partition_data:
            result = _Result(index=part.index, base_offset=-1, error_message=None)
            results.append(result)
            if message.acks not in _DURABILITIES:
                why = f"acks is 0, 1 or -1, got {message.acks}."
                _refuse(result, ErrorCode.INVALID_REQUIRED_ACKS, why)
                continue
            try:
                started.append(await _submit(call, topic, part, result))
            except BadRecords as refused:
                _refuse(result, refused.code, refused.message)
                if refused.index is not None:
                    result.record_errors = [
                        _Result.BatchIndexAndErrorMessage(
                            batch_index=refused.index,
                            batch_index_error_message=refused.message,
                        )
                    ]
            except Refused as refused:
                _refuse(result, *_REFUSALS[refused.code])
            except TMSError as error:
                _refuse(result, code_of(error), error.message)
        topics.append(
            ProduceResponse.TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=results
            )
        )
    for one in started:
        await _settle(one)
    if message.acks == 0:
        _end_if_refused(topics)
        return None
    return ProduceResponse(responses=topics)


async def _submit(
    call: KafkaCall, topic: KafkaMessage, part: KafkaMessage, result: KafkaMessage
) -> _Started:
    """Hand the batch of a partition to it. Raises `BadRecords`, `Refused`, and what was wrong."""
    broker = call.broker
    service = call.broker.service
    name = await call.named(topic.name, topic.topic_id, Access.PUBLISH)
    call.require_leader(name, part.index)
    record = broker.record(name)
    publisher = broker.engine.topics.publisher
    limits = RecordLimits(
        BATCH_BYTES_MAX,
        publisher.block_bytes,
        record.message_bytes_max,
        record.cleanup.compacts,
    )
    decode = partial(records.decode, part.records or b"", limits, Flags.COUNTS_MESSAGES)
    if _is_quick(part.records or b""):
        batch = decode()
    else:
        batch = await service.in_turn(service.checking, decode)
    blocks = [NewBlock(part.index, block) for block in batch.blocks]
    producer = ProducerEpoch(*batch[:2])
    if batch.transactional:
        id = call.message.transactional_id
        if id is None:
            raise Refused(RefusalCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if call.caller is not None:
            await broker.in_thread(require_id, call, id)
        places = await broker.producers.publish(id, producer, name, blocks)
        return _Started(result, places, batch.has_times)
    if producer.number > 0 and await broker.producers.holds(producer.number, name, part.index):
        raise Refused(RefusalCode.INVALID_TXN_STATE)
    durability = _DURABILITIES[call.message.acks]
    immediate = broker.engine.immediate
    pending = publisher.submit(name, blocks, durability, immediate, internal=True)
    return _Started(result, partial(service.outcome, pending), batch.has_times)


def _is_quick(batch: Buffer) -> bool:
    """True if converting a batch takes little time. A batch with more records than it says is
    refused before they are read."""
    if len(batch) > QUICK_BYTES:
        return False
    return int.from_bytes(batch[_COUNT], "big") <= QUICK_RECORDS


async def _settle(one: _Started) -> None:
    """Fill in the place of a batch, or why it has none."""
    result = one.result
    try:
        places = await one.places()
    except Refused as refused:
        _refuse(result, *_REFUSALS[refused.code])
        return
    except TMSError as error:
        _refuse(result, code_of(error), error.message)
        return
    result.base_offset = places[0].base_offset
    if not one.has_times:
        result.log_append_time_ms = places[-1].time_ms


def _refuse(result: KafkaMessage, code: ErrorCode, why: str) -> None:
    result.error_code = code
    result.error_message = why


def _end_if_refused(topics: list[KafkaMessage]) -> None:
    """Raise an error, which ends the connection: a client that wants no answer learns by this that
    it has to look again."""
    for topic in topics:
        for result in topic.partition_responses:
            if result.error_code:
                raise Unavailable(
                    f"A batch for {topic.name}/{result.index} was refused, and the client wants no "
                    f"answers: {result.error_message}"
                )
