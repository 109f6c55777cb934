"""The end of another process's open segment: which of its rows are part of the log for good.

    … ─ group k-2 ─┬─ group k-1 ─┬─ group k           what its owner writes at once
       confirmed   │ written     │ some of its rows
                   └ unconfirmed └ only these can be missing, or come later

The owner writes a group when the one before is written, and the one before that is confirmed; after
a failed write it seals the segment before it writes anything else. So holes are in the newest group
only. A taker-over raises the epoch, finds the end, and seals there; what it found there then is
everything before the first hole.

    rows, then the record as it was before      a later owner finds these rows, too
    the epoch is above the segment's            a new owner may have found the end before the newest
                                                two groups came: they are left out

Where a group begins is told by time: all its rows have the same, or one that is 1 ms later than the
row before, when the sequences of a millisecond are used up. So where offsets follow each other
and times are 2 ms apart, or more, a group begins. How large groups are does not matter.

Invariants

* Of a segment whose record is unchanged after its rows were read, nothing that stands before the
  end found here is ever taken back.
* The observer waits for no writer, and writes nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tms.errors import DataCorrupt
from tms.log.records import BlockKey, SegmentRecord, key_after
from tms.log.search import BlockPlace, place_of
from tms.model import keys
from tms.model.message import StoredBlock
from tms.store.base import Map

_LOOK_BYTES_FIRST, _LOOK_BYTES_MAX = 4 << 10, 1 << 20  # each look is longer than the last
_SAME_GROUP_MS = 1


class End(NamedTuple):
    """The end of a partition: the offset of the next message, and the smallest key behind the
    last."""

    offset: int
    key: BlockKey


def open_end(rows: Map, segment: SegmentRecord, before: BlockKey, settled: bool) -> End:
    """The end of an open segment whose ids are above `before`. `settled`: no process was taking the
    partition over when the record was read, which must be read again afterwards."""
    beginnings = 0 if settled else 2
    end: End | None = None  # before the earliest hole, or group that is left out, so far
    after: BlockPlace | None = None
    for row in _backwards(rows):
        behind = End(row.end_offset, key_after(row.key))
        if after is not None and row.end_offset > after.base_offset:
            raise DataCorrupt(
                f"The blocks at {row.key} and {after.key} of segment {segment.number} have the "
                "same offsets. Run `tms fsck`."
            )
        if after is None or row.end_offset < after.base_offset:
            end = behind
        elif after.key[0] - row.key[0] > _SAME_GROUP_MS:
            if beginnings == 0:
                return end or behind
            end, beginnings = behind, beginnings - 1
            if beginnings == 0:
                return end
        after = row
    nothing = End(segment.base_offset, key_after(before))
    if after is None or not settled or after.base_offset != segment.base_offset:
        return nothing
    return end or nothing


def _backwards(rows: Map) -> Iterator[BlockPlace]:
    """The rows of a segment, newest first."""
    stop: bytes | None = None
    look_bytes = _LOOK_BYTES_FIRST
    while found := rows.scan(None, stop, look_bytes, reverse=True):
        for raw, value in found:
            yield place_of(StoredBlock(0, *keys.split_block_key(raw), value))
        stop = found[-1][0]
        look_bytes = min(4 * look_bytes, _LOOK_BYTES_MAX)
