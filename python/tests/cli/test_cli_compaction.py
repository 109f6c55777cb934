"""Filters, compaction and erasing on the command line."""

from pathlib import Path

import tms
from tests.cli.test_cli import Run, data, greetings, run

__all__ = ["data", "greetings", "run"]


def test_consume_prints_what_matches_a_filter(run: Run, greetings: Path) -> None:
    ended = run("consume", "greetings", "--start", "earliest", "-e", "--where", "header.lang = en")
    assert (ended.code, ended.out) == (0, b"hi\n")
    wrong = run("consume", "greetings", "-e", "--where", "keys")
    assert wrong.code != 0
    assert "at character 1" in wrong.err


def test_the_cleanup_of_a_topic_is_shown_and_changed(run: Run, greetings: Path) -> None:
    made = run("topic", "create", "prices", "--cleanup", "compact", "--json").json["settings"]
    assert (made["cleanup"], made["retention_ms"]) == ("compact", None)
    changes = ("--cleanup", "compact,delete", "--retention", "7d", "--tombstone-retention", "2d")
    made = run("topic", "update", "greetings", *changes, "--json").json["settings"]
    assert made["cleanup"] == "compact,delete"
    assert (made["retention_ms"], made["tombstone_retention_ms"]) == (604_800_000, 172_800_000)
    assert "compact,delete" in run("topic", "describe", "greetings").out.decode()


def test_erasing_asks_and_says_how_many_there_were(run: Run, greetings: Path, data: Path) -> None:
    refused = run("topic", "erase", "greetings", "--key", "ann", stdin=b"greetings\n")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    done = run("topic", "erase", "greetings", "--key", "ann", "--yes", "--json")
    assert done.json == {"topic": "greetings", "erased": 1}
    again = run("topic", "erase", "greetings", "--key-hex", "616e6e", "--yes", "--json")
    assert again.json["erased"] == 0
    with tms.open(data) as bus:
        [bob] = [m for m in bus.consumer("greetings", stop_at_end=True) if m.key == b"bob"]
    where = ("--id", str(bob.id), "-p", "0")
    assert run("topic", "erase", "greetings", *where, "-y", "--json").json["erased"] == 1


def test_erasing_takes_one_thing_that_can_be(run: Run, greetings: Path) -> None:
    for wrong in ((), ("--key", "a", "--id", "0" * 40), ("--key-hex", "0g"), ("--id", "0" * 40)):
        assert run("topic", "erase", "greetings", *wrong, "--yes").code != 0
