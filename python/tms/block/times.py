"""The event times of a block, which its publisher gave: an optional column before the body.

    0   4  k: 0, all messages have the time below; or the number of messages
    4   4  the number of messages without a time
    8   8  the latest time
    16 8k  the time of each message, -1 = none

Times are in ms since 1970-01-01T00:00Z; numbers are little-endian, as those of the body.

Invariants

* A block in which no message has a time has no such column: it costs nothing.
* The messages of a sparse block keep their times; the column stands behind the index.
* A time orders nothing: ids, retention and positions know the publish time only.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, cast

from tms.errors import BadBlock, Invalid
from tms.model.ids import TIME_MS_MAX
from tms.model.message import Buffer

TimesColumn = Sequence[int | None]

_NONE = -1
_HEAD = struct.Struct("<IIq")
_CELL_BYTES = 8


class TimesHead(NamedTuple):
    """The beginning of the column, and the offset behind it."""

    cells: int  # 0: all messages have the latest time
    nulls: int
    latest_ms: int
    end: int


def pack_times(times: TimesColumn, count: int) -> bytes:
    """The column of these times; no bytes if all are None. Raises `Invalid`, with `index`."""
    if len(times) != count:
        raise Invalid(f"There are {count} values, but {len(times)} event times.")
    nulls = 0
    try:
        cells = struct.pack(f"<{count}q", *times)
    except struct.error:  # None, or what is no time
        cells = b""
    if cells and cells == cells[:_CELL_BYTES] * count:
        check_event_time(times[0], 0)
        return _HEAD.pack(0, 0, times[0])
    latest_ms = max(cast(Sequence[int], times)) if cells else _NONE
    if latest_ms > TIME_MS_MAX or cells[_CELL_BYTES - 1 :: _CELL_BYTES].count(0) < count:
        for index, time in enumerate(times):
            check_event_time(time, index)
        known = [_NONE if time is None else time for time in times]
        nulls = known.count(_NONE)
        if nulls == count:
            return b""
        cells = struct.pack(f"<{count}q", *known)
        latest_ms = max(known)
    return _HEAD.pack(count, nulls, latest_ms) + cells


def check_event_time(time_ms: int | None, index: int | None = None) -> None:
    """Raises `Invalid`, with the message's `index`."""
    if time_ms is not None and not (type(time_ms) is int and 0 <= time_ms <= TIME_MS_MAX):
        where = {} if index is None else {"index": index}
        raise Invalid(
            "An event time is None or whole milliseconds since 1970-01-01T00:00Z, up to the year "
            f"9999, got {time_ms!r:.80}.",
            field="event_time_ms",
            **where,
        )


def times_head(block: Buffer, at: int, count: int) -> TimesHead:
    """The beginning of the times of a block with so many messages. Raises `BadBlock`."""
    if len(block) < at + _HEAD.size:
        raise BadBlock("The block's format version says that it has event times, but it ends.")
    cells, nulls, latest_ms = _HEAD.unpack_from(block, at)
    end = at + _HEAD.size + _CELL_BYTES * cells
    if cells not in (0, count) or nulls > cells or end > len(block):
        raise BadBlock(
            f"The block has {cells} event times, {nulls} of them null, for {count} messages, which "
            "cannot be."
        )
    return TimesHead(cells, nulls, latest_ms, end)


def times_of(block: Buffer, head: TimesHead, start: int, stop: int) -> tuple[int, ...]:
    """The times of the messages from `start` up to, but not including, `stop`, -1 = none; of a
    block whose messages do not all have the latest."""
    at = head.end - _CELL_BYTES * (head.cells - start)
    return struct.unpack_from(f"<{stop - start}q", block, at)


def check_times(block: Buffer, at: int, count: int) -> int:
    """The offset of an incoming block's body, after its times were checked. Raises `BadBlock`, and
    `Invalid` with `index`."""
    head = times_head(block, at, count)
    times = times_of(block, head, 0, head.cells) or (head.latest_ms,)
    if min(times) < _NONE or max(times) > TIME_MS_MAX:
        for index, time in enumerate(times):
            check_event_time(None if time == _NONE else time, index)
    if max(times) != head.latest_ms or times.count(_NONE) != head.nulls:
        raise BadBlock("The event times of the block contradict their beginning.")
    return head.end
