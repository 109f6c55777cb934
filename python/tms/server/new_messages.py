"""The body of a publish: blocks, or messages as JSON, as CloudEvents, or as a CloudEvent whose
attributes are headers of the request.

* A request with a header that every CloudEvent has is a CloudEvent, whatever its Content-Type,
  unless that is a CloudEvent's own.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from tms.api import routes
from tms.api.bodies import MessageIn, PublishBody
from tms.api.cloud_events import (
    SENT_REQUIRED,
    read_batch,
    read_binary,
    read_one,
    sent_attributes,
)
from tms.api.messages import NewMessage
from tms.api.strict import decode_strict
from tms.errors import Invalid
from tms.model.message import Buffer
from tms.runtime.decoding import json_decoder
from tms.server.http.request import content_type

_READABLE = (routes.JSON, routes.BLOCKS, routes.CLOUD_EVENT, routes.CLOUD_EVENTS)
_PUBLISH = json_decoder(PublishBody)
Parser = Callable[[Buffer], Sequence[MessageIn | NewMessage]]


class Brought(NamedTuple):
    """The reader of a body's messages, None for blocks; and the parts of the request beside the
    body that a repetition must have, too."""

    read: Parser | None
    beside: bytes = b""


# Whether a request has none of the headers that each event has.
is_plain = SENT_REQUIRED.isdisjoint


def brought(headers: Mapping[bytes, bytes]) -> Brought:
    """The form of a publish's body by its headers, which have names in lower case. Raises
    `UnsupportedMedia`."""
    sent = headers.get(b"content-type", b"")
    if is_plain(headers) or sent.lower().lstrip().startswith(b"application/cloudevents"):
        return brought_as(sent)
    return Brought(partial(read_binary, headers), sent_attributes(headers))


@lru_cache(maxsize=16)
def brought_as(sent: bytes) -> Brought:
    """The form of a body by its Content-Type, without attributes of CloudEvents. Raises
    `UnsupportedMedia`."""
    return _BY_MEDIA[content_type(sent, _READABLE)]


def _read_json(body: Buffer) -> Sequence[MessageIn]:
    messages = decode_strict(body, _PUBLISH).messages
    if not messages:
        raise Invalid("`messages` is empty; publish at least one message.")
    return messages


_BY_MEDIA = {
    routes.BLOCKS: Brought(None),
    routes.JSON: Brought(_read_json),
    routes.CLOUD_EVENT: Brought(read_one),
    routes.CLOUD_EVENTS: Brought(read_batch),
}
