"""`tms publish --delay` and `tms delayed`."""

import time
from pathlib import Path

import pytest

import tms
from tests.cli.test_cli import Run, data, run

__all__ = ["data", "run"]


@pytest.fixture(autouse=True)
def topic(data: Path) -> None:
    with tms.open(data) as bus:
        bus.create_topic("reminders", partitions=2)


def test_lines_wait_and_can_be_listed_counted_and_cancelled(run: Run, data: Path) -> None:
    made = run(
        "publish", "reminders", "--delay", "2d", "-K", ":", "-H", "a=b", "--json",
        stdin=b"ann:hi\nbob:\xff\n",
    )  # fmt: skip
    assert made.code == 0
    ids = [row["id"] for row in made.json]
    assert len(ids) == 2 and made.json[0]["deliver_at"].endswith("+00:00")
    listed = run("delayed", "list", "reminders", "--json").json
    assert [(row["id"], row["key"], row["value"]) for row in listed] == [
        (ids[0], "ann", "hi"),
        (ids[1], "bob", "\\xff"),
    ]
    assert run("delayed", "list", "reminders", "-n", "1", "--json").json == listed[:1]
    assert run("delayed", "list", "reminders", "--after", ids[0], "--json").json == listed[1:]
    assert run("delayed", "cancel", "reminders", ids[0], "1-1", "--json").json == [
        {"id": ids[0], "cancelled": True},
        {"id": "1-1", "cancelled": False},
    ]
    counted = run("delayed", "count", "reminders", "--json").json
    assert counted["waiting"] == 1 and counted["next_due"] == listed[1]["deliver_at"]
    with tms.open(data) as bus:
        (message,) = bus.list_delayed("reminders")
        assert (message.key, message.value, message.headers) == (b"bob", b"\xff", {"a": b"b"})
        assert abs(message.id.due_ms - time.time() * 1_000 - 2 * 86_400_000) < 60_000


def test_they_can_be_due_at_a_time(run: Run) -> None:
    made = run("publish", "reminders", "--deliver-at", "2999-01-01T00:00Z", "--json", stdin=b"x\n")
    assert made.json[0]["deliver_at"] == "2999-01-01T00:00:00.000+00:00"
    assert made.json[0]["id"].startswith("32472144000000-")


def test_nothing_that_waits_is_no_error(run: Run) -> None:
    listed = run("delayed", "list", "reminders")
    assert listed.code == 0 and "Nothing waits" in listed.err
    assert run("delayed", "count", "reminders", "--json").json["next_due"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "reminders", "--delay", "soon"],
        ["publish", "reminders", "--delay", "-1s"],
        ["publish", "reminders", "--deliver-at", "tomorrow"],
        ["publish", "reminders", "--deliver-at", "2999-01-01", "--delay", "1s"],
        ["publish", "reminders", "--deliver-at", "1969-01-01"],
        ["delayed", "cancel", "reminders", "x"],
        ["delayed", "cancel", "reminders"],
        ["delayed", "list", "reminders", "--after", "x"],
    ],
)
def test_what_cannot_be_ends_with_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments, stdin=b"x\n").code == 2


def test_a_topic_that_is_not_there_ends_with_3(run: Run) -> None:
    for arguments in (["list", "none"], ["count", "none"], ["cancel", "none", "1-1"]):
        assert run("delayed", *arguments).code == 3
