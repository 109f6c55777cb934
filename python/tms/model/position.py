"""The position at which a fetch begins: a small value with one spelling, used in URLs, on the
command line and in Python.

earliest               the first message that retention still holds
latest                 after the last message at the moment of the fetch
id:HEX or bare HEX     at this message id, inclusive
after:HEX              after this message id, exclusive: the next position of a consumer
time:MS                the first message published at or after this time (ms since 1970)
offset:N               at this offset; the only spelling that is refused when it is out of range
"""

import re
from enum import StrEnum
from typing import Self

from msgspec import Struct

from tms.errors import BadMessageId, Invalid
from tms.model.ids import MESSAGE_ID, TIME_MS_MAX, MessageId

OFFSET_MAX = 2**63 - 1
# The spelling of a position; times and offsets with a digit more are read, too.
POSITION = (
    f"(?:earliest|latest|(?:id:|after:)?{MESSAGE_ID}|time:[0-9]{{1,14}}|offset:[0-9]{{1,18}})"
)
# The spelling of times in other tools.
_LIKE_A_TIME = re.compile(r"@|[0-9]{4}-|[-+]?[0-9.]{1,15}(?:ms|s|m|h|d|w)$|now", re.ASCII)


class PositionKind(StrEnum):
    """The six ways to name a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ID = "id"
    AFTER = "after"
    TIME = "time"
    OFFSET = "offset"


class Position(Struct, frozen=True):
    """A place in a partition. Build it with the class methods; `str()` and `parse` are inverse."""

    kind: PositionKind
    id: MessageId | None = None
    number: int = 0

    @classmethod
    def earliest(cls) -> Self:
        """The first message that retention still holds."""
        return cls(PositionKind.EARLIEST)

    @classmethod
    def latest(cls) -> Self:
        """After the last message at the moment of the fetch."""
        return cls(PositionKind.LATEST)

    @classmethod
    def at(cls, id: MessageId) -> Self:
        """At this id, inclusive."""
        return cls(PositionKind.ID, id)

    @classmethod
    def after(cls, id: MessageId) -> Self:
        """After this id, exclusive."""
        return cls(PositionKind.AFTER, id)

    @classmethod
    def time(cls, time_ms: int) -> Self:
        """The first message at or after this time. Raises `Invalid` outside 0 .. year 9999."""
        if not 0 <= time_ms <= TIME_MS_MAX:
            raise Invalid(
                f"A time is in milliseconds since 1970, 0 to {TIME_MS_MAX} (year 9999), got "
                f"{time_ms}."
            )
        return cls(PositionKind.TIME, None, time_ms)

    @classmethod
    def offset(cls, offset: int) -> Self:
        """At this offset. Raises `Invalid` outside 0 .. 2**63 - 1."""
        if not 0 <= offset <= OFFSET_MAX:
            raise Invalid(f"An offset is 0 to {OFFSET_MAX}, got {offset}.")
        return cls(PositionKind.OFFSET, None, offset)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position spelled by `text`. Raises `Invalid` or `BadMessageId`."""
        if text in ("earliest", "latest"):
            return cls(PositionKind(text))
        kind, colon, rest = text.partition(":")
        if not colon:
            try:
                return cls.at(MessageId.parse(text))
            except BadMessageId as error:
                if _LIKE_A_TIME.match(text):
                    raise _not_a_time(text) from error
                raise
        if kind == "id":
            return cls.at(MessageId.parse(rest))
        if kind == "after":
            return cls.after(MessageId.parse(rest))
        if kind in ("time", "offset"):
            if not rest.isascii() or not rest.isdigit() or len(rest) > 19:
                raise Invalid(f"{kind}: takes a whole number, got {rest[:40]!r}.")
            return cls.time(int(rest)) if kind == "time" else cls.offset(int(rest))
        if _LIKE_A_TIME.match(text):
            raise _not_a_time(text)
        raise Invalid(
            f"A position is earliest, latest, id:HEX, after:HEX, time:MS or offset:N, "
            f"got {text[:64]!r}."
        )

    def __str__(self) -> str:
        if self.id is not None:
            return f"{self.kind}:{self.id}"
        if self.kind in (PositionKind.TIME, PositionKind.OFFSET):
            return f"{self.kind}:{self.number}"
        return str(self.kind)


def _not_a_time(text: str) -> Invalid:
    return Invalid(
        f"{text[:64]!r} is no position. Give a time as time:MS, in ms since 1970; in Python also "
        "as a datetime with a time zone, such as datetime.now(UTC) - timedelta(hours=1)."
    )


EARLIEST, LATEST = Position.earliest(), Position.latest()
