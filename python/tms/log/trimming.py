"""Taking the truncated messages off a block that a truncation cut in the middle.

Blocks are passed on as they are stored; this one kind is packed again, so that no reader, of
whatever representation, is shown what was made unreadable.
"""

from bisect import bisect_left

from tms.log.records import BlockKey
from tms.log.recovery import header_of
from tms.log.staging import is_reference
from tms.model.block import Flags, decode, encode, place, thin
from tms.model.log import StoredBlock


def trimmed(blocks: list[StoredBlock], floor: BlockKey) -> list[StoredBlock]:
    """The blocks without what lies before `floor` in the first of them. Raises `DataCorrupt`."""
    first = blocks[0]
    if first.time_ms != floor[0] or is_reference(first):  # that is trimmed once it is resolved
        return blocks
    header = header_of(first)
    skip = floor[1] - (first.last_sequence - header.count + 1)
    if skip <= 0:
        return blocks
    columns = decode(first.block)
    if header.flags & Flags.SPARSE:
        keep = range(bisect_left(columns.index, skip), columns.count)
        thinned = [first._replace(block=thin(first.block, keep, columns))] if keep else []
        return [*thinned, *blocks[1:]]
    block = encode(
        columns.values()[skip:],
        columns.keys()[skip:],
        columns.headers()[skip:],
        producer_id=header.producer_id,
        producer_sequence=header.producer_sequence,
    )
    place(block, header.base_offset + skip, header.flags, header.write_pointer)
    return [first._replace(block=block), *blocks[1:]]
