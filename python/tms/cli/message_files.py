"""Files of messages: what `tms export` writes and `tms import` reads.

    NDJSON    one JSON document per line, as `tms consume --json` prints it
    Parquet   partition int32, offset int64, id string, timestamp timestamp[ms, UTC], key binary,
              value binary, headers map<string, binary>

* A value that is null is a tombstone, a key that is null is no key; both differ from empty ones.
* In NDJSON key, value and headers are text, or base64 where one of them is not UTF-8; `encoding`
  says which.
* A reader knows each message's place in its file, so that an error names it.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Protocol

import msgspec

from tms.cli.output import Format
from tms.cli.rendering import RenderedMessage, renderer
from tms.errors import Invalid
from tms.extras import needed
from tms.model.topic import MESSAGE_BYTES_MAX

NDJSON, PARQUET = "ndjson", "parquet"
FORMS = (NDJSON, PARQUET)
LINE_BYTES_MAX = 8 * MESSAGE_BYTES_MAX  # every byte may be escaped as six, or be one of base64
ROWS = 4_096  # of a Parquet file that are in memory
CHUNK_BYTES = 8 << 20


class FileMessage(NamedTuple):
    """A message in a file; without a partition its key decides."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] | None
    partition: int | None


class MessageWriter(Protocol):
    """Writes messages to a file, one after another."""

    def write(self, message: RenderedMessage) -> None: ...

    def close(self) -> None:
        """Write what is left; the file itself stays open."""
        ...


class _MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    value: str | None
    key: str | None = None
    headers: dict[str, str] = {}
    encoding: Literal["utf-8", "base64"] = "utf-8"
    partition: int | None = None
    topic: str = ""  # the rest is how it was; a message that is published gets its own
    id: str = ""
    offset: int = 0
    timestamp_ms: int = 0


def form_of(form: str | None, path: Path) -> str:
    """The format of a file: what was said, else what its name ends with."""
    return form or (PARQUET if path.suffix == ".parquet" else NDJSON)


def writer_of(form: str, file: BinaryIO) -> MessageWriter:
    """Writes messages to `file` in this format."""
    if form == NDJSON:
        return _NdjsonWriter(file)
    with needed("A Parquet file", "arrow"):
        from tms.cli.parquet import ParquetWriter
    return ParquetWriter(file)


def read(form: str, file: BinaryIO) -> Iterator[tuple[int, FileMessage | Invalid]]:
    """The messages of a file by line or row, from 1 on; in place of a broken one, what is wrong
    with it. Raises `Invalid` for a file that has another format."""
    if form == NDJSON:
        return _read_lines(file)
    with needed("A Parquet file", "arrow"):
        from tms.cli.parquet import read_rows
    return read_rows(file)


class _NdjsonWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._render = renderer(Format.JSON, None)
        self._lines: list[bytes] = []
        self._bytes = 0

    def write(self, message: RenderedMessage) -> None:
        line = self._render(message)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= CHUNK_BYTES:
            self.close()

    def close(self) -> None:
        self._file.write(b"".join(self._lines))
        self._lines, self._bytes = [], 0


def _read_lines(file: BinaryIO) -> Iterator[tuple[int, FileMessage | Invalid]]:
    decoder = msgspec.json.Decoder(_MessageLine)
    number = 0
    while raw := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(raw) > LINE_BYTES_MAX:
            yield number, Invalid(f"it has over {LINE_BYTES_MAX:,} bytes")
            return  # where the next line begins is not known
        if raw.strip():
            yield number, _message(raw, decoder)


def _message(raw: bytes, decoder: "msgspec.json.Decoder[_MessageLine]") -> FileMessage | Invalid:
    try:
        line = decoder.decode(raw)
        decode = str.encode if line.encoding == "utf-8" else _from_base64
        return FileMessage(
            None if line.key is None else decode(line.key),
            None if line.value is None else decode(line.value),
            {name: decode(text) for name, text in line.headers.items()} or None,
            line.partition,
        )
    except (msgspec.DecodeError, UnicodeError, binascii.Error, RecursionError) as exc:
        return Invalid(str(exc))


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
