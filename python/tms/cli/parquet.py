"""Messages in Parquet files; see `message_files`."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tms.cli.message_files import CHUNK_BYTES, ROWS, FileMessage
from tms.cli.rendering import RenderedMessage
from tms.errors import Invalid

_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
_READ = {name: _SCHEMA.field(name).type for name in ("key", "value", "headers", "partition")}


class ParquetWriter:
    """Writes messages, some at a time as a row group."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(file, _SCHEMA, compression="zstd")
        self._rows: list[tuple[object, ...]] = []
        self._bytes = 0

    def write(self, message: RenderedMessage) -> None:
        """Take one message."""
        self._rows.append(
            (
                message.partition,
                message.offset,
                str(message.id),
                message.timestamp_ms,
                message.key,
                message.value,
                list(message.headers.items()),
            )
        )
        self._bytes += len(message.value or b"") + len(message.key or b"") + 64
        if self._bytes >= CHUNK_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*self._rows, strict=True), _SCHEMA, strict=True)
            ]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
            self._rows, self._bytes = [], 0


def read_rows(file: BinaryIO) -> Iterator[tuple[int, FileMessage | Invalid]]:
    """The messages of a file by row, from 1 on. Raises `Invalid`."""
    number = 0
    try:
        parquet = pq.ParquetFile(file)
        names = _columns(parquet.schema_arrow)
        for batch in parquet.iter_batches(ROWS, columns=names):
            for row in pa.Table.from_batches([batch]).to_pylist():
                number += 1
                yield number, _message(row)
    except (pa.ArrowException, OSError) as exc:
        raise Invalid(f"It is no Parquet file, or damaged behind row {number}: {exc}.") from exc


def _columns(schema: Any) -> list[str]:
    """The columns that say what to publish. Raises `Invalid`."""
    if "value" not in schema.names:
        raise Invalid(f"It has no column `value`, but {', '.join(schema.names)}.")
    names = [name for name in _READ if name in schema.names]
    for name in names:
        found = schema.field(name).type
        if not found.equals(_READ[name]):
            raise Invalid(f"Its column `{name}` has the type {found}, and not {_READ[name]}.")
    return names


def _message(row: dict[str, Any]) -> FileMessage:
    headers = dict(row.get("headers") or ())
    return FileMessage(row.get("key"), row["value"], headers or None, row.get("partition"))
