"""Reading the log for a queue: on from its frontier, and single messages by offset again.

Invariants

* Only committed messages are shown, in the order of each partition; messages that were rolled back,
  truncated or expired are passed over.
* A damaged block hides the messages of its partition from there on, and nothing else: messages
  before it and other partitions are read.
* Messages that were read ahead are delivered only while all of them are readable: no receive gets a
  message that was erased, truncated or expired before it began.
* At most one read ahead is in memory, of about `AHEAD_BYTES`.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from tms.block import Columns, Compression, Ends, decode, read_header
from tms.block.placing import dense
from tms.block.received import Slice
from tms.errors import DataCorrupt, OffsetOutOfRange, StorageUnavailable, TMSError
from tms.model.ids import MessageId, as_id
from tms.model.message import (
    Fetched,
    Holder,
    PartitionPosition,
    Readable,
    StoredBlock,
    in_turn,
)
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.queues.entries import NOWHERE
from tms.queues.key_order import key_hash
from tms.queues.partition import QueuePartitionState
from tms.topics.fetching import Fetcher

AHEAD_BYTES = 1 << 20
AGAIN_BYTES = 256 << 10
MARKS_MAX = 1 << 16
_STEPS_MAX = 16  # reads from a mark on, before the log is asked to find an offset
_HASHED = 1_024


def readable_ends(log: Fetcher, name: TopicName, partitions: int) -> dict[int, int]:
    """The ends of the partitions of a topic that can be read."""
    ends = {}
    for partition in range(partitions):
        with suppress(DataCorrupt):
            ends[partition], _ = log.end(name, partition)
    return ends


class ReadBlock:
    """A block that was read; of a sparse block, a run of messages without gaps."""

    __slots__ = ("_ends", "_hashes", "_index", "base", "columns", "first", "partition", "stop")

    def __init__(self, stored: StoredBlock, distance: int, columns: Columns) -> None:
        header = read_header(stored.block)
        self.partition = stored.partition
        self.base = header.base_offset + distance
        self.stop = self.base + columns.count
        self.columns = columns
        # time and sequence of its first message
        self.first = stored.time_ms, stored.last_sequence - header.count + 1 + distance
        self._index = columns.origin[1]  # of its first message in the stored block
        self._hashes: list[int] = []
        self._ends: Ends | None = None

    @classmethod
    def all_of(cls, stored: StoredBlock) -> "Iterator[ReadBlock]":
        """The runs of a stored block."""
        for distance, columns in dense(decode(stored.block)):
            yield cls(stored, distance, columns)

    def number(self, offset: int) -> int:
        """The id of a message as a number that grows with it."""
        time_ms, sequence = self.first
        return time_ms << 16 | sequence + offset - self.base

    def slice(self, offset: int, count: int, deliveries: int) -> Slice:
        """The messages from `offset` on, `count` of them."""
        start = offset - self.base
        time_ms, sequence = self.first
        id = as_id((time_ms, sequence + start, 0, 0))
        columns = self.columns.slice(start, start + count)
        return Slice(self.partition, offset, id, deliveries, columns)

    def bytes_of(self, offset: int, count: int) -> int:
        """The size of `count` messages from `offset` on."""
        if self._ends is None:
            if self.columns.origin[2] == 1:
                return self.columns.cell_bytes
            self._ends = self.columns.ends()
        index = self._index + offset - self.base
        return self._ends.between(index, index + count)

    def fitting(self, offset: int, limit: int, bytes_max: int) -> tuple[int, int]:
        """How many messages from an offset on, up to `limit`, fit into `bytes_max` bytes, but at
        least one; and their size."""
        counts = range(1, min(limit, self.stop - offset) + 1)
        if not counts:
            return 0, 0
        size = self.bytes_of(offset, counts[-1])
        if size <= bytes_max:
            return len(counts), size
        count = max(1, bisect_right(counts, bytes_max, key=lambda n: self.bytes_of(offset, n)))
        return count, self.bytes_of(offset, count)

    def hash_at(self, offset: int) -> int:
        """The digest of the key of a message."""
        at = offset - self.base
        while at >= len(self._hashes):
            start = len(self._hashes)
            packed = self.columns.compression is not Compression.NONE  # unpack it once
            stop = self.columns.count if packed else start + _HASHED
            self._hashes += map(key_hash, self.columns.slice(start, stop).keys())
        return self._hashes[at]


class Marks:
    """Offsets at which blocks of a partition begin, as far as they were read lately."""

    __slots__ = ("_ids", "_offsets")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._ids = array("Q")

    def note(self, block: ReadBlock) -> None:
        """Note the begin of a block."""
        offset = block.base
        at = len(self._offsets)
        if at and offset <= self._offsets[-1]:
            at = bisect_left(self._offsets, offset)
            if self._offsets[at] == offset:
                return
        self._offsets.insert(at, offset)
        self._ids.insert(at, block.number(offset))
        if len(self._offsets) > MARKS_MAX:
            self._offsets, self._ids = self._offsets[::2], self._ids[::2]

    def before(self, offset: int) -> Position | None:
        """A position to read this offset from; None if no mark is before it."""
        at = bisect_right(self._offsets, offset) - 1
        if at < 0:
            return None
        return Position.at(MessageId(self._ids[at] >> 16, self._ids[at] & 0xFFFF))


class Reread(NamedTuple):
    """Messages that were read again in `pieces`; offsets that are gone from the log; offsets that
    cannot be read, each with an error; and offsets for whose blocks there was no room."""

    pieces: list[tuple[ReadBlock, list[int]]]
    gone: list[int]
    damaged: dict[int, TMSError]
    left: list[int]


def stored_bytes(pieces: Iterable[tuple[ReadBlock, list[int]]]) -> int:
    """The size of the blocks that the pieces keep in memory; neighbours may be runs of one
    block."""
    size, last = 0, None
    for block, _ in pieces:
        stored = block.columns.origin[0]
        size += 0 if stored is last else len(stored)
        last = stored
    return size


class ReadAhead(NamedTuple):
    """Blocks read from the frontier on, the readable range of each partition before the read, and
    errors of partitions that cannot be read."""

    blocks: list[ReadBlock]
    fetched: Fetched
    readable: Mapping[int, Readable]
    damaged: Mapping[int, TMSError]


class Scanner:
    """Reads one topic for one queue. Not thread-safe."""

    def __init__(self, log: Fetcher, name: TopicName) -> None:
        self._log = log
        self._name = name
        self._next: dict[int, Position] = {}  # after the messages read ahead
        self._marks: dict[int, Marks] = {}
        self._turn = 0
        self._ends: dict[int, int] = {}
        self.held: dict[int, Holder] = {}
        self.ahead: dict[int, deque[ReadBlock]] = {}  # by partition, none of them empty
        self.damaged: dict[int, TMSError] = {}  # why a partition cannot be read on
        self._rewrites: dict[int, int] = {}  # at the time of the read

    def reset(self) -> None:
        """Drop blocks that were read ahead; the next read begins at the frontier."""
        self.ahead.clear()
        self.damaged.clear()
        self._next.clear()
        self._ends.clear()
        self.held.clear()

    def drop_gone(self, readable: Mapping[int, Readable]) -> bool:
        """Drop the blocks of partitions that have lost messages since they were read; True if there
        were such partitions. Partitions that are not named were read later."""
        dropped = False
        for partition, now in readable.items():
            blocks = self.ahead.get(partition)
            if not blocks:
                continue
            if now.rewrites > self._rewrites[partition] or blocks[0].first < now.floor:
                del self.ahead[partition]
                self._next.pop(partition, None)
                dropped = True
        return dropped

    def positions(
        self, states: Mapping[int, QueuePartitionState], partitions: Sequence[int]
    ) -> list[PartitionPosition]:
        """The positions to read on from."""
        return [
            PartitionPosition(number, self._next.get(number) or _frontier(states.get(number)))
            for number in partitions
        ]

    def read(self, positions: Sequence[PartitionPosition]) -> ReadAhead:
        """Read blocks from these positions on, each time beginning with another partition."""
        self._turn += 1
        positions = in_turn(positions, self._turn)
        readable = self._log.kept(self._name, [partition for partition, _ in positions])
        together = [position for position in positions if position.partition not in self.damaged]
        alone = [position for position in positions if position.partition in self.damaged]
        blocks: list[ReadBlock] = []
        fetched = Fetched([], {}, {}, {})
        damaged: dict[int, TMSError] = {}
        try:
            blocks, fetched = self._page(together, AHEAD_BYTES)
        except DataCorrupt:
            alone = [*positions]
        for position in alone:
            try:
                more, answer = self._up_to_damage(position)
            except DataCorrupt as error:
                damaged[position.partition] = error
                continue
            blocks += more
            fetched.next.update(answer.next)
            fetched.ends.update(answer.ends)
            fetched.reached.update(answer.reached)
            fetched.held.update(answer.held)
        return ReadAhead(blocks, fetched, readable, damaged)

    def _up_to_damage(self, position: PartitionPosition) -> tuple[list[ReadBlock], Fetched]:
        """The blocks of a partition up to the first damaged one, read one by one."""
        try:
            return self._page([position], AHEAD_BYTES)
        except DataCorrupt:
            return self._page([position], 1)

    def _page(
        self, positions: Sequence[PartitionPosition], bytes_max: int
    ) -> tuple[list[ReadBlock], Fetched]:
        if not positions:
            return [], Fetched([], {}, {}, {})
        try:
            fetched = self._log.fetch(self._name, positions, bytes_max)
        except OffsetOutOfRange:
            fetched = self._log.fetch(self._name, [*map(self._within, positions)], bytes_max)
        return [*chain.from_iterable(map(ReadBlock.all_of, fetched.blocks))], fetched

    def _within(self, position: PartitionPosition) -> PartitionPosition:
        """The position, or the nearest offset in range."""
        try:
            self._log.fetch(self._name, [position], 1)
        except OffsetOutOfRange as error:
            nearest = error.nearest(position.position.number)
            return PartitionPosition(position.partition, Position.offset(nearest))
        return position

    def accept(self, read: ReadAhead) -> None:
        """Take the blocks of a read."""
        blocks, fetched, readable, damaged = read
        for block in blocks:
            self.ahead.setdefault(block.partition, deque()).append(block)
            self._marks.setdefault(block.partition, Marks()).note(block)
        for partition in readable:
            self.damaged.pop(partition, None)
        self.damaged.update(damaged)
        self._rewrites.update((partition, now.rewrites) for partition, now in readable.items())
        if not blocks:
            self._ends.update((p, at) for p, at in fetched.reached.items() if p not in fetched.held)
        self._next.update(fetched.next)
        self.held = dict(fetched.held)

    def nothing_before(self, partition: int) -> int:
        """The offset up to which, from the frontier on, no message is visible."""
        return self._ends.get(partition, 0)

    # -- again -------------------------------------------------------------------------------------

    def find_readable(self, partition: int, offsets: Sequence[int], bytes_max: int) -> Reread:
        """Like `find`, but a damaged block does not hide other messages."""
        try:
            return self.find(partition, offsets, bytes_max)
        except DataCorrupt as error:
            if len(offsets) == 1:
                return Reread([], [], {offsets[0]: error}, [])
        again = Reread([], [], {}, [])
        for at, offset in enumerate(offsets):
            if bytes_max <= 0:
                again.left.extend(offsets[at:])
                break
            pieces, gone, damaged, _ = self.find_readable(partition, [offset], bytes_max)
            again.pieces.extend(pieces)
            again.gone.extend(gone)
            again.damaged.update(damaged)
            bytes_max -= stored_bytes(pieces)
        return again

    def find(self, partition: int, offsets: Sequence[int], bytes_max: int) -> Reread:
        """Read the messages at these ascending offsets again, in blocks of about `bytes_max` bytes
        together, but at least one. Raises `DataCorrupt`."""
        again = Reread([], [], {}, [])
        rest, room = deque(offsets), bytes_max
        while rest and (bytes_max > 0 or not again.pieces):
            blocks = self._from(partition, rest[0], AGAIN_BYTES if len(rest) > 1 else 1)
            if not blocks:
                again.gone.extend(rest)
                rest.clear()
            for block in blocks:
                while rest and rest[0] < block.base:
                    again.gone.append(rest.popleft())
                within = []
                while rest and rest[0] < block.stop:
                    within.append(rest.popleft())
                if within:
                    again.pieces.append((block, within))
            bytes_max = room - stored_bytes(again.pieces)
        again.left.extend(rest)
        return again

    def _from(self, partition: int, offset: int, bytes_max: int) -> list[ReadBlock]:
        """Blocks from the one with this offset, or the next one there is; none at the end."""
        marks = self._marks.get(partition)
        position = None if marks is None else marks.before(offset)
        for _ in range(_STEPS_MAX if position else 0):
            fetched = self._fetch(partition, position, bytes_max)
            blocks = self._reaching(fetched, offset)
            if blocks or (fetched.ended and not fetched.held):
                return blocks
            position = fetched.next[partition]
        try:
            fetched = self._fetch(partition, Position.offset(offset), bytes_max)
        except OffsetOutOfRange as error:
            nearest = Position.offset(error.nearest(offset))
            fetched = self._fetch(partition, nearest, bytes_max)
        return self._reaching(fetched, offset)

    def _fetch(self, partition: int, position: Position | None, bytes_max: int) -> Fetched:
        at = PartitionPosition(partition, position or Position.earliest())
        fetched = self._log.fetch(self._name, [at], bytes_max)
        if not fetched.blocks and fetched.held:  # later messages are unknown then
            raise StorageUnavailable(
                f"Messages of partition {partition} of {self._name} cannot be read while a "
                "transaction before them is open. Try again."
            )
        return fetched

    def _reaching(self, fetched: Fetched, offset: int) -> list[ReadBlock]:
        reaching = []
        for stored in fetched.blocks:
            header = read_header(stored.block)
            if header.base_offset + header.count > offset:
                runs = [block for block in ReadBlock.all_of(stored) if block.stop > offset]
                for block in runs:
                    self._marks.setdefault(block.partition, Marks()).note(block)
                reaching += runs
        return reaching


def _frontier(state: QueuePartitionState | None) -> Position:
    if state is None:
        return Position.earliest()
    if state.at != NOWHERE:
        return Position.after(MessageId(state.at >> 16, state.at & 0xFFFF))
    return Position.offset(state.frontier) if state.frontier else Position.earliest()
