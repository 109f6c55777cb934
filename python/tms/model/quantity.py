"""Quantities as callers pass them: whole numbers, durations, and sizes.

    5    0.5    timedelta(seconds=5)    "5"    "5s"    "500ms"    "1.5h"    "14d"    "2w"
    "8388608"    "8M"    "8 MiB"    "1g"

Invariants

* A number is in seconds, or in ms if the name of its field ends so; text may name its unit.
* A wrong value raises `Invalid` with the field, the value and the allowed values. A flag is no
  number, and a value that is no number or infinite is no duration.
"""

import re
from datetime import timedelta

from tms.errors import Invalid

Duration = float | timedelta | str
SECONDS_MAX = 36_525 * 86_400.0  # 100 years
FRACTION = r"(?:\.[0-9]{1,9})?"
_TEXT = re.compile(rf"([0-9]{{1,15}}{FRACTION})(ms|s|m|h|d|w)?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(i?B?)", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"T": 1 << 40, "G": 1 << 30, "M": 1 << 20, "K": 1 << 10, "": 1}
_WRITTEN_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def whole(field: str, value: int, low: int, high: int) -> int:
    """The number itself. Raises `Invalid`."""
    if type(value) is not int or not low <= value <= high:
        raise Invalid(
            f"{field} is a whole number from {low} to {high}, got {value!r:.80}.", field=field
        )
    return value


def seconds(field: str, value: Duration, low: float = 0, high: float = SECONDS_MAX) -> float:
    """The duration in seconds. Raises `Invalid`."""
    return _in_unit(field, value, "s", low, high)


def timeout(value: Duration | None, default_s: float) -> float:
    """A time-out in seconds. Raises `Invalid`."""
    return default_s if value is None else seconds("timeout_s", value)


def outage(value: Duration | None) -> float | None:
    """The longest outage to survive, in seconds; None: without end. Raises `Invalid`."""
    return None if value is None else seconds("outage_s", value)


def milliseconds(field: str, value: Duration, low: float = 0, high: float = 1e15) -> float:
    """The duration in ms; a plain number is in ms, too. Raises `Invalid`."""
    return _in_unit(field, value, "ms", low, high)


def duration_text(ms: int) -> str:
    """A duration as `milliseconds` reads it, in the largest unit that divides it: `14d`, `36h`."""
    size, unit = next((size, unit) for unit, size in _WRITTEN_MS.items() if ms % size == 0)
    return f"{ms // size}{unit}"


def size_of(field: str, text: str) -> int:
    """A size in bytes. Raises `Invalid`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Invalid(
            f"{field} is a number of bytes, or one with K, M, G or T, got {text!r:.80}.",
            field=field,
        )
    return int(match[1]) * _SIZE_UNITS[match[2].upper()]


def size_text(size: int) -> str:
    """A size as `size_of` reads it, in the largest unit that divides it: `8M`."""
    bytes_, unit = next((many, unit) for unit, many in _SIZE_UNITS.items() if size % many == 0)
    return f"{size // bytes_}{unit}"


def _in_unit(field: str, value: Duration, unit: str, low: float, high: float) -> float:
    amount: float | None = None
    if isinstance(value, timedelta):
        amount = value / timedelta(milliseconds=UNIT_MS[unit])
    elif isinstance(value, str):
        if match := _TEXT.fullmatch(value.strip()):
            amount = float(match[1]) * UNIT_MS[match[2] or unit] / UNIT_MS[unit]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        amount = value
    if amount is None or not low <= amount <= high:
        raise Invalid(
            f"{field} is a duration from {low:.12g} to {high:.12g} {unit}, got {value!r:.80}. Give "
            f'a number in {unit}, a timedelta, or text such as "500ms", "5s" or "2h".',
            field=field,
        )
    return amount
