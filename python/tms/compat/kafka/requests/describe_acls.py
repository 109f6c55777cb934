"""DescribeAcls: there are none."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (1, 3)
CONFIRMS = False
DescribeAclsResponse = codec.class_of("DescribeAclsResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """The code by which consoles know that they have no access control to show."""
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED,
        error_message="The service keeps no ACLs of Kafka's.",
    )
