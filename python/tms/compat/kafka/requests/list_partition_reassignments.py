"""ListPartitionReassignments: none, since the only broker has every partition."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (0, 0)
CONFIRMS = False
ListPartitionReassignmentsResponse = codec.class_of("ListPartitionReassignmentsResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """An empty list."""
    return ListPartitionReassignmentsResponse(error_message=None)
