"""The content of `tms top`: two looks at a service, as rates, rows and lines.

Invariants

* A rate is known from the second look on. A negative rate, after an instance was restarted or a
  topic made again, counts as unknown.
* Answers that failed, or that this caller may not see, are None, and their tables say so.
* No line is wider than the terminal, and there are no more lines than it has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tms.cli.output import Row, columns, escape, table_text
from tms.cli.session import seconds_of
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad, TopicSize
from tms.model.queue import QueueSummary

SORTS = ("most", "name")  # what stands first in a table
_ROWS_MIN = 3  # of each table, however many others there are
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


@dataclass(frozen=True, slots=True)
class Look:
    """The answers of a service at a time. None: this caller may not see it."""

    at_ms: int
    at_s: float  # monotonic
    instances: Sequence[InstanceLoad] | None
    topics: Sequence[TopicSize] | None
    groups: Sequence[GroupSummary] | None
    queues: Sequence[QueueSummary] | None


def document(look: Look, before: Look | None) -> dict[str, Any]:
    """A look, with rates a second since the one before, for programs."""
    return {
        "time_ms": look.at_ms,
        "instances": _instances(look, before),
        "topics": _topics(look, before),
        "groups": _groups(look, before),
        "queues": _queues(look),
    }


def lines(shown: Mapping[str, Any], title: str, sort: str, width: int, height: int) -> list[str]:
    """A document as the lines of a terminal."""
    tables = [
        ("instances", _table(shown["instances"], _INSTANCE, sort, "in_s")),
        ("transactions", _transactions(shown["instances"])),
        ("topics", _table(shown["topics"], _TOPIC, sort, "in_s", "messages")),
        ("groups", _table(shown["groups"], _GROUP, sort, "lag")),
        ("queues", _table(shown["queues"], _QUEUE, sort, "waiting", "leased")),
    ]
    room = max(_ROWS_MIN, (height - 1 - 2 * len(tables)) // len(tables))
    spare = max(0, height - 1 - sum(min(len(rows), room + 1) + 1 for _, rows in tables))
    text = [title]
    for name, rows in tables:
        taken = min(len(rows), room + 1 + spare)
        spare -= max(0, taken - room - 1)
        text += ["", *(rows[:taken] or [f"{name}: none"])]
    return [line[:width] for line in text[:height]]


def _instances(look: Look, before: Look | None) -> list[dict[str, Any]] | None:
    if look.instances is None:
        return None
    earlier = {one.instance: one for one in (before and before.instances) or ()}
    rows = []
    for one in look.instances:
        old = earlier.get(one.instance)
        if old is not None and (old.uptime_ms > one.uptime_ms or not old.answers):
            old = None
        rate = _rates(look, before, one, old)
        rows.append(
            {
                "instance": one.instance or "this one",
                **columns(one, "address", "answers", "ready"),
                "uptime_s": one.uptime_ms // 1_000,
                "in_s": rate("messages_in"),
                "in_bytes_s": rate("bytes_in"),
                "out_bytes_s": rate("bytes_out"),
                **columns(one, "connections", "partitions", "transactions_open"),
                "transactions_oldest_s": one.transactions_oldest_ms / 1_000,
                **columns(one, "transactions_invalid", "partitions_blocked"),
            }
        )
    return rows


def _topics(look: Look, before: Look | None) -> list[dict[str, Any]] | None:
    if look.topics is None:
        return None
    earlier = {one.topic: one for one in (before and before.topics) or ()}
    return [
        {
            **columns(one, "topic", "messages", "stored_bytes"),
            "in_s": _rates(look, before, one, earlier.get(one.topic))("published"),
        }
        for one in look.topics
    ]


def _groups(look: Look, before: Look | None) -> list[dict[str, Any]] | None:
    if look.groups is None:
        return None
    earlier = {(one.topic, one.group): one.lag for one in (before and before.groups) or ()}
    passed_s = None if before is None else look.at_s - before.at_s
    rows = []
    for one in look.groups:
        old = earlier.get((one.topic, one.group))
        known = passed_s and old is not None and one.lag is not None
        rows.append(
            {
                **columns(one, "group", "topic", "members", "lag"),
                "lag_seconds": seconds_of(one.lag_ms),
                "lag_change_s": round((one.lag - old) / passed_s, 1) if known else None,  # type: ignore[operator]
            }
        )
    return rows


def _queues(look: Look) -> list[dict[str, Any]] | None:
    if look.queues is None:
        return None
    return [
        columns(one, "group", "topic", "waiting", "leased", "dead")
        | {"oldest_seconds": seconds_of(one.oldest_ms)}
        for one in look.queues
    ]


def _rates(
    look: Look, before: Look | None, now: object, old: object | None
) -> Callable[[str], float | None]:
    """The growth of a counter, a second."""

    def rate(name: str) -> float | None:
        if before is None or old is None or look.at_s <= before.at_s:
            return None
        last, first = getattr(now, name), getattr(old, name)
        if last is None or first is None or last < first:
            return None
        return float(round((last - first) / (look.at_s - before.at_s), 1))

    return rate


# -- for people ------------------------------------------------------------------------------------


def bytes_text(size: float | None) -> str:
    """`1.5 MiB`."""
    if size is None:
        return "–"
    unit = 0
    while size >= 1_024 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1_024, unit + 1
    return f"{size:.0f} {_BYTE_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_BYTE_UNITS[unit]}"


def age_text(seconds: float | None) -> str:
    """`3d`, `5.5h`, `12.0s`."""
    if seconds is None:
        return "–"
    for size, unit in _TIME_UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.1f}s"


def _number(value: float | None) -> int | None:
    return None if value is None else round(value)


_Columns = Mapping[str, tuple[str, Callable[[Any], object]]]
_INSTANCE: _Columns = {
    "instance": ("instance", str),
    "state": ("ready", lambda ready: "ready" if ready else "not ready"),
    "up": ("uptime_s", age_text),
    "messages/s in": ("in_s", _number),
    "bytes/s in": ("in_bytes_s", bytes_text),
    "bytes/s out": ("out_bytes_s", bytes_text),
    "connections": ("connections", _number),
}
_TOPIC: _Columns = {
    "topic": ("topic", str),
    "messages": ("messages", _number),
    "size": ("stored_bytes", bytes_text),
    "messages/s in": ("in_s", _number),
}
_GROUP: _Columns = {
    "group": ("group", str),
    "topic": ("topic", str),
    "members": ("members", _number),
    "lag": ("lag", _number),
    "behind": ("lag_seconds", age_text),
    "lag/s": ("lag_change_s", lambda change: "–" if change is None else f"{change:+,.0f}"),
}
_QUEUE: _Columns = {
    "queue": ("group", str),
    "topic": ("topic", str),
    "waiting": ("waiting", _number),
    "leased": ("leased", _number),
    "dead": ("dead", _number),
    "oldest": ("oldest_seconds", age_text),
}


def _table(
    found: Sequence[Mapping[str, Any]] | None, columns: _Columns, sort: str, *by: str
) -> list[str]:
    """Lines: names of the columns, and the rows that have most of what is counted by first."""
    if found is None:
        return ["You may not see " + next(iter(columns)) + "s."]
    if sort == SORTS[0]:
        found = sorted(found, key=lambda row: [-(row[name] or 0) for name in by])
    rows: list[Row] = [
        {title: show(row[name]) for title, (name, show) in columns.items()} for row in found
    ]
    for row, shown in zip(found, rows, strict=True):
        if row.get("answers") is False:
            shown["state"] = "away"  # type: ignore[index]
    return table_text(rows).splitlines()


def _transactions(instances: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if instances is None:
        return ["You may not see transactions."]
    sums = {
        name: sum(row[name] for row in instances)
        for name in ("transactions_open", "transactions_invalid", "partitions_blocked")
    }
    oldest = max((row["transactions_oldest_s"] for row in instances), default=0)
    text = (
        f"TRANSACTIONS  {sums['transactions_open']:,} open, the oldest for {age_text(oldest)}; "
        f"{sums['transactions_invalid']:,} invalid; "
        f"{sums['partitions_blocked']:,} partitions blocked"
    )
    return [escape(text)]
