"""One open partition: its state, its writer and its reader, and what else changes it.

Invariants

* Its locks are its own: whoever is above says what is to be done, and it is done here while nobody
  else changes the partition. The lock for rewriting comes before the one for changing.
"""

from collections.abc import Callable
from typing import TypeVar

from tms.block import BlockHeader
from tms.errors import OutOfOrderSequence, SequenceReused, StorageUnavailable, TMSError
from tms.log.maps import PartitionMaps
from tms.log.partition import PartitionState
from tms.log.reader import PartitionReader
from tms.log.records import FIRST_KEY, BlockKey, SegmentRecord, key_after
from tms.log.staging import StagedBlocks
from tms.log.writer import PartitionWriter
from tms.model.message import Readable
from tms.store.base import Map

T = TypeVar("T")


class PartitionLog:
    """The log of one partition. Thread-safe."""

    __slots__ = ("maps", "partition", "reader", "staged", "state", "uid", "writer")

    def __init__(
        self,
        uid: int,
        partition: int,
        state: PartitionState,
        writer: PartitionWriter,
        staged: StagedBlocks,
        maps: PartitionMaps,
    ) -> None:
        self.uid = uid
        self.partition = partition
        self.state = state
        self.writer = writer
        self.staged = staged
        self.maps = maps
        self.reader = PartitionReader(state, staged)

    def close(self, timeout_s: float, reason: TMSError) -> None:
        """Write what is queued, let nothing new in, and wake who waits; `reason` is what everybody
        gets from then on."""
        self.writer.close(timeout_s, reason)
        self.state.retire(reason)

    def release(self, timeout_s: float, reason: TMSError) -> None:
        """The same, and open nothing any more that the next owner opens."""
        self.close(timeout_s, reason)
        self.maps.release(reason)

    # -- looking -------------------------------------------------------------------------------

    def end(self) -> tuple[int, BlockKey]:
        """The offset behind the last message, and its key."""
        self.reader.load()
        with self.state.lock:
            return self.state.end_offset, self.state.last

    def reaches(self, end_offset: int) -> bool:
        """Whether everything before an offset is there, as far as the store says."""
        self.reader.load()
        return self.state.end_offset >= end_offset or self.state.find_end() >= end_offset

    def has_block(self, header: BlockHeader) -> bool:
        """Whether this block of a producer was stored, as far as that is remembered."""

        def find() -> bool:
            try:
                return self.state.producers.find(header) is not None
            except (OutOfOrderSequence, SequenceReused):
                return False

        return self.change(find)

    def readable(self, floor: BlockKey) -> Readable:
        """What may still be shown of messages that were read before, of those from `floor` on;
        before by another owner, perhaps."""
        self.reader.load()
        record = self.state.chain.record
        rewrites = self.state.rewrites
        if self.state.chain.shared:  # the next owner begins to count anew
            rewrites += record.epoch << 32
        return Readable(max(floor, record.floor), rewrites)

    # -- changing ------------------------------------------------------------------------------

    def change(self, do: Callable[[], T]) -> T:
        """Do something that nobody else may come between; its end is known then. Raises the reason
        once the partition is closed."""
        with self.state.changing():
            self.state.load()
            return do()

    def load(self) -> None:
        """Find the end, as its owner."""
        self.change(_nothing)

    def recover(self) -> None:
        """Become writable again, if a write has failed."""
        with self.state.owner:
            self.state.load()

    def settle(self) -> None:
        """After a write that failed: what of it is stored counts, and nothing more comes of it."""
        if self.state.known and not self.state.loaded:
            self.load()

    def begin_term(self, term: object) -> None:
        """See `PartitionState.begin_term`."""
        self.change(lambda: self.state.begin_term(term))

    def is_owned(self, metadata: Map) -> bool:
        """Whether the partition's record in the store still names this owner."""
        with self.state.owner:
            return self.state.chain.is_current(metadata.get(self.state.chain.key))

    def make_durable(self) -> None:
        """Sync what readers can see. Owns nothing: who does may wait for the caller. Raises
        `StorageUnavailable` if it was never read."""
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
        """Mark the blocks of a transaction in [first, last] as rolled back, synced; how many there
        were. `check` raises what keeps one of them: then all stay."""
        state = self.state
        return self.change(lambda: state.roll_back(first, last, write_pointer, check))

    def seal(self, now_ms: int) -> None:
        """Let the open segment end here, if there is one."""
        state = self.state
        self.change(lambda: None if state.chain.active is None else state.roll(now_ms))

    def clean(self, now_ms: int, floor_ms: int, bytes_max: int | None) -> int:
        """Roll a segment that is old, and drop those that lie before a time or are too much; how
        many."""
        state = self.state

        def clean() -> int:
            state.maintain(now_ms)
            record = state.chain.record
            if state.chain.active is not None and record.last < state.last < (floor_ms, 0):
                state.roll(now_ms)  # everything in it is expired
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
        """Do something to sealed segments that nobody else rewrites meanwhile; appends go on."""
        with self.state.rewriting:
            return do()

    def note_gaps(self, forgotten: BlockKey) -> None:
        """Note that messages will be missing in sealed segments, up to a key perhaps the newest of
        their keys."""
        record = self.state.chain.record
        if not record.gaps or forgotten > record.forgotten:
            self.change(lambda: self.state.chain.note_gaps(forgotten))

    def resize(self, segment: SegmentRecord) -> int:
        """Note what a rewritten segment takes now; how many bytes less than before."""
        return self.change(lambda: self.state.chain.resize(segment.number))


def floor_by_bytes(
    sizes: list[tuple[BlockKey, int]], open_bytes: int, retention_bytes: int | None
) -> BlockKey:
    """The smallest key to keep so that what stays is at least the limit. `sizes`: last key and
    bytes of each sealed segment, oldest first. Whole segments go, so up to one segment more than
    the limit stays."""
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
