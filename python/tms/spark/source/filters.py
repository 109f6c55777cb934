"""Filters that narrow what is read, instead of being applied to rows.

Pushed down completely: conditions on topic and partition by equality and order, on offset and
timestamp by order and equality. All other conditions go back to Spark, which applies them to the
rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_COMPARED = (
    EqualTo,
    EqualNullSafe,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
_ALWAYS_THERE = {"topic", "partition", "offset", "timestamp", "timestampType"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_US_PER_MS = 1_000


@dataclass(slots=True)
class Interval:
    """Whole numbers from `low` to before `high`; None is no bound."""

    low: int = 0
    high: int | None = None

    def narrow(self, condition: Filter, value: int, unit: int = 1) -> None:
        """Only numbers n for which `n * unit` fulfils the condition with this value."""
        up = -(-value // unit)  # the first n with n * unit >= value
        beyond = value // unit + 1  # the first n with n * unit > value
        if isinstance(condition, GreaterThan):
            self.low = max(self.low, beyond)
        elif isinstance(condition, GreaterThanOrEqual):
            self.low = max(self.low, up)
        elif isinstance(condition, LessThan):
            self._end(up)
        elif isinstance(condition, LessThanOrEqual):
            self._end(beyond)
        else:
            self.low = max(self.low, up)
            self._end(beyond)

    def _end(self, high: int) -> None:
        self.high = high if self.high is None else min(self.high, high)

    def __contains__(self, number: int) -> bool:
        return self.low <= number and (self.high is None or number < self.high)


class Narrowing:
    """The topics, partitions, offsets and times (ms) that the filters of a query leave."""

    def __init__(self) -> None:
        self.topics: set[str] | None = None
        self.partitions: set[int] | None = None
        self.partition = Interval()
        self.offset = Interval()
        self.time_ms = Interval()

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take over the filters that the reader can apply; the others, for Spark."""
        return [one for one in filters if not self._takes(one)]

    def reads(self, topic: str, partition: int) -> bool:
        """True if the filters leave anything of this partition."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and partition in self.partition
        )

    def _takes(self, filter: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(filter, "attribute", ())
        if len(attribute) != 1:
            return False
        column = attribute[0]
        if isinstance(filter, IsNotNull):
            return column in _ALWAYS_THERE
        if isinstance(filter, In):
            return self._takes_any(column, filter)
        if not isinstance(filter, _COMPARED):
            return False
        value = filter.value
        if column in ("partition", "offset") and type(value) is int:
            (self.partition if column == "partition" else self.offset).narrow(filter, value)
            return True
        if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            self.time_ms.narrow(filter, (value - _EPOCH) // _US, _US_PER_MS)
            return True
        if column == "topic" and isinstance(filter, EqualTo | EqualNullSafe) and value is not None:
            self._only_topics({str(value)})
            return True
        return False

    def _takes_any(self, column: str, filter: In) -> bool:
        values: list[Any] = [value for value in filter.value if value is not None]
        if column == "topic":
            self._only_topics(set(map(str, values)))
            return True
        if column == "partition" and all(type(value) is int for value in values):
            wanted = set(values)
            self.partitions = wanted if self.partitions is None else self.partitions & wanted
            return True
        if column == "offset" and values and all(type(value) is int for value in values):
            self.offset.narrow(GreaterThanOrEqual(("offset",), None), min(values))
            self.offset.narrow(LessThanOrEqual(("offset",), None), max(values))
        return False  # of offsets only the span is narrowed: Spark picks those that are meant

    def _only_topics(self, topics: set[str]) -> None:
        self.topics = topics if self.topics is None else self.topics & topics
