"""Tickets of callers for a partition, and the groups in which the partition writes them.

The locks of a group say which thread confirms it and when it is confirmed. Each is acquired once;
locks cost less than events.
"""

import threading
from collections.abc import Sequence

from msgspec import Struct, field

from tms.block import BlockHeader, Flags, place
from tms.errors import TMSError
from tms.log.pending import PendingAppend
from tms.log.preconditions import Precondition
from tms.log.records import RememberedBlock
from tms.model.ids import SEQUENCES_PER_MS
from tms.model.keys import block_key
from tms.model.message import Appended, Buffer, StoredBlock
from tms.model.topic import Durability
from tms.store.base import MapRow

Entry = tuple[int, Buffer, BlockHeader]  # place in the pending append, and a checked block


class Stamp(Struct, frozen=True):
    """Flags and write pointer that a transaction sets on its blocks."""

    flags: int
    write_pointer: int


PLAIN = Stamp(0, 0)


class Ticket(Struct, eq=False):
    """One caller's blocks for one partition. A ticket with a `term` depends on the caller's reads
    in that term of the partition, and is refused in any other term."""

    pending: PendingAppend
    durability: Durability
    stamp: Stamp = PLAIN
    entries: list[Entry] = []
    preconditions: dict[int, Precondition] = {}  # by place in the pending append
    bytes: int = 0
    reserved: bool = False  # True if its bytes are counted in `Room`
    term: object = None


class WriteGroup(Struct, eq=False):
    """Blocks that are written in one step. The thread that concludes the group has acquired
    `unclaimed`; `done` is released once a group that was handed to another thread is concluded."""

    batch: Sequence[Ticket]
    end_offset: int
    last: tuple[int, int]
    rows: list[MapRow] = []
    stored: list[StoredBlock] = []
    durability: Durability = Durability.NONE
    settled: list[tuple[PendingAppend, int, Appended]] = []
    refused: list[tuple[PendingAppend, TMSError]] = []
    written: bool = False
    error: TMSError | None = None
    unclaimed: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Lock = field(default_factory=threading.Lock)  # held while it is handed on

    def add(
        self, partition: int, block: Buffer, header: BlockHeader, now_ms: int, stamp: Stamp
    ) -> RememberedBlock:
        """Assign the block its id and offsets, at the end."""
        time_ms, sequence = self.last
        if now_ms > time_ms:
            time_ms, sequence = now_ms, -1
        elif sequence + header.count >= SEQUENCES_PER_MS:
            time_ms, sequence = time_ms + 1, -1
        first, sequence = sequence + 1, sequence + header.count
        if isinstance(block, bytes) or (isinstance(block, memoryview) and block.readonly):
            block = bytearray(block)
        flags = stamp.flags | header.flags & Flags.COUNTS_MESSAGES
        place(block, self.end_offset, flags, stamp.write_pointer)
        known = RememberedBlock(
            header.producer_sequence, header.crc, time_ms, first, header.count, self.end_offset
        )
        self.rows.append((block_key(time_ms, sequence), block))
        self.stored.append(StoredBlock(partition, time_ms, sequence, block))
        self.last = (time_ms, sequence)
        self.end_offset += header.count
        return known
