"""The output of results: a table for people; JSON, YAML or CSV for programs.

* Standard output carries data only; `say` talks on standard error.
* Foreign text (keys, values, names) cannot steer a terminal or a spreadsheet: control
  and bidirectional characters are escaped, and a CSV cell that a spreadsheet would run begins with
  an apostrophe.
* One document per command; a stream of messages is one JSON document per line.
"""

import base64
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

Row = Mapping[str, object]

_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNFOLDED = (1 << 31) - 1  # YAML lines are as long as what they say
_RUN_BY_SPREADSHEETS = ("=", "+", "-", "@")


class Format(StrEnum):
    """The forms that every command can print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def say(text: str) -> None:
    """A line for the person, on standard error; control characters but the line feed are
    escaped."""
    print("\n".join(escape(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def draw_line(line: str) -> None:
    """Put a line in the place of the last one on standard error, which is a terminal."""
    sys.stderr.write("\r\x1b[K" + line)
    sys.stderr.flush()


def escape(text: str) -> str:
    """`text` with everything that could steer a terminal written as an escape sequence."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def text_of(raw: bytes | None) -> str | None:
    """Bytes as text; bytes that are not UTF-8 show as escapes."""
    return None if raw is None else raw.decode(errors="backslashreplace")


def columns(value: object, *names: str) -> dict[str, Any]:
    """Attributes of a value, as columns of its row."""
    return {name: getattr(value, name) for name in names}


def json_message(
    facts: Mapping[str, object],
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes | None],
) -> dict[str, object]:
    """A message in the form of `/v2`: text, or base64 for all of it when one part is not UTF-8."""

    def written(write: Callable[[bytes], str], encoding: str) -> dict[str, object]:
        cells = {"key": key, "value": value}
        texts = {name: raw if raw is None else write(raw) for name, raw in headers.items()}
        shown = {name: raw if raw is None else write(raw) for name, raw in cells.items()}
        return {**facts, **shown, "headers": texts, "encoding": encoding}

    try:
        return written(bytes.decode, "utf-8")
    except UnicodeDecodeError:
        return written(lambda raw: base64.b64encode(raw).decode(), "base64")


def show(form: Format, document: object, rows: Sequence[Row]) -> None:
    """Print `document` (JSON, YAML) or its `rows` (table, CSV). All rows have the same columns."""
    match form:
        case Format.JSON:
            text = json_text(document, indent=2) + "\n"
        case Format.YAML:
            text = yaml_text(document)
        case Format.CSV:
            text = csv_text(rows)
        case Format.TABLE:
            text = table_text(rows)
    write(text)


def write(text: str) -> None:
    """Text to standard output as UTF-8, whatever the locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def json_text(document: object, indent: int | None = None) -> str:
    """Valid JSON that is safe to print on a terminal."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, allow_nan=False)
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def table_text(rows: Sequence[Row]) -> str:
    """Columns aligned under upper-case names, numbers to the right; empty text for no rows."""
    if not rows:
        return ""
    names = list(rows[0])
    cells = [[_cell(row[name]) for name in names] for row in rows]
    right = [all(_is_number(row[name]) for row in rows) for name in names]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    lines = [[name.upper().replace("_", " ") for name in names], *cells]
    return "".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def facts_text(facts: Row) -> str:
    """Facts as lines, with aligned names."""
    width = max(len(name) for name in facts)
    return "".join(
        f"{name.replace('_', ' '):<{width}}  {_cell(value)}\n" for name, value in facts.items()
    )


def csv_text(rows: Iterable[Row]) -> str:
    """RFC 4180 with a header line; cells are safe to open in a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for number, row in enumerate(rows):
        if number == 0:
            writer.writerow(list(row))
        writer.writerow([_csv_cell(value) for value in row.values()])
    return text.getvalue()


def yaml_text(document: object) -> str:
    """YAML 1.1 that is safe to print on a terminal: all that is not ASCII is escaped in a document
    that has something to hide."""
    import yaml

    plain = json.dumps(document, ensure_ascii=False, allow_nan=False)
    plain = plain.encode(errors="replace").decode()  # YAML has no lone surrogates
    readable = _IN_JSON.search(plain) is None
    text: str = yaml.dump(
        json.loads(plain),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),  # C's is in every wheel
        allow_unicode=readable,
        sort_keys=False,
        width=_UNFOLDED,
    )
    return text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def _csv_cell(value: object) -> object:
    if value is None or _is_number(value):
        return value
    text = escape(str(value))
    return "'" + text if text.startswith(_RUN_BY_SPREADSHEETS) else text
