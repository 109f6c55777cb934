"""Strict JSON: what RFC 8259 leaves open is refused, so that no two readers differ about a body.

* Refused as `BadJson`: no UTF-8, a byte order mark, duplicate keys, NaN and Infinity, numbers
  beyond a double or with thousands of digits, lone surrogates, nesting beyond the interpreter's
  limit, anything after the value.
* A number without a fraction is whole, also as 1.0, as JSON Schema has it.
* Well-formed JSON of the wrong shape is `Invalid`, with the path and, within `messages`, the index.
* A body can hold only so many values, so that a small one cannot take much memory: `TooLarge`.
"""

import json
import re
from math import isfinite
from typing import Any, NoReturn, TypeVar

import msgspec

from tms.errors import BadJson, Invalid, TooLarge
from tms.model.message import Buffer

VALUES_MAX = 500_000
_BLANKS = " \t\n\r"
_T = TypeVar("_T")
_WANTS_WHOLE = re.compile(r"Expected `int[^`]*`, got `float`")
_WHOLE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(-?[0-9]+)\.0+(?![0-9.eE])', re.DOTALL)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)', re.DOTALL)  # linear, also unterminated
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>u[dD][89a-fA-F]..)|.)")
_FIELD = re.compile(r"(?:field `|`\$\.)(\w+)")  # that is missing, unknown or wrong
_INDEX = re.compile(r"`\$\.messages\[(\d+)\]")


def decode_strict(body: Buffer, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """The value that `decoder` reads from `body`. Raises `BadJson`, `Invalid` or `TooLarge`."""
    check_strict(body)
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as exc:
            if not _WANTS_WHOLE.match(str(exc)):
                raise
            return decoder.decode(_WHOLE.sub(_without_fraction, str(body, "utf-8")))
    except msgspec.ValidationError as exc:
        details: dict[str, Any] = {}
        if index := _INDEX.search(str(exc)):
            details["index"] = int(index[1])
        elif field := _FIELD.search(str(exc)):
            details["field"] = field[1]
        raise Invalid(f"The body is JSON, but not as it should be: {exc}.", **details) from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadJson(f"The body is not JSON: {exc}.") from exc


def check_strict(body: Buffer, what: str = "The body") -> None:
    """Raises `BadJson` or `TooLarge`, of `what`, unless `body` is strict JSON."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as exc:
        raise BadJson(f"{what} is not UTF-8: {exc.reason} at byte {exc.start}.") from exc
    if text.startswith("\ufeff"):
        raise BadJson(f"{what} begins with a byte order mark; send JSON without it.")
    if len(text) > VALUES_MAX and _has_many(text):
        raise TooLarge(f"{what} has more than {VALUES_MAX} JSON values; send fewer at once.")
    try:
        if text[:1] in _BLANKS:  # also without any text
            _STRICT.decode(text)
        else:
            _, end = _STRICT.raw_decode(text)
            if text[end:].strip(_BLANKS):
                _STRICT.decode(text)  # names the place of what follows the value
    except RecursionError as exc:
        raise BadJson(f"{what}'s JSON is nested too deeply.") from exc
    except json.JSONDecodeError as exc:
        raise BadJson(f"{what} is not JSON: {exc}.") from exc
    except _RefusedJson as exc:
        raise BadJson(f"{what} is not strict JSON: {exc}.") from exc
    except ValueError as exc:  # from `int`, which reads no more digits than the interpreter allows
        raise BadJson(f"{what} is not strict JSON: a number has thousands of digits.") from exc
    if _MAYBE_SURROGATE.search(text) and any(m["lone"] for m in _ESCAPE.finditer(text)):
        raise BadJson(
            f"{what} has an escaped surrogate (\\ud800 to \\udfff) without its other half."
        )


def _without_fraction(found: "re.Match[str]") -> str:
    return found[1] or found[0]


def _has_many(text: str) -> bool:
    return _values(text) > VALUES_MAX and _values(_STRING.sub("", text)) > VALUES_MAX


def _values(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


class _RefusedJson(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedJson(f"the key {twice[:64]!r} appears twice in one object")


def _finite(text: str) -> None:
    if not isfinite(float(text)):
        raise _RefusedJson("a number is beyond the range of a double")


def _no_constant(text: str) -> NoReturn:
    raise _RefusedJson(f"{text} is no JSON value")


# Only checks: objects and floats come out as None, so that they take no memory.
_STRICT = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_float=_finite, parse_constant=_no_constant
)
