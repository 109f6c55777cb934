"""DescribeProducers: the idempotent producers that partitions remember, with their newest batch."""

from collections.abc import Mapping

from tms.block import EPOCH_BITS, MESSAGE_SEQUENCES, read_header
from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import code_of
from tms.compat.kafka.requests import KafkaCall
from tms.errors import TMSError, TooLarge
from tms.model.access import Access
from tms.model.message import PartitionPosition
from tms.model.position import LATEST, Position
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName

VERSIONS = (0, 0)
DescribeProducersResponse = codec.class_of("DescribeProducersResponse")
_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse
PRODUCERS_MAX = 100_000  # of an answer
READ_BYTES = 1 << 20  # that are looked at together for the beginning of a transaction


async def answer(call: KafkaCall) -> KafkaMessage:
    """The producers of each partition; each has an error of its own."""
    topics = []
    left = PRODUCERS_MAX
    for topic in call.message.topics:
        results = []
        for number in topic.partition_indexes:
            result = _Partition(partition_index=number)
            results.append(result)
            try:
                if left <= 0:
                    raise TooLarge(
                        f"The answer has {PRODUCERS_MAX} producers already; ask for fewer "
                        "partitions at a time."
                    )
                name = call.topic(topic.name, Access.OBSERVE)
                call.require_leader(name, number)
                described = await call.broker.in_thread(_described, call.broker, name, number)
                result.active_producers = described
                left -= len(described)
            except TMSError as error:
                result.error_code = code_of(error)
                result.error_message = error.message
        topics.append(_Topic(name=topic.name, partitions=results))
    return DescribeProducersResponse(topics=topics)


def _described(broker: Broker, name: TopicName, partition: int) -> list[KafkaMessage]:
    engine = broker.engine
    newest = engine.topics.log(name, partition).counting_producers()
    numbers = {id >> EPOCH_BITS for id in newest}
    open_ = broker.producers.transactions_in(numbers, name, partition)
    pointers = {number: pointer for number, pointer in open_.items() if pointer}
    begins = _begins(broker, name, partition, pointers)
    return [
        _Partition.ProducerState(
            producer_id=id >> EPOCH_BITS,
            producer_epoch=id % (1 << EPOCH_BITS),
            last_sequence=(block.producer_sequence + block.count - 1) % MESSAGE_SEQUENCES,
            last_timestamp=block.time_ms,
            coordinator_epoch=-1,
            current_txn_start_offset=begins.get(id >> EPOCH_BITS, -1),
        )
        for id, block in newest.items()
    ]


def _begins(
    broker: Broker, name: TopicName, partition: int, pointers: Mapping[int, int]
) -> dict[int, int]:
    """The offset of the first message of open transactions in a partition, by the number of the
    producer; without those that have none there. `pointers` are their write pointers."""
    engine = broker.engine
    left = {pointer: number for number, pointer in pointers.items()}
    found: dict[int, int] = {}
    if not left:
        return found
    offsets = engine.topics.fetcher.offsets_here(name, [partition], LATEST, Isolation.COMMITTED)
    at = Position.offset(offsets[partition])  # all before is decided
    while left:
        place = [PartitionPosition(partition, at)]
        fetched = engine.fetch(name, place, READ_BYTES, 0, Isolation.UNCOMMITTED)
        for stored in fetched.blocks:
            header = read_header(stored.block)
            number = left.pop(header.write_pointer, None)
            if number is not None:
                found[number] = header.base_offset
        if fetched.reached[partition] >= fetched.ends[partition]:
            break
        at = fetched.next[partition]
    return found
