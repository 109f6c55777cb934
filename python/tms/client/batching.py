"""From messages to numbered blocks: pure state, shared by the synchronous and the asyncio producer.

    add ──▶ one filling per partition ──▶ pack ──▶ blocks, each with producer id and sequence

Invariants

* A message that was accepted is in a filling or in a packed block; a refused one is in neither.
* A filling has less than `batch_bytes` and one more message or slice, and never more than a block
  holds.
* Messages without key and partition go to one partition until `next_partition` is called.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Generic, NamedTuple, cast

from msgspec import structs

from tms.block import (
    HEADER_VALUE_BYTES_MAX,
    HEADERS_MAX,
    MESSAGES_MAX,
    Compression,
    TimesColumn,
    check_event_time,
    encode,
)
from tms.client.delivery import Numbering
from tms.client.receipts import Receipt
from tms.client.telemetry.places import Place, PlacedMessages, PlaceOf, PlaceRoom
from tms.errors import Invalid, PartitionNotFound, TooLarge
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.message import Headers, NewBlock
from tms.model.preconditions import ONE_BLOCK, as_expected
from tms.model.serializer import Serializer, V, encoded
from tms.model.topic import TopicName

MESSAGE_OVERHEAD_BYTES = 8
REFRESH_S = 60.0  # for which a topic is remembered
REQUEST_BYTES = 4 << 20  # all partitions together; beyond it everything is sent
PLACES_BYTES_MAX = 4 << 20  # what a trace may add to a request, which has room for 16 MiB
_SLICE_MAX = 4_096
_BYTES_ONLY = {bytes}

Expect = MessageId | str  # the last message that the caller knows, or "nothing"


class _Filling:
    """The messages that wait for one partition."""

    __slots__ = ("bytes", "event_times", "headers", "keys", "places", "receipt", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.event_times: list[int | None] | None = None
        self.places: list[tuple[int, Place | None]] = []  # of runs of messages, in a trace
        self.bytes = 0
        self.receipt = Receipt()

    def add_time(self, event_time_ms: int | None) -> None:
        """The last message has this event time."""
        if self.event_times is None:
            self.event_times = [None] * (len(self.values) - 1)
        self.event_times.append(event_time_ms)

    def begin_run(self, place: Place | None, count: int) -> None:
        """The last messages have this place, which those before may have, too."""
        if not self.places or self.places[-1][1] is not place:
            self.places.append((len(self.values) - count, place))


class KnownTopic(NamedTuple):
    """The settings of a topic that publishing needs."""

    name: TopicName
    partitions: int
    message_bytes_max: int
    until_s: float  # of the monotonic clock: then it is to be looked up again
    partitioner: Partitioner

    def partition_of(self, key: bytes) -> int:
        """The partition that a key selects."""
        return self.partitioner.hash_of(key) % self.partitions


class Batcher(Generic[V]):
    """The messages of one topic that wait to be packed, their values written by a serializer if
    there is one. Not thread-safe."""

    newest: _Filling  # with the last message that was added

    def __init__(
        self,
        known: KnownTopic,
        numbering: Numbering,
        *,
        batch_bytes: int,
        compression: Compression,
        sticky: int,
        serializer: Serializer[V] | None = None,
    ) -> None:
        self._serializer = serializer
        self._known = known
        self._known_until_s = known.until_s
        self._numbering = numbering
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._bytes = 0
        self.fillings: dict[int, _Filling] = {}  # what waits, by partition
        self._sticky = sticky
        self.place: PlaceOf | None = None  # where the program is traced

    def learn(self, known: KnownTopic) -> None:
        """Take messages from now on as the topic is by now."""
        self._known = known

    def drop(self) -> None:
        """Drop the messages that wait."""
        self.fillings, self._bytes = {}, 0

    @property
    def count(self) -> int:
        """The number of messages that wait to be packed."""
        return sum(len(filling.values) for filling in self.fillings.values())

    def add(
        self,
        value: V | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        event_time_ms: int | None = None,
    ) -> bool:
        """Take one message; True when it is time to pack. Raises `Invalid`, `TooLarge`,
        `PartitionNotFound`."""
        known = self._known
        data: bytes | None = value  # type: ignore[assignment]  # without a serializer it is
        if self._serializer is not None and value is not None:
            data = encoded(value, self._serializer)
        if type(data) is bytes and not headers and (key is None or type(key) is bytes):
            size = len(data) if key is None else len(data) + len(key)
            if size > known.message_bytes_max:
                raise _too_large(size, known.message_bytes_max)
        else:
            size = message_bytes(data, key, headers, known.message_bytes_max)
        if event_time_ms is not None:
            check_event_time(event_time_ms)
        if partition is None:
            partition = self._sticky if key is None else known.partition_of(key)
        filling = self.fillings.get(partition)
        if filling is None:
            filling = self._open(partition)
        values = filling.values
        keys = filling.keys
        if keys is not None:
            keys.append(key)
        elif key is not None:
            filling.keys = [*[None] * len(values), key]
        if headers and filling.headers is None:
            filling.headers = [None] * len(values)
        values.append(data)
        if filling.headers is not None:
            filling.headers.append(dict(headers) if headers else None)
        if event_time_ms is not None or filling.event_times is not None:
            filling.add_time(event_time_ms)
        if self.place is not None:
            filling.begin_run(self.place(), 1)
        self.newest = filling
        filling.bytes = waiting = filling.bytes + size + MESSAGE_OVERHEAD_BYTES  # as `_grew` does
        self._bytes += size + MESSAGE_OVERHEAD_BYTES
        return (
            waiting >= self._batch_bytes
            or self._bytes >= REQUEST_BYTES
            or len(values) >= MESSAGES_MAX
        )

    def is_outdated(self, now_s: float) -> bool:
        """True, once in `REFRESH_S`, if the partitions are to be looked up again."""
        if now_s < self._known_until_s:
            return False
        self._known_until_s = now_s + REFRESH_S
        return True

    def receipts(self) -> list[Receipt]:
        """The receipts of the blocks that `pack` makes next, in their order."""
        return [filling.receipt for filling in self.fillings.values()]

    def add_many(
        self,
        values: Sequence[V | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        partition: int | None,
        event_times_ms: TimesColumn | None = None,
    ) -> Iterator[int]:
        """Take messages one after another, stopping each time it is time to pack: yields how many
        are taken.

        Raises like `add`, with `index`; the messages before that one are taken.
        """
        _require_many("values", values, len(values))
        if keys is not None:
            _require_many("keys", keys, len(values))
        if headers is not None:
            _require_many("headers", headers, len(values))
        if event_times_ms is not None:
            _require_many("event_times_ms", event_times_ms, len(values))
        plain = self._serializer is None and keys is headers is event_times_ms is None
        if plain and set(map(type, values)) <= {bytes}:
            yield from self._add_values(values, partition)  # type: ignore[arg-type]
            return
        places: Iterator[int | None] = repeat(partition, len(values))
        if partition is None and keys is not None:
            places = self._places(keys)
        for index, (value, place) in enumerate(zip(values, places, strict=True)):
            try:
                full = self.add(
                    value,
                    None if keys is None else keys[index],
                    None if headers is None else headers[index],
                    place,
                    None if event_times_ms is None else event_times_ms[index],
                )
            except (Invalid, TooLarge, PartitionNotFound) as error:
                error.details["index"] = index
                raise
            if full:
                yield index + 1

    def _add_values(self, values: Sequence[bytes], given: int | None) -> Iterator[int]:
        """Whole slices at once: what makes `send_many` fast."""
        at, total = 0, len(values)
        while at < total:
            partition = self._sticky if given is None else given
            filling = self.fillings.get(partition)
            room, count = self._batch_bytes, MESSAGES_MAX
            if filling is not None:
                room, count = room - filling.bytes, count - len(filling.values)
            step = room // (len(values[at]) + MESSAGE_OVERHEAD_BYTES) + 1
            part = values[at : at + min(step, _SLICE_MAX, count)]
            size = sum(map(len, part))
            while len(part) > 1 and size > 2 * self._batch_bytes:  # their sizes differ a lot
                part = part[: len(part) // 2]
                size = sum(map(len, part))
            if size > self._known.message_bytes_max:
                part = self._before_too_large(part, at)
                size = sum(map(len, part))
            if filling is None:
                filling = self._open(partition)
            filling.values.extend(part)
            if filling.keys is not None:
                filling.keys.extend([None] * len(part))
            if filling.headers is not None:
                filling.headers.extend([None] * len(part))
            if filling.event_times is not None:
                filling.event_times.extend([None] * len(part))
            if self.place is not None:
                filling.begin_run(self.place(), len(part))
            at += len(part)
            if self._grew(filling, size + MESSAGE_OVERHEAD_BYTES * len(part)):
                yield at

    def _before_too_large(self, part: Sequence[bytes], at: int) -> Sequence[bytes]:
        """The messages before one that is too large; raises when that one is the first."""
        limit = self._known.message_bytes_max
        index = next((i for i, value in enumerate(part) if len(value) > limit), len(part))
        if index == 0:
            error = _too_large(len(part[0]), limit)
            error.details["index"] = at
            raise error
        return part[:index]

    def requests(
        self,
        values: Sequence[V | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        partition: int | None,
        expect: Expect | None = None,
        event_times_ms: TimesColumn | None = None,
    ) -> Iterator[list[NewBlock]]:
        """The blocks of messages, request by request; with an expectation it is one block. Raises
        like `add_many`."""
        for _ in self.add_many(values, keys, headers, partition, event_times_ms):
            if expect is not None:
                raise Invalid(ONE_BLOCK, field="expect")
            yield self.pack()
        if self.fillings:
            blocks = self.pack()
            if expect is not None:
                if len(blocks) > 1:
                    raise Invalid(ONE_BLOCK, field="expect")
                blocks = [structs.replace(blocks[0], expect=as_expected(expect))]
            yield blocks

    def pack(self) -> list[NewBlock]:
        """Everything that waits, as blocks; nothing waits any more."""
        fillings = self.fillings
        self.drop()
        left = PLACES_BYTES_MAX
        blocks = []
        for partition, filling in fillings.items():
            producer_id, sequence = self._numbering.take((self._known.name, partition))
            headers: Sequence[Headers | None] | None = filling.headers
            if self.place is not None:
                messages = PlacedMessages(
                    filling.values, filling.keys, headers, filling.places, filling.bytes
                )
                headers, added = messages.placed(
                    self.place, PlaceRoom(self._known.message_bytes_max, left)
                )
                left -= added
            block = encode(
                filling.values,
                filling.keys,
                headers,
                filling.event_times,
                producer_id=producer_id,
                producer_sequence=sequence,
                compression=self._compression,
            )
            blocks.append(NewBlock(partition, block))
        return blocks

    def partition_of(self, key: bytes | None) -> int:
        """The partition of a message with this key."""
        return self._sticky if key is None else self._known.partition_of(key)

    def partitions_of(
        self, count: int, keys: Sequence[bytes | None] | None, partition: int | None
    ) -> Iterator[int]:
        """The partitions of messages that were given to `add_many` with these arguments."""
        if partition is None and keys is not None:
            places = self._places(keys)
            return (self._sticky if place is None else place for place in places)
        return repeat(self._sticky if partition is None else partition, count)

    def _places(self, keys: Sequence[bytes | None]) -> Iterator[int | None]:
        """The partitions that keys select, hashed a slice at a time; None where `add` decides:
        without a key, or with one that it refuses."""
        for at in range(0, len(keys), _SLICE_MAX):
            part = keys[at : at + _SLICE_MAX]
            sound = [key for key in part if type(key) is bytes]
            hashes = iter(self._known.partitioner.hashes_of(sound))
            for key in part:
                yield next(hashes) % self._known.partitions if type(key) is bytes else None

    def next_partition(self) -> None:
        """Messages without key and partition go elsewhere from now on."""
        self._sticky = (self._sticky + 1) % self._known.partitions

    def _grew(self, filling: _Filling, size: int) -> bool:
        """True if it is time to pack."""
        filling.bytes += size
        self._bytes += size
        return (
            filling.bytes >= self._batch_bytes
            or self._bytes >= REQUEST_BYTES
            or len(filling.values) >= MESSAGES_MAX
        )

    def _open(self, partition: int) -> _Filling:
        check_partition(partition, self._known.partitions)
        filling = self.fillings[partition] = _Filling()
        return filling


def check_partition(partition: int, partitions: int) -> None:
    """Raises `PartitionNotFound`, `Invalid`."""
    if type(partition) is not int:
        raise Invalid(f"A partition is a number, got {partition!r:.80}.", field="partition")
    if not 0 <= partition < partitions:
        raise PartitionNotFound(
            f"The topic has the partitions 0 to {partitions - 1}, not {partition!r}.",
            partition=partition,
        )


def _require_many(name: str, column: Sequence[object], count: int) -> None:
    if isinstance(column, bytes | str):
        raise Invalid(
            f"{name} are a list with one for each message, got {type(column).__name__}.",
            field=name,
        )
    if len(column) != count:
        raise Invalid(f"There are {count} values but {len(column)} {name}.", field=name)


def as_columns(
    key: bytes | None, headers: Headers | None
) -> tuple[list[bytes | None] | None, list[Headers | None] | None]:
    """Key and headers of one message as columns of one cell, None where there is no value."""
    return None if key is None else [key], None if headers is None else [headers]


def message_bytes(
    value: bytes | None, key: bytes | None, headers: Headers | None, limit: int
) -> int:
    """The size of a message. Raises `Invalid` for what no block can hold, `TooLarge` beyond
    `limit`."""
    size = 0
    if value is not None:
        if type(value) is not bytes:
            raise _not_bytes("value", value)
        size = len(value)
    if key is not None:
        if type(key) is not bytes:
            raise _not_bytes("key", key)
        size += len(key)
    if headers:
        size += _headers_bytes(headers)
    if size > limit:
        raise _too_large(size, limit)
    return size


def value_sizes(values: Sequence[bytes | None], limit: int) -> list[int]:
    """The sizes of messages without keys and headers. Raises like `message_bytes`."""
    if set(map(type, values)) == _BYTES_ONLY:
        sizes = list(map(len, cast(Sequence[bytes], values)))
        if max(sizes) <= limit:
            return sizes
    return [message_bytes(value, None, None, limit) for value in values]


def _not_bytes(what: str, cell: object) -> Invalid:
    return Invalid(
        f"A message's {what} is bytes or None, got {type(cell).__name__}. Encode it first, e.g. "
        "json.dumps(…).encode(), or give the producer a serializer.",
        field=what,
    )


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"A message of this topic has at most {limit} bytes of key, value and headers, this one "
        f"has {size}. Raise the topic's message_bytes_max, or publish an address of the content."
    )


def _headers_bytes(headers: Headers) -> int:
    if not isinstance(headers, Mapping):
        raise Invalid(
            f"Headers are a mapping of names to bytes or None, got {type(headers).__name__}.",
            field="headers",
        )
    if len(headers) > HEADERS_MAX:
        raise Invalid(
            f"A message has at most {HEADERS_MAX} headers, this one has {len(headers)}.",
            field="headers",
        )
    size = 0
    for name, cell in headers.items():
        text = b"" if cell is None else cell
        if type(name) is not str or not name or type(text) is not bytes:
            raise Invalid(
                "A header has a non-empty str as name and bytes or None as value, got "
                f"{name!r:.80} → {type(cell).__name__}.",
                field="headers",
            )
        if len(text) > HEADER_VALUE_BYTES_MAX:
            raise Invalid(
                f"A header's value has at most {HEADER_VALUE_BYTES_MAX} bytes, {name!r:.80} has "
                f"{len(text)}.",
                field="headers",
            )
        try:
            size += len(name.encode()) + len(text)
        except UnicodeEncodeError as exc:
            raise Invalid(f"A header's name is text, got {name!r:.80}.", field="headers") from exc
    return size
