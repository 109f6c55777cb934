"""Delayed messages: their ids, their due times, and their descriptions. Values that engine, wire
and client share.

An id is `DUE_MS-SEQUENCE`, for example `1767225600000-4711`: the due time, in ms since 1970, and a
number that no other delayed message of the topic ever has. `cancel` takes it; in the log the
message gets an id like every other one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

import msgspec

from tms.errors import Invalid
from tms.model.ids import TIME_MS_MAX, utc
from tms.model.message import Headers
from tms.model.serializer import ReadableValue
from tms.model.spelling import decimal_up_to

SEQUENCE_MAX = 2**48 - 1
DELAYED_ID = f"[0-9]{{1,14}}-{decimal_up_to(SEQUENCE_MAX)}"  # how one is spelled
_ID = re.compile(r"([0-9]{1,15})-([0-9]{1,15})", re.ASCII)


class DelayedId(NamedTuple):
    """The id of a message until it is in the log."""

    due_ms: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id written as `DUE_MS-SEQUENCE`. Raises `Invalid`."""
        match = _ID.fullmatch(text) if isinstance(text, str) else None
        if match is not None:
            id = cls(int(match[1]), int(match[2]))
            if id.due_ms <= TIME_MS_MAX and id.sequence <= SEQUENCE_MAX:
                return id
        raise Invalid(
            f"The id of a delayed message is DUE_MS-SEQUENCE, got {text!r:.80}.", field="id"
        )

    @property
    def due(self) -> datetime:
        """The due time, in UTC."""
        return utc(self.due_ms)

    def __str__(self) -> str:
        return f"{self.due_ms}-{self.sequence}"


@dataclass(frozen=True, slots=True)
class Due:
    """The due time of messages: a time, or a delay after the engine has received them. Exactly one
    of both."""

    at_ms: int | None = None
    delay_ms: int | None = None

    def __post_init__(self) -> None:
        if (self.at_ms is None) == (self.delay_ms is None):
            raise Invalid("Say either when the message is due or for how long it is delayed.")
        for name, value in (("deliver_at_ms", self.at_ms), ("delay_ms", self.delay_ms)):
            if value is not None and (type(value) is not int or not 0 <= value <= TIME_MS_MAX):
                raise Invalid(
                    f"{name} is whole milliseconds, 0 to {TIME_MS_MAX} (year 9999), got "
                    f"{value!r:.40}.",
                    field=name,
                )

    def after(self, now_ms: int) -> int:
        """The due time in ms; a past time is due now. Raises `Invalid` after the year 9999."""
        if self.at_ms is not None:
            return max(self.at_ms, now_ms)
        due_ms = now_ms + (self.delay_ms or 0)
        if due_ms > TIME_MS_MAX:
            raise Invalid(
                f"A delay of {self.delay_ms} ms ends after the year 9999, which no id can hold.",
                field="delay_ms",
            )
        return due_ms


class Deferred(msgspec.Struct, frozen=True):
    """The result of publishing a delayed block: its messages wait for `due_ms`, with `count`
    consecutive sequences from `sequence`."""

    partition: int
    due_ms: int
    sequence: int
    count: int

    def ids(self) -> list[DelayedId]:
        """The ids of the messages, in order."""
        return [DelayedId(self.due_ms, self.sequence + i) for i in range(self.count)]


@dataclass(frozen=True, slots=True)
class DelayedInfo:
    """The number of a topic's delayed messages, and the due time of the first; None: there is
    none."""

    waiting: int
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class DelayedSummary:
    """A topic with delayed messages: their number, and the due time of the first."""

    topic: str
    waiting: int
    next_due_ms: int


class DelayedPage(NamedTuple):
    """The number of a topic's delayed messages, the due time of the first (None: there is none),
    and some of them, by their ids."""

    waiting: int
    next_due_ms: int | None
    messages: Sequence["DelayedMessage"] = ()


class _DelayedCells(NamedTuple):
    id: DelayedId
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    event_time_ms: int | None = None


class DelayedMessage(_DelayedCells, ReadableValue):
    """A delayed message; `event_time_ms` as in `Message`."""

    __slots__ = ()

    @property
    def due(self) -> datetime:
        """The due time, in UTC."""
        return self.id.due
