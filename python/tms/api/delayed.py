"""Bodies of delayed messages.

They are published like other messages, in JSON or as blocks; the answer has the ids under which
they can be cancelled, in place of places in the log.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from tms.api import bodies
from tms.api.messages import PackedRequest, as_text, cells_in
from tms.model.delayed import Deferred, DelayedId, DelayedInfo, DelayedMessage


class DelayedPlace(msgspec.Struct):
    """A message that waits."""

    partition: int
    id: str
    deliver_at_ms: int


class DelayedBody(msgspec.Struct):
    """Answer to JSON, in the order of the request."""

    messages: list[DelayedPlace]


class DeferredBody(msgspec.Struct):
    """Answer to blocks, in the order of the request."""

    deferred: list[Deferred]


class WaitingMessage(msgspec.Struct):
    """A message that waits. With encoding `base64`, key, value and header values are base64."""

    id: str
    deliver_at_ms: int
    partition: int
    key: str | None
    value: str | None
    headers: dict[str, str]
    encoding: Literal["utf-8", "base64"] = "utf-8"


class WaitingBody(msgspec.Struct):
    """GET …/delayed: how many wait, when the first is due, and some of them; the id of the last is
    `after` of the next page."""

    waiting: int
    next_due_ms: int | None
    messages: list[WaitingMessage] = []


class CancelledBody(msgspec.Struct):
    """Whether the message is cancelled; if not, it is delivered already, or never was."""

    cancelled: bool


def placed(packed: PackedRequest, deferred: Sequence[Deferred]) -> bytes:
    """The body that tells each message's id."""
    found = []
    for number, at in packed.places:
        one = deferred[number]
        id = DelayedId(one.due_ms, one.sequence + at)
        found.append(DelayedPlace(one.partition, str(id), one.due_ms))
    return bodies.encode(DelayedBody(found))


def waiting_body(info: DelayedInfo, messages: Sequence[DelayedMessage]) -> WaitingBody:
    """What waits, as a body."""
    shown = [
        WaitingMessage(
            str(one.id),
            one.id.due_ms,
            one.partition,
            *as_text(one.key, one.value, one.headers),
        )
        for one in messages
    ]
    return WaitingBody(info.waiting, info.next_due_ms, shown)


def messages_of(body: WaitingBody) -> list[DelayedMessage]:
    """The messages in a body. Raises `BadEncoding`, `Invalid`."""
    return [
        DelayedMessage(
            DelayedId.parse(one.id),
            one.partition,
            *cells_in(one.key, one.value, one.headers, one.encoding),
        )
        for one in body.messages
    ]
