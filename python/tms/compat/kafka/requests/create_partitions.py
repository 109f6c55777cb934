"""CreatePartitions: more partitions for topics; each topic has an error of its own."""

from functools import partial

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall, each_once
from tms.compat.kafka.topics import require_assignable, require_count
from tms.errors import Invalid
from tms.model.access import Access

VERSIONS = (0, 3)
CreatePartitionsResponse = codec.class_of("CreatePartitionsResponse")
_Result = CreatePartitionsResponse.CreatePartitionsTopicResult


async def answer(call: KafkaCall) -> KafkaMessage:
    """Add partitions to each topic, or only check the request if it says so."""
    results = await each_once(call.message.topics, ("name",), _Result, partial(_grow, call))
    return CreatePartitionsResponse(results=results)


async def _grow(call: KafkaCall, one: KafkaMessage, _: KafkaMessage) -> None:
    broker = call.broker
    topic = call.topic(one.name, Access.MANAGE)
    record = await broker.in_thread(lambda: broker.record(topic))
    present = record.partitions
    if one.count <= present:
        raise Invalid(
            f"The topic {topic} has {present} partitions; their number can only grow, not become "
            f"{one.count}.",
            field="partitions",
        )
    count = require_count(one.count)
    if one.assignments is not None:
        if len(one.assignments) != count - present:
            raise Invalid(
                f"{count - present} partitions are to be added, and {len(one.assignments)} are "
                "assigned: assign each new partition, or none.",
                field="assignments",
            )
        require_assignable(broker.brokers, (two.broker_ids for two in one.assignments))
    if not call.message.validate_only:
        await broker.in_thread(broker.engine.update_topic, topic, {"partitions": count})
