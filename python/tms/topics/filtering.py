"""The filter of a fetch: the messages of a partition that match, and the bounds of one scan.

    read ─▶ fate_of ─▶ drop what does not match ─▶ enough, nothing more, or a bound reached

Invariants

* Blocks keep their offsets: messages that do not match are removed as compaction does it (`thin`),
  and a block without a match is passed over. `next` is behind everything that was scanned.
* One scan reads a bounded number of bytes, in a bounded time, whatever matches. `reached` says how
  far it came: before the end, the reader goes on at once.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from tms.block import decode, thin
from tms.log.reader import Read
from tms.log.records import FIRST_KEY
from tms.log.search import place_of
from tms.log.trimming import trimmed
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import StoredBlock
from tms.model.position import Position
from tms.runtime.clock import Clock

PAGE_BYTES = 1 << 20


class FetchBounds(NamedTuple):
    """Bounds of one fetch with a filter: bytes scanned in all its partitions, and seconds."""

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
        """The matching messages from a position on. `read_at` returns about so many bytes from a
        position."""
        blocks: list[StoredBlock] = []
        left, room = self._bytes, bytes_max
        while True:
            read = read_at(position, PAGE_BYTES)
            for stored in read.blocks:
                left -= len(stored.block)
                matching = self._matching(stored)
                if matching is None or not trimmed([matching], FIRST_KEY, read.start):
                    continue
                blocks.append(matching)
                room -= len(matching.block)
                if room <= 0:
                    behind = Position.after(MessageId(stored.time_ms, stored.last_sequence))
                    return Read(blocks, behind, place_of(stored).end_offset, read.end)
            if read.ended or left <= 0 or self._clock.monotonic_s() >= self._ends_s:
                return read._replace(blocks=blocks)
            position = read.next

    def _matching(self, stored: StoredBlock) -> StoredBlock | None:
        columns = decode(stored.block)
        places = self._where.places(columns)
        if len(places) == columns.count:
            return stored
        return (
            structs.replace(stored, block=thin(stored.block, places, columns)) if places else None
        )
