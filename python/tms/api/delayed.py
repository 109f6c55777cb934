"""Bodies of delayed messages.

They are published like other messages, in JSON or as blocks; the answer has the ids under which
they can be cancelled, in place of places in the log.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from tms.api import bodies
from tms.api.messages import PackedRequest, as_text, cells_in, time_in, time_out
from tms.api.operation import Codec
from tms.model.delayed import Deferred, DelayedId, DelayedMessage, DelayedPage


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
    headers: dict[str, str | None]
    encoding: Literal["utf-8", "base64"] = "utf-8"
    event_time_ms: int | UnsetType = UNSET


class WaitingBody(msgspec.Struct):
    """GET …/delayed: how many wait, when the first is due, and some of them; the id of the last is
    `after` of the next page."""

    waiting: int
    next_due_ms: int | None
    messages: list[WaitingMessage] = []


def placed(packed: PackedRequest, deferred: Sequence[Deferred]) -> bytes:
    """The body that tells each message's id."""
    places = []
    for number, at in packed.places:
        block = deferred[number]
        id = DelayedId(block.due_ms, block.sequence + at)
        places.append(DelayedPlace(block.partition, str(id), block.due_ms))
    return bodies.encode(DelayedBody(places))


def _page_body(page: DelayedPage) -> WaitingBody:
    shown = [
        WaitingMessage(
            str(message.id),
            message.id.due_ms,
            message.partition,
            *as_text(message.key, message.value, message.headers),
            time_out(message.event_time_ms),
        )
        for message in page.messages
    ]
    return WaitingBody(page.waiting, page.next_due_ms, shown)


def _page(body: WaitingBody) -> DelayedPage:
    messages = [
        DelayedMessage(
            DelayedId.parse(message.id),
            message.partition,
            *cells_in(message.key, message.value, message.headers, message.encoding),
            time_in(message.event_time_ms),
        )
        for message in body.messages
    ]
    return DelayedPage(body.waiting, body.next_due_ms, messages)


PAGE: Codec[DelayedPage] = Codec(WaitingBody, _page, _page_body)
