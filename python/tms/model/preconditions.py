"""The spelling of an expectation: the last id that a publisher knows, or `nothing`."""

from tms.errors import Invalid, TMSError
from tms.model.ids import MessageId
from tms.model.message import NOTHING

NONE = "nothing"
ONE_BLOCK = (
    "What is expected of a partition goes with messages that are stored there together: publish "
    "them with one key or partition, up to 4 MiB of them."
)
ANSWERED = "`expect` needs an acknowledgement: use durability `written` or `synced`, not `none`."


def expected_text(after: MessageId) -> str:
    """An expectation as text."""
    return NONE if after == NOTHING else str(after)


def parse_expected(text: str) -> MessageId:
    """The expectation in a text. Raises `Invalid`."""
    if text == NONE:
        return NOTHING
    try:
        return MessageId.parse(text)
    except TMSError as error:
        raise Invalid(
            f"What is expected is a message id or `{NONE}`: {error.message}", field="expect"
        ) from error


def as_expected(expect: MessageId | str) -> MessageId:
    """The expectation for an argument of a caller. Raises `Invalid`."""
    if isinstance(expect, MessageId):
        return expect
    if isinstance(expect, str):
        return parse_expected(expect)
    raise Invalid(
        f"What is expected is a MessageId or text, got {type(expect).__name__}.", field="expect"
    )
