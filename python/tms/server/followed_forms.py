"""A topic that is followed, in forms other than blocks: what is there, then what is appended.

    NDJSON   a line for each part, the JSON body of a fetch
    SSE      an event for each part: its id is where to go on, its data the JSON body of a fetch
    Arrow    one stream, a record batch for each block; where to go on follows from the ids

A part without messages says that nothing came meanwhile; in Arrow it is a batch without rows.
"""

import io
from collections.abc import Mapping
from typing import Any, Protocol

from tms import block
from tms.api import bodies, routes
from tms.api.messages import Unpacked, arrow_batch, arrow_schema, as_json
from tms.block.arrow import library
from tms.model.message import Buffer


class FollowedForm(Protocol):
    """The form in which messages of a followed topic are sent, if not as blocks."""

    def begin(self) -> bytes:
        """The bytes before the first part."""
        ...

    def part(self, unpacked: Unpacked, ends: Mapping[int, int]) -> Buffer:
        """Messages."""
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

    def end(self, problem: bytes) -> bytes:
        return b'{"problem":' + problem + b"}\n" if problem else b""


class ServerSentEvents:
    """Events for pages."""

    def begin(self) -> bytes:
        return b"retry: 1000\n\n"

    def part(self, unpacked: Unpacked, ends: Mapping[int, int]) -> Buffer:
        return self._event(bodies.positions_text(unpacked.next), as_json(unpacked, ends))

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
        if not unpacked.runs:
            nothing = library().RecordBatch.from_pylist([], schema=arrow_schema())
            self._writer.write_batch(nothing)
        parts = block.unpacked(run.columns for run in unpacked.runs)
        for run, part in zip(unpacked.runs, parts, strict=True):
            stamp = run.partition, run.time_ms
            batch = arrow_batch(stamp, run.ids(), run.offsets(), part)
            self._writer.write_batch(batch)
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
