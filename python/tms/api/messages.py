"""Messages outside of blocks: JSON in, JSON and Arrow out.

    as_new      a message of a JSON publish → its bytes
    pack        messages that are published → one block for each partition
    placed      the engine's answer for those blocks → the place of each message
    unpacked    the blocks of a fetch → the requested messages
    as_json, as_arrow     those messages as a body

* `pack` checks every message before the first is stored; an error names the message by `index`.
* `unpacked` goes block by block and stops at `limit` messages or `bytes_max` unpacked bytes,
  whichever comes first (at least one message passes), and returns the place to go on.
* Arrow columns: id (40 hex digits), partition, offset, timestamp (UTC, ms), key, value, headers,
  event_time (UTC, ms; null: none).
"""

import binascii
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from tms import block
from tms.api import bodies
from tms.api.bodies import FetchedBody, MessageIn, MessageOut, MessagePlace, PublishedBody
from tms.block.arrow import library
from tms.block.placing import offsets, place_of, skipped
from tms.errors import BadEncoding, Invalid, PartitionNotFound, TMSError, TooLarge
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.message import Appended, Fetched, Headers, NewBlock
from tms.model.position import Position
from tms.model.topic import TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

_LARGE_BYTES = 64 << 10
_ESCAPED = bytes(set(range(32)) - set(b"\b\t\n\f\r"))  # six characters each in JSON


class NewMessage(NamedTuple):
    """A message that is published, and its partition if it names one."""

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    partition: float | None
    event_time_ms: int | None = None


class PackedRequest(NamedTuple):
    """Blocks to append, and for each message of the request its block and its place therein."""

    blocks: list[NewBlock]
    places: list[tuple[int, int]]


class _Batch(NamedTuple):
    indexes: list[int]
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Headers | None]
    event_times: list[int | None]


def pack(
    messages: Sequence[MessageIn | NewMessage],
    partitions: int,
    spread: int,
    settings: TopicSettings,
    producer_id: int = 0,
) -> PackedRequest:
    """The blocks of a publish to so many partitions; messages with neither key nor partition go to
    `spread`. With a producer id each is its first block.

    Raises `Invalid`, `TooLarge`, `BadEncoding` or `PartitionNotFound`.
    """
    if len(messages) > block.MESSAGES_MAX:
        raise TooLarge(
            f"One request carries at most {block.MESSAGES_MAX} messages, not {len(messages)}."
        )
    batches: dict[int, _Batch] = {}
    places: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        try:
            new = as_new(message) if isinstance(message, MessageIn) else message
            _check(new, settings.message_bytes_max)
            partition = _partition(new, partitions, spread, settings.partitioner)
        except TMSError as error:
            error.details["index"] = index
            raise
        batch = batches.setdefault(partition, _Batch([], [], [], [], []))
        places.append((partition, len(batch.values)))
        batch.indexes.append(index)
        batch.values.append(new.value)
        batch.keys.append(new.key)
        batch.headers.append(new.headers)
        batch.event_times.append(new.event_time_ms)
    order = {partition: number for number, partition in enumerate(batches)}
    blocks = [NewBlock(at, _encode(batch, producer_id)) for at, batch in batches.items()]
    return PackedRequest(blocks, [(order[partition], at) for partition, at in places])


def _encode(batch: _Batch, producer_id: int) -> bytearray:
    try:
        return block.encode(
            batch.values, batch.keys, batch.headers, batch.event_times, producer_id=producer_id
        )
    except TMSError as error:
        if "index" in error.details:
            error.details["index"] = batch.indexes[error.details["index"]]
        raise


def as_new(message: MessageIn) -> NewMessage:
    """A message of a JSON publish. Raises `Invalid`, `BadEncoding`."""
    if (message.value is UNSET) == (message.json is UNSET):
        raise Invalid("A message has either `value` (a string or null) or `json` (any JSON value).")
    raw = base64 if message.encoding == "base64" else str.encode
    if isinstance(message.json, msgspec.Raw):
        value: bytes | None = bytes(message.json)
    else:
        value = raw(message.value) if isinstance(message.value, str) else None
    key = None if message.key is None else raw(message.key)
    headers = (
        {name: None if cell is None else raw(cell) for name, cell in message.headers.items()}
        if message.headers
        else None
    )
    return NewMessage(value, key, headers, message.partition, message.event_time_ms)


def _check(message: NewMessage, message_bytes_max: int) -> None:
    """Raises `Invalid`, `TooLarge`."""
    value, key, headers, *_ = message
    if headers and len(headers) > block.HEADERS_MAX:
        raise Invalid(
            f"A message has at most {block.HEADERS_MAX} headers, this one {len(headers)}."
        )
    size = len(value or b"") + len(key or b"")
    for name, cell in headers.items() if headers else ():
        text = cell or b""
        if len(text) > block.HEADER_VALUE_BYTES_MAX:
            raise Invalid(
                f"A header's value has at most {block.HEADER_VALUE_BYTES_MAX} bytes, "
                f"{name[:64]!r} has {len(text)}."
            )
        size += len(name.encode()) + len(text)
    if size > message_bytes_max:
        raise TooLarge(
            f"A message of this topic has at most {message_bytes_max} bytes, this one has {size}."
        )


def base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as exc:
        raise BadEncoding(
            f"The encoding is base64 (RFC 4648 §4, padded), the text is not: {exc}."
        ) from exc


def _partition(message: NewMessage, partitions: int, spread: int, partitioner: Partitioner) -> int:
    if message.partition is None:
        return spread if message.key is None else partitioner.partition_of(message.key, partitions)
    partition = int(message.partition)
    if partition != message.partition:
        raise Invalid(f"A partition is a whole number, got {message.partition}.", field="partition")
    if not 0 <= partition < partitions:
        raise PartitionNotFound(
            f"The topic has partitions 0 to {partitions - 1}, there is no {partition}."
        )
    return partition


def destinations(
    messages: Sequence[MessageIn | NewMessage], partitions: int, partitioner: Partitioner
) -> set[int]:
    """The partitions to which messages go by their numbers and keys; -1 if one of them may go to
    any, or is refused."""
    found = set()
    for message in messages:
        try:
            new = as_new(message) if isinstance(message, MessageIn) else message
            found.add(_partition(new, partitions, -1, partitioner))
        except TMSError:
            found.add(-1)
    return found


def placed(packed: PackedRequest, appended: Sequence[Appended]) -> bytes:
    """The body that tells each message's place."""
    places = []
    for number, at in packed.places:
        where = appended[number]
        if where.time_ms < 0:
            places.append(MessagePlace(where.partition, None, None, None))
        else:
            id = MessageId(where.time_ms, where.sequence + at)
            place = MessagePlace(where.partition, str(id), where.base_offset + at, where.time_ms)
            places.append(place)
    return bodies.encode(PublishedBody(places))


class JsonMessage(NamedTuple):
    """Key, value and headers of a message in JSON, and how they are encoded."""

    key: str | None
    value: str | None
    headers: dict[str, str | None]
    encoding: Literal["utf-8", "base64"]


class Run(NamedTuple):
    """Messages of a block; `time_ms` is when they were published, `first_sequence` and
    `base_offset` belong to the block's first message, from which their distances count."""

    partition: int
    time_ms: int
    first_sequence: int
    base_offset: int
    columns: block.Columns

    def ids(self) -> list[MessageId]:
        """The ids of the messages, in order."""
        first = self.first_sequence
        return [MessageId(self.time_ms, first + distance) for distance in self.columns.index]

    def offsets(self) -> Sequence[int]:
        """The offsets of the messages, in order."""
        return offsets(self.base_offset, self.columns.index)


class Unpacked(NamedTuple):
    """Messages of a fetch, where to go on, and the offsets before which everything is among
    them, per partition."""

    runs: list[Run]
    next: dict[int, Position]
    reached: dict[int, int]

    @property
    def unpacked_bytes(self) -> int:
        """The memory that it takes to unpack these blocks, one at a time."""
        return max((run.columns.unpacked_bytes for run in self.runs), default=0)


def unpacked(
    fetched: Fetched, positions: Mapping[int, Position], limit: int, bytes_max: int
) -> Unpacked:
    """The messages of `fetched` from the positions of the request on."""
    runs: list[Run] = []
    following, reached = dict(fetched.next), dict(fetched.reached)
    cut: set[int] = set()
    for stored in fetched.blocks:
        partition = stored.partition
        if partition in cut:
            continue
        if limit <= 0 or bytes_max <= 0:
            cut.add(partition)
            if not any(run.partition == partition for run in runs):
                following[partition], reached[partition] = positions[partition], 0
            continue
        header = block.read_header(stored.block)
        distance = skipped(stored, header, positions[partition])
        if distance >= header.count:
            continue
        columns = block.decode(stored.block)
        start = place_of(columns.index, distance)
        taken = columns.slice(start, start + limit).about(bytes_max)
        if not taken.count:
            continue
        first = stored.last_sequence - header.count + 1
        runs.append(Run(partition, stored.time_ms, first, header.base_offset, taken))
        limit -= taken.count
        bytes_max -= taken.cell_bytes
        distance = header.count
        if start + taken.count < columns.count:
            cut.add(partition)
            distance = taken.index[-1] + 1
        following[partition] = Position.after(MessageId(stored.time_ms, first + distance - 1))
        reached[partition] = header.base_offset + distance
    for partition, position in fetched.next.items():
        if partition not in cut:
            following[partition], reached[partition] = position, fetched.reached[partition]
    return Unpacked(runs, following, reached)


def as_json(answer: Unpacked, ends: Mapping[int, int]) -> bytes:
    """The messages as a JSON body."""
    parts = block.unpacked(run.columns for run in answer.runs)
    messages = [
        _message_out(run.partition, *cells)
        for run, columns in zip(answer.runs, parts, strict=True)
        for cells in zip(
            run.ids(),
            run.offsets(),
            columns.keys(),
            columns.values(),
            columns.headers(),
            columns.event_times(),
            strict=True,
        )
    ]
    text = bodies.positions_text(answer.next)
    return bodies.encode(FetchedBody(messages, text, _by_text(ends), _by_text(answer.reached)))


def _by_text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


def _message_out(
    partition: int,
    id: MessageId,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    event_time_ms: int | None,
) -> MessageOut:
    shown = as_text(key, value, headers)
    return MessageOut(partition, str(id), offset, id.time_ms, *shown, time_out(event_time_ms))


def time_out(time_ms: int | None) -> int | UnsetType:
    """An event time as JSON has it: a message without one lacks the field."""
    return UNSET if time_ms is None else time_ms


def time_in(time_ms: int | UnsetType) -> int | None:
    """The inverse."""
    return None if time_ms is UNSET else time_ms


def as_text(key: bytes | None, value: bytes | None, headers: Headers) -> JsonMessage:
    """Key, value and headers as JSON has them: all of them as text, or all as base64."""
    try:
        return JsonMessage(
            None if key is None else _text(key),
            None if value is None else _text(value),
            {name: None if cell is None else _text(cell) for name, cell in headers.items()},
            "utf-8",
        )
    except ValueError:
        return JsonMessage(
            None if key is None else b64encode(key).decode(),
            None if value is None else b64encode(value).decode(),
            {
                name: None if cell is None else b64encode(cell).decode()
                for name, cell in headers.items()
            },
            "base64",
        )


def cells_in(
    key: str | None, value: str | None, headers: Mapping[str, str | None], encoding: str
) -> tuple[bytes | None, bytes | None, dict[str, bytes | None]]:
    """The inverse. Raises `BadEncoding`."""
    raw = base64 if encoding == "base64" else str.encode
    return (
        None if key is None else raw(key),
        None if value is None else raw(value),
        {name: None if cell is None else raw(cell) for name, cell in headers.items()},
    )


def _text(cell: bytes) -> str:
    """A cell as text. Raises ValueError for bytes that are not UTF-8, and for large cells that JSON
    would enlarge much."""
    if len(cell) > _LARGE_BYTES:
        escaped = len(cell) - len(cell.translate(None, _ESCAPED))
        if escaped > len(cell) // 8:
            raise ValueError("base64 is shorter")
    return cell.decode()


@cache
def arrow_schema() -> "pa.Schema":
    """The columns of a fetch as an Arrow stream."""
    pa = library()
    ours = [
        ("id", pa.utf8()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
    given = [*block.schema(), pa.field("event_time", pa.timestamp("ms", tz="UTC"))]
    return pa.schema([*(pa.field(n, t, nullable=False) for n, t in ours), *given])


def as_arrow(runs: Sequence[Run]) -> Any:
    """The messages as an Arrow IPC stream, one record batch for each block."""
    pa = library()
    sink = pa.BufferOutputStream()
    parts = block.unpacked(run.columns for run in runs)
    with pa.ipc.new_stream(sink, arrow_schema()) as writer:
        for run, part in zip(runs, parts, strict=True):
            place = run.partition, run.time_ms
            writer.write_batch(arrow_batch(place, run.ids(), run.offsets(), part))
    return sink.getvalue()


def arrow_batch(
    place: tuple[int, int],
    ids: Iterable[MessageId],
    offsets: Sequence[int],
    cells: block.Columns,
) -> "pa.RecordBatch":
    """Messages of one block with all columns: `place` is partition and publish time in ms, `cells`
    are the block's own columns."""
    pa, (partition, time_ms), count = library(), place, cells.count
    time = pa.timestamp("ms", tz="UTC")
    given = (
        pa.array(cells.event_times(), time) if cells.times is not None else pa.nulls(count, time)
    )
    columns = [
        pa.array([str(id) for id in ids], pa.utf8()),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.repeat(pa.scalar(time_ms, time), count),
        *cells.record_batch().columns,
        given,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema())
