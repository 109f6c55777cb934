"""Filters: conditions on the key and the headers of the messages that a reader wants.

    filter     =  condition { "and" condition }
    condition  =  "key" operator value          messages without a key never match
               |  "header." name                the message has the header, maybe with a null value
               |  "header." name operator value
    operator   =  "="                           is exactly
               |  "^="                          begins with
    value      =  word | string | bytes
    name       =  word | string
    word       =  characters other than blanks, quotes, = and ^
    string     =  as in JSON, "in quotes"
    bytes      =  x"hexadecimal digits"

    key ^= user- and header.kind = "order placed" and header.trace

Invariants

* A text is checked as a whole when the filter is made; an error names the character.
* A filter matches the same messages wherever it is applied, in this process or at a service.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from json import JSONDecoder
from typing import Protocol, Self

from tms.errors import Invalid
from tms.model.message import Headers

FILTER_BYTES_MAX = 1_000  # as text; it travels in URLs
CONDITIONS_MAX = 32

_BLANKS = re.compile(r"\s*")
_BLANK = r"\s\x1c-\x1f\x85\ufeff"  # the union of `\s` in Python and in JSON Schema
_WORD = re.compile(rf'[^{_BLANK}"=^]+')
_HEX = re.compile(r'x"([0-9a-fA-F]*)"')
_ESCAPE = r'\\(?:["\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2})'
_CHARACTER = rf'(?:[^"\\\x00-\x1f]|{_ESCAPE})'
_NAME_TEXT = rf'(?:{_WORD.pattern}|"{_CHARACTER}+")'
_VALUE_TEXT = rf'(?:{_WORD.pattern}|x"(?:[0-9a-fA-F]{{2}})*"|"{_CHARACTER}*")'
_CONDITION_TEXT = rf"(?:key *\^?= *{_VALUE_TEXT}|header\.{_NAME_TEXT}(?: *\^?= *{_VALUE_TEXT})?)"
FILTER = (  # how one is spelled, with single blanks where more are read, too
    f"{_CONDITION_TEXT}(?: and {_CONDITION_TEXT}){{0,{CONDITIONS_MAX - 1}}}"
)
_HEADER = "header."
_JSON = JSONDecoder()


class Operator(StrEnum):
    """The comparison of a cell."""

    THERE = ""
    IS = "="
    BEGINS = "^="


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison; `header` None is about the key."""

    header: str | None
    operator: Operator
    value: bytes = b""

    def test(self) -> Callable[[bytes | None], bool]:
        """A function that is True for a cell that fulfils the condition; None is a cell that is
        absent or null."""
        value = self.value
        if self.operator is Operator.IS:
            return lambda cell: cell == value
        return lambda cell: cell is not None and cell.startswith(value)


class Keyed(Protocol):
    """The columns of messages that conditions refer to."""

    @property
    def count(self) -> int: ...
    def keys(self) -> Sequence[bytes | None]: ...
    def headers(self) -> Sequence[Headers]: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a message has to fulfil, all of them; `text` is their source."""

    text: str
    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The filter with this text. Raises `Invalid`, whose details name the character."""
        if len(text.encode(errors="replace")) > FILTER_BYTES_MAX:
            raise Invalid(f"A filter has at most {FILTER_BYTES_MAX} bytes.", field="filter")
        return cls(text, tuple(_FilterReader(text).conditions()))

    def places(self, columns: Keyed) -> Sequence[int]:
        """The places of the messages that match, ascending."""
        places: Sequence[int] = range(columns.count)
        about_key = [condition for condition in self.conditions if condition.header is None]
        if about_key:
            places = _matching(
                places, columns.keys(), (condition.test() for condition in about_key)
            )
        about_headers = [condition for condition in self.conditions if condition.header is not None]
        if about_headers and places:
            headers = columns.headers()
            for condition in about_headers:
                name = condition.header or ""
                if condition.operator is Operator.THERE:
                    places = [at for at in places if name in headers[at]]
                    continue
                cells = [row.get(name) for row in headers]
                places = _matching(places, cells, [condition.test()])
        return places


def _matching(
    places: Sequence[int],
    cells: Sequence[bytes | None],
    tests: Iterable[Callable[[bytes | None], bool]],
) -> Sequence[int]:
    for test in tests:
        places = [at for at in places if test(cells[at])]
    return places


class _FilterReader:
    """Reads a filter from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def conditions(self) -> list[Condition]:
        conditions = [self._condition()]
        while not self._ended():
            self._take_and()
            conditions.append(self._condition())
            if len(conditions) > CONDITIONS_MAX:
                raise self._wrong(f"a filter has at most {CONDITIONS_MAX} conditions")
        return conditions

    def _condition(self) -> Condition:
        self._skip_blanks()
        header: str | None = None
        if self._text.startswith(_HEADER, self._at):
            self._at += len(_HEADER)
            header = self._name()
        else:
            word = _WORD.match(self._text, self._at)
            if word is None or word[0] != "key":
                raise self._wrong("expected `key` or `header.NAME`")
            self._at = word.end()
        operator = self._operator()
        if operator is not Operator.THERE:
            return Condition(header, operator, self._value())
        if header is None:
            raise self._wrong("expected = or ^= after `key`")
        return Condition(header, operator)

    def _operator(self) -> Operator:
        self._skip_blanks()
        for operator in (Operator.BEGINS, Operator.IS):
            if self._text.startswith(operator.value, self._at):
                self._at += len(operator.value)
                return operator
        return Operator.THERE

    def _name(self) -> str:
        start = self._at
        name = self._quoted() if self._text.startswith('"', start) else self._word("a name")
        if not name:
            self._at = start
            raise self._wrong("the name of a header is not empty")
        return name

    def _value(self) -> bytes:
        self._skip_blanks()
        raw = _HEX.match(self._text, self._at)
        if raw is not None and len(raw[1]) % 2 == 0:
            self._at = raw.end()
            return bytes.fromhex(raw[1])
        if self._text.startswith('"', self._at):
            return self._quoted().encode()
        if self._text.startswith('x"', self._at):
            raise self._wrong('expected pairs of hexadecimal digits, as in x"00ff"')
        return self._word("a value").encode()

    def _word(self, what: str) -> str:
        word = _WORD.match(self._text, self._at)
        if word is None:
            raise self._wrong(f"expected {what}")
        self._at = word.end()
        return self._encodable(word[0], word.start())

    def _quoted(self) -> str:
        start = self._at
        try:
            text, self._at = _JSON.raw_decode(self._text, start)
        except ValueError as exc:
            raise self._wrong("the text in quotes is no JSON string that ends") from exc
        return self._encodable(text, start)

    def _encodable(self, text: str, start: int) -> str:
        if text.encode(errors="ignore").decode() != text:
            self._at = start
            raise self._wrong("the text is no valid Unicode")
        return text

    def _take_and(self) -> None:
        word = _WORD.match(self._text, self._at)
        if word is None or word[0] != "and":
            raise self._wrong("expected `and` or the end")
        self._at = word.end()

    def _ended(self) -> bool:
        self._skip_blanks()
        return self._at == len(self._text)

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._text, self._at)
        if blanks is not None:
            self._at = blanks.end()

    def _wrong(self, what: str) -> Invalid:
        return Invalid(
            f"The filter cannot be read at character {self._at + 1}: {what}, got "
            f"{self._text[self._at : self._at + 20]!r}. A filter is like `key ^= user- and "
            "header.kind = order`; see docs/compaction.md.",
            field="filter",
            character=self._at + 1,
        )


def as_filter(where: "str | Filter | None") -> Filter | None:
    """The filter for an argument of a caller. Raises `Invalid`."""
    if where is None or isinstance(where, Filter):
        return where
    if isinstance(where, str):
        return Filter.parse(where)
    raise Invalid(f"A filter is text or a Filter, got {where!r:.80}.", field="where")
