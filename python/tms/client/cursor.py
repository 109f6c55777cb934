"""What is read, without I/O: positions, batches, pages, and where a consumer stands. Shared by the
synchronous and the asyncio client.

Invariants

* Messages that lie before the position asked for are dropped here: a block that is cut by it comes
  whole.
* `Cursor.positions()` is behind what the caller was handed, never behind what was only fetched: a
  consumer that starts there goes on with the next message.
* Bytes that fail their CRC are never handed out (`DataCorrupt`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from tms.errors import Invalid
from tms.model.block import Columns, decode, read_header
from tms.model.ids import MessageId
from tms.model.log import Fetched, Message, PartitionPosition, StoredBlock
from tms.model.position import Kind, Position

if TYPE_CHECKING:
    import pyarrow as pa

Start = str | MessageId | datetime | Position

PARTITIONS_PER_FETCH = 128  # their positions must fit into a URL of 8 KiB


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
    """Where each partition begins; `count` tells how many there are. Raises `Invalid`,
    `BadMessageId`."""
    if not isinstance(start, Mapping):
        wanted = range(count()) if partitions is None else partitions
        return dict.fromkeys(wanted, as_position(start))
    wanted = list(start) if partitions is None else partitions
    for partition in wanted:
        if partition not in start:
            raise Invalid(f"The start has no position for partition {partition}.", field="start")
    return {partition: as_position(start[partition]) for partition in wanted}


def asks(positions: Mapping[int, Position]) -> list[list[PartitionPosition]]:
    """The positions as one fetch or, when they are many, several fetches take them."""
    all_of_them = [PartitionPosition(*there) for there in positions.items()]
    return [
        all_of_them[at : at + PARTITIONS_PER_FETCH]
        for at in range(0, len(all_of_them), PARTITIONS_PER_FETCH)
    ]


# Three times as fast as calling the classes, which name each field.
_AS_ID: Callable[[Iterable[object]], MessageId] = partial(tuple.__new__, MessageId)
_AS_MESSAGE: Callable[[Iterable[object]], Message] = partial(tuple.__new__, Message)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MS = timedelta(milliseconds=1)


class Batch:
    """Messages of one partition that were published together, unpacked column by column when asked
    for.

    `partition`, `base_offset` (of the first message), `timestamp_ms`, and `len(batch)`. Columns
    have one cell per message, in order. Raises `DataCorrupt` when the bytes are not what was
    stored.
    """

    __slots__ = ("_block", "_columns", "_count", "_skip", "base_offset", "first_sequence", "topic")

    def __init__(self, topic: str, block: StoredBlock, skip: int = 0) -> None:
        header = read_header(block.block)
        self.topic = topic
        self._block = block
        self._skip = skip
        self._count = header.count - skip
        self.base_offset = header.base_offset + skip
        self.first_sequence = block.last_sequence - header.count + 1 + skip
        self._columns: Columns | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        offsets = self.offsets()
        return f"<Batch {self.topic}/{self.partition} {offsets.start}..{offsets.stop}>"

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
        """The id of the last message: `Position.after` it is where to go on."""
        return MessageId(self._block.time_ms, self._block.last_sequence)

    def values(self) -> list[bytes | None]:
        """The values; None is a tombstone."""
        return self._unpacked().values()[self._skip :]

    def keys(self) -> list[bytes | None]:
        """The keys; None for messages without one."""
        return self._unpacked().keys()[self._skip :]

    def headers(self) -> list[dict[str, bytes]]:
        """The headers; empty for messages without any."""
        return self._unpacked().headers()[self._skip :]

    def ids(self) -> list[MessageId]:
        """The ids."""
        sequences = range(self.first_sequence, self.first_sequence + self._count)
        cells = zip(repeat(self._block.time_ms), sequences, repeat(0), repeat(0))
        return list(map(_AS_ID, cells))

    def offsets(self) -> range:
        """The offsets."""
        return range(self.base_offset, self.base_offset + self._count)

    def to_arrow(self) -> "pa.RecordBatch":
        """The columns key, value and headers, without copying where they are not compressed."""
        return self._unpacked().record_batch().slice(self._skip)

    def messages(self) -> list[Message]:
        """The messages one by one."""
        cells = zip(
            repeat(self.topic),
            repeat(self.partition),
            self.offsets(),
            self.ids(),
            self.keys(),
            self.values(),
            self.headers(),
        )
        return list(map(_AS_MESSAGE, cells))

    def _unpacked(self) -> Columns:
        if self._columns is None:
            self._columns = decode(self._block.block)
        return self._columns


class Page(NamedTuple):
    """The answer to `Bus.fetch`: go on at `next`; `ends` are the offsets after the last message,
    per partition."""

    batches: list[Batch]
    next: dict[int, Position]
    ends: dict[int, int]

    def messages(self) -> Iterator[Message]:
        """All messages, in partition order."""
        for batch in self.batches:
            yield from batch.messages()


def skipped(block: StoredBlock, position: Position) -> int:
    """How many of the block's first messages lie before `position`."""
    header = read_header(block.block)
    count = header.count
    if position.kind is Kind.OFFSET:
        return min(count, max(0, position.number - header.base_offset))
    if position.kind is Kind.TIME:
        return count if block.time_ms < position.number else 0
    if position.id is None or block.time_ms > position.id.time_ms:
        return 0
    if block.time_ms < position.id.time_ms:
        return count
    first = block.last_sequence - count + 1
    wanted = position.id.sequence + (position.kind is Kind.AFTER)
    return min(count, max(0, wanted - first))


def page(topic: str, asked: Mapping[int, Position], answers: Iterable[Fetched]) -> Page:
    """What fetches from these positions brought together."""
    whole = Page([], {}, {})
    for fetched in answers:
        part = _page(topic, asked, fetched)
        whole.batches.extend(part.batches)
        whole.next.update(part.next)
        whole.ends.update(part.ends)
    return whole


def _page(topic: str, asked: Mapping[int, Position], fetched: Fetched) -> Page:
    """What a fetch from these positions brought, without the messages before them."""
    batches = []
    for block in fetched.blocks:
        skip = skipped(block, asked[block.partition])
        batch = Batch(topic, block, skip)
        if len(batch):
            batches.append(batch)
    following = {
        # `latest` of an empty partition would miss what comes before the next fetch
        partition: Position.offset(fetched.ends[partition]) if there.kind is Kind.LATEST else there
        for partition, there in fetched.next.items()
    }
    return Page(batches, following, fetched.ends)


class Cursor:
    """Where a consumer stands in each partition. Pure state, shared by the synchronous and the
    asyncio consumer."""

    def __init__(self, topic: str, positions: Mapping[int, Position], stop_at_end: bool) -> None:
        self.finished = not positions
        self.stop_at_end = stop_at_end
        self._topic = topic
        self._fetched = dict(positions)  # behind what was fetched
        self._handed = dict(positions)  # behind what the caller has
        self._stops: dict[int, int] = {}  # end offsets at each partition's first answer
        self.message: Message | None = None  # the last one that the caller was handed, if by itself
        self._round = 0

    def ask(self, wait_s: float) -> tuple[list[PartitionPosition], float]:
        """What to fetch next, of partitions that have not reached their end, and how long to wait.

        When they are many they take turns, and each gets its part of the time.
        """
        turns = asks(self._fetched)
        self._round += 1
        return turns[self._round % len(turns)], wait_s / len(turns)

    def accept(self, fetched: Fetched) -> list[Batch]:
        """Go on behind an answer; its batches in order."""
        found = _page(self._topic, self._fetched, fetched)
        self._fetched.update(
            (partition, there)
            for partition, there in found.next.items()
            if partition in self._fetched
        )
        return self._until_the_end(found) if self.stop_at_end else found.batches

    def _until_the_end(self, found: Page) -> list[Batch]:
        """The batches that began before the end of their partition, as it was at first."""
        wanted = []
        for partition, end in found.ends.items():
            self._stops.setdefault(partition, end)
        for batch in found.batches:
            stop = self._stops[batch.partition]
            if batch.base_offset < stop:
                wanted.append(batch)
            if batch.base_offset + len(batch) >= stop:
                self._fetched.pop(batch.partition, None)
        if not found.batches:  # nothing more to be had in any of those that were asked for
            for partition in found.next:
                self._fetched.pop(partition, None)
        self.finished = not self._fetched
        return wanted

    def hand_out(self, batch: Batch) -> None:
        """The caller gets this batch as a whole."""
        self.message = None
        self._handed[batch.partition] = Position.after(batch.last_id)

    def positions(self) -> dict[int, Position]:
        """Where to go on, for each partition."""
        if self.message is not None:
            self._handed[self.message.partition] = Position.after(self.message.id)
        return dict(self._handed)

    def rewind(self, partitions: Iterable[int] | None = None) -> None:
        """Forget what was fetched but not handed out; go on with these partitions, or all."""
        handed = self.positions()
        wanted = handed if partitions is None else partitions
        self._fetched = {partition: handed[partition] for partition in wanted}
        self.finished = not self._fetched

    # Partitions that come and go

    @property
    def asks(self) -> bool:
        """Whether there is a partition to fetch from."""
        return bool(self._fetched)

    def give(self, partition: int, position: Position) -> None:
        """Read a partition too, from there on."""
        self.take(partition)
        self._fetched[partition] = self._handed[partition] = position
        self.finished = False

    def take(self, partition: int) -> None:
        """Know nothing of a partition any more."""
        self.positions()
        if self.message is not None and self.message.partition == partition:
            self.message = None
        for places in (self._fetched, self._handed, self._stops):
            places.pop(partition, None)

    def keep(self, partitions: Iterable[int]) -> set[int]:
        """Fetch from no others than these; from which it did."""
        others = self._fetched.keys() - set(partitions)
        for partition in others:
            del self._fetched[partition]
        return others

    def pause(self, partition: int) -> None:
        """Fetch nothing from a partition for now; where it stands is kept."""
        self._fetched.pop(partition, None)

    def resume(self, partition: int) -> None:
        """Go on behind what was handed out of a partition."""
        self._fetched[partition] = self.positions()[partition]
        self.finished = False
