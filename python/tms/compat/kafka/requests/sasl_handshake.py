"""SaslHandshake: the mechanism by which the client authenticates."""

from tms.compat.kafka import codec
from tms.compat.kafka.authentication import MECHANISMS, AuthenticationFailed
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (0, 1)
CONFIRMS = False
SaslHandshakeResponse = codec.class_of("SaslHandshakeResponse")


async def answer(call: KafkaCall) -> KafkaMessage:
    """The mechanisms; an error for another one, and where no one has to authenticate."""
    if call.authentication is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    code = ErrorCode.NONE
    try:
        call.authentication.choose(call.message.mechanism, call.version)
    except AuthenticationFailed as failed:
        call.end_after(failed)
        code = failed.code
    return SaslHandshakeResponse(error_code=code, mechanisms=list(MECHANISMS))
