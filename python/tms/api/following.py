"""A topic that a client follows, in blocks: first the stored messages, then each new part as it is
appended.

    the entries of a fetch, and behind them a mark: an entry for no partition, with the values of
    the headers TMS-Next, TMS-End and TMS-Reached of a fetch, a line each

Invariants

* A part up to its mark tells where the next one begins. Bytes without a mark are no part.
"""

from collections.abc import Iterator, Mapping
from struct import Struct as Layout
from typing import NamedTuple, Self

from tms.api import bodies
from tms.errors import Malformed
from tms.model.message import Buffer, Fetched
from tms.model.position import Position, PositionKind

BEAT_S_MIN = 0.1  # how often it may be said that nothing came
MARK = 0xFFFFFFFF  # in place of a partition
MARK_BYTES_MAX = 1 << 20
PART_BYTES_MAX = 1 << 30
_PREFIX = Layout(">IIQH6x")
_NOTHING_CAME = b": nothing came\n\n"


class Stand(NamedTuple):
    """The end of a part; see `Fetched`."""

    next: Mapping[int, Position]
    ends: Mapping[int, int]
    reached: Mapping[int, int]

    @classmethod
    def of(cls, fetched: Fetched) -> Self:
        """The end of a fetch. The end of an empty partition is an offset, because `latest` moves
        with the first message."""
        return cls(
            {
                partition: Position.offset(fetched.ends[partition])
                if there.kind is PositionKind.LATEST
                else there
                for partition, there in fetched.next.items()
            },
            fetched.ends,
            fetched.reached,
        )

    @property
    def ended(self) -> bool:
        """True if there is nothing more for now."""
        return all(self.reached[partition] >= end for partition, end in self.ends.items())


def mark(stand: Stand) -> bytes:
    """The entry that ends a part of blocks."""
    text = "\n".join(
        (
            bodies.positions_text(stand.next),
            bodies.ends_text(stand.ends),
            bodies.ends_text(stand.reached),
        )
    ).encode("ascii")
    return _PREFIX.pack(len(text), MARK, 0, 0) + text


class FollowedPart(NamedTuple):
    """A part as a client has it: blocks as in the body of a fetch, and its mark's lines."""

    body: Buffer
    lines: list[bytes]


class FollowedParts:
    """Turns what comes of a followed topic, in blocks, into parts."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._begin = 0  # of the next entry in it

    def feed(self, received: bytes) -> Iterator[FollowedPart]:
        """The parts that these bytes complete. Raises `Malformed`."""
        self._received += received
        while (end := self._end_of_entry()) is not None:
            begin, self._begin = self._begin, end
            if _PREFIX.unpack_from(self._received, begin)[1] != MARK:
                continue
            lines = bytes(self._received[begin + bodies.PREFIX_BYTES : end]).split(b"\n")
            if len(lines) != len(Stand._fields):
                raise Malformed(f"A mark of a followed topic has {len(lines)} lines, not 3.")
            body = bytes(memoryview(self._received)[:begin])
            self._received, self._begin = self._received[end:], 0
            yield FollowedPart(body, lines)

    def _end_of_entry(self) -> int | None:
        """The end of the next entry; None if the entry is not complete."""
        start = self._begin + bodies.PREFIX_BYTES
        if len(self._received) < start:
            return None
        length, partition, _, _ = _PREFIX.unpack_from(self._received, self._begin)
        if length > (MARK_BYTES_MAX if partition == MARK else PART_BYTES_MAX - self._begin):
            raise Malformed(f"An entry of a followed topic claims {length} bytes.")
        return start + length if len(self._received) >= start + length else None
