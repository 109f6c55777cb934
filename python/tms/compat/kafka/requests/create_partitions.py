"""CreatePartitions: more partitions for topics; each topic has an error of its own."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import code_of
from tms.compat.kafka.requests import KafkaCall, repeated
from tms.compat.kafka.topics import require_assignable, require_count
from tms.errors import Invalid, TMSError
from tms.model.access import Access

VERSIONS = (0, 3)
CreatePartitionsResponse = codec.class_of("CreatePartitionsResponse")
_Result = CreatePartitionsResponse.CreatePartitionsTopicResult


async def answer(call: KafkaCall) -> KafkaMessage:
    """Add partitions to each topic, or only check the request if it says so."""
    twice = repeated(one.name for one in call.message.topics)
    results = []
    for one in call.message.topics:
        result = _Result(name=one.name)
        results.append(result)
        try:
            if one.name in twice:
                raise Invalid("The request names the topic more than once.")
            await _grow(call, one)
        except TMSError as error:
            result.error_code = code_of(error)
            result.error_message = error.message
    return CreatePartitionsResponse(results=results)


async def _grow(call: KafkaCall, one: KafkaMessage) -> None:
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
