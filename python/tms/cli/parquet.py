"""Messages in Parquet files; see `message_files`.

Written in one form, that of `tms.spark.rows`. Read from more, as other programs write them: key and
value of binary or text, also as dictionaries; headers as a list of key and value, a map, or a
struct with a field for each; partitions of any integers; event times as timestamps. Other columns
are passed over.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from tms.cli.message_files import CHUNK_BYTES, ROWS, FileMessage
from tms.cli.rendering import RenderedMessage
from tms.errors import Invalid
from tms.spark.rows import LOG_APPEND_TIME, WantedColumns, arrow_schema

_SCHEMA = arrow_schema(WantedColumns(headers=True, message_id=True, event_time=True))
_CELL = re.compile(r"(large_|fixed_size_)?(binary|string)(_view|\[\d+\])?|null")
_AS_TEXT = (
    'python -c \'import pandas; t = pandas.read_parquet("FILE"); t["{0}"] = '
    't["{0}"].astype("{1}"); t.to_parquet("FILE.parquet")\''
)


class ParquetWriter:
    """Writes messages, some at a time as a row group."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(file, _SCHEMA, compression="zstd")
        self._rows: list[dict[str, object]] = []
        self._bytes = 0

    def write(self, message: RenderedMessage) -> None:
        """Take one message."""
        headers = [{"key": name, "value": value} for name, value in message.headers.items()]
        time_ms = message.event_time_ms
        self._rows.append(
            {
                "key": message.key,
                "value": message.value,
                "topic": message.topic,
                "partition": message.partition,
                "offset": message.offset,
                "timestamp": message.timestamp_ms * 1_000,
                "timestampType": LOG_APPEND_TIME,
                "headers": headers or None,
                "id": str(message.id),
                "event_time": time_ms if time_ms is None else time_ms * 1_000,
            }
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
            self._writer.write_table(pa.Table.from_pylist(self._rows, _SCHEMA))
            self._rows, self._bytes = [], 0


def read_rows(file: BinaryIO) -> Iterator[tuple[int, FileMessage | Invalid]]:
    """The messages of a file by row, from 1 on; in place of a wrong one, what is wrong with it.
    Raises `Invalid`."""
    number = 0
    try:
        parquet = pq.ParquetFile(file)
        names = _columns(parquet.schema_arrow)
        for batch in parquet.iter_batches(ROWS, columns=names):
            for row in _in_ms(pa.Table.from_batches([batch])).to_pylist():
                number += 1
                yield number, _message(row)
    except (pa.ArrowException, OSError) as exc:
        raise Invalid(f"It is no Parquet file, or damaged behind row {number}: {exc}.") from exc


def _in_ms(rows: pa.Table) -> pa.Table:
    """The rows with event times as numbers."""
    if "event_time" not in rows.column_names:
        return rows
    times = rows.column("event_time").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return rows.set_column(rows.column_names.index("event_time"), "event_time", times)


def _columns(schema: pa.Schema) -> list[str]:
    """The columns that say what to publish. Raises `Invalid`."""
    if "value" not in schema.names:
        raise Invalid(
            f"It has no column `value`, but {', '.join(schema.names)}. Name the column with the "
            "messages `value`, and that with their keys, if there are any, `key`."
        )
    readable = {
        "key": (_is_cell, "binary or text", "str"),
        "value": (_is_cell, "binary or text", "str"),
        "headers": (_is_headers, "list<struct<key, value>>, map or struct", ""),
        "partition": (_is_number, "an integer", "Int32"),
        "event_time": (_is_time, "a timestamp", "datetime64[ms, UTC]"),
    }
    names = [name for name in readable if name in schema.names]
    for name in names:
        is_readable, wanted, cast = readable[name]
        found = schema.field(name).type
        if not is_readable(found):
            command = _AS_TEXT.format(name, cast) if cast else ""
            raise Invalid(
                f"Its column `{name}` has the type {found}, and not {wanted}."
                + (f" Convert it: {command}" if command else " Leave it out, or convert it."),
                field=name,
            )
    return names


def _is_cell(type: pa.DataType) -> bool:
    """True if Arrow gives bytes, text or None for each value."""
    if types.is_dictionary(type):
        type = type.value_type
    return _CELL.fullmatch(str(type)) is not None


def _is_number(type: pa.DataType) -> bool:
    if types.is_dictionary(type):
        type = type.value_type
    return bool(types.is_integer(type) or types.is_null(type))


def _is_time(type: pa.DataType) -> bool:
    return bool(types.is_timestamp(type) or types.is_null(type))


def _is_headers(type: pa.DataType) -> bool:
    if types.is_map(type):
        return _is_cell(type.key_type) and _is_cell(type.item_type)
    if types.is_struct(type):
        return all(_is_cell(type.field(at).type) for at in range(type.num_fields))
    if types.is_list(type) or types.is_large_list(type):
        names = type.value_type
        return (
            types.is_struct(names)
            and sorted(names.field(at).name for at in range(names.num_fields)) == ["key", "value"]
            and _is_headers(names)
        )
    return bool(types.is_null(type))


def _message(row: dict[str, Any]) -> FileMessage | Invalid:
    headers: dict[str, bytes | None] = {}
    try:
        for name, value in _pairs(row.get("headers")):
            if name is None:
                return Invalid("one of its headers has no name")
            text = name if isinstance(name, str) else str(name, "utf-8")
            if text in headers:
                return Invalid(f"its header {text!r:.80} stands twice")
            headers[text] = _bytes(value)
        return FileMessage(
            _bytes(row.get("key")),
            _bytes(row["value"]),
            headers or None,
            row.get("partition"),
            row.get("event_time"),
        )
    except UnicodeError as exc:
        return Invalid(str(exc))


def _pairs(headers: Any) -> "Iterator[tuple[Any, Any]]":
    """Names and values of headers; fields of a struct without a value are not there."""
    if isinstance(headers, Mapping):
        yield from ((name, value) for name, value in headers.items() if value is not None)
        return
    for header in headers or ():
        yield (header["key"], header["value"]) if isinstance(header, Mapping) else header


def _bytes(cell: "bytes | str | None") -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell
