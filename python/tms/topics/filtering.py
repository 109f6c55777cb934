"""What a reader with a filter is shown of a partition, and how far one look goes.

    read ─▶ fate_of ─▶ keep what matches ─▶ enough, nothing more, or looked at too much

Invariants

* Blocks keep their places: what does not match goes from them as compaction takes it (`thin`), and
  a block of which nothing is left is passed over. `next` is behind what was looked at.
* One look reads a bounded number of bytes, in a bounded time, whatever matches. How far it came it
  says (`reached`): when that is not the end, the reader goes on at once.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from tms.block import decode, thin
from tms.clock import Clock
from tms.log.reader import Read
from tms.log.records import FIRST_KEY
from tms.log.search import place_of
from tms.log.trimming import trimmed
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import StoredBlock
from tms.model.position import Position

PAGE_BYTES = 1 << 20


class FetchBounds(NamedTuple):
    """How much one fetch looks at: bytes of all its partitions, and seconds."""

    bytes: int = 64 << 20
    seconds: float = 1.0


class Selection:
    """One fetch with a filter."""

    def __init__(self, where: Filter, bounds: FetchBounds, clock: Clock, partitions: int) -> None:
        self._where = where
        self._clock = clock
        self._ends_s = clock.monotonic_s() + bounds.seconds
        self._bytes = max(PAGE_BYTES, bounds.bytes // max(1, partitions))  # of each partition

    def of(
        self, read_at: Callable[[Position, int], Read], position: Position, bytes_max: int
    ) -> Read:
        """What matches from a position on. `read_at` gives about so many bytes from a position."""
        blocks: list[StoredBlock] = []
        left, room = self._bytes, bytes_max
        while True:
            read = read_at(position, PAGE_BYTES)
            for stored in read.blocks:
                left -= len(stored.block)
                kept = self._kept(stored)
                if kept is None or not trimmed([kept], FIRST_KEY, read.start):
                    continue
                blocks.append(kept)
                room -= len(kept.block)
                if room <= 0:
                    behind = Position.after(MessageId(stored.time_ms, stored.last_sequence))
                    return Read(blocks, behind, place_of(stored).end_offset, read.end)
            if read.ended or left <= 0 or self._clock.monotonic_s() >= self._ends_s:
                return read._replace(blocks=blocks)
            position = read.next

    def _kept(self, stored: StoredBlock) -> StoredBlock | None:
        columns = decode(stored.block)
        places = self._where.places(columns)
        if len(places) == columns.count:
            return stored
        return (
            structs.replace(stored, block=thin(stored.block, places, columns)) if places else None
        )
