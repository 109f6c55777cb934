"""The form in which a message is written: its fields as they were typed, and the message in them.

* Fields are kept as they are typed, also those of a form that is refused.
* A form that shows a message and is sent unchanged publishes the same bytes. Text that a browser
  would change is shown as base64.
* Browsers send a line's end as two characters. Of text and JSON it becomes one line feed again.
* A header is a line, NAME=VALUE. A name or value in quotes is a JSON string, a value such as
  x"00ff" is bytes, and a name alone has no value.
"""

import re
import secrets
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple, Self

import msgspec

from tms.api.messages import base64
from tms.block import HEADERS_MAX
from tms.console.cells import plain
from tms.console.pages.message_ranges import position_in
from tms.console.visit import Visit
from tms.errors import Invalid, TMSError
from tms.model.message import Headers
from tms.model.position import PositionKind
from tms.model.quantity import seconds
from tms.model.topic import Durability, parse_durability
from tms.runtime.decoding import from_json

NONE = "none"
TEXT = "text"
JSON = "json"
HEX = "hex"
BASE64 = "base64"
KEY_FORMS = (NONE, TEXT, HEX, BASE64)
VALUE_FORMS = (TEXT, JSON, HEX, BASE64, NONE)
_BYTES = re.compile(r'x"((?:[0-9a-fA-F]{2})*)"')
_PLAIN_NAME = re.compile(r'[^"=\s][^=\n\r]*(?<!\s)')
_ONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class WrittenDelivery(NamedTuple):
    """The time at which a message is due: a delay or a time; neither of both: at once."""

    delay_s: float | None = None
    deliver_at_ms: int | None = None

    @property
    def is_later(self) -> bool:
        """True if it waits."""
        return self != WrittenDelivery()


class WrittenMessage(NamedTuple):
    """The message in a form. `durability`: None as the topic says."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    event_time_ms: int | None
    durability: Durability | None
    delivery: WrittenDelivery


class PublishForm(NamedTuple):
    """The fields of a form. `once`: its id, by which it is published once however often it is
    sent."""

    key: str = ""
    key_as: str = NONE
    value: str = ""
    value_as: str = TEXT
    headers: str = ""
    partition: str = ""
    event_time: str = ""
    durability: str = ""
    deliver: str = ""
    once: str = ""

    @classmethod
    def sent(cls, visit: Visit) -> Self:
        """The form as it was sent."""
        return cls(*(visit.given(name, cls._field_defaults[name]) for name in cls._fields))

    @classmethod
    def of(
        cls, cells: tuple[bytes | None, bytes | None, Headers], event_time_ms: int | None
    ) -> Self:
        """A form with the key, value and headers of a message."""
        key, value, headers = cells
        key_as, key_text = _written(key)
        value_as, value_text = _written(value)
        if value_as == TEXT and value is not None and _is_json(value):
            value_as = JSON
        lines = "\n".join(_line(name, cell) for name, cell in headers.items())
        event_time = "" if event_time_ms is None else f"{event_time_ms:012d}"
        return cls(key_text, key_as, value_text, value_as, lines, event_time=event_time)

    def renewed(self) -> Self:
        """The form with a new id."""
        return self._replace(once=secrets.token_urlsafe(18))

    def message(self) -> WrittenMessage:
        """The message in it. Raises `Invalid`, `BadEncoding` with the field."""
        if not _ONCE.fullmatch(self.once):
            raise Invalid("The form had no id. It has one now: send it again.", field="once")
        return WrittenMessage(
            _of_field("key", self.key, self.key_as, KEY_FORMS),
            _of_field("value", self.value, self.value_as, VALUE_FORMS),
            dict(_headers(self.headers)),
            _partition(self.partition),
            _time("event_time", self.event_time),
            parse_durability(self.durability) if self.durability else None,
            _delivery(self.deliver),
        )


def _written(cell: bytes | None) -> tuple[str, str]:
    """A cell as a form shows it: how it is written, and the text."""
    if cell is None:
        return NONE, ""
    text = plain(cell)
    return (BASE64, b64encode(cell).decode()) if text is None else (TEXT, text)


def _is_json(value: bytes) -> bool:
    try:
        from_json(value, msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return value[:1] in (b"{", b"[")


def _of_field(field: str, text: str, form: str, forms: tuple[str, ...]) -> bytes | None:
    """The bytes in a field. Raises `Invalid`, `BadEncoding`."""
    if form not in forms:
        raise Invalid(f"{field} is written as {', '.join(forms)}, got {form!r:.20}.", field=field)
    if form == NONE:
        if text:
            raise Invalid(
                f"You typed a {field}, but chose that there is none: choose how it is written, or "
                "empty the field.",
                field=field,
            )
        return None
    if form == HEX:
        try:
            return bytes.fromhex(text)
        except ValueError as exc:
            raise Invalid(
                "Hexadecimal is pairs of digits 0-9 a-f; blanks may be between them.", field=field
            ) from exc
    if form == BASE64:
        try:
            return base64("".join(text.split()))
        except TMSError as error:
            error.details["field"] = field
            raise
    value = text.replace("\r\n", "\n").encode()
    if form == JSON:
        _require_json(value)
    return value


def _require_json(value: bytes) -> None:
    try:
        from_json(value, msgspec.Raw)
    except RecursionError as exc:
        raise Invalid(
            "The JSON is nested too deeply to be checked; publish it as text.", field="value"
        ) from exc
    except msgspec.DecodeError as exc:
        raise Invalid(
            f"The value is no JSON: {str(exc).removeprefix('JSON is malformed: ')}. Mend it, or "
            "publish it as text.",
            field="value",
        ) from exc


def _headers(text: str) -> Iterator[tuple[str, bytes | None]]:
    """The headers in a field. Raises `Invalid`."""
    names: set[str] = set()
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip():
            continue
        quoted = _STRING.match(line)
        name = line
        rest = ""
        if quoted is not None:
            name = _unquoted(quoted[0], number)
            rest = line[quoted.end() :]
        elif line.startswith('"'):
            raise _bad_line(number, line)
        elif "=" in line:
            name, _, value = line.partition("=")
            rest = f"={value}"
        if not name or (rest and not rest.startswith("=")):
            raise _bad_line(number, line)
        if name in names:
            raise Invalid(
                f"Line {number}: the header {name!r:.60} is there twice.", field="headers"
            )
        names.add(name)
        if len(names) > HEADERS_MAX:
            raise Invalid(f"A message has at most {HEADERS_MAX} headers.", field="headers")
        yield name, _header_value(rest[1:], number) if rest else None


def _header_value(text: str, number: int) -> bytes:
    if raw := _BYTES.fullmatch(text):
        return bytes.fromhex(raw[1])
    return (_unquoted(text, number) if _STRING.fullmatch(text) else text).encode()


def _unquoted(text: str, number: int) -> str:
    try:
        return from_json(text, str)
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise _bad_line(number, text) from exc


def _bad_line(number: int, line: str) -> Invalid:
    return Invalid(
        f"Line {number} is no header: write NAME=VALUE, got {line!r:.60}. A name or value in "
        'quotes is a JSON string; x"00ff" is bytes; a name alone has no value.',
        field="headers",
    )


def _line(name: str, cell: bytes | None) -> str:
    """A header as the field has it."""
    is_plain = _PLAIN_NAME.fullmatch(name) and name.isprintable()
    shown = name if is_plain else msgspec.json.encode(name).decode()
    if cell is None:
        return shown
    text = plain(cell)
    if text is None:
        return f'{shown}=x"{cell.hex()}"'
    is_quoted = "\n" in text or _BYTES.fullmatch(text) or _STRING.fullmatch(text)
    return f"{shown}={msgspec.json.encode(text).decode() if is_quoted else text}"


def _partition(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise Invalid(f"partition is a number, got {text!r:.40}.", field="partition")
    return int(text)


def _time(field: str, text: str) -> int | None:
    if not text.strip():
        return None
    try:
        position = position_in(text)
        if position.kind is PositionKind.TIME:
            return position.number
    except TMSError:
        pass
    raise Invalid(
        f"{field} is a time in UTC, such as 2026-11-28 17:00:00, or in ms since 1970, got "
        f"{text!r:.60}.",
        field=field,
    )


def _delivery(text: str) -> WrittenDelivery:
    text = text.strip()
    if not text:
        return WrittenDelivery()
    if text[-1].isalpha() and text[-1] != "Z":
        return WrittenDelivery(delay_s=seconds("deliver", text))
    return WrittenDelivery(deliver_at_ms=_time("deliver", text))
