"""The visibility filter: the blocks of transactions that a reader sees.

    plain                       shown
    rolled back, invalid        skipped
    in progress                 the reader stops there, so that it never passes a message that may
                                still commit, and sees everything in order and once

Invariants

* Order and ids do not change: blocks are shown whole and as they are stored, or not at all.
* A reader that stops learns which transaction it waits for.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tms.block import FLAGS_AT, BlockHeader, Flags
from tms.log.recovery import header_of
from tms.model.ids import MessageId
from tms.model.message import Holder, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import Fate

FateOf = Callable[[int, bool], Fate]  # write pointer; True if it was issued here


class UnknownOutcome(Exception):
    """Another instance knows the outcome of a transaction. `learn` asks it for several pointers
    together, and may wait; the function that it returns knows them."""

    def __init__(self, learn: Callable[[Collection[int]], FateOf]) -> None:
        super().__init__()
        self.learn = learn


class VisibleBlocks(NamedTuple):
    """The blocks to show; the position and offset at which the reader stops, and the transaction
    that it waits for."""

    blocks: list[StoredBlock]
    stop: Position | None = None
    end_offset: int = 0
    held_by: Holder | None = None


def visible_blocks(blocks: list[StoredBlock], fate_of: FateOf) -> VisibleBlocks:
    """The blocks of a partition that a reader sees."""
    if are_plain(blocks):
        return VisibleBlocks(blocks)
    shown: list[StoredBlock] = []
    for stored in blocks:
        flags = stored.block[FLAGS_AT]
        if flags & Flags.ROLLED_BACK:
            continue
        if flags & Flags.TRANSACTIONAL:
            header = header_of(stored)
            writer = Holder(header.write_pointer, bool(flags & Flags.ISSUED))
            fate = fate_of(writer.pointer, writer.issued)
            if fate is Fate.SKIPPED:
                continue
            if fate is Fate.OPEN:
                first = MessageId(stored.time_ms, stored.last_sequence - header.count + 1)
                return VisibleBlocks(shown, Position.at(first), header.base_offset, writer)
        shown.append(stored)
    return VisibleBlocks(shown)


def pointers_of(blocks: Iterable[StoredBlock]) -> set[int]:
    """The transactions of these blocks that were begun here and are not marked as rolled back."""
    asked = Flags.TRANSACTIONAL | Flags.ISSUED
    return {
        header_of(stored).write_pointer
        for stored in blocks
        if stored.block[FLAGS_AT] & (asked | Flags.ROLLED_BACK) == asked
    }


def fate_of_block(header: BlockHeader, fate_of: FateOf) -> Fate:
    """The outcome of a stored block's transaction, as far as it is known."""
    if header.flags & Flags.ROLLED_BACK:
        return Fate.SKIPPED
    if not header.flags & Flags.TRANSACTIONAL:
        return Fate.VISIBLE
    return fate_of(header.write_pointer, bool(header.flags & Flags.ISSUED))


def are_plain(blocks: Iterable[StoredBlock]) -> bool:
    """True if every reader sees these blocks as they are stored."""
    for stored in blocks:  # noqa: SIM110  # a generator doubles the time of a page
        if stored.block[FLAGS_AT]:
            return False
    return True
