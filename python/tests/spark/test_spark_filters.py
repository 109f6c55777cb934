"""Filters that Spark pushes down: the source drops exactly the rows that they exclude, and returns
filters that it cannot apply wholly."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tms.spark.source.filters import Narrowing

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARED: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: lambda left, right: left == right,
    EqualNullSafe: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
}
ROWS = [
    {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=offset),
    }
    for topic in ("a", "b")
    for partition in range(3)
    for offset in range(6)
]

numbers = st.integers(-2, 8)
times = st.integers(-2_000, 8_000).map(lambda us: EPOCH + timedelta(microseconds=us))
columns = st.sampled_from(["partition", "offset"])
compared = st.sampled_from([*COMPARED])
filters = (
    st.builds(lambda kind, column, value: kind((column,), value), compared, columns, numbers)
    | st.builds(lambda kind, value: kind(("timestamp",), value), compared, times)
    | st.builds(lambda value: EqualTo(("topic",), value), st.sampled_from("abc"))
    | st.builds(
        lambda column, values: In((column,), tuple(values)),
        columns,
        st.lists(numbers | st.none(), max_size=4),
    )
    | st.builds(
        lambda values: In(("topic",), tuple(values)), st.lists(st.sampled_from("abc"), max_size=2)
    )
    | st.builds(lambda column: IsNotNull((column,)), columns)
)


def holds(one: Filter, row: dict[str, Any]) -> bool:
    """True if a row fulfils a filter."""
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, In):
        return value in one.value
    return isinstance(one, IsNotNull) or COMPARED[type(one)](value, one.value)  # type: ignore[attr-defined]


def left(narrowing: Narrowing) -> list[dict[str, Any]]:
    """The rows that a narrowed query reads."""
    return [
        row
        for row in ROWS
        if narrowing.reads(str(row["topic"]), int(row["partition"]))
        and row["offset"] in narrowing.offset
        and (row["timestamp"] - EPOCH) // timedelta(milliseconds=1) in narrowing.time_ms
    ]


@given(st.lists(filters, max_size=4))
def test_what_is_read_and_then_filtered_by_the_rest_is_what_all_filters_leave(
    some: list[Filter],
) -> None:
    narrowing = Narrowing()
    rest = narrowing.push(some)
    assert all(any(one is given for given in some) for one in rest)
    found = [row for row in left(narrowing) if all(holds(one, row) for one in rest)]
    assert found == [row for row in ROWS if all(holds(one, row) for one in some)]


@given(st.lists(filters.filter(lambda one: not isinstance(one, In)), max_size=4))
def test_comparisons_of_places_are_taken_over_whole(some: list[Filter]) -> None:
    assert Narrowing().push(some) == []


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("offset", "inner"), 5),
        EqualTo(("offset",), None),
        EqualTo(("offset",), 5.0),
        EqualTo(("partition",), True),
        EqualNullSafe(("topic",), None),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 of no time zone
        EqualTo(("timestampType",), 1),
        GreaterThan(("topic",), "a"),
        In(("offset",), (5, 7)),
        In(("timestamp",), (EPOCH,)),
        IsNotNull(("key",)),
        IsNull(("offset",)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
    ],
)
def test_what_cannot_be_taken_over_whole_goes_back_to_spark(one: Filter) -> None:
    assert Narrowing().push([one]) == [one]
