"""Finds stored blocks by key and by offset.

Offsets grow with keys, which are times, at a rate that changes little. The search probes where the
offset would be at an even rate, and every other step halves the remaining range, so that no history
of a partition makes it slow. Pure, except for the probes.
"""

from collections.abc import Callable
from typing import NamedTuple

from tms.errors import DataCorrupt
from tms.log.records import BlockKey, key_after, key_at, key_number
from tms.log.recovery import header_of
from tms.model.message import StoredBlock
from tms.model.position import Position, PositionKind

DAMAGED_ROWS_MAX = 64  # that a search tells apart


class BlockPlace(NamedTuple):
    """The location of a stored block: the keys of its first and its last message, its offsets, half
    open, and its flags."""

    first: BlockKey
    key: BlockKey
    base_offset: int
    end_offset: int
    flags: int

    def key_of(self, offset: int) -> BlockKey:
        """The key of its message with an offset, or of its first one if that comes later."""
        return self.first[0], self.first[1] + max(0, offset - self.base_offset)

    def offset_of(self, key: BlockKey) -> int:
        """The offset of its message with a key, or of its first one if that comes later."""
        before = key[1] - self.first[1] if key[0] == self.first[0] else 0
        return self.base_offset + max(0, before)


FirstFrom = Callable[[BlockKey, BlockKey], BlockPlace | None]


def place_of(stored: StoredBlock) -> BlockPlace:
    """The location of a stored block. Raises `DataCorrupt`."""
    header, time_ms, last = header_of(stored), stored.time_ms, stored.last_sequence
    first = (time_ms, last - header.count + 1)
    end_offset = header.base_offset + header.count
    return BlockPlace(first, (time_ms, last), header.base_offset, end_offset, header.flags)


def start_key(position: Position, last: BlockKey) -> BlockKey:
    """The first key of the messages at or after a position, in a partition whose last message has
    the key `last`."""
    if position.id is not None:
        key = (position.id.time_ms, position.id.sequence)
        return key_after(key) if position.kind is PositionKind.AFTER else key
    if position.kind is PositionKind.TIME:
        return (position.number, 0)
    return key_after(last) if position.kind is PositionKind.LATEST else (0, 0)


def search(
    first_from: FirstFrom, low: BlockKey, high: BlockKey, end_offset: int, offset: int
) -> BlockPlace | None:
    """The block that has an offset or, where it was cleaned away, the next one; None if there is
    none up to the key `high`. `first_from` returns the first block whose last message has a key
    between two, both included; `end_offset` is the offset behind all of them. Each step is a probe:
    about 4 for evenly spread messages, 20 for bursts, at most 130. Raises `DataCorrupt` if the
    block is damaged, or if it cannot be told apart from too many damaged ones."""
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
    """A key right behind a damaged row from `low` on, so that the first row from there on is
    readable, or there is none."""
    high += 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            first_from(key_at(middle), key_at(high))
            high = middle
        except DataCorrupt:
            low = middle
    return high
