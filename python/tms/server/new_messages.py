"""What a publish brings: blocks, or messages as JSON, as CloudEvents, and as a CloudEvent whose
attributes are headers of the request.

* A request with a header that each CloudEvent has is one, whatever its Content-Type, unless that is
  a CloudEvent's own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from tms.api import cloud_events, routes
from tms.api.bodies import MessageIn, PublishBody
from tms.api.messages import NewMessage
from tms.api.strict import decode_strict
from tms.errors import Invalid
from tms.model.message import Buffer
from tms.server.http.exchange import Exchange
from tms.server.http.request import content_type, header

_READABLE = (routes.JSON, routes.BLOCKS, routes.CLOUD_EVENT, routes.CLOUD_EVENTS)
_PUBLISH = msgspec.json.Decoder(PublishBody)
Read = Callable[[Buffer], Sequence[MessageIn | NewMessage]]


class Brought(NamedTuple):
    """How the messages of a body are read, None of blocks; and what beside the body makes the
    request what it is, where it is repeated."""

    read: Read | None
    beside: bytes = b""


def brought(exchange: Exchange) -> Brought:
    """What the headers of a publish say of its body. Raises `UnsupportedMedia`."""
    sent, headers = header(exchange, b"content-type"), exchange.headers
    if not cloud_events.SENT_REQUIRED.isdisjoint(headers) and not _is_event(sent):
        return Brought(
            partial(cloud_events.read_binary, headers), cloud_events.sent_attributes(headers)
        )
    return _BY_MEDIA[content_type(sent, _READABLE)]


def _is_event(media: str) -> bool:
    return media.lower().startswith("application/cloudevents")


def _read_json(body: Buffer) -> Sequence[MessageIn]:
    messages = decode_strict(body, _PUBLISH).messages
    if not messages:
        raise Invalid("`messages` is empty; publish at least one message.")
    return messages


_BY_MEDIA = {
    routes.BLOCKS: Brought(None),
    routes.JSON: Brought(_read_json),
    routes.CLOUD_EVENT: Brought(cloud_events.read_one),
    routes.CLOUD_EVENTS: Brought(cloud_events.read_batch),
}
