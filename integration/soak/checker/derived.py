"""Results derived from topics: groups, the outputs of transactions, delayed messages, views,
tables."""

from collections import Counter
from collections.abc import Iterator

from integration.soak.checker.fates import Fate, Fates
from integration.soak.checker.history import Finding, History
from integration.soak.checker.logs import SHOWN
from integration.soak.checker.reading import Reading

TOMBSTONE = "e4a6a0577479b2b4"  # the digest of b""; checked by a test


def check_group(
    history: History, group: str, delivery: str, topic: Reading, output: Reading | None
) -> Iterator[Finding]:
    """Each message was handled as often as the delivery promises. With exactly-once the outputs
    count: messages of `output`, whose keys are the names of those of `topic`."""
    where = f"group {group} of {topic.topic}"
    if delivery == "exactly-once":
        assert output is not None
        sent = history.sent[output.topic]
        keys = (sent[row.name].key or "" for row in output.rows if row.name in sent)
        handled = Counter(bytes.fromhex(key).decode() for key in keys)
    else:
        events = history.events["handled"]
        handled = Counter(e["name"] for e in events if e["group"] == group)
    names = {row.name for row in topic.rows}
    if delivery != "at-most-once":
        yield from _told("never handled", where, sorted(names - handled.keys()))
    if delivery != "at-least-once":
        often = [name for name, count in handled.items() if count > 1]
        yield from _told("handled twice", where, sorted(often))
    strange = handled.keys() - history.sent[topic.topic].keys()
    yield from _told("strange", where, sorted(strange))
    for lag in history.events["lag"]:
        if lag["group"] == group and lag["lag"]:
            yield Finding("stuck", f"{where}: lag {lag['lag']} after quiet time")


def check_copy(topic: Reading, copy: Reading) -> Iterator[Finding]:
    """A stream has copied each message; duplicates are checked in every reading."""
    names = {row.name for row in topic.rows} - {row.name for row in copy.rows}
    yield from _told("never copied", f"{topic.topic} to {copy.topic}", sorted(names))


def check_delayed(
    history: History, topic: Reading, waiting: Reading, skew_ms: int = 0
) -> Iterator[Finding]:
    """A delayed message either waits or is in the log; it is early by at most the difference
    between the clocks of instances."""
    here = {row.name: row for row in topic.rows}
    wait = {row.name for row in waiting.rows}
    fates = Fates(history, topic.topic)
    later = [m for m in history.sent[topic.topic].values() if m.op.kind == "delayed"]
    yield from _told("waits and came", topic.topic, sorted(wait & here.keys()))
    yield from _told("strange", topic.topic, sorted(wait - {one.name for one in later}))
    lost = [m.name for m in later if fates.of(m) is Fate.THERE and m.name not in wait | here.keys()]
    yield from _told("delayed and lost", topic.topic, lost)
    gone = [m.name for m in later if fates.of(m) is Fate.GONE and m.name in wait]
    yield from _told("cancelled and waiting", topic.topic, gone)
    early = []
    for one in later:
        row = here.get(one.name)
        if (
            row is not None
            and row.id is not None
            and int(row.id[:16], 16) + skew_ms < one.op.fields["due_ms"]
        ):
            early.append(str(row))
    yield from _told("early", topic.topic, early)


def folded(history: History, topic: Reading) -> dict[str, str]:
    """The newest value of each key, by the digest of the value."""
    found: dict[str, str] = {}
    for rows in topic.partitions().values():
        for row in rows:
            one = history.sent[topic.topic].get(row.name)
            if one is None or one.key is None:
                continue
            found.pop(one.key, None)
            if one.value != TOMBSTONE:
                found[one.key] = one.value
    return found


def check_view(history: History, topic: Reading, view: Reading) -> Iterator[Finding]:
    """A view is the newest value of each key; its rows are (…, name = key, …, value)."""
    wanted = folded(history, topic)
    got = {row.name: row.value for row in view.rows}
    wrong = [key for key in wanted.keys() | got.keys() if wanted.get(key) != got.get(key)]
    yield from _told("view", f"{topic.topic}, {view.reader}: keys", sorted(wrong))


def check_table(history: History, topic: Reading, table: Reading) -> Iterator[Finding]:
    """A row of a transaction is in a table exactly if its message is in the log; rows and messages
    have the same names."""
    here = {row.name for row in topic.rows}
    with_rows = {
        name for name, one in history.sent[topic.topic].items() if one.op.fields.get("table")
    }
    rows = {row.name for row in table.rows}
    yield from _told("row without its message", table.reader, sorted(rows - here))
    yield from _told("message without its row", table.reader, sorted((here & with_rows) - rows))


def _told(rule: str, where: str, names: list[str]) -> Iterator[Finding]:
    if names:
        more = "" if len(names) <= SHOWN else f" … {len(names)}"
        yield Finding(rule, f"{where}: {'; '.join(names[:SHOWN])}{more}")
