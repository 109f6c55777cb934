"""ApiVersions: the requests and versions that are answered here."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.requests import KafkaCall, api_keys

VERSIONS = (0, 4)
CONFIRMS = False
ApiVersionsResponse = codec.class_of("ApiVersionsResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """The versions of every request."""
    return ApiVersionsResponse(api_keys=api_keys(call.requests))
