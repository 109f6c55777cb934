"""Files of messages, which `tms export` writes and `tms import` reads.

    NDJSON    one JSON document per line, as `tms consume --json` prints it; may be gzip
    Parquet   the rows that Spark sees, see `tms.spark.rows`; `tms spark archive` writes them, too

* A value that is null is a tombstone, a key that is null is no key; both differ from empty ones.
* In NDJSON key, value and headers are text, or base64 where one of them is not UTF-8; `encoding`
  says which. An object has no name twice.
* A reader knows each message's place in its file, so that an error names it.
* Files of other common kinds are recognised by their first bytes, and refused with the command that
  converts them.
"""

import base64
import binascii
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Protocol, cast

import msgspec

from tms.api.strict import check_strict
from tms.cli.output import Format
from tms.cli.rendering import RenderedMessage, renderer
from tms.errors import BadJson, Invalid, TooLarge
from tms.model.message import Headers
from tms.model.topic import MESSAGE_BYTES_MAX
from tms.runtime.decoding import json_decoder
from tms.runtime.extras import needed

NDJSON, PARQUET = "ndjson", "parquet"
FORMS = (NDJSON, PARQUET)
LINE_BYTES_MAX = 8 * MESSAGE_BYTES_MAX  # every byte may be escaped as six, or be one of base64
ROWS = 4_096  # of a Parquet file that are in memory
CHUNK_BYTES = 8 << 20
_HEAD_BYTES = 64 << 10  # by which a file is recognised
_GZIP, _PARQUET, _BOM = b"\x1f\x8b", b"PAR1", b"\xef\xbb\xbf"
_TO_IMPORT = " | tms import TOPIC"
_ROWS_OF = (
    "python -c 'import pyarrow.{0} as f, pyarrow.parquet as p; "
    'p.write_table(f.read_table("FILE"), "FILE.parquet")\''
)
_FOREIGN = (  # how a file begins, what it is, and the command that converts it
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE" + _TO_IMPORT),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE" + _TO_IMPORT),
    (b"{\0", "UTF-16", "iconv -f UTF-16LE -t UTF-8 FILE" + _TO_IMPORT),
    (b"\0{", "UTF-16", "iconv -f UTF-16BE -t UTF-8 FILE" + _TO_IMPORT),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "zstd -dc FILE" + _TO_IMPORT),
    (b"BZh", "compressed with bzip2", "bzip2 -dc FILE" + _TO_IMPORT),
    (b"\xfd7zXZ", "compressed with xz", "xz -dc FILE" + _TO_IMPORT),
    (b"PK\x03\x04", "a zip archive", "unzip -p FILE" + _TO_IMPORT),
    (b"ARROW1", "an Arrow file", _ROWS_OF.format("feather")),
    (b"ORC", "an ORC file", _ROWS_OF.format("orc")),
    (b"[", "a JSON array", "jq -c '.[]' FILE" + _TO_IMPORT),
    (b"{\n", "JSON over several lines", "jq -c . FILE" + _TO_IMPORT),
    (b"{\r", "JSON over several lines", "jq -c . FILE" + _TO_IMPORT),
)
_CSV = (
    "python -c 'import csv, json, sys; "
    "[print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]' < FILE" + _TO_IMPORT
)


class FileMessage(NamedTuple):
    """A message in a file; without a partition its key decides."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None
    partition: int | None
    event_time_ms: int | None = None


class MessageWriter(Protocol):
    """Writes messages to a file, one after another."""

    def write(self, message: RenderedMessage) -> None: ...

    def close(self) -> None:
        """Write what is left; the file itself stays open."""
        ...


class _MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    value: str | None
    key: str | None = None
    headers: dict[str, str | None] = {}
    encoding: Literal["utf-8", "base64"] = "utf-8"
    partition: int | None = None
    event_time_ms: int | None = None
    topic: str = ""  # the rest is how it was; a message that is published gets its own
    id: str = ""
    offset: int = 0
    timestamp_ms: int = 0


def form_of(form: str | None, path: Path) -> str:
    """The format of a file to write: the option's, else that of its suffix."""
    return form or (PARQUET if path.suffix == ".parquet" else NDJSON)


def form_in(form: str | None, path: Path, file: BinaryIO) -> str:
    """The format of a file to read: the option's, else that of its first bytes, else that of its
    suffix."""
    file.seek(0)
    return form or (PARQUET if file.read(len(_PARQUET)) == _PARQUET else form_of(None, path))


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
        return _read_lines(_text_of(file))
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


def _text_of(file: BinaryIO) -> BinaryIO:
    """The lines of a file, unpacked if it is gzip. Raises `Invalid` for a file of another kind."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    unpack = "tms import TOPIC FILE --format parquet"
    if head.startswith(_GZIP):
        unpack = "gunzip FILE"
        file = cast(BinaryIO, gzip.GzipFile(fileobj=file))
        try:
            head = file.read(_HEAD_BYTES)
        except (OSError, EOFError, zlib.error) as exc:
            raise Invalid(f"It is gzip, but damaged: {exc}.") from exc
        file.seek(0)
    text = head.removeprefix(_BOM).lstrip()
    for begin, kind, command in ((_PARQUET, "Parquet", unpack), *_FOREIGN):
        if head.startswith(begin) or text.startswith(begin):
            raise _foreign(kind, command)
    line, _, _ = text.partition(b"\n")
    if line[:1] not in b"{" and any(mark in line for mark in (b",", b";", b"\t")):
        raise _foreign("CSV", f"{_CSV}  (its first line names `value` and, if there is one, `key`)")
    if text and b"{" not in text:
        command = "tms publish TOPIC FILE"
        raise Invalid(f"It is text without JSON; publish each line: {command}", next=command)
    return file


def _foreign(kind: str, command: str) -> Invalid:
    return Invalid(f"It is {kind}; convert it: {command}", next=command)


def _read_lines(file: BinaryIO) -> Iterator[tuple[int, FileMessage | Invalid]]:
    decoder = json_decoder(_MessageLine)
    number = 0
    while raw := _line(file, number):
        number += 1
        raw = raw.removeprefix(_BOM) if number == 1 else raw
        if len(raw) > LINE_BYTES_MAX:
            yield number, Invalid(f"it has over {LINE_BYTES_MAX:,} bytes")
            return  # where the next line begins is not known
        if raw.strip():
            yield number, _message(raw, decoder)


def _line(file: BinaryIO, number: int) -> bytes:
    try:
        return file.readline(LINE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise Invalid(f"It is damaged behind line {number}: {exc}.") from exc


def _message(raw: bytes, decoder: "msgspec.json.Decoder[_MessageLine]") -> FileMessage | Invalid:
    try:
        line = decoder.decode(raw)
        check_strict(raw, "The line")  # no name stands twice
        decode = str.encode if line.encoding == "utf-8" else _from_base64
        return FileMessage(
            None if line.key is None else decode(line.key),
            None if line.value is None else decode(line.value),
            {name: None if text is None else decode(text) for name, text in line.headers.items()}
            or None,
            line.partition,
            line.event_time_ms,
        )
    except (msgspec.DecodeError, UnicodeError, binascii.Error, RecursionError) as exc:
        return Invalid(str(exc))
    except (BadJson, TooLarge) as error:
        return Invalid(error.message)


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
