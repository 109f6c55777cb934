"""Reading without I/O: positions, batches, pages, and the cursor of a consumer. Shared by the
synchronous and the asyncio client.

Invariants

* Messages that lie before the position asked for are dropped here: a block that is cut by it comes
  whole.
* `Cursor.positions()` is behind what the caller was handed, never behind what was only fetched: a
  consumer that starts there goes on with the next message.
* Bytes that fail their CRC are never handed out (`DataCorrupt`).
* Whether a partition is read to its end only offsets tell: an answer without messages does not.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from tms.api.messages import arrow_batch
from tms.block import BlockHeader, Columns, Flags, decode, index_of, read_header
from tms.block.placing import place_of, skipped
from tms.client.frames import as_pandas, as_polars, as_table
from tms.errors import Invalid
from tms.model.filter import Filter
from tms.model.ids import MessageId, as_id
from tms.model.message import Fetched, Message, PartitionPosition, StoredBlock, in_turn
from tms.model.position import Position, PositionKind
from tms.model.serializer import Decoder, V, reading

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Start = str | MessageId | datetime | Position

PARTITIONS_PER_FETCH = 128  # their positions must fit into a URL of 8 KiB
PARTITIONS_PER_FILTER = 64  # together with a filter


def as_position(start: Start) -> Position:
    """The position that a caller means: `earliest`, `latest`, `offset:N`, an id, a time, or a
    position's text.

    Raises `Invalid` or `BadMessageId`.
    """
    if isinstance(start, Position):
        return start
    if isinstance(start, MessageId):
        return Position.at(start)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise Invalid(
                f"The time {start} has no time zone; use e.g. datetime(…, tzinfo=UTC).",
                field="start",
            )
        return Position.time(-(-(start - _EPOCH) // _MS))
    if isinstance(start, str):
        return Position.parse(start)
    raise Invalid(
        f"A start is text, a MessageId, a datetime or a Position, got {type(start).__name__}.",
        field="start",
    )


def start_positions(
    start: Start | Mapping[int, Start],
    partitions: Sequence[int] | None,
    count: Callable[[], int],
) -> dict[int, Position]:
    """The position at which each partition begins; `count` returns the number of partitions. Raises
    `Invalid`, `BadMessageId`."""
    if type(start) is not dict and not isinstance(start, Mapping):
        wanted = range(count()) if partitions is None else numbers(partitions)
        return dict.fromkeys(wanted, as_position(start))
    positions: dict[int, Position] = {}
    for partition in numbers(start, "start") if partitions is None else numbers(partitions):
        there = start.get(partition)
        if there is None:
            raise Invalid(f"The start has no position for partition {partition}.", field="start")
        positions[partition] = there if type(there) is Position else as_position(there)
    return positions


def numbers(partitions: Iterable[int], field: str = "partitions") -> Sequence[int]:
    """Numbers of partitions themselves. Raises `Invalid`."""
    if isinstance(partitions, Iterable) and not isinstance(partitions, str | bytes):
        found = list(partitions)
        if all(type(one) is int and one >= 0 for one in found):
            return found
    raise Invalid(
        f"{field} names partitions by their numbers, such as 0, got {partitions!r:.80}.",
        field=field,
    )


def check_flag(field: str, value: bool) -> None:
    """Raises `Invalid`."""
    if type(value) is not bool:
        raise Invalid(f"{field} is True or False, got {value!r:.80}.", field=field)


def asks(
    positions: Mapping[int, Position], filtered: bool = False
) -> list[list[PartitionPosition]]:
    """The positions as one fetch or, when they are many, several fetches take them."""
    all_of_them = list(starmap(PartitionPosition, positions.items()))
    each = PARTITIONS_PER_FILTER if filtered else PARTITIONS_PER_FETCH
    if 0 < len(all_of_them) <= each:
        return [all_of_them]
    return [all_of_them[at : at + each] for at in range(0, len(all_of_them), each)]


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MS = timedelta(milliseconds=1)


class Batch(Generic[V]):
    """Messages of one partition that were published together, unpacked column by column when asked
    for.

    `partition`, `base_offset` (of the first message), `end_offset` (where the next batch may
    begin), `timestamp_ms`, and `len(batch)`. Columns have one cell per message, in order. Raises
    `DataCorrupt` when the bytes are not what was stored.
    """

    __slots__ = (
        "_block",
        "_columns",
        "_count",
        "_index",
        "_kind",
        "_skip",
        "base_offset",
        "end_offset",
        "first_sequence",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        block: StoredBlock,
        skip: int = 0,
        header: BlockHeader | None = None,
        kind: type[Message[V]] = Message,
    ) -> None:
        header = header or read_header(block.block)
        count, base_offset = header.count, header.base_offset
        self.topic = topic
        self.end_offset = base_offset + count  # whatever is left of it
        self._block = block
        self._kind = kind
        self._columns: Columns | None = None
        self._index: Sequence[int] | None = None  # of a sparse block, behind what is skipped
        first = skip
        if header.flags & Flags.SPARSE:
            index = index_of(block.block, header)
            skip = place_of(index, skip)
            self._index = index[skip:]
            first = self._index[0] if self._index else count
            self._count = len(self._index)
        else:
            self._count = count - skip
        self._skip = skip
        self.base_offset = base_offset + first
        self.first_sequence = block.last_sequence - count + 1 + first

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.partition} {self.base_offset}..{self.end_offset}"
        return f"<Batch {where}>" if self._index is None else f"<Batch {where} sparse>"

    @property
    def partition(self) -> int:
        """The partition."""
        return self._block.partition

    @property
    def timestamp_ms(self) -> int:
        """When the messages were published, in ms since 1970-01-01T00:00Z."""
        return self._block.time_ms

    @property
    def last_id(self) -> MessageId:
        """The id of the last message of the block: `Position.after` it is where to go on."""
        return MessageId(self._block.time_ms, self._block.last_sequence)

    def values(self) -> list[bytes | None]:
        """The values; None is a tombstone."""
        return self._unpacked().values()[self._skip :]

    def keys(self) -> list[bytes | None]:
        """The keys; None for messages without one."""
        return self._unpacked().keys()[self._skip :]

    def headers(self) -> list[dict[str, bytes | None]]:
        """The headers; empty for messages without any."""
        return self._unpacked().headers()[self._skip :]

    def event_times_ms(self) -> list[int | None]:
        """The times that the publisher gave, in ms since 1970-01-01T00:00Z; None: none."""
        return self._unpacked().event_times()[self._skip :]

    def ids(self) -> list[MessageId]:
        """The ids."""
        sequences = self._from(self.first_sequence)
        cells = zip(repeat(self._block.time_ms), sequences, repeat(0), repeat(0))
        return list(map(as_id, cells))

    def offsets(self) -> Sequence[int]:
        """The offsets; consecutive unless messages between them are gone."""
        return self._from(self.base_offset)

    def to_arrow(self) -> "pa.RecordBatch":
        """The columns id, partition, offset, timestamp, key, value, headers and event_time; keys,
        values and headers are not copied where they are not compressed."""
        columns = self._unpacked()
        cells = columns.slice(self._skip, columns.count)
        return arrow_batch((self.partition, self.timestamp_ms), self.ids(), self.offsets(), cells)

    def to_pandas(self) -> "pd.DataFrame":
        """The columns of `to_arrow` for pandas."""
        return as_pandas(as_table([self]))

    def to_polars(self) -> "pl.DataFrame":
        """The columns of `to_arrow` for Polars."""
        return as_polars(as_table([self]))

    def messages(self) -> list[Message[V]]:
        """The messages one by one."""
        # three times as fast as calling the class, which names each field
        make: Callable[[Iterable[object]], Message[V]] = partial(tuple.__new__, self._kind)
        cells = zip(
            repeat(self.topic),
            repeat(self.partition),
            self.offsets(),
            self.ids(),
            self.keys(),
            self.values(),
            self.headers(),
            self.event_times_ms(),
        )
        return list(map(make, cells))

    def _from(self, first: int) -> Sequence[int]:
        """The first message's number, and those of the others."""
        if self._index is None:
            return range(first, first + self._count)
        return [first - self._index[0] + distance for distance in self._index]

    def _unpacked(self) -> Columns:
        if self._columns is None:
            self._columns = decode(self._block.block)
        return self._columns


class Page(NamedTuple):
    """The answer to `Bus.fetch`: go on at `next`; `ends` are the offsets after the last message,
    `reached` those before which everything was looked at, per partition."""

    batches: list[Batch[Any]]
    next: dict[int, Position]
    ends: dict[int, int]
    reached: dict[int, int]

    @property
    def ended(self) -> bool:
        """True if there was nothing at `next` as of this answer; a page without batches may not be
        the last."""
        return all(self.reached[partition] >= end for partition, end in self.ends.items())

    def messages(self) -> Iterator[Message]:
        """All messages, partition by partition."""
        for batch in self.batches:
            yield from batch.messages()


def page(topic: str, asked: Mapping[int, Position], answers: Iterable[Fetched]) -> Page:
    """The page of several fetches from these positions."""
    whole = Page([], {}, {}, {})
    for fetched in answers:
        part = page_of(topic, asked, fetched)
        whole.batches.extend(part.batches)
        whole.next.update(part.next)
        whole.ends.update(part.ends)
        whole.reached.update(part.reached)
    return whole


def page_of(
    topic: str,
    asked: Mapping[int, Position],
    fetched: Fetched,
    kind: type[Message[Any]] = Message,
) -> Page:
    """The page of a fetch from these positions, without the messages before them."""
    batches = []
    for block in fetched.blocks:
        header = read_header(block.block)
        batch = Batch(topic, block, skipped(block, header, asked[block.partition]), header, kind)
        if batch._count:
            batches.append(batch)
    following = dict(fetched.next)
    for partition, there in fetched.next.items():
        if there.kind is PositionKind.LATEST:  # of an empty partition; it would miss what comes now
            following[partition] = Position.offset(fetched.ends[partition])
    if len(following) > 1 and batches:  # who goes on there begins with another partition
        first = next(iter(following))
        following[first] = following.pop(first)
    return Page(batches, following, fetched.ends, fetched.reached)


class Cursor:
    """The positions of a consumer by partition. Pure state, shared by the synchronous and the
    asyncio consumer. `where`: only messages that match are fetched; `serializer` reads their
    values."""

    def __init__(
        self,
        topic: str,
        positions: Mapping[int, Position],
        stop_at_end: bool,
        where: Filter | None = None,
        serializer: Decoder[object] | None = None,
    ) -> None:
        self._kind: type[Message[Any]] = reading(Message, serializer)
        self.stop_at_end = stop_at_end
        self.where = where
        self._topic = topic
        self._fetched = dict(positions)  # behind what was fetched
        self._handed = dict(positions)  # behind what the caller has
        self._passed: dict[int, Position] = {}  # behind what the last answer was made of
        self._stops: dict[int, int] = {}  # end offsets at each partition's first answer
        self._offsets: dict[int, int] = {}  # of `_handed`, where known
        self._suspended: set[int] = set()  # not fetched, because the caller wants none of them
        self.waiting: deque[Batch[Any]] = deque()  # fetched, not handed out
        self.message: Message[Any] | None = None  # the last one handed out by itself
        self._round = -1

    def ask(self, wait_s: float) -> tuple[list[PartitionPosition], float]:
        """The positions of the next fetch, of partitions that have not reached their end, and its
        wait in seconds.

        When they are many they take turns, and each gets its part of the time. Each time another
        one comes first.
        """
        turns = asks(self._fetched, self.where is not None)
        self._round += 1
        round, turn = divmod(self._round, len(turns))
        return in_turn(turns[turn], round), wait_s / len(turns)

    def take_back(self) -> None:
        """The last `ask` is not answered: the next one is for the same partitions."""
        self._round -= 1

    def accept(self, fetched: Fetched) -> list[Batch[Any]]:
        """Go on behind an answer; its batches in order."""
        found = page_of(self._topic, self._fetched, fetched, self._kind)
        self._fetched.update(
            (partition, there)
            for partition, there in found.next.items()
            if partition in self._fetched
        )
        self._passed = dict(found.next)
        return self._until_the_end(found) if self.stop_at_end else found.batches

    def _until_the_end(self, found: Page) -> list[Batch[Any]]:
        """The batches that began before the end of their partition, as it was at first; of one that
        was looked at up to there nothing more is fetched, nor of one that ends earlier by now,
        because the first answer came from before an open transaction."""
        wanted = []
        for partition, end in found.ends.items():
            self._stops.setdefault(partition, end)
        for batch in found.batches:
            stop = self._stops[batch.partition]
            if batch.base_offset < stop:
                wanted.append(batch)
            else:
                self._passed.pop(batch.partition, None)
        for partition, offset in found.reached.items():
            if offset >= min(self._stops[partition], found.ends[partition]):
                self._fetched.pop(partition, None)
        return wanted

    def next_waiting(self) -> Batch[Any] | None:
        """The next batch to hand out; None if none waits."""
        try:
            return self.waiting.popleft()
        except IndexError:  # another thread may have rewound it, whose iteration goes on
            return None

    def hand_out(self, batch: Batch[Any]) -> None:
        """The caller gets this batch as a whole."""
        self.message = None
        self._handed[batch.partition] = Position.after(batch.last_id)
        self._offsets[batch.partition] = batch.end_offset

    def settle(self) -> None:
        """The caller has all batches of the last answer: what a filter passed over behind them is
        done as well."""
        if self.where is not None:
            for partition, there in self._passed.items():
                if partition in self._handed:
                    self._handed[partition] = there
                    self._offsets.pop(partition, None)

    def drop(self, partitions: Collection[int]) -> None:
        """The caller does not get the batches of these partitions that wait."""
        self.waiting = deque(batch for batch in self.waiting if batch.partition not in partitions)
        for partition in partitions:
            self._passed.pop(partition, None)

    def positions(self) -> dict[int, Position]:
        """The position at which to go on, by partition."""
        message = self.message  # another thread may hand out the next one
        if message is not None:
            self._handed[message.partition] = Position.after(message.id)
            self._offsets[message.partition] = message.offset + 1
        return dict(self._handed)

    def offsets(self) -> dict[int, int]:
        """The offsets of `positions`, of the partitions for which they are known."""
        self.positions()
        return dict(self._offsets)

    def rewind(self, partitions: Iterable[int] | None = None) -> None:
        """Forget what was fetched but not handed out; go on with these partitions, or all."""
        self.waiting.clear()
        handed = self.positions()
        wanted = handed if partitions is None else partitions
        self._fetched = {p: handed[p] for p in wanted if p not in self._suspended}

    # Partitions that come and go

    @property
    def asks(self) -> bool:
        """True if there is a partition to fetch from."""
        return bool(self._fetched)

    @property
    def finished(self) -> bool:
        """True if no partition is left to read, nor suspended."""
        return not self._fetched and not self._suspended

    def suspend(self, partition: int) -> None:
        """Fetch nothing from a partition until `unsuspend`, whatever else resumes it."""
        self._suspended.add(partition)
        self.pause(partition)

    def unsuspend(self, partition: int) -> None:
        """Fetch from a suspended partition again, behind what was handed out."""
        if partition in self._suspended:
            self._suspended.remove(partition)
            self.resume(partition)

    def give(self, partition: int, position: Position) -> None:
        """Read a partition too, from there on."""
        is_suspended = partition in self._suspended
        self.take(partition)
        self._handed[partition] = position
        if is_suspended:
            self._suspended.add(partition)
        else:
            self._fetched[partition] = position

    def take(self, partition: int) -> None:
        """Forget a partition."""
        self.positions()
        if self.message is not None and self.message.partition == partition:
            self.message = None
        self._suspended.discard(partition)
        for known in (self._fetched, self._handed, self._passed, self._stops, self._offsets):
            known.pop(partition, None)

    def keep(self, partitions: Iterable[int]) -> set[int]:
        """Fetch from no others than these; from which it did."""
        others = self._fetched.keys() - set(partitions)
        for partition in others:
            self.pause(partition)
        return others

    def pause(self, partition: int) -> None:
        """Fetch nothing from a partition for now; where it stands is kept."""
        self._fetched.pop(partition, None)
        self._passed.pop(partition, None)  # some before that may not have been handed out

    def resume(self, partition: int) -> None:
        """Go on behind what was handed out of a partition."""
        if partition not in self._suspended:
            self._fetched[partition] = self.positions()[partition]
