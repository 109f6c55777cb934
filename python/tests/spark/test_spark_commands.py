"""`tms spark archive|restore|report|compact-check|sql`: their outputs and exit codes."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark_kit import spark
from tests.spark_topics_kit import Topics, consumed, topics
from tms.cli.main import run

__all__ = ["spark"]

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="module")
def flights() -> Iterator[Topics]:
    """A service with a topic of JSON."""
    with topics() as world:
        world.bus.create_topic("flights", partitions=2)
        lines = [
            b'{"carrier": "%s", "delay": %d}' % (b"UA" if i % 3 else b"AA", i) for i in range(30)
        ]
        world.bus.publish_many("flights", lines, keys=[b"%d" % (i % 5) for i in range(30)])
        yield world


def test_a_topic_is_archived_once_and_restored(
    flights: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--url", flights.url]
    archive = str(tmp_path / "archive")
    assert run(["spark", "archive", "flights", archive, "--json", *here]) == 0
    assert json.loads(capsys.readouterr().out) == {"messages": 30, "batches": 1}
    assert run(["spark", "archive", "flights", archive, *here]) == 0
    assert "archived 0 messages" in capsys.readouterr().err
    restore = ["spark", "restore", archive, "again", "--from-topic", "flights", *here]
    assert run(restore) == 0
    assert "restored 30 messages to again, each in its partition" in capsys.readouterr().err
    assert run(restore) == 4
    assert "has messages already" in capsys.readouterr().err
    assert run([*restore, "--append", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 30
    assert len(consumed(flights.bus, "again")) == 60
    assert run(["spark", "restore", str(tmp_path / "none"), "x", *here]) == 3


def test_a_report_is_a_table_or_a_document(
    flights: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spark", "report", "flights", "--json", "--url", flights.url]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["messages"] for row in rows) == 30
    assert rows[0]["hour"].endswith(":00Z")
    later = ["--since", "2999-01-01T00:00Z"]
    assert run(["spark", "report", "flights", "--url", flights.url, *later]) == 0
    assert capsys.readouterr().out == ""
    assert run(["spark", "report", "flights", "--url", flights.url, "--until", "soon"]) == 2


def test_an_audit_ends_with_0_when_all_is_sound(
    flights: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["spark", "compact-check", "flights", "--url", flights.url]
    assert run(check) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("TOPIC")
    assert "30 messages, 0 findings" in shown.err
    assert run([*check, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == []
    assert [one["partition"] for one in document["partitions"]] == [0, 1]


def test_an_audit_ends_with_1_and_says_where_something_is_wrong(
    flights: Topics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tms.spark import jobs
    from tms.spark.jobs import Audit, AuditFinding, PartitionAudit

    partition = PartitionAudit("t", 0, 0, 9, 9, 1, 99, 0, 0, 0, 1)
    audit = Audit([partition], [AuditFinding("t", 0, 2, 5, "it is torn")])
    monkeypatch.setattr(jobs, "compact_check", lambda *args, **kwargs: audit)
    assert run(["spark", "compact-check", "t", "--url", flights.url]) == 1
    assert "it is torn" in capsys.readouterr().out


def test_a_statement_is_answered(flights: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    count = "select carrier, count(*) as n, max(key) as k from flights group by 1 order by 1"
    asked = ["spark", "sql", "--json-schema", "infer", "--url", flights.url]
    assert run([*asked, count, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == [{"carrier": "AA", "n": 10, "k": "4"}, {"carrier": "UA", "n": 20, "k": "4"}]
    assert run([*asked, "select 1 as a, 1.5 as a, timestamp'2026-11-01' as t", "-o", "csv"]) == 0
    assert capsys.readouterr().out == "a,a_2,t\r\n1,1.5,2026-11-01T00:00:00\r\n"
    assert run([*asked, "select text from flights", "--rows", "2", "--json"]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 2
    assert "only the first 2 rows" in shown.err
    flights.bus.create_topic("eu.flights-1")
    flights.bus.publish("eu.flights-1", b"{}")
    both = "select count(*) as n from `EU.flights-1` a join flights where flights.offset = a.offset"
    assert run([*asked, both, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 2}]
    assert run([*asked, "-t", "missing", "select * from missing"]) == 3


def test_a_statement_that_is_wrong_ends_with_an_error(
    flights: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spark", "sql", "--url", flights.url, "selct 1"]) == 2
    said = capsys.readouterr().err
    assert "PARSE_SYNTAX_ERROR" in said
    assert "defect" not in said


def test_typed_statements_are_answered_one_by_one_and_errors_do_not_end_them(
    flights: Topics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = [
        "select count(*) as n from flights;",
        "",
        "select nothing from flights",
        "select 7 as m",
        "exit",
        "select 8 as o",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
    assert run(["spark", "sql", "--url", flights.url]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["N", "30", "M", "7"]
    assert "error: [UNRESOLVED_COLUMN" in shown.err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--data", "here"],
        ["--url", "http://127.0.0.1:1", "--store", "hbase://127.0.0.1:1"],
        ["--url", "http://127.0.0.1:1", "--conf", "no-value"],
    ],
)
def test_options_that_contradict_each_other_are_refused(wrong: list[str]) -> None:
    assert run(["spark", "report", "flights", *wrong]) == 2
