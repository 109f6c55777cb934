"""Keys, values and headers of messages for people: as JSON, as text, as hexadecimal.

* Nothing is interpreted that could change: JSON is laid out anew, but each number and string stays
  as it was written.
* A cell that cannot be shown as it was asked for is shown as it can be, with a sentence that says
  why.
* A long cell is cut; its size is said beside it.
"""

import re
from typing import NamedTuple

import msgspec

from tms.model.message import Headers

AUTO = "auto"
JSON = "json"
TEXT = "text"
HEX = "hex"
FORMS = (AUTO, JSON, TEXT, HEX)
LAID_OUT_BYTES_MAX = 64 << 10  # of JSON that is laid out anew
_CHARACTER_BYTES_MAX = 4
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_PARENT = "traceparent"


class ShownCell(NamedTuple):
    """A cell as text. `form`: how it is shown; `cut`: True if only its beginning is; `note`: the
    reason for which it is not shown as it was asked for."""

    text: str
    form: str
    cut: bool = False
    note: str = ""


def shown(cell: bytes, form: str, chars_max: int) -> ShownCell:
    """Up to `chars_max` characters of a cell, as one of `FORMS`."""
    if form == HEX:
        return _hex(cell, chars_max)
    if form == JSON:
        return _json(cell, chars_max)
    begin = cell[: chars_max * _CHARACTER_BYTES_MAX]
    try:
        text = _decoded(begin, is_whole=len(begin) == len(cell))
    except UnicodeDecodeError as error:
        if form == AUTO:
            return _hex(cell, chars_max, f"It is not UTF-8: {error.reason} at byte {error.start}.")
        text = begin.decode(errors="backslashreplace")
        return _cut(text, TEXT, chars_max, r"Bytes that are no UTF-8 are written as \xf0.")
    kept = _cut(text, TEXT, chars_max)
    return kept._replace(cut=kept.cut or len(begin) < len(cell))


def plain(cell: bytes) -> str | None:
    """A cell as text that a form can hold and send back unchanged; None if it has other bytes, or
    characters that a browser changes."""
    try:
        text = cell.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\t", "").isprintable() else None


def trace_id(headers: Headers) -> str:
    """The trace to which a message belongs; empty if its headers name none."""
    found = _TRACE.fullmatch(headers.get(_PARENT) or b"")
    return found[1].decode() if found else ""


def _hex(cell: bytes, chars_max: int, note: str = "") -> ShownCell:
    count = max(1, chars_max // 3)
    return ShownCell(cell[:count].hex(" "), HEX, len(cell) > count, note)


def _json(cell: bytes, chars_max: int) -> ShownCell:
    """JSON, laid out; text if that is not possible."""
    if len(cell) > LAID_OUT_BYTES_MAX:
        note = f"JSON of more than {LAID_OUT_BYTES_MAX >> 10} KiB is not laid out."
        return shown(cell, AUTO, chars_max)._replace(note=note)
    try:
        return _cut(msgspec.json.format(cell, indent=2).decode(), JSON, chars_max)
    except RecursionError:
        note = "Its JSON is nested too deeply to be laid out."
    except UnicodeDecodeError:
        note = "It is no JSON: not UTF-8."
    except msgspec.DecodeError as error:
        note = f"It is no JSON: {str(error).removeprefix('JSON is malformed: ')}."
    found = shown(cell, AUTO, chars_max)
    return found._replace(note=found.note or note)


def _cut(text: str, form: str, chars_max: int, note: str = "") -> ShownCell:
    return ShownCell(text[:chars_max], form, len(text) > chars_max, note)


def _decoded(begin: bytes, is_whole: bool) -> str:
    """UTF-8, of which the last character may be cut. Raises `UnicodeDecodeError`."""
    try:
        return begin.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(begin) - _CHARACTER_BYTES_MAX + 1:
            raise
        return begin[: error.start].decode()
