"""The place of a span in the headers of messages, so that who reads them goes on with its trace.

Invariants

* What a user has put into headers stays as it is: a message with a `traceparent` keeps it.
* No message is refused for what is added to it: one without room for it goes without.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tms.block import HEADERS_MAX, BytesColumn, HeadersColumn, SharedHeaders
from tms.model.message import Headers

PARENT, STATE = "traceparent", "tracestate"


class Place(NamedTuple):
    """The place of a span: the headers that say it, and their bytes."""

    headers: Mapping[str, bytes]
    bytes: int


PlaceOf = Callable[[], Place | None]  # of the span that is active in this thread or task


class PlaceRoom(NamedTuple):
    """The largest size of a message, and the bytes that may be added to all of a request."""

    message_bytes_max: int
    added_bytes_max: int


def with_place(headers: Headers | None, place: Place | None) -> Headers | None:
    """Headers and a place, unless they have one, or are as many as they may be."""
    if place is None:
        return headers
    if not headers:
        return place.headers
    if len(headers) + len(place.headers) > HEADERS_MAX:
        return headers
    if any(name.lower() in (PARENT, STATE) for name in headers):
        return headers
    return {**headers, **place.headers}


class PlacedMessages(NamedTuple):
    """Messages that are packed together, and where each run of them has its place: with which
    message it begins, None without a span."""

    values: BytesColumn
    keys: BytesColumn | None
    rows: HeadersColumn | None
    runs: Sequence[tuple[int, Place | None]]
    bytes: int

    def placed(self, place: PlaceOf, room: PlaceRoom) -> tuple[HeadersColumn | None, int]:
        """Their headers with their places, or that of the span that is active now, and how many
        bytes that may add. A message without room goes without, and all of them if there is no room
        for all. What is no message stays as it is: who packs it says why it is none."""
        count, first = len(self.values), self.runs[0][1] or place()
        if len(self.runs) == 1 and first is None:
            return self.rows, 0
        if len(self.runs) == 1 and first is not None and self.rows is None:
            added = first.bytes * count
            if added <= room.added_bytes_max and self.bytes + first.bytes <= room.message_bytes_max:
                return SharedHeaders(first.headers, count), added
        stops, now = [start for start, _ in self.runs[1:]], place()
        places: list[Place | None] = []
        for (start, own), stop in zip(self.runs, [*stops, count], strict=True):
            places += [own or now] * (stop - start)
        added = sum(place.bytes for place in places if place is not None)
        if added > room.added_bytes_max:
            return self.rows, 0
        try:
            return self._each(places, room.message_bytes_max), added
        except (TypeError, AttributeError, ValueError):
            return self.rows, 0

    def _each(self, places: Sequence[Place | None], message_bytes_max: int) -> HeadersColumn:
        rows = self.rows or [None] * len(self.values)
        sizes = _sizes(self.values, self.keys, self.rows)
        return [
            with_place(row, place) if place and size + place.bytes <= message_bytes_max else row
            for row, place, size in zip(rows, places, sizes, strict=True)
        ]


def _sizes(values: BytesColumn, keys: BytesColumn | None, rows: HeadersColumn | None) -> list[int]:
    sizes = [len(value or b"") for value in values]
    if keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
    if rows is not None:
        sizes = [
            size + sum(len(name.encode()) + len(text or b"") for name, text in (row or {}).items())
            for size, row in zip(sizes, rows, strict=True)
        ]
    return sizes
