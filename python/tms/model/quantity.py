"""Quantities as callers pass them: whole numbers, and durations.

    5    0.5    timedelta(seconds=5)    "5"    "5s"    "500ms"    "1.5h"    "14d"    "2w"

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
