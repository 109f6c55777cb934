"""Spellings of values: patterns of exactly the texts that are read, for parsers and for documents
of the protocol.

Invariants

* A pattern matches a whole text, and uses only syntax that Python's `re` and ECMA 262 share.
* An annotation is shown in documents; the value itself is checked where it is read, by the same
  pattern or bound, with a more detailed error.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Meta

from tms.model.quantity import FRACTION, UNIT_MS
from tms.model.topic import RETENTION_MS_MAX

_EXACT_MAX = 1_000_000


def spelled(pattern: str, **more: Any) -> Meta:
    """A text that matches the pattern as a whole."""
    return Meta(extra_json_schema={"pattern": f"^({pattern})$", **more})


def within(low: float, high: float) -> Meta:
    """A number from `low` to `high`."""
    return Meta(extra_json_schema={"minimum": low, "maximum": high})


def over(low: float, high: float) -> Meta:
    """A number above `low`, up to `high`."""
    return Meta(extra_json_schema={"exclusiveMinimum": low, "maximum": high})


def one_of(*texts: str) -> Meta:
    """One of these texts."""
    return Meta(extra_json_schema={"enum": [*texts]})


def keyed_by(pattern: str) -> Meta:
    """An object whose keys match the pattern as a whole."""
    return Meta(extra_json_schema={"propertyNames": {"pattern": f"^({pattern})$"}})


def shaped(**schema: Any) -> Meta:
    """Further keywords of a schema."""
    return Meta(extra_json_schema=schema)


def either(*shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object that has one of these shapes."""
    return {"anyOf": [*shapes]}


def decimal_up_to(limit: int) -> str:
    """Pattern of the decimal numbers 0 to `limit`, as JSON writes them."""
    return _joined(["0", decimal_in(1, limit)])


def decimal_in(digits_min: int, limit: int) -> str:
    """Pattern of the decimal numbers up to `limit` that have at least `digits_min` digits and do
    not begin with 0."""
    length = len(str(limit))
    if limit == 10**length - 1:
        return f"[1-9][0-9]{{{digits_min - 1},{length - 1}}}"
    shorter = f"[1-9][0-9]{{{digits_min - 1},{length - 2}}}"
    return _joined([shorter, *_as_long_as(str(limit), first=1)])


def _durations_up_to(high_s: int) -> str:
    """Pattern of the texts of durations from a second to `high_s`, in any unit; of large numbers
    those that have a digit less than the largest."""
    some = []
    for unit, unit_ms in UNIT_MS.items():
        most = high_s * 1_000 // unit_ms - 1
        if most >= _EXACT_MAX:
            most = 10 ** (len(str(most)) - 1) - 1
        number = decimal_in(4 if unit == "ms" else 1, most)
        some.append(f"{number}{FRACTION}{unit}{'?' if unit == 's' else ''}")
    return f"(?:{'|'.join(some)})"


def _as_long_as(limit: str, first: int) -> list[str]:
    """Patterns of the numbers up to `limit` that have as many digits and begin with `first`, or a
    larger one."""
    patterns = []
    for at, digit in enumerate(limit):
        least, most = 0 if at else first, int(digit) - 1
        if least <= most:
            choice = str(most) if least == most else f"[{least}-{most}]"
            rest = len(limit) - at - 1
            patterns.append(f"{limit[:at]}{choice}" + (f"[0-9]{{{rest}}}" if rest else ""))
    return [*patterns, limit]


def _joined(patterns: list[str]) -> str:
    return f"(?:{'|'.join(patterns)})"


RETENTION = f"(?:forever|{_durations_up_to(RETENTION_MS_MAX // 1_000)})"  # of a topic
