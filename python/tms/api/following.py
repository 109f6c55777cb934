"""A topic that is followed, as bytes: what is there, then what is appended, part by part.

    blocks   the entries of a fetch, and behind them a mark, an entry for no partition:
             what a fetch has in the headers TMS-Next, TMS-End and TMS-Reached, a line each
    NDJSON   a line for each part, the JSON body of a fetch
    SSE      an event for each part: its id is where to go on, its data the JSON body of a fetch
    Arrow    one stream, a record batch for each block; where to go on follows from the ids

Invariants

* Whoever has a part up to its end knows where to go on; what is cut off before is no part.
* A part without messages says that nothing came meanwhile (in SSE: a comment; in Arrow: a batch
  without rows).
"""

import io
from collections.abc import Iterator, Mapping
from struct import Struct as Layout
from typing import Any, NamedTuple, Protocol, Self

from tms import block
from tms.api import bodies, routes
from tms.api.messages import Unpacked, arrow_batch, arrow_schema, as_json
from tms.block.arrow import library
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
    """Where a part ends; see `Fetched`."""

    next: Mapping[int, Position]
    ends: Mapping[int, int]
    reached: Mapping[int, int]

    @classmethod
    def of(cls, fetched: Fetched) -> Self:
        """Where a fetch has ended. The end of an empty partition is an offset: `latest` would be
        another place once something is there."""
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
        """Whether there is nothing more for now."""
        return all(self.reached[partition] >= end for partition, end in self.ends.items())


def mark(stand: Stand) -> bytes:
    """What ends a part of blocks."""
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
        """Where the next entry ends; None if it is not whole."""
        start = self._begin + bodies.PREFIX_BYTES
        if len(self._received) < start:
            return None
        length, partition, _, _ = _PREFIX.unpack_from(self._received, self._begin)
        if length > (MARK_BYTES_MAX if partition == MARK else PART_BYTES_MAX - self._begin):
            raise Malformed(f"An entry of a followed topic claims {length} bytes.")
        return start + length if len(self._received) >= start + length else None


class FollowedForm(Protocol):
    """How messages of a followed topic are sent, if not as blocks."""

    def begin(self) -> bytes:
        """What goes before the first part."""
        ...

    def part(self, unpacked: Unpacked, ends: Mapping[int, int]) -> Buffer:
        """Messages."""
        ...

    def beat(self, stand: Stand) -> bytes:
        """Nothing came."""
        ...

    def end(self, problem: bytes) -> bytes:
        """It ends, if with a problem by this document."""
        ...


class JsonLines:
    """NDJSON."""

    def begin(self) -> bytes:
        return b""

    def part(self, unpacked: Unpacked, ends: Mapping[int, int]) -> Buffer:
        return as_json(unpacked, ends) + b"\n"

    def beat(self, stand: Stand) -> bytes:
        return as_json(Unpacked([], dict(stand.next), dict(stand.reached)), stand.ends) + b"\n"

    def end(self, problem: bytes) -> bytes:
        return b'{"problem":' + problem + b"}\n" if problem else b""


class ServerSentEvents:
    """Events for pages."""

    def begin(self) -> bytes:
        return b"retry: 1000\n\n"

    def part(self, unpacked: Unpacked, ends: Mapping[int, int]) -> Buffer:
        return self._event(bodies.positions_text(unpacked.next), as_json(unpacked, ends))

    def beat(self, stand: Stand) -> bytes:
        return _NOTHING_CAME

    def end(self, problem: bytes) -> bytes:
        return b"event: problem\ndata: " + problem + b"\n\n" if problem else b""

    def _event(self, id: str, data: bytes) -> bytes:
        return b"id: %b\ndata: %b\n\n" % (id.encode("ascii"), data)


class ArrowBatches:
    """An Arrow IPC stream."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._writer: Any = None

    def begin(self) -> bytes:
        self._writer = library().ipc.new_stream(self._sink, arrow_schema())
        return self._written()

    def part(self, unpacked: Unpacked, ends: Mapping[int, int]) -> Buffer:
        parts = block.unpacked(run.columns for run in unpacked.runs)
        for run, part in zip(unpacked.runs, parts, strict=True):
            place = run.partition, run.time_ms
            batch = arrow_batch(place, run.ids(), run.offsets(), part.record_batch())
            self._writer.write_batch(batch)
        return self._written()

    def beat(self, stand: Stand) -> bytes:
        nothing = library().RecordBatch.from_pylist([], schema=arrow_schema())
        self._writer.write_batch(nothing)
        return self._written()

    def end(self, problem: bytes) -> bytes:
        self._writer.close()
        return self._written()

    def _written(self) -> bytes:
        written = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return written


FORMS: Mapping[str, type[JsonLines | ServerSentEvents | ArrowBatches]] = {
    routes.NDJSON: JsonLines,
    routes.EVENTS: ServerSentEvents,
    routes.ARROW_STREAM: ArrowBatches,
}
