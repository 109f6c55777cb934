"""One reading of a topic against the history: every acknowledged message is there once, whole, in
one order; no other message is."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from integration.soak.checker.fates import Fate, Fates
from integration.soak.checker.history import Finding, History, Op, Sent
from integration.soak.checker.reading import Reading, Row

SHOWN = 5


def check(history: History, reading: Reading, settings: dict[str, object]) -> Iterator[Finding]:
    """The contradictions between a reading of everything and the history. `settings` are those of
    the topic: `retention_bytes`, `compacted`."""
    if not reading.ended:
        yield _finding(reading, "end", "it did not come to the end")
        return
    yield from check_rows(history, reading)
    fates = Fates(history, reading.topic)
    yield from _missing(history, reading, fates, settings)
    yield from _gone(history, reading, fates)
    yield from _halves(history, reading, fates, settings)
    yield from _order(history, reading)


def check_rows(
    history: History, reading: Reading, truth: Reading | None = None
) -> Iterator[Finding]:
    """Each message is one that was sent, once, with its bytes, in its partition; offsets and ids
    rise. A violation that the true reading also has is not reported again."""
    told = {} if truth is None else {row.name: row.value for row in truth.rows}
    rows = [row for row in reading.rows if row.name not in told or told[row.name] != row.value]
    sent = history.sent[reading.topic]
    counts = Counter(row.name for row in reading.rows)
    yield from _some(reading, "twice", (f"{n} ×{c}" for n, c in counts.items() if c > 1))
    yield from _some(reading, "strange", (str(r) for r in rows if r.name not in sent))
    known = [(row, sent[row.name]) for row in rows if row.name in sent]
    yield from _some(reading, "altered", (str(r) for r, one in known if _altered(r, one)))
    yield from _some(
        reading,
        "misplaced",
        (
            f"{row}, sent to partition {one.partition}"
            for row, one in known
            if None not in (row.partition, one.partition) and row.partition != one.partition
        ),
    )
    yield from _some(
        reading,
        "other id",
        (f"{row}, acknowledged as {one.id}" for row, one in known if _other_id(row, one)),
    )
    if reading.fields.get("ordered", True):
        for rows in reading.partitions().values():
            yield from _some(
                reading,
                "disorder",
                (f"{b} comes after {a}" for a, b in pairwise(rows) if not _rises(a, b)),
            )


def _altered(row: Row, one: Sent) -> bool:
    return (row.digest is not None and row.digest != one.digest) or (
        row.value is not None and row.value != one.value
    )


def _other_id(row: Row, one: Sent) -> bool:
    return row.id is not None and one.id is not None and not one.id.startswith(row.id)


def _rises(a: Row, b: Row) -> bool:
    if a.offset is not None and b.offset is not None and a.offset >= b.offset:
        return False
    return a.id is None or b.id is None or a.id < b.id


def _missing(
    history: History, reading: Reading, fates: Fates, settings: dict[str, object]
) -> Iterator[Finding]:
    here = {row.name: row for row in reading.rows}
    lost = [
        one
        for one in history.sent[reading.topic].values()
        if one.name not in here
        and fates.of(one) is Fate.THERE
        and one.op.fields.get("due_ms", 0) <= reading.fields.get("at_ms", math.inf)
    ]
    if settings.get("compacted"):
        lost = not_replaced(history, reading, lost)
    if settings.get("retention_bytes"):
        lost = list(not_expired(history, reading, lost))
    yield from _some(
        reading, "missing", (f"{one.name} (id {one.id}, of {one.op.name})" for one in lost)
    )


def not_replaced(history: History, reading: Reading, lost: list[Sent]) -> list[Sent]:
    """The lost messages of a topic that compaction may not have removed: the reading has no newer
    message of their key."""
    sent = history.sent[reading.topic]
    newest: dict[str, Row] = {}
    for row in reading.rows:
        one = sent.get(row.name)
        if one is None or one.key is None or row.id is None:
            continue
        if one.key not in newest or row.id > str(newest[one.key].id):
            newest[one.key] = row
    found = []
    for one in lost:
        last = None if one.key is None else newest.get(one.key)
        if last is None or not _is_newer(sent[last.name], last, one):
            found.append(one)
    return found


def _is_newer(other: Sent, row: Row, one: Sent) -> bool:
    """True if a message that was read may be newer than `one`, whose id may be unknown."""
    if one.id is not None:
        return str(row.id) > one.id
    return other.op.end > one.op.begin


def not_expired(history: History, reading: Reading, lost: list[Sent]) -> Iterator[Sent]:
    """The lost messages that retention by size may not have removed: an older one is there, in
    whatever partition they are."""
    first = {
        partition: min(rows, key=lambda row: row.id or "")
        for partition, rows in reading.partitions().items()
    }
    for one in lost:
        begins = [row for at, row in first.items() if one.partition in (None, at)]
        if all(_is_older(history.sent[reading.topic], row, one) for row in begins):
            yield one


def _is_older(sent: dict[str, Sent], row: Row, one: Sent) -> bool:
    """True if a message that was read is older than `one`, whose id may be unknown."""
    if one.id is not None:
        return str(row.id) < one.id
    return row.name in sent and sent[row.name].op.end < one.op.begin


def _gone(history: History, reading: Reading, fates: Fates) -> Iterator[Finding]:
    sent = history.sent[reading.topic]
    rows = (row for row in reading.rows if row.name in sent)
    yield from _some(
        reading,
        "resurrected",
        (
            f"{row} of {outcome(sent[row.name].op)}"
            for row in rows
            if fates.of(sent[row.name]) is Fate.GONE
        ),
    )


def _halves(
    history: History, reading: Reading, fates: Fates, settings: dict[str, object]
) -> Iterator[Finding]:
    """The messages of an atomic operation are all there or all gone, unless single messages may be
    removed."""
    if settings.get("compacted") or settings.get("retention_bytes"):
        return
    here = {row.name for row in reading.rows}
    for op in history.ops.values():
        whole = op.fields.get("whole")
        if not whole:
            continue
        mine = [one for one in op.messages if one.topic == reading.topic]
        mine = [one for one in mine if _is_untouched(fates, one)]
        found = [one for one in mine if one.name in here]
        if found and len(found) < len(mine):
            yield _finding(reading, "half", f"{op.name}: {len(found)} of {len(mine)} messages")


def _is_untouched(fates: Fates, one: Sent) -> bool:
    """True if only the outcome of its operation decides the fate of a message."""
    if one.op.acknowledged:
        return fates.of(one) is Fate.THERE
    was, one.op.how = one.op.how, "done"
    try:
        return fates.of(one) is Fate.THERE
    finally:
        one.op.how = was


def check_whole(history: History, readings: dict[str, Reading]) -> Iterator[Finding]:
    """Transactions over several topics are there in all of them or in none, for topics that remove
    nothing by themselves. Takes one reading of each topic."""
    here = {topic: {row.name for row in found.rows} for topic, found in readings.items()}
    fates = {topic: Fates(history, topic) for topic in readings}
    for op in history.ops.values():
        if op.kind != "commit":
            continue
        mine = [m for m in op.messages if m.topic in here and _is_untouched(fates[m.topic], m)]
        found = [m for m in mine if m.name in here[m.topic]]
        if found and len(found) < len(mine):
            lost = sorted({m.topic for m in mine} - {m.topic for m in found})
            yield Finding("half", f"{op.name}: {len(found)} of {len(mine)}; nothing in {lost}")


def _order(history: History, reading: Reading) -> Iterator[Finding]:
    """A message that was acknowledged before another one was sent comes before it."""
    if not reading.fields.get("ordered", True):
        return
    sent = history.sent[reading.topic]
    for partition, rows in reading.partitions().items():
        first_end, first = math.inf, ""
        for row in reversed(rows):
            one = sent.get(row.name)
            if one is None or one.op.kind == "delayed":
                continue
            if first_end < one.op.begin:
                text = f"partition {partition}: {row} comes before {first}, which is older"
                yield _finding(reading, "real-time order", text)
                break
            if one.op.acknowledged and one.op.end < first_end:
                first_end, first = one.op.end, str(row)


def _some(reading: Reading, rule: str, texts: Iterable[str]) -> Iterator[Finding]:
    found = list(texts)
    if found:
        more = "" if len(found) <= SHOWN else f" … {len(found)} of {len(reading.rows)} read"
        yield _finding(reading, rule, "; ".join(found[:SHOWN]) + more)


def _finding(reading: Reading, rule: str, text: str) -> Finding:
    return Finding(rule, f"{reading.topic}, {reading.reader}: {text}")


def outcome(op: Op) -> str:
    """An operation, as a finding shows it."""
    return f"{op.kind} {op.name} ({op.how}, {op.begin:.3f}–{op.end:.3f})"
