"""How the numbers of a report are said to people."""

from collections.abc import Sequence
from datetime import timedelta

from tms.spark.jobs.report_measures import Hour

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_TIMES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


def with_size(size: float) -> str:
    """Bytes, in the largest unit of which there is one."""
    unit = 0
    while size >= 1024 and unit < len(_SIZES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{_short(size)} {_SIZES[unit]}"


def with_time(seconds: float | None) -> str:
    """A duration, in the largest unit of which there is one."""
    if seconds is None:
        return "–"
    for length, unit in _TIMES:
        if seconds >= length:
            return f"{_short(seconds / length)} {unit}"
    return "0 s" if seconds == 0 else f"{_short(seconds * 1_000)} ms"


def title(hours: Sequence[Hour]) -> str:
    """Which topics a report is of."""
    topics = sorted({hour.topic for hour in hours})
    return f"{'Topic' if len(topics) == 1 else 'Topics'} {', '.join(topics)} by hour"


def summary(hours: Sequence[Hour]) -> str:
    """From when to when, how many, how much."""
    first, last = min(hour.hour for hour in hours), max(hour.hour for hour in hours)
    messages, size = sum(hour.messages for hour in hours), sum(hour.bytes for hour in hours)
    many = "message" if messages == 1 else "messages"
    return (
        f"{first:%Y-%m-%d %H:%M} to {last + timedelta(hours=1):%Y-%m-%d %H:%M} UTC · "
        f"{messages:,} {many} · {with_size(size)} of keys and values"
    )


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 100 else f"{number:,.0f}"
