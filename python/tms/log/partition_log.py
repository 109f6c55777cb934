"""One open partition: its state, its writer, its reader, and every other change to it.

Invariants

* Its locks are its own. Callers pass the change as a function; it runs here while nothing else
  changes the partition. The lock for rewriting is taken before the lock for changing.
"""

from collections.abc import Callable
from typing import TypeVar

from tms.block import BlockHeader
from tms.errors import (
    OutOfOrderSequence,
    SequenceReused,
    StaleEpoch,
    StorageUnavailable,
    TMSError,
)
from tms.log.maps import PartitionMaps
from tms.log.partition import PartitionState
from tms.log.reader import PartitionReader
from tms.log.records import FIRST_KEY, BlockKey, RememberedBlock, SegmentRecord, key_after
from tms.log.staging import StagedBlocks
from tms.log.writer import PartitionWriter
from tms.model.ids import MessageId
from tms.model.message import Readable
from tms.store.base import Map

T = TypeVar("T")


class PartitionLog:
    """The log of one partition. Thread-safe."""

    __slots__ = ("maps", "partition", "reader", "staged", "state", "uid", "writer")

    def __init__(
        self,
        state: PartitionState,
        writer: PartitionWriter,
        staged: StagedBlocks,
        maps: PartitionMaps,
    ) -> None:
        self.uid = state.chain.uid
        self.partition = state.chain.partition
        self.state = state
        self.writer = writer
        self.staged = staged
        self.maps = maps
        self.reader = PartitionReader(state, staged)

    def close(self, timeout_s: float, reason: TMSError) -> None:
        """Write queued tickets, refuse new ones, and wake waiting readers; every later call gets
        `reason`."""
        self.writer.close(timeout_s, reason)
        self.state.retire(reason)

    def release(self, timeout_s: float, reason: TMSError) -> None:
        """Close, and release the maps, so that the next owner can open them."""
        self.close(timeout_s, reason)
        self.maps.release(reason)

    # -- looking -------------------------------------------------------------------------------

    def end(self) -> tuple[int, MessageId | None]:
        """The offset behind the last message, and its id; None if there never was one."""
        self.reader.load()
        with self.state.lock:
            end, last = self.state.end_offset, self.state.last
        return end, None if last == FIRST_KEY else MessageId(*last)

    def reaches(self, end_offset: int) -> bool:
        """True if the store has everything before an offset."""
        self.reader.load()
        return self.state.end_offset >= end_offset or self.state.find_end() >= end_offset

    def has_block(self, header: BlockHeader) -> bool:
        """True if this block of a producer was stored, as far as the window of producers goes."""

        def find() -> bool:
            try:
                return self.state.producers.find(header) is not None
            except (OutOfOrderSequence, SequenceReused, StaleEpoch):
                return False

        return self.change(find)

    def newest_producers(self, limit: int) -> list[tuple[int, bool, RememberedBlock]]:
        """The producers that published last, as `ProducerWindow.newest`."""
        return self.change(lambda: self.state.producers.newest(limit))

    def counting_producers(self) -> dict[int, RememberedBlock]:
        """The producers whose sequences count messages, as `ProducerWindow.counting`."""
        return self.change(self.state.producers.counting)

    def readable(self, floor: BlockKey) -> Readable:
        """The range of messages from `floor` on that is still readable, for readers that read
        before, perhaps from an earlier owner."""
        if not self.state.known:
            self.reader.load()
        record = self.state.chain.record
        rewrites = self.state.rewrites
        if self.state.chain.shared:  # each owner counts from zero
            rewrites += record.epoch << 32
        return Readable(max(floor, record.floor), rewrites)

    # -- changing ------------------------------------------------------------------------------

    def change(self, do: Callable[[], T]) -> T:
        """Run `do` while nothing else changes the partition; its end is known then. Raises the
        reason once the partition is closed."""
        with self.state.changing():
            self.state.load()
            return do()

    def load(self) -> None:
        """Find the end of the partition, holding it for a change."""
        self.change(_nothing)

    def recover(self) -> None:
        """Make the partition writable again after a failed write."""
        with self.state.owner:
            self.state.load()

    def settle(self) -> None:
        """After a failed write: decide what of it is stored. That counts, and nothing more of it
        will appear."""
        if self.state.known and not self.state.loaded:
            self.load()

    def begin_term(self, term: object) -> None:
        """As `PartitionState.begin_term`."""
        self.change(lambda: self.state.begin_term(term))

    def is_owned(self, metadata: Map) -> bool:
        """True if the partition's record in the store still names this owner."""
        with self.state.owner:
            return self.state.chain.is_current(metadata.get(self.state.chain.key))

    def make_durable(self) -> None:
        """Sync all readable blocks, without holding the partition: the thread that holds it may
        wait for the caller. Raises `StorageUnavailable` if the partition was never read."""
        if not self.state.known:
            raise StorageUnavailable(f"Partition {self.partition} is not read yet. Try again.")
        self.state.make_durable()

    def roll_back(
        self,
        first: BlockKey,
        last: BlockKey,
        write_pointer: int,
        check: Callable[[BlockHeader], None],
    ) -> int:
        """Mark the blocks of a transaction in [first, last] as rolled back, synced; returns their
        number. `check` raises if a block must not be marked; then none is."""
        return self.change(lambda: self.state.roll_back(first, last, write_pointer, check))

    def seal(self, now_ms: int) -> None:
        """Seal the open segment, if there is one, at the present end."""
        self.change(lambda: None if self.state.chain.active is None else self.state.roll(now_ms))

    def clean(self, now_ms: int, floor_ms: int, bytes_max: int | None) -> int:
        """Roll a segment that is old, and drop the segments before a time or beyond `bytes_max`;
        returns the number of dropped segments."""
        state = self.state

        def clean() -> int:
            state.maintain(now_ms)
            record = state.chain.record
            if state.chain.active is not None and record.last < state.last < (floor_ms, 0):
                state.roll(now_ms)  # all of its messages have expired
            segments = state.chain.record.segments
            sealed = [(segment.last, segment.stored_bytes) for segment in segments if segment.last]
            open_bytes = state.chain.stored_bytes() - sum(size for _, size in sealed)
            floor = max((floor_ms, 0), floor_by_bytes(sealed, open_bytes, bytes_max))
            if any(last < floor for last, _ in sealed):
                state.raise_floor(floor)
            return len(segments) - len(state.chain.record.segments)

        return self.change(clean)

    # -- messages that go ----------------------------------------------------------------------

    def rewrite(self, do: Callable[[], T]) -> T:
        """Run `do` on sealed segments while nothing else rewrites them; appends go on."""
        with self.state.rewriting:
            return do()

    def note_gaps(self, forgotten: BlockKey) -> None:
        """Record that messages will be missing in sealed segments; up to the key `forgotten`,
        perhaps the newest ones of their keys."""
        record = self.state.chain.record
        if not record.gaps or forgotten > record.forgotten:
            self.change(lambda: self.state.chain.note_gaps(forgotten))

    def resize(self, segment: SegmentRecord) -> int:
        """Record the present size of a rewritten segment; returns the bytes that it shrank by."""
        return self.change(lambda: self.state.chain.resize(segment.number))


def floor_by_bytes(
    sizes: list[tuple[BlockKey, int]], open_bytes: int, retention_bytes: int | None
) -> BlockKey:
    """The smallest key to keep so that at least `retention_bytes` stay. `sizes` has the last key
    and the bytes of each sealed segment, oldest first. Whole segments are dropped, so up to one
    segment more than the limit stays."""
    if retention_bytes is None:
        return FIRST_KEY
    total = open_bytes + sum(size for _, size in sizes)
    floor = FIRST_KEY
    for last, size in sizes:
        if total - size < retention_bytes:
            break
        total -= size
        floor = key_after(last)
    return floor


def _nothing() -> None:
    return None
