"""Where stored blocks stand, by key and by offset, and which of them has an offset.

Offsets grow with keys, which are times, at a rate that changes little: so an offset is looked for
where it would be at an even rate, and every other step halves what is left, so that no history of a
partition makes it slow. Pure, but for the probes.
"""

from collections.abc import Callable
from typing import NamedTuple

from tms.errors import DataCorrupt
from tms.log.records import BlockKey, key_after, key_at, key_number
from tms.log.recovery import header_of
from tms.model.message import StoredBlock
from tms.model.position import Position, PositionKind

DAMAGED_ROWS_MAX = 64  # are told apart when an offset is looked for


class BlockPlace(NamedTuple):
    """Where a stored block stands: the keys of its first and its last message, its offsets, half
    open, and its flags."""

    first: BlockKey
    key: BlockKey
    base_offset: int
    end_offset: int
    flags: int

    def key_of(self, offset: int) -> BlockKey:
        """The key of its message that has an offset, or of its first one if that comes later."""
        return self.first[0], self.first[1] + max(0, offset - self.base_offset)

    def offset_of(self, key: BlockKey) -> int:
        """The offset of its message that has a key, or of its first one if that comes later."""
        before = key[1] - self.first[1] if key[0] == self.first[0] else 0
        return self.base_offset + max(0, before)


FirstFrom = Callable[[BlockKey, BlockKey], BlockPlace | None]


def place_of(stored: StoredBlock) -> BlockPlace:
    """Where a stored block stands. Raises `DataCorrupt`."""
    header, time_ms, last = header_of(stored), stored.time_ms, stored.last_sequence
    first = (time_ms, last - header.count + 1)
    end_offset = header.base_offset + header.count
    return BlockPlace(first, (time_ms, last), header.base_offset, end_offset, header.flags)


def start_key(position: Position, last: BlockKey) -> BlockKey:
    """The key from which on the messages at or after a position stand, in a partition whose last
    message has the key `last`."""
    if position.id is not None:
        key = (position.id.time_ms, position.id.sequence)
        return key_after(key) if position.kind is PositionKind.AFTER else key
    if position.kind is PositionKind.TIME:
        return (position.number, 0)
    return key_after(last) if position.kind is PositionKind.LATEST else (0, 0)


def search(
    first_from: FirstFrom, low: BlockKey, high: BlockKey, end_offset: int, offset: int
) -> BlockPlace | None:
    """The block that has an offset or, where it was cleaned away, the next one; None when there is
    none up to the key `high`. `first_from` gives the first block whose last message has a key
    between two, both included; `end_offset` is the offset behind all of them. Each step is a probe:
    about 4 where messages came evenly, 20 where they came in bursts, at most 130. Raises
    `DataCorrupt` when the block is damaged, and when it stands among so many damaged ones that one
    cannot tell."""
    least, most = key_number(low), key_number(high)
    base, end = -1, end_offset  # offset at `least`, unknown at first
    following: BlockPlace | None = None  # the first block behind `most`
    damage: DataCorrupt | None = None  # of that block
    patience = DAMAGED_ROWS_MAX
    step, middle = 0, least
    while least <= most:
        try:
            place = first_from(key_at(middle), key_at(most))
        except DataCorrupt as error:
            edge = _behind_damage(first_from, middle, most)
            place = first_from(key_at(edge), key_at(most))
            if place is None or offset < place.base_offset:
                following, damage = None, error
                most = edge - 2 if patience else middle - 1  # the row before `edge` is damaged
                patience = max(0, patience - 1)
                middle = (least + most) // 2
                continue
        if place is None:
            most = middle - 1
        elif offset < place.base_offset:
            following, damage = place, None
            most, end = middle - 1, place.base_offset
        elif offset < place.end_offset:
            return place
        else:
            least, base = key_number(place.key) + 1, place.end_offset
        step += 1
        share = 0.5 if step % 2 == 0 or not base < end else (offset - base) / (end - base)
        middle = least + int((most - least) * min(max(share, 0.0), 1.0))
    if damage is not None:
        raise damage
    return following


def _behind_damage(first_from: FirstFrom, low: int, high: int) -> int:
    """A key behind a damaged row from `low` on, which stands right before it, and from which on no
    row, or one that can be read, is the first."""
    high += 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            first_from(key_at(middle), key_at(high))
            high = middle
        except DataCorrupt:
            low = middle
    return high
