"""Request and response bodies: the framing of blocks, the JSON shapes, and the text of positions.

`application/vnd.tms.blocks` is a sequence of entries, the same in both directions (big-endian;
time and sequence are zero when publishing):

    0   4  block length n
    4   4  partition
    8   8  publish time of the block, ms
    16  2  sequence of the block's last message
    18  6  reserved, zero
    24  n  the block

* Unframing copies nothing: blocks are memoryviews of the body. Lengths are checked before slicing.
* JSON values of TMS (`TopicInfo`, `Appended`, …) are encoded as the dataclasses they are; their
  field names are the API.
* A message in JSON has text for key, value and header values, or base64 for all of them with
  `"encoding": "base64"`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct as Layout
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tms import block
from tms.api.operation import Codec
from tms.errors import BadBlock, Invalid, Malformed, TooLarge
from tms.model.ids import TIME_MS_MAX
from tms.model.keys import Partitioner
from tms.model.message import Appended, Buffer, NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.spelling import RETENTION, either, one_of, shaped, spelled, within
from tms.model.topic import (
    MESSAGE_BYTES_MAX,
    PARTITIONS_MAX,
    RETENTION_BYTES_MIN,
    RETENTION_DEFAULT,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
    Cleanup,
    Durability,
    TopicInfo,
    TopicSettings,
    parse_retention,
)
from tms.runtime.decoding import json_decoder

PREFIX_BYTES = 24
BLOCK_HEADER_BYTES = 48
BLOCKS_PER_REQUEST_MAX = 4_096
CHUNK_BYTES = 16 << 10  # smaller pieces are joined up to this; a larger block goes out uncopied
_PREFIX = Layout(">IIQH6s")
_ZERO = bytes(6)
_T = TypeVar("_T")


# --- blocks --------------------------------------------------------------------------------------


def frames(blocks: Iterable[StoredBlock | NewBlock]) -> Iterator[Buffer]:
    """The body that carries these blocks, chunk by chunk: made when asked for, none kept."""
    joined = bytearray()
    for entry in blocks:
        if isinstance(entry, StoredBlock):
            time_ms, sequence = entry.time_ms, entry.last_sequence
        else:
            time_ms = sequence = 0
        block = entry.block
        joined += _PREFIX.pack(len(block), entry.partition, time_ms, sequence, _ZERO)
        if len(block) < CHUNK_BYTES:
            joined += block
            if len(joined) < CHUNK_BYTES:
                continue
            yield joined
        else:
            yield joined
            yield block
        joined = bytearray()
    if joined:
        yield joined


def framed_bytes(blocks: Iterable[StoredBlock | NewBlock]) -> int:
    """The length of the body of these blocks."""
    return sum(PREFIX_BYTES + len(entry.block) for entry in blocks)


def unframe(body: Buffer) -> list[StoredBlock]:
    """The blocks of a fetch, as views of `body`. Raises `Malformed` or `BadBlock`."""
    view, size, at = memoryview(body), len(body), 0
    blocks: list[StoredBlock] = []
    while at < size:
        if size - at < PREFIX_BYTES:
            raise Malformed(
                f"The blocks end in the middle of an entry's prefix, at byte {at} of {size}."
            )
        length, partition, time_ms, sequence, reserved = _PREFIX.unpack_from(view, at)
        start = at + PREFIX_BYTES
        if not BLOCK_HEADER_BYTES <= length <= size - start:
            raise BadBlock(
                f"The entry at byte {at} claims a block of {length} bytes; a block has at least "
                f"{BLOCK_HEADER_BYTES} and the body has {size - start} left."
            )
        if reserved != _ZERO:
            raise Malformed(f"The reserved bytes of the entry at byte {at} are not zero.")
        at = start + length
        blocks.append(StoredBlock(partition, time_ms, sequence, view[start:at]))
    return blocks


def unframe_new(body: Buffer) -> list[NewBlock]:
    """The blocks of a publish, as views of `body`.

    Raises `Malformed`, `BadBlock`, `Invalid` or `TooLarge`.
    """
    stored = unframe(body)
    if not stored:
        raise Malformed("The body is empty; publish at least one block.")
    if len(stored) > BLOCKS_PER_REQUEST_MAX:
        raise TooLarge(
            f"One request carries at most {BLOCKS_PER_REQUEST_MAX} blocks, not {len(stored)}."
        )
    blocks: list[NewBlock] = []
    for index, entry in enumerate(stored):
        if entry.time_ms or entry.last_sequence:
            raise Invalid(
                f"Time and sequence of block {index} are the service's to give; send zero.",
                index=index,
            )
        blocks.append(NewBlock(entry.partition, entry.block))
    return blocks


# --- positions -----------------------------------------------------------------------------------


def positions_text(positions: Mapping[int, Position]) -> str:
    """`0:after:HEX,1:latest`: the value of `from` and of the header TMS-Next."""
    return ",".join(f"{partition}:{position}" for partition, position in positions.items())


def parse_positions(text: str) -> Position | list[PartitionPosition]:
    """One position for all partitions, or one for each of those named; the last one counts.

    Raises `Invalid` or `BadMessageId`.
    """
    if not text.partition(":")[0].isdecimal() or ":" not in text:
        return Position.parse(text)
    positions: dict[int, Position] = {}
    for part in text.split(","):
        number, _, rest = part.partition(":")
        if (
            not number.isascii()
            or not number.isdigit()
            or len(number) > 4
            or int(number) >= PARTITIONS_MAX
        ):
            raise Invalid(
                f"`start` is PARTITION:POSITION, separated by commas, got {part[:64]!r}.",
                field="start",
            )
        positions[int(number)] = Position.parse(rest)
    return [PartitionPosition(partition, position) for partition, position in positions.items()]


def ends_text(ends: Mapping[int, int]) -> str:
    """`0:123,1:456`: the value of the header TMS-End."""
    return ",".join(f"{partition}:{end}" for partition, end in ends.items())


def parse_ends(text: str) -> dict[int, int]:
    """The offsets of a TMS-End header. Raises `Malformed`."""
    try:
        return {
            int(p): int(end)
            for p, _, end in (part.partition(":") for part in text.split(",") if part)
        }
    except ValueError as exc:
        raise Malformed(
            f"The header TMS-End is PARTITION:OFFSET, separated by commas, got {text[:64]!r}."
        ) from exc


# --- JSON ----------------------------------------------------------------------------------------


_Seconds = Annotated[float, within(RETENTION_MS_MIN / 1_000, RETENTION_MS_MAX / 1_000)]
_Retention = Annotated[str, spelled(RETENTION)]
_OwnRetention = Annotated[str, spelled(f"{RETENTION_DEFAULT}|{RETENTION}")]
SOMETHING = shaped(minProperties=1)  # of a body that changes settings


class SettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """PUT and PATCH of a topic. In a PUT a missing field has its default; a PATCH leaves it
    unchanged. `partitioner` never changes."""

    partitions: Annotated[int, within(1, PARTITIONS_MAX)] | UnsetType = UNSET
    retention: _OwnRetention | _Seconds | UnsetType | None = UNSET
    retention_bytes: Annotated[int, within(RETENTION_BYTES_MIN, 2**63 - 1)] | UnsetType | None = (
        UNSET
    )
    durability: Annotated[str, one_of(*Durability)] | UnsetType = UNSET
    message_bytes_max: Annotated[int, within(1, MESSAGE_BYTES_MAX)] | UnsetType = UNSET
    cleanup: Annotated[str, one_of(*Cleanup)] | UnsetType = UNSET
    tombstone_retention: _Retention | _Seconds | UnsetType | None = UNSET
    partitioner: Annotated[str, one_of(*Partitioner)] | UnsetType = UNSET


def fields_in(body: msgspec.Struct) -> dict[str, Any]:
    """The fields that a body has."""
    values = ((name, getattr(body, name)) for name in body.__struct_fields__)
    return {name: value for name, value in values if value is not UNSET}


def changes_in(body: msgspec.Struct) -> dict[str, Any]:
    """The settings in a body of changes, of which there is at least one. Raises `Invalid`."""
    if not (changes := fields_in(body)):
        raise Invalid("The body changes nothing; name at least one setting.")
    return changes


def _topic_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """The fields of a body by the names of `TopicSettings`. Raises `Invalid`."""
    if settings.get("retention") == RETENTION_DEFAULT:
        settings["retention_is_default"] = bool(settings.pop("retention"))
    for name in ("retention", "tombstone_retention"):
        if name in settings:
            settings[f"{name}_ms"] = parse_retention(settings.pop(name), name)
    return settings


def _settings(body: SettingsBody) -> TopicSettings:
    is_default = body.retention is UNSET
    return TopicSettings(**{"retention_is_default": is_default, **_topic_fields(fields_in(body))})


def _changes(body: SettingsBody) -> dict[str, Any]:
    return _topic_fields(changes_in(body))


def _duration(ms: Any) -> str | None:
    return None if ms is None else f"{ms}ms"


def _settings_body(settings: TopicSettings) -> SettingsBody:
    """A body that services of earlier versions accept too, unless it names a partitioner."""
    is_usual = settings.partitioner is Partitioner.CRC32C
    return SettingsBody(
        partitions=settings.partitions,
        retention=UNSET if settings.retention_is_default else _duration(settings.retention_ms),
        retention_bytes=settings.retention_bytes,
        durability=settings.durability,
        message_bytes_max=settings.message_bytes_max,
        cleanup=settings.cleanup,
        tombstone_retention=_duration(settings.tombstone_retention_ms),
        partitioner=UNSET if is_usual else settings.partitioner,
    )


def _changes_body(changes: Mapping[str, object]) -> dict[str, object]:
    """Changes, named as in `TopicSettings`, by the names of `SettingsBody`."""
    body = dict(changes)
    for name in ("retention", "tombstone_retention"):
        if f"{name}_ms" in body:
            body[name] = _duration(body.pop(f"{name}_ms"))
    if body.pop("retention_is_default", False):
        body["retention"] = RETENTION_DEFAULT
    return body


NEW_TOPIC: Codec[TopicSettings] = Codec(SettingsBody, _settings, _settings_body)
TOPIC_CHANGES: Codec[Mapping[str, object]] = Codec(
    Annotated[SettingsBody, SOMETHING], _changes, _changes_body
)


class TopicsBody(msgspec.Struct):
    """A page of topics; `next` is `after` of the next page."""

    topics: list[TopicInfo]
    next: str | None = None


TOPICS: Codec[list[TopicInfo]] = Codec(TopicsBody, lambda body: body.topics)


BASE64 = {
    "type": "string",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_BASE64_OR_NONE = {"anyOf": [BASE64, {"type": "null"}]}
_Headers = Annotated[
    dict[str, str | None],
    shaped(maxProperties=block.HEADERS_MAX, propertyNames={"minLength": 1}),
]
# JSON Schema calls 1.0 whole, too.
_Partition = Annotated[int | float, shaped(type="integer", minimum=0, maximum=PARTITIONS_MAX - 1)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
_UTF8 = {"properties": {"encoding": {"enum": ["utf-8"]}}}
_AS_BASE64 = {
    "required": ["encoding"],
    "properties": {
        "encoding": {"enum": ["base64"]},
        "key": _BASE64_OR_NONE,
        "value": _BASE64_OR_NONE,
        "headers": {"additionalProperties": _BASE64_OR_NONE},
    },
}
_ONE_MESSAGE = {
    "allOf": [
        either(
            {"required": ["value"], "properties": {"json": False}},
            {"required": ["json"], "properties": {"value": False}},
        ),
        either(_UTF8, _AS_BASE64),
    ]
}


class MessageIn(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish: `value` as text or base64, or any JSON as `json`, stored as sent."""

    value: str | UnsetType | None = UNSET
    json: msgspec.Raw | UnsetType = UNSET
    key: str | None = None
    headers: _Headers | None = None
    partition: _Partition | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"
    event_time_ms: _Time | None = None


class PublishBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST …/messages in JSON: all are stored or none."""

    messages: Annotated[
        list[Annotated[MessageIn, shaped(**_ONE_MESSAGE)]],
        shaped(minItems=1, maxItems=block.MESSAGES_MAX),
    ]


class MessagePlace(msgspec.Struct):
    """The place of a message. With durability `none` only the partition is known; all else is
    null."""

    partition: int
    id: str | None
    offset: int | None
    timestamp_ms: int | None


class PublishedBody(msgspec.Struct):
    """Answer to a publish in JSON, in the order of the request."""

    messages: list[MessagePlace]


class AppendedBody(msgspec.Struct):
    """Answer to a publish of blocks, in the order of the request."""

    appended: list[Appended]


class MessageOut(msgspec.Struct):
    """A fetched message. With encoding `base64`, key, value and header values are base64. A message
    that its publisher gave no time has no `event_time_ms`."""

    partition: int
    id: str
    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    headers: dict[str, str | None]
    encoding: Literal["utf-8", "base64"] = "utf-8"
    event_time_ms: int | UnsetType = UNSET


class FetchedBody(msgspec.Struct):
    """Answer to a fetch in JSON. `next` is the `start` of the next fetch; the fetch has looked at
    everything before `reached`. More may follow if `reached` is less than `ends`."""

    messages: list[MessageOut]
    next: str
    ends: dict[str, int]
    reached: dict[str, int]


class RootBody(msgspec.Struct):
    """GET /: what this is and where to go."""

    name: str
    version: str
    links: dict[str, str]


class LivenessBody(msgspec.Struct):
    """GET /livez."""

    alive: bool


class StartedBody(msgspec.Struct):
    """GET /startupz. `reasons` say what the service waits for."""

    started: bool
    reasons: list[str]


class ReadinessBody(msgspec.Struct):
    """GET /readyz. `reasons` say why the service is not ready; `warnings` name faults of
    a service that is ready."""

    ready: bool
    reasons: list[str]
    warnings: list[str] = []


# A struct, dataclass or plain value as JSON.
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def decode(body: Buffer, type: type[_T]) -> _T:
    """The value of a body that TMS itself has written. Raises `Malformed`."""
    try:
        return json_decoder(type).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise Malformed(f"The body is not the JSON that was expected: {exc}") from exc
