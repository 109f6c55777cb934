"""Bodies of queues.

Received messages come as JSON for people, or as `application/vnd.tms.blocks` for clients:

    0  4  bytes of the head, big-endian
    4  …  head: JSON, `ReceivedHead`: which messages of which block
    …  …  the blocks, framed as in `bodies`, time and sequence zero

Invariants

* A block goes out as it is stored if most of its messages are asked for; unpacking copies nothing:
  columns are views of the body. The messages of all other blocks go out together in a block made
  for this answer, so that a hundred messages of a block of thousands cost a hundred.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from struct import Struct as Layout
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tms import block
from tms.api import bodies, messages
from tms.api.bodies import MessageOut
from tms.api.operation import Codec, list_of
from tms.block.received import Received, Slice
from tms.errors import BadMessageId, Malformed
from tms.model.ids import MessageId
from tms.model.message import Buffer, Headers, NewBlock
from tms.model.queue import (
    RECEIVE_BYTES,
    RECEIVE_MAX,
    QueuedMessage,
    QueuedState,
    QueueInfo,
    QueueSettings,
    TokenResult,
    join_tokens,
)
from tms.model.topic import TopicName

REDRIVE_DEFAULT, REDRIVE_MAX = 1_000, 100_000
FETCH_BYTES_MAX = 1 << 30  # what may be asked for; limits of the service bound the answer
WAIT_S_MAX = 3_600.0  # so is the wait
_WHOLE_BYTES = 4 << 10  # a block up to this size is not cut
_LENGTH = Layout(">I")
_BLOCK, _ORIGIN = map(attrgetter, ("block", "columns.origin"))


# --- queues --------------------------------------------------------------------------------------


def _settings(body: Any) -> QueueSettings:
    return QueueSettings(**bodies.fields_in(body))


def _queue_body(info: QueueInfo) -> Any:
    """A queue as JSON shows it."""
    shared = {name: getattr(info, name) for name in _SHARED}
    namespace, topic = info.topic
    return QueueBody(namespace=namespace, topic=topic, dead_letter=str(info.dead_letter), **shared)


def _queue_info(body: Any) -> QueueInfo:
    """The queue that JSON shows."""
    shared = {name: getattr(body, name) for name in _SHARED}
    return QueueInfo(topic=TopicName(body.namespace, body.topic), **shared)


# PUT and PATCH of a queue. What is left out has its default, or stays as it is.
QueueSettingsBody = msgspec.defstruct(
    "QueueSettingsBody",
    [(field.name, field.type | UnsetType, UNSET) for field in fields(QueueSettings)],
    forbid_unknown_fields=True,
)
_SHARED = {field.name: field.type for field in fields(QueueInfo) if field.name != "topic"}
_FIRST = {
    "group": str,
    "namespace": str,
    "topic": str,
    "settings": QueueSettings,
    "dead_letter": str,
}
# A queue; `dead_letter` is the topic of its dead letters. See `tms.model.queue.QueueInfo`.
QueueBody = msgspec.defstruct(
    "QueueBody", (_FIRST | _SHARED).items(), namespace={"__doc__": QueueInfo.__doc__}
)
NEW_QUEUE: Codec[QueueSettings] = Codec(QueueSettingsBody, _settings)
QUEUE_CHANGES: Codec[Mapping[str, object]] = Codec(
    Annotated[QueueSettingsBody, bodies.SOMETHING], bodies.changes_in, dict
)
QUEUE: Codec[QueueInfo] = Codec(QueueBody, _queue_info, _queue_body)
QUEUES = list_of(QUEUE)


# --- tokens --------------------------------------------------------------------------------------


class TokensBody(msgspec.Struct):
    """The number of messages that were settled, and the tokens that came too late."""

    done: int
    fenced: list[str]


TOKEN_RESULT: Codec[TokenResult] = Codec(
    TokensBody,
    lambda body: TokenResult(body.done, tuple(body.fenced)),
    lambda result: TokensBody(result.done, [*result.fenced]),
)


# --- messages ------------------------------------------------------------------------------------


class ReceiveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST …/receive: up to `limit` messages, of about `bytes_max` bytes; wait for the first."""

    limit: Annotated[int, Meta(ge=1, le=RECEIVE_MAX)] = 1
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 0
    bytes_max: Annotated[int, Meta(ge=1, le=FETCH_BYTES_MAX)] = RECEIVE_BYTES


class DeliveredBody(MessageOut, kw_only=True):
    """A message that was leased; `token` names this delivery."""

    deliveries: int
    token: str


class ReceivedBody(msgspec.Struct):
    """Answer to a receive in JSON; `tokens` together name all of the messages."""

    messages: list[DeliveredBody]
    tokens: list[str]


class QueuedBody(MessageOut, kw_only=True):
    """A message of a queue: its number of deliveries and its state. `left_s` are the seconds until
    the lease of a leased message ends, or until a delayed one may be delivered; `token` names its
    last delivery."""

    topic: str
    deliveries: int
    state: QueuedState
    left_s: float | UnsetType = UNSET
    token: str = ""


def _queued(body: QueuedBody) -> QueuedMessage:
    key, value, headers = messages.cells_in(body.key, body.value, body.headers, body.encoding)
    return QueuedMessage(
        body.topic,
        body.partition,
        body.offset,
        _id(body.id),
        key,
        value,
        headers,
        body.deliveries,
        body.state,
        messages.time_in(body.event_time_ms),
        None if body.left_s is UNSET else body.left_s,
        body.token,
    )


def _queued_body(message: QueuedMessage) -> QueuedBody:
    return QueuedBody(
        message.partition,
        str(message.id),
        message.offset,
        message.timestamp_ms,
        *messages.as_text(message.key, message.value, message.headers),
        messages.time_out(message.event_time_ms),
        topic=message.topic,
        deliveries=message.deliveries,
        state=message.state,
        left_s=UNSET if message.left_s is None else message.left_s,
        token=message.token,
    )


QUEUED = list_of(Codec(QueuedBody, _queued, _queued_body))


class SlicePart(msgspec.Struct, array_like=True):
    """Consecutive messages, delivered equally often: `count` cells of a block, from `first` on."""

    partition: int
    offset: int
    id: str
    deliveries: int
    block: int
    first: int
    count: int


class ReceivedHead(msgspec.Struct):
    """Everything of a receive but its blocks."""

    epoch: int
    slices: list[SlicePart]


def received_json(received: Received) -> bytes:
    """The messages as a JSON body. Raises `DataCorrupt`."""
    delivered = [
        DeliveredBody(
            message.partition,
            str(message.id),
            message.offset,
            message.timestamp_ms,
            *messages.as_text(message.key, message.value, message.headers),
            messages.time_out(message.event_time_ms),
            deliveries=message.deliveries,
            token=message.token,
        )
        for message in received.messages("")
    ]
    tokens = join_tokens(part.token(received.epoch) for part in received.slices)
    return bodies.encode(ReceivedBody(delivered, [str(token) for token in tokens]))


def encode_received(received: Received) -> list[Buffer]:
    """The messages as chunks of a body. Raises `DataCorrupt`."""
    slices = received.slices
    origins = [*map(_ORIGIN, slices)]
    wanted: dict[int, int] = {}
    for slice, (whole, _, _) in zip(slices, origins, strict=True):
        wanted[id(whole)] = wanted.get(id(whole), 0) + slice.columns.count
    parts: list[SlicePart] = []
    blocks: list[NewBlock] = []
    numbers: dict[int, int] = {}
    cut: list[tuple[Slice, SlicePart]] = []
    for slice, (whole, first, count) in zip(slices, origins, strict=True):
        place = slice.partition, slice.offset, str(slice.id), slice.deliveries
        part = SlicePart(*place, 0, first, slice.columns.count)
        parts.append(part)
        if 2 * wanted[id(whole)] < count and len(whole) > _WHOLE_BYTES:
            cut.append((slice, part))
            continue
        if id(whole) not in numbers:
            numbers[id(whole)] = len(blocks)
            blocks.append(NewBlock(slice.partition, whole))
        part.block = numbers[id(whole)]
    at = 0
    for _, part in cut:
        part.block = len(blocks)
        part.first = at
        at += part.count
    if cut:
        blocks.append(NewBlock(0, _joined(slice for slice, _ in cut)))
    head = bodies.encode(ReceivedHead(received.epoch, parts))
    return [_LENGTH.pack(len(head)) + head, *bodies.frames(blocks)]


def _joined(slices: Iterable[Slice]) -> bytearray:
    """A block of all messages of the slices."""
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[Headers | None] = []
    event_times: list[int | None] = []
    for columns in block.unpacked(slice.columns for slice in slices):
        values += columns.values()
        keys += columns.keys()
        headers += columns.headers()
        event_times += columns.event_times()
    return block.encode(values, keys, headers if any(headers) else None, event_times)


def decode_received(body: Buffer) -> Received:
    """The messages in a body, not unpacked. Raises `Malformed`, `BadBlock`, `DataCorrupt`."""
    view = memoryview(body)
    length = _LENGTH.unpack_from(view)[0] if len(view) >= _LENGTH.size else -1
    start = _LENGTH.size + length
    if not 0 < length <= len(view) - _LENGTH.size:
        raise Malformed("What was received begins with the length of its head and the head.")
    head = bodies.decode(view[_LENGTH.size : start], ReceivedHead)
    columns = [*map(block.decode, map(_BLOCK, bodies.unframe(view[start:])))]
    slices = []
    for part in head.slices:
        stop = part.first + part.count
        if not (0 <= part.block < len(columns) and 0 <= part.first < stop):
            raise Malformed(f"What was received names no messages of a block: {part}.")
        if stop > columns[part.block].count:
            raise Malformed(f"What was received names more messages than a block has: {part}.")
        cells = columns[part.block].slice(part.first, stop)
        slices.append(Slice(part.partition, part.offset, _id(part.id), part.deliveries, cells))
    return Received(head.epoch, tuple(slices))


def _id(text: str) -> MessageId:
    try:
        return MessageId.parse(text)
    except BadMessageId as exc:
        raise Malformed(f"A received message has a malformed id: {exc.message}") from exc
