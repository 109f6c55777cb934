"""SaslAuthenticate: a message of the mechanism that the client chose."""

from tms.compat.kafka import codec
from tms.compat.kafka.authentication import AuthenticationFailed
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall
from tms.errors import NotOwner, StorageUnavailable, Unavailable

VERSIONS = (0, 2)
SaslAuthenticateResponse = codec.class_of("SaslAuthenticateResponse")
_OPEN = "This service does not control access: connect without SASL."


async def answer(call: KafkaCall) -> KafkaMessage:
    """The mechanism's answer, and how long the session lasts once it has begun."""
    authentication = call.authentication
    caller = call.caller
    if authentication is None or caller is None:
        return _refusal(ErrorCode.ILLEGAL_SASL_STATE, _OPEN)
    try:
        call.require_no_doubt()  # of the tokens
        said = await authentication.step(caller, call.message.auth_bytes)
    except AuthenticationFailed as failed:
        call.end_after(failed)
        return _refusal(failed.code, failed.message)
    except (
        NotOwner,
        StorageUnavailable,
        Unavailable,
    ) as error:  # an error code would be final for the client
        call.connection.refuse(error)
        return _refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, error.message)
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=said, session_lifetime_ms=authentication.lifetime_ms
    )


def _refusal(code: ErrorCode, message: str) -> KafkaMessage:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")
