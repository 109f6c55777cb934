"""The locations of a stored block's messages: offsets and ids, and the first message at or behind a
position.

    distance    of a message from the block's first one, as it was published: offset and sequence
                are the first one's plus the distance
    place       of a message among those that the block has; equal to the distance unless it is
                sparse

Invariants

* Distances are numbers of the whole block, also if a position names a removed message.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat

from tms.block import BlockHeader, Columns, index_of, read_header
from tms.model.ids import MessageId, as_id
from tms.model.message import StoredBlock
from tms.model.position import Position, PositionKind


def places(stored: StoredBlock) -> Iterator[tuple[int, MessageId]]:
    """Offset and id of each message that the block has, in order. Raises `BadBlock`."""
    header = read_header(stored.block)
    index = index_of(stored.block, header)
    return zip(offsets(header.base_offset, index), ids(stored, header, index), strict=True)


def offsets(base_offset: int, index: Sequence[int]) -> Sequence[int]:
    """The offsets at these distances from an offset; consecutive ones as a range."""
    if isinstance(index, range):
        return range(base_offset + index.start, base_offset + index.stop)
    return [base_offset + distance for distance in index]


def ids(stored: StoredBlock, header: BlockHeader, index: Sequence[int]) -> Iterator[MessageId]:
    """The ids at these distances from the first message of a block."""
    sequences = offsets(stored.last_sequence - header.count + 1, index)
    return map(as_id, zip(repeat(stored.time_ms), sequences, repeat(0), repeat(0)))


def skipped(stored: StoredBlock, header: BlockHeader, position: Position) -> int:
    """The distance of the first message at or behind a position from the block's first; the block's
    count if the position lies behind it."""
    count = header.count
    if position.kind is PositionKind.OFFSET:
        return min(count, max(0, position.number - header.base_offset))
    if position.kind is PositionKind.TIME:
        return count if stored.time_ms < position.number else 0
    if position.id is None or stored.time_ms > position.id.time_ms:
        return 0
    if stored.time_ms < position.id.time_ms:
        return count
    first = stored.last_sequence - count + 1
    wanted = position.id.sequence + (position.kind is PositionKind.AFTER)
    return min(count, max(0, wanted - first))


def first_from(stored: StoredBlock, position: Position) -> int:
    """The offset of the first message of a block at or behind a position; the offset behind the
    block if there is none. Raises `BadBlock`."""
    header = read_header(stored.block)
    index = index_of(stored.block, header)
    place = place_of(index, skipped(stored, header, position))
    return header.base_offset + (index[place] if place < len(index) else header.count)


def dense(columns: Columns) -> Iterator[tuple[int, Columns]]:
    """The messages of a block in runs without gaps, each with the distance of its first message."""
    index = columns.index
    if isinstance(index, range):
        yield index.start, columns
        return
    start = 0
    for at in range(1, len(index) + 1):
        if at == len(index) or index[at] != index[at - 1] + 1:
            yield index[start], columns.slice(start, at)
            start = at


def place_of(index: Sequence[int], distance: int) -> int:
    """The place of the first message at or behind a distance."""
    return distance if isinstance(index, range) else bisect_left(index, distance)
