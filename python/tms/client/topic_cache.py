"""The topic cache of a bus, with the turns and numberings of its publishes. Pure state, shared with
the asyncio bus.

Invariants

* A topic is described again after `REFRESH_S`, and when what is remembered proves wrong.
* A numbering belongs to one publish at a time and comes back only after success, so its numbers
  have no gap.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Protocol, Self, TypeVar

from msgspec import Struct

from tms.block import Compression, TimesColumn, check_event_time, encode
from tms.client.batching import (
    REFRESH_S,
    REQUEST_BYTES,
    Batcher,
    Expect,
    KnownTopic,
    check_partition,
    message_bytes,
)
from tms.client.delivery import Delivery, Numbering, Unacknowledged
from tms.client.telemetry.places import PlacedMessages, PlaceOf, PlaceRoom
from tms.errors import Invalid, NotFound
from tms.model.ids import MessageId
from tms.model.message import Appended, Headers, NewBlock
from tms.model.preconditions import ANSWERED
from tms.model.serializer import Serializer, V
from tms.model.topic import Durability, TopicInfo, parse_durability
from tms.runtime.clock import Clock

_TOPICS_MAX = 16_384
_NUMBERINGS_MAX = 256
Id = TypeVar("Id", covariant=True)


class Lone(Struct, frozen=True):
    """A message published by itself."""

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    partition: int | None
    event_time_ms: int | None = None

    def check(self, known: KnownTopic) -> int:
        """Its size. Raises `Invalid`, `TooLarge`, `PartitionNotFound`."""
        if self.partition is not None:
            check_partition(self.partition, known.partitions)
        if self.event_time_ms is not None:
            check_event_time(self.event_time_ms)
        return message_bytes(self.value, self.key, self.headers, known.message_bytes_max)


class TopicCache:
    """The memory of one bus. Thread-safe."""

    def __init__(self, clock: Clock, place: PlaceOf | None = None) -> None:
        self._clock = clock
        self.place = place  # where the program is traced
        self._topics: dict[str, KnownTopic] = {}
        self._turn = count()
        self._numberings: deque[Numbering] = deque(maxlen=_NUMBERINGS_MAX)
        self.return_numbering = self._numberings.append  # all of its blocks are acknowledged

    def known(self, topic: str) -> KnownTopic | None:
        """The remembered topic; None if it has to be described."""
        known = self._topics.get(topic)
        return known if known is not None and known.until_s > self._clock.monotonic_s() else None

    def learn(self, topic: str, info: TopicInfo) -> KnownTopic:
        """Remember a topic that was described."""
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        settings = info.settings
        until_s = self._clock.monotonic_s() + REFRESH_S
        known = KnownTopic(
            info.name,
            settings.partitions,
            settings.message_bytes_max,
            until_s,
            settings.partitioner,
        )
        self._topics[topic] = known
        return known

    def forget(self, topic: str) -> None:
        """Forget a topic of which something proved wrong."""
        self._topics.pop(topic, None)

    def take_numbering(self) -> Numbering:
        """A numbering for one caller, who returns it."""
        try:
            return self._numberings.pop()
        except IndexError:
            return Numbering()

    def placed(
        self, known: KnownTopic, value: bytes | None, key: bytes | None, headers: Headers | None
    ) -> Headers | None:
        """The headers of a message by itself with the place of the active span."""
        if self.place is None:
            return headers
        limit, rows = known.message_bytes_max, None if headers is None else [headers]
        message = PlacedMessages([value], [key], rows, [(0, self.place())], limit)
        placed, _ = message.placed(self.place, PlaceRoom(limit, limit))
        return None if placed is None else placed[0]

    def turn(self, known: KnownTopic) -> int:
        """The partition whose turn it is."""
        return next(self._turn) % known.partitions

    def block(self, known: KnownTopic, message: Lone, numbering: Numbering) -> NewBlock:
        """A message by itself. Raises `Invalid`, `TooLarge`, `PartitionNotFound`."""
        value, key, headers = message.value, message.key, message.headers
        partition = message.partition
        message_bytes(value, key, headers, known.message_bytes_max)
        event_times = None
        if message.event_time_ms is not None:
            check_event_time(message.event_time_ms)
            event_times = [message.event_time_ms]
        if partition is not None:
            check_partition(partition, known.partitions)
        elif key is not None:
            partition = known.partition_of(key)
        else:
            partition = next(self._turn) % known.partitions
        producer_id, sequence = numbering.take((known.name, partition))
        block = encode(
            [value],
            None if key is None else [key],
            [headers] if headers else None,
            event_times,
            producer_id=producer_id,
            producer_sequence=sequence,
        )
        return NewBlock(partition, block)

    def batcher(
        self,
        known: KnownTopic,
        numbering: Numbering,
        *,
        batch_bytes: int,
        compression: Compression,
        partition: int | None = None,
        serializer: Serializer[V] | None = None,
    ) -> Batcher[V]:
        """A batcher for this topic; messages without key go to `partition`, or to whose turn it
        is."""
        batcher = Batcher(
            known,
            numbering,
            batch_bytes=batch_bytes,
            compression=compression,
            sticky=self.turn(known) if partition is None else partition,
            serializer=serializer,
        )
        batcher.place = self.place
        return batcher


class Publication:
    """The messages of one publish, as requests that are appended one after another. A context in
    which they are: its end returns the numbering, or forgets a topic that proved wrong."""

    def __init__(
        self,
        topics: TopicCache,
        topic: str,
        known: KnownTopic,
        delivery: Delivery,
        partition: int | None,
    ) -> None:
        self._batcher: Batcher[bytes] = topics.batcher(
            known,
            delivery.numbering,
            batch_bytes=REQUEST_BYTES,
            compression=delivery.compression,
            partition=partition,
        )
        self._topics = topics
        self._topic = topic
        self._partition = partition
        self._delivery = delivery
        self.appended: list[Appended] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._topics.return_numbering(self._delivery.numbering)
        elif isinstance(error, NotFound):
            self._topics.forget(self._topic)

    def requests(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        expect: Expect | None,
        event_times_ms: TimesColumn | None = None,
    ) -> Iterator[Unacknowledged]:
        """The blocks of the messages, request by request. Raises like `Batcher.requests`."""
        if expect is not None and self._delivery.durability is Durability.NONE:
            raise Invalid(ANSWERED, field="expect")
        columns = values, keys, headers, self._partition, expect, event_times_ms
        requests = self._batcher.requests(*columns)
        return map(partial(Unacknowledged, self._delivery), requests)

    def ids(self, count: int, keys: Sequence[bytes | None] | None) -> list[MessageId]:
        """The ids of the messages, in the order in which they were given."""
        return ids_in_order(
            self.appended, self._batcher.partitions_of(count, keys, self._partition)
        )


class PlacedIds(Protocol[Id]):
    """The ids of messages that were stored in one partition."""

    @property
    def partition(self) -> int: ...

    def ids(self) -> Sequence[Id]: ...


def ids_in_order(stored: Iterable[PlacedIds[Id]], partitions: Iterable[int]) -> list[Id]:
    """The ids of messages that went to these partitions, in this order; none with durability
    `none`."""
    ids: dict[int, list[Id]] = {}
    for place in stored:
        ids.setdefault(place.partition, []).extend(place.ids())
    following = {partition: iter(of_it) for partition, of_it in ids.items()}
    return [next(following[partition]) for partition in partitions] if any(ids.values()) else []


def as_durability(durability: str | None) -> Durability | None:
    """None stays None: the topic's own. Raises `Invalid`."""
    return None if durability is None else parse_durability(durability)


def as_compression(compression: str) -> Compression:
    """Raises `Invalid`."""
    try:
        return Compression(compression)
    except ValueError as exc:
        raise Invalid(
            f"Compression is none, lz4 or zstd, got {compression!r:.40}.", field="compression"
        ) from exc
