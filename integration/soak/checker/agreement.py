"""The readings of a topic against each other: every reader sees the same messages.

One reading is taken for the truth, after it was checked against the history; each other reading has
to show the part of it that its reader requested.
"""

from collections.abc import Iterator
from dataclasses import replace

from integration.soak.checker.history import Finding, History
from integration.soak.checker.logs import SHOWN, check_rows, not_expired, not_replaced
from integration.soak.checker.reading import Reading, Row


def check(
    history: History,
    truth: Reading,
    other: Reading,
    settings: dict[str, object] | None = None,
    last: Reading | None = None,
) -> Iterator[Finding]:
    """The differences between a reading and the true one. Compaction and retention by size go on
    while readers read, so a later reader may miss rows that they remove. Rows that the `last`
    reader still sees, all readers must see."""
    if not other.ended:
        yield Finding("end", f"{other.topic}, {other.reader}: it did not come to the end")
        return
    yield from check_rows(history, other, truth)
    wanted = expected(history, truth, other.fields)
    here = {row.name for row in other.rows}
    missing = [row for row in wanted if row.name not in here]
    if settings and (settings.get("compacted") or settings.get("retention_bytes")):
        left = {row.name for row in last.rows} if last is not None else set()
        untaken = {row.name for row in _not_taken(history, other, missing, settings)}
        missing = [row for row in missing if row.name in left | untaken]
    if missing:
        yield _differs(other, "not shown", missing, len(wanted))
    there = {row.name: row for row in wanted}
    more = [row for row in other.rows if row.name not in there]
    if more:
        yield _differs(other, "shown alone", more, len(wanted))
    moved = [row for row in other.rows if row.name in there and not _same(row, there[row.name])]
    if moved:
        yield _differs(other, "elsewhere", moved, len(wanted))


def _not_taken(
    history: History, other: Reading, missing: list[Row], settings: dict[str, object]
) -> list[Row]:
    """Rows that neither compaction nor retention by size may have removed since they were read."""
    sent = history.sent[other.topic]
    lost = [replace(sent[row.name], id=row.id) for row in missing if row.name in sent]
    if settings.get("compacted"):
        lost = not_replaced(history, other, lost)
    if settings.get("retention_bytes"):
        lost = list(not_expired(history, other, lost))
    names = {one.name for one in lost}
    return [row for row in missing if row.name in names or row.name not in sent]


def check_live(history: History, truth: Reading, live: Reading) -> Iterator[Finding]:
    """A reader that read while others wrote has seen, up to its end, every message that is still
    there; other messages that it saw may be gone by now."""
    yield from check_rows(history, live, truth)
    seen = live.partitions()
    for partition, rows in truth.partitions().items():
        last = max((row.offset or 0 for row in seen.get(partition, ())), default=-1)
        names = {row.name for row in seen.get(partition, ())}
        passed = [row for row in rows if (row.offset or 0) <= last and row.name not in names]
        if passed:
            yield _differs(live, "passed over", passed, len(rows))


def expected(history: History, truth: Reading, fields: dict[str, object]) -> list[Row]:
    """The rows of the true reading that a reader with these fields must see."""
    start = fields.get("start") or {"kind": "earliest"}
    assert isinstance(start, dict)
    rows = [row for row in truth.rows if _asked(row, start)]
    prefix = fields.get("key_prefix")
    if prefix is not None:
        sent = history.sent[truth.topic]
        rows = [r for r in rows if r.name in sent and _begins(sent[r.name].key, str(prefix))]
    return rows


def _begins(key: str | None, prefix: str) -> bool:
    return key is not None and key.startswith(prefix)


def _asked(row: Row, start: dict[str, object]) -> bool:
    """True if a row lies at or behind a start."""
    assert row.id is not None and row.offset is not None
    at = start.get("at")
    match start["kind"]:
        case "earliest":
            return True
        case "id":
            return row.id >= str(at)
        case "after":
            return row.id > str(at)
        case "time":
            return int(row.id[:16], 16) >= int(str(at))
        case "offset":
            offsets = start["at"]
            assert isinstance(offsets, dict)
            return row.offset >= int(offsets.get(str(row.partition), 1 << 62))
        case other:
            raise ValueError(f"nobody can start at {other}")


def _same(one: Row, true: Row) -> bool:
    """True if the place of a row, as far as a reader shows it, is the true row's place."""
    return (
        one.partition in (None, true.partition)
        and one.offset in (None, true.offset)
        and (one.id is None or str(true.id).startswith(one.id))
    )


def _differs(reading: Reading, rule: str, rows: list[Row], wanted: int) -> Finding:
    shown = "; ".join(str(row) for row in rows[:SHOWN])
    last = f" … {rows[-1]}" if len(rows) > SHOWN else ""
    where = f"{reading.topic}, {reading.reader} {reading.start}"
    text = f"{where}: {len(rows)} (it read {len(reading.rows)} of {wanted}): {shown}{last}"
    return Finding(rule, text)
