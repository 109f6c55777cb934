"""Trims the first blocks of a page: messages that a truncation cut off go, and so do blocks without
a requested message.

Blocks are passed on as they are stored; one that a truncation cut in the middle is packed again, so
that no reader, of whatever representation, gets messages that were made unreadable.
"""

from bisect import bisect_left

from msgspec import structs

from tms.block import FLAGS_AT, MESSAGE_SEQUENCES, Flags, decode, encode, place, thin
from tms.log.records import FIRST_KEY, BlockKey
from tms.log.recovery import header_of
from tms.log.staging import is_reference
from tms.model.message import StoredBlock


def trimmed(
    blocks: list[StoredBlock], floor: BlockKey, start: BlockKey = FIRST_KEY
) -> list[StoredBlock]:
    """The blocks without messages before `floor`, and without the first blocks as long as they have
    no message at or after `floor` and `start`. A reference is left as it is until it is resolved.
    Raises `DataCorrupt`."""
    for at, first in enumerate(blocks):
        cut = first.time_ms == floor[0] or (
            first.time_ms == start[0] and first.block[FLAGS_AT] & Flags.SPARSE
        )
        if not cut or is_reference(first):
            return blocks[at:] if at else blocks
        left = _left(first, floor, start)
        if left is not None:
            return blocks if left is first and not at else [left, *blocks[at + 1 :]]
    return []


def _left(stored: StoredBlock, floor: BlockKey, start: BlockKey) -> StoredBlock | None:
    """A block without messages before `floor`; None if no message is left at or after `start`."""
    header = header_of(stored)
    first = stored.last_sequence - header.count + 1
    skip = floor[1] - first if stored.time_ms == floor[0] else 0
    if skip <= 0 and not header.flags & Flags.SPARSE:
        return stored
    columns = decode(stored.block)  # raises if the index is damaged
    index = columns.index
    if index[-1] < max(skip, start[1] - first if stored.time_ms == start[0] else 0):
        return None
    if skip <= index[0]:
        return stored
    if header.flags & Flags.SPARSE:
        keep = range(bisect_left(index, skip), columns.count)
        return structs.replace(stored, block=thin(stored.block, keep, columns))
    sequence = header.producer_sequence
    if header.flags & Flags.COUNTS_MESSAGES:
        sequence = (sequence + skip) % MESSAGE_SEQUENCES
    block = encode(
        columns.values()[skip:],
        columns.keys()[skip:],
        columns.header_cells().take(range(skip, columns.count)),
        columns.event_times()[skip:],
        producer_id=header.producer_id,
        producer_sequence=sequence,
    )
    place(block, header.base_offset + skip, header.flags, header.write_pointer)
    return structs.replace(stored, block=block)
