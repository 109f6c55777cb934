"""The checker of the soak finds planted violations: each test plants one in a small correct
history."""

import ast
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.soak.checker import agreement, derived, logs, queues
from integration.soak.checker.history import Finding, History
from integration.soak.checker.reading import Reading, Row
from integration.soak.content import Content, Maker, digest, value_digest
from integration.soak.readers import over_http

Line = dict[str, Any]
Rows = list[Row]
TOPIC = "orders"
HERE = Path(__file__).parent / "soak" / "checker"


def id_of(number: int) -> str:
    return f"{1_000 + number:016x}0000" + "0" * 20


class Script:
    """A history under construction: one operation after the other, a second each."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.rows: Rows = []
        self.now = 0.0
        self._offset = 0

    def publish(self, *names: str, how: str = "done", kind: str = "publish", **more: Any) -> None:
        """Add messages of one operation, with the keys that follow a colon."""
        op, topic = f"op{len(self.lines)}", more.pop("topic", TOPIC)
        messages, ids = [], []
        for word in names:
            name, _, key = word.partition(":")
            cells = [topic, 0, name, key.encode().hex() or None, f"d{name}", f"v{name}"]
            messages.append(cells)
            ids.append(id_of(self._offset))
            if how == "done" and topic == TOPIC:
                row = Row(0, self._offset, ids[-1], name, f"d{name}", f"v{name}")
                self.rows.append(row)
            self._offset += 1
        self.note("try", op=op, kind=kind, messages=messages, **more)
        self.note("end", op=op, how=how, ids=ids if how == "done" else None)

    def operate(self, kind: str, how: str = "done", **fields: Any) -> None:
        """Add an operation without messages."""
        op = f"op{len(self.lines)}"
        answer = {"fenced": fields.pop("fenced", []), "cancelled": fields.pop("cancelled", None)}
        self.note("try", op=op, kind=kind, messages=[], **fields)
        self.note("end", op=op, how=how, ids=None, **answer)

    def note(self, event: str, **fields: Any) -> None:
        self.now += 1
        self.lines.append({"event": event, "t": self.now, **fields})

    @property
    def history(self) -> History:
        return History(copy.deepcopy(self.lines))


def script() -> Script:
    made = Script()
    made.publish("a:k1")
    made.publish("b", "c", "d", whole=True)
    made.publish("x:k2")
    made.publish("e", "f", kind="commit", whole=True)
    made.publish("g:k1")
    made.publish("lost", how="unknown")
    made.publish("no", how="refused", kind="commit")
    return made


def found(made: Script, rows: Rows, **settings: Any) -> set[str]:
    reading = Reading("reader", TOPIC, rows=rows)
    return {one.rule for one in logs.check(made.history, reading, settings)}


def test_a_right_reading_has_no_findings() -> None:
    made = script()
    assert found(made, made.rows) == set()


def changed(row: Row, **fields: Any) -> Row:
    return row._replace(**fields)


PLANTED: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "one is skipped": (lambda rows: rows[:4] + rows[5:], "missing"),
    "the last is skipped": (lambda rows: rows[:-1], "missing"),
    "all are skipped": (lambda rows: [], "missing"),
    "one comes twice": (lambda rows: [*rows, changed(rows[0], offset=90, id=id_of(90))], "twice"),
    "a byte is altered": (lambda rows: [changed(rows[0], value="v?"), *rows[1:]], "altered"),
    "a key is altered": (lambda rows: [changed(rows[0], digest="d?"), *rows[1:]], "altered"),
    "two swap their places": (lambda rows: [rows[1], rows[0], *rows[2:]], "disorder"),
    "two swap their contents": (
        lambda rows: [
            changed(rows[4], offset=0, id=None),
            *rows[1:4],
            changed(rows[0], offset=4, id=None),
            *rows[5:],
        ],
        "real-time order",
    ),
    "half a transaction is missing": (lambda rows: [r for r in rows if r.name != "e"], "half"),
    "half a block is missing": (lambda rows: [r for r in rows if r.name != "c"], "half"),
    "something was never sent": (
        lambda rows: [*rows, Row(0, 90, id_of(90), "strange", "d", "v")],
        "strange",
    ),
    "what was refused is there": (
        lambda rows: [*rows, Row(0, 90, id_of(90), "no", "dno", "vno")],
        "resurrected",
    ),
    "an id is another one": (
        lambda rows: [*rows[:-1], changed(rows[-1], id=id_of(99))],
        "other id",
    ),
    "a partition is another one": (
        lambda rows: [*rows[:-1], changed(rows[-1], partition=1)],
        "misplaced",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_in_a_reading_is_found(name: str) -> None:
    made = script()
    plant, rule = PLANTED[name]
    assert rule in found(made, plant(made.rows))


def test_an_unknown_message_may_be_there_or_not_but_not_twice() -> None:
    made = script()
    row = Row(0, 90, id_of(90), "lost", "dlost", "vlost")
    assert found(made, [*made.rows, row]) == set()
    assert found(made, [*made.rows, row, changed(row, offset=91, id=id_of(91))]) == {"twice"}


def test_a_reading_that_did_not_end_is_a_finding() -> None:
    made = script()
    reading = Reading("reader", TOPIC, rows=made.rows, ended=False)
    assert [one.rule for one in logs.check(made.history, reading, {})] == ["end"]


# -- removed messages ------------------------------------------------------------------------------


def test_erased_messages_are_gone_and_others_are_not() -> None:
    made = script()
    made.operate("erase", topic=TOPIC, key=b"k1".hex())
    left = [row for row in made.rows if row.name not in ("a", "g")]
    assert found(made, left) == set()
    assert found(made, made.rows) == {"resurrected"}
    assert found(made, left[1:]) >= {"missing"}


def test_a_message_that_was_erased_alone_is_gone_and_no_other_with_its_id() -> None:
    made = script()
    made.lines[1]["ids"] = [made.rows[1].id]  # ids are unique within a partition
    made.rows[0] = changed(made.rows[0], partition=1, id=made.rows[1].id)
    made.operate("erase", topic=TOPIC, of="b")
    assert "resurrected" not in found(made, [made.rows[0], *made.rows[2:]])
    assert "resurrected" in found(made, made.rows)


def test_what_is_published_after_an_erasure_stays() -> None:
    made = script()
    made.operate("erase", topic=TOPIC, key=b"k1".hex())
    made.publish("new:k1")
    left = [row for row in made.rows if row.name not in ("a", "g")]
    assert found(made, left) == set()
    assert found(made, left[:-1]) == {"missing"}


def test_an_erasure_whose_answer_was_lost_may_have_happened() -> None:
    made = script()
    made.operate("erase", how="unknown", topic=TOPIC, key=b"k1".hex())
    assert found(made, made.rows) == set()
    assert found(made, [row for row in made.rows if row.name not in ("a", "g")]) == set()


def test_truncated_messages_are_gone_and_others_are_not() -> None:
    made = script()
    made.operate("truncate", topic=TOPIC, before=made.rows[4].id)
    assert found(made, made.rows[4:]) == set()
    assert found(made, made.rows[3:]) == {"resurrected"}
    assert found(made, made.rows[5:]) == {"missing"}


def test_a_message_that_comes_after_a_truncation_stays_though_its_id_is_lower() -> None:
    made = script()
    made.operate("truncate", topic=TOPIC, before=id_of(1_000))
    made.publish("late")
    assert found(made, made.rows[-1:]) == set()
    assert found(made, []) == {"missing"}
    assert found(made, made.rows[-2:]) == {"resurrected"}


def test_compaction_takes_what_has_a_newer_message_of_its_key_only() -> None:
    made = script()
    rows = [row for row in made.rows if row.name != "a"]
    assert found(made, rows, compacted=True) == set()
    assert found(made, [r for r in rows if r.name != "g"], compacted=True) == {"missing"}
    assert found(made, [r for r in rows if r.name != "c"], compacted=True) == {"missing"}


def test_retention_by_size_takes_the_beginning_only() -> None:
    made = script()
    assert found(made, made.rows[3:], retention_bytes=1) == set()
    assert found(made, [*made.rows[3:5], *made.rows[6:]], retention_bytes=1) == {"missing"}


def test_half_a_transaction_over_two_topics_is_found() -> None:
    made = Script()
    cells = [[t, 0, t, None, "d", "v"] for t in ("one", "two")]
    made.note("try", op="op", kind="commit", messages=cells)
    one = Reading("reader", "one", rows=[Row(0, 0, id_of(0), "one", "d", "v")])
    two = Reading("reader", "two", rows=[])
    whole = {"one": one, "two": Reading("reader", "two", rows=[Row(0, 0, None, "two", "d", "v")])}
    assert list(logs.check_whole(made.history, whole)) == []
    [half] = logs.check_whole(made.history, {"one": one, "two": two})
    assert half.rule == "half"


# -- readers against each other --------------------------------------------------------------------


def differs(made: Script, rows: Rows, **fields: Any) -> set[str]:
    truth = Reading("truth", TOPIC, rows=made.rows)
    other = Reading("other", TOPIC, fields, rows)
    return {one.rule for one in agreement.check(made.history, truth, other)}


STARTS: list[tuple[dict[str, Any], int]] = [
    ({"kind": "earliest"}, 0),
    ({"kind": "id", "at": id_of(3)}, 3),
    ({"kind": "after", "at": id_of(3)}, 4),
    ({"kind": "time", "at": 1_003}, 3),
    ({"kind": "offset", "at": {"0": 3}}, 3),
]


@pytest.mark.parametrize(("start", "first"), STARTS)
def test_a_reader_sees_what_it_asked_for(start: dict[str, Any], first: int) -> None:
    made = script()
    assert differs(made, made.rows[first:], start=start) == set()
    assert differs(made, made.rows[first + 1 :], start=start) == {"not shown"}
    assert differs(made, made.rows[first:-1], start=start) == {"not shown"}
    if first:
        assert differs(made, made.rows[first - 1 :], start=start) == {"shown alone"}


def test_a_reader_that_shows_another_place_is_found() -> None:
    made = script()
    rows = [changed(row, offset=(row.offset or 0) + 1) for row in made.rows]
    assert differs(made, rows) == {"elsewhere"}


def test_a_poll_may_show_what_was_rolled_back_and_nothing_else_of_its_own() -> None:
    """CDAP's plain poll shows rolled back messages, as a reader of uncommitted messages does."""
    stored = [[0, offset, id_of(offset), f"m{offset}", None, "v"] for offset in range(3)]
    polled = [[0, None, str(row[2])[:20], *row[3:]] for row in stored]
    unknown = [0, None, id_of(9)[:20], "m9", None, "v"]
    shown = over_http.committed([*polled, unknown], stored, [stored[0], stored[2]])
    assert list(shown) == [polled[0], polled[2], unknown]


def test_a_filter_shows_what_matches() -> None:
    made = script()
    rows = [row for row in made.rows if row.name in ("a", "g")]
    assert differs(made, rows, key_prefix=b"k1".hex()) == set()
    assert differs(made, rows[:1], key_prefix=b"k1".hex()) == {"not shown"}


def test_a_later_reader_may_miss_only_compacted_and_expired_messages() -> None:
    made = script()
    truth = Reading("truth", TOPIC, rows=made.rows)

    last = Reading("last", TOPIC, rows=made.rows[1:])

    def rules_of(rows: Rows, **settings: object) -> set[str]:
        later = Reading("later", TOPIC, rows=rows)
        found = agreement.check(made.history, truth, later, settings, last)
        return {one.rule for one in found}

    without_a, without_g = made.rows[1:], made.rows[:-1]
    assert rules_of(without_a) == {"not shown"}
    assert rules_of(without_a, compacted=True) == rules_of(without_a, retention_bytes=1) == set()
    assert rules_of(without_g, compacted=True) == {"not shown"}
    assert rules_of(made.rows[:2] + made.rows[3:], retention_bytes=1) == {"not shown"}
    assert rules_of(made.rows[3:], retention_bytes=1) == {"not shown"}  # the last one has them


def test_compaction_is_told_by_time_where_ids_are_unknown() -> None:
    made = script()
    made.lines[1]["ids"] = made.lines[-5]["ids"] = None
    rows = [row for row in made.rows if row.name != "a"]
    assert found(made, rows, compacted=True) == set()
    assert found(made, [r for r in made.rows if r.name != "g"], compacted=True) == {"missing"}


def test_retention_by_size_is_told_by_time_where_ids_are_unknown() -> None:
    made = script()
    for line in made.lines:
        if line["event"] == "end":
            line["ids"] = None
    assert found(made, made.rows[4:], retention_bytes=1) == set()
    assert found(made, [*made.rows[:4], *made.rows[7:]], retention_bytes=1) == {"missing"}


def test_a_live_reader_may_not_pass_over_anything_but_may_have_seen_what_is_gone() -> None:
    made = script()
    truth = Reading("truth", TOPIC, rows=made.rows[2:])
    live = Reading("live", TOPIC, {"live": True}, made.rows[:-1])
    assert list(agreement.check_live(made.history, truth, live)) == []
    live.rows = made.rows[:3] + made.rows[4:]
    assert [one.rule for one in agreement.check_live(made.history, truth, live)] == ["passed over"]


# -- queues ----------------------------------------------------------------------------------------


def queue_script() -> Script:
    made = Script()
    for name in ("a:k", "b:k", "c"):
        made.publish(name)
    for name in ("a", "b", "c"):
        lease(made, name)
        settle(made, name)
    return made


def lease(made: Script, name: str, deliveries: int = 1) -> None:
    made.note(
        "lease",
        queue=f"{TOPIC}/g",
        name=name,
        deliveries=deliveries,
        begin=made.now,
        lease_s=10.0,
    )


def settle(made: Script, name: str, what: str = "ack", **more: Any) -> None:
    made.operate("settle", queue=f"{TOPIC}/g", what=what, names=[name], **more)


def judged(made: Script, dead: Rows | None = None, **settings: Any) -> set[str]:
    history = made.history
    queue = queues.of(history, f"{TOPIC}/g", settings)
    letters = None if dead is None else Reading("truth", "dead", rows=dead)
    truth = Reading("truth", TOPIC, rows=made.rows)
    return {one.rule for one in queues.check(history, queue, truth, letters)}


def test_a_queue_that_keeps_its_promises_has_no_findings() -> None:
    assert judged(queue_script(), ordered_by="key") == set()


def test_a_message_that_is_never_settled_is_found() -> None:
    made = queue_script()
    made.publish("d")
    assert judged(made) == {"neither settled nor dead"}


def test_a_late_ack_settles_nothing_unless_the_service_forgot_its_answer() -> None:
    made = queue_script()
    made.publish("d")
    lease(made, "d")
    settle(made, "d", fenced=["d"])
    assert judged(made) == {"neither settled nor dead"}
    made.note("fault", what="kill", seconds=1.0)
    made.lines[-1]["t"] -= 1.5  # while the ack was in flight
    assert judged(made) == set()


def test_a_dead_letter_may_be_in_another_partition() -> None:
    made = Script()
    made.publish("a:k")
    history = made.history
    history.add_copies(TOPIC, "dead")
    letters = Reading("truth", "dead", rows=[changed(made.rows[0], partition=3, id=id_of(7))])
    assert list(logs.check(history, letters, {})) == []


def test_a_message_that_is_dead_too_soon_is_found_unless_deliveries_were_lost() -> None:
    made = Script()
    made.publish("a")
    path = f"/v2/namespaces/default/topics/{TOPIC}/queues"
    made.note("lossy", what="twice", request=f"POST {path}/g/receive HTTP/1.1")
    lease(made, "a")
    made.note("lossy", what="twice", request=f"POST {path}/g/ack HTTP/1.1")
    made.note("lossy", what="twice", request=f"POST {path}/other/receive HTTP/1.1")
    made.note("lossy", what="lose answer", request=f"POST {path}/g/receive HTTP/1.1")
    assert judged(made, made.rows, deliveries_max=3) == {"dead too soon"}
    made.note("fault", what="kill", seconds=1.0)
    assert judged(made, made.rows, deliveries_max=3) == set()


def test_a_reject_whose_answer_was_lost_may_be_fenced_when_it_is_repeated() -> None:
    made = Script()
    made.publish("a")
    lease(made, "a")
    settle(made, "a", "reject", fenced=["a"])
    assert judged(made, made.rows) == {"dead too soon"}
    path = f"/v2/namespaces/default/topics/{TOPIC}/queues/g"
    made.note("lossy", what="lose answer", request=f"POST {path}/reject HTTP/1.1")
    made.lines[-1]["t"] -= 1.5  # while it was in flight
    assert judged(made, made.rows) == set()


def test_a_delivery_after_the_settlement_is_found() -> None:
    made = queue_script()
    lease(made, "a", deliveries=2)
    assert "delivered after it was settled" in judged(made)


def test_a_message_with_two_workers_is_found() -> None:
    made = Script()
    made.publish("a")
    lease(made, "a")
    lease(made, "a", deliveries=2)
    settle(made, "a")
    assert judged(made) == {"with two workers"}


def test_what_was_given_back_may_come_again() -> None:
    made = Script()
    made.publish("a")
    lease(made, "a")
    settle(made, "a", "nack")
    lease(made, "a", deliveries=2)
    settle(made, "a")
    assert judged(made) == set()


def test_keys_out_of_order_are_found() -> None:
    made = Script()
    for name in ("a:k", "b:k"):
        made.publish(name)
    for name in ("b", "a"):
        lease(made, name)
        settle(made, name)
    assert judged(made, ordered_by="key") == {"out of the order of its key"}
    assert judged(made) == set()


def test_settled_and_dead_at_once_is_found() -> None:
    made = queue_script()
    assert judged(made, made.rows[:1]) >= {"settled and dead"}


def test_an_erased_message_that_is_handed_out_is_found() -> None:
    made = queue_script()
    made.operate("erase", topic=TOPIC, key=b"k".hex())
    made.now += 30
    lease(made, "a", deliveries=2)
    assert "handed out though gone" in judged(made)


def test_a_queue_that_is_not_empty_after_quiet_time_is_found() -> None:
    made = queue_script()
    made.note("quiet", queue=f"{TOPIC}/g", counts={"blocked": 1})
    assert judged(made) == {"stuck"}


# -- results derived from topics -------------------------------------------------------------------


def rules(findings: Any) -> set[str]:
    return {one.rule for one in findings if isinstance(one, Finding)}


def test_groups_handle_each_message_as_often_as_their_delivery_says() -> None:
    made = script()
    topic = Reading("truth", TOPIC, rows=made.rows)
    for row in made.rows:
        made.note("handled", group="g", name=row.name)
    for delivery in ("at-least-once", "at-most-once"):
        assert rules(derived.check_group(made.history, "g", delivery, topic, None)) == set()
    made.note("handled", group="g", name="a")
    twice = derived.check_group(made.history, "g", "at-most-once", topic, None)
    assert rules(twice) == {"handled twice"}
    topic.rows.append(Row(0, 99, id_of(99), "late", None, None))
    never = derived.check_group(made.history, "g", "at-least-once", topic, None)
    assert rules(never) == {"never handled"}
    made.note("lag", group="g", lag=3)
    assert "stuck" in rules(derived.check_group(made.history, "g", "at-most-once", topic, None))


def test_a_copy_that_lacks_a_message_or_has_one_twice_is_found() -> None:
    made = script()
    history = made.history
    history.add_copies(TOPIC, "copy")
    truth = Reading("truth", TOPIC, rows=made.rows)

    def rules(rows: Rows) -> set[str]:
        copy = Reading("truth", "copy", rows=[changed(r, partition=0, id=None) for r in rows])
        findings = [*logs.check(history, copy, {}), *derived.check_copy(truth, copy)]
        return {one.rule for one in findings}

    assert rules(made.rows) == set()
    assert rules(made.rows[1:]) == {"never copied"}
    assert "twice" in rules([*made.rows, made.rows[0]])


def test_outputs_that_are_missing_or_double_are_found() -> None:
    made = script()
    topic = Reading("truth", TOPIC, rows=made.rows)
    made.publish(*(f"out-{row.name}:{row.name}" for row in topic.rows), topic="out")
    made.publish("again:a", topic="out")
    names = [f"out-{row.name}" for row in topic.rows]
    output = Reading("truth", "out", rows=[Row(0, None, None, n, None, None) for n in names])
    check = derived.check_group
    assert rules(check(made.history, "g", "exactly-once", topic, output)) == set()
    output.rows.append(Row(0, None, None, "again", None, None))
    assert rules(check(made.history, "g", "exactly-once", topic, output)) == {"handled twice"}
    del output.rows[0], output.rows[-1]
    assert rules(check(made.history, "g", "exactly-once", topic, output)) == {"never handled"}


def delayed_script() -> Script:
    made = Script()
    for name, due_ms in (("soon", 900), ("far", 9_000_000), ("off", 9_000_000)):
        made.publish(name, kind="delayed", due_ms=due_ms)
    made.operate("cancel", topic=TOPIC, of="off", cancelled=True)
    return made


@pytest.mark.parametrize(
    ("came", "waits", "rule"),
    [
        (["soon"], ["far"], None),
        (["soon"], [], "delayed and lost"),
        (["soon"], ["soon", "far"], "waits and came"),
        (["soon", "far"], [], "early"),
        (["soon"], ["far", "off"], "cancelled and waiting"),
    ],
)
def test_delayed_messages_wait_or_come(came: list[str], waits: list[str], rule: str | None) -> None:
    made = delayed_script()
    topic = Reading("truth", TOPIC, rows=[row for row in made.rows if row.name in came])
    rows = [Row(0, None, None, name, None, None) for name in waits]
    waiting = Reading("delayed", TOPIC, rows=rows)
    expected = set() if rule is None else {rule}
    assert rules(derived.check_delayed(made.history, topic, waiting)) == expected


def test_a_view_with_an_old_value_is_found() -> None:
    made = script()
    topic = Reading("truth", TOPIC, rows=made.rows)
    keys = {b"k1".hex(): "vg", b"k2".hex(): "vx"}
    rows = [Row(None, None, None, key, None, value) for key, value in keys.items()]
    view = Reading("view", TOPIC, rows=rows)
    assert rules(derived.check_view(made.history, topic, view)) == set()
    view.rows[0] = view.rows[0]._replace(value="va")
    assert rules(derived.check_view(made.history, topic, view)) == {"view"}


def test_a_row_without_its_message_is_found() -> None:
    made = Script()
    made.publish("a", kind="commit", table="rows")
    topic = Reading("truth", TOPIC, rows=made.rows)
    table = Reading("table", TOPIC, rows=[Row(None, None, None, "a", None, None)])
    assert rules(derived.check_table(made.history, topic, table)) == set()
    empty = Reading("table", TOPIC)
    assert rules(derived.check_table(made.history, topic, empty)) == {"message without its row"}
    nothing = Reading("truth", TOPIC)
    assert rules(derived.check_table(made.history, nothing, table)) == {"row without its message"}


# -- the kit ---------------------------------------------------------------------------------------


def test_the_checker_imports_nothing_of_tms() -> None:
    for path in [*HERE.glob("*.py"), HERE.parent / "ledger.py", HERE.parent / "content.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [n for n in names if n.split(".")[0] in ("tms", "tests")], path


def test_messages_are_the_same_from_the_same_seed_and_differ_in_their_digests() -> None:
    from random import Random

    first, second = (Maker("w", Random(3), 500) for _ in range(2))
    made = [first.make(b"k") for _ in range(20)]
    assert made == [second.make(b"k") for _ in range(20)]
    assert len({one.digest for one in made}) == 20
    one = Content("n", b"k", {"h": b"1"}, b"n|v")
    others = [digest(b"k", {"h": b"2"}, b"n|v"), digest(None, {"h": b"1"}, b"n|v")]
    assert one.digest not in [*others, digest(b"k", {"h": b"1"}, b"n|w")]
    assert one.digest == digest(b"k", {"h": b"1", "tms-dead-cause": b"x"}, b"n|v")


def test_a_tombstone_has_the_digest_of_nothing() -> None:
    assert derived.TOMBSTONE == value_digest(None) == value_digest(b"")
