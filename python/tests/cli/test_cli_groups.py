"""`tms group`, on a service."""

import pytest

import tms
from tests.cli.test_cli_transactions import Tms, bus, cli
from tms.cli.session import Session

__all__ = ["bus", "cli"]


@pytest.fixture(autouse=True)
def messages(bus: tms.Bus) -> None:
    for number in range(6):
        bus.publish("in", b"%d" % number, partition=number % 2)


def test_groups_are_listed_and_shown_with_members_and_lag(bus: tms.Bus, cli: Tms) -> None:
    assert cli("group", "list", "in") == (0, [])
    assert cli("group", "show", "in", "g")[0] == 3
    assert cli("group", "list", "nowhere")[0] == 3
    bus.set_positions("in", {1: "latest"}, group="g")
    with bus.consumer("in", group=tms.Group("h", delivery="at-least-once")) as consumer:
        for _, message in zip(range(6), consumer, strict=False):
            assert message.partition in (0, 1)
        code, (first, second) = cli("group", "list", "in")
        assert (code, first["group"], first["members"], first["lag"]) == (0, "g", 0, 3)
        assert first["lag_seconds"] > 0
        assert (second["group"], second["members"]) == ("h", 1)
        assert (first["kind"], second["kind"]) == (None, "tms")
        code, shown = cli("group", "show", "in", "h")
        (member,) = shown["members"]
        assert [one["owner"] for one in shown["partitions"]] == [member["member"]] * 2
    shown = cli("group", "show", "in", "g")[1]["partitions"]
    assert [(one["position"], one["lag"]) for one in shown] == [(None, 3), ("latest", 0)]


def test_a_group_begins_anew_or_goes_on_where_it_is_told(bus: tms.Bus, cli: Tms) -> None:
    assert cli("group", "reset", "in", "g", "--yes")[0] == 3
    assert cli("group", "reset", "in", "g", "--to", "offset:1")[0] == 2  # not confirmed
    assert cli("group", "reset", "in", "g", "--to", "-10", "--yes")[0] == 2
    dry = cli("group", "reset", "in", "g", "--to", "offset:1", "--dry-run")
    assert dry[1]["reset"] is False and bus.positions("in", group="g") == {}
    assert cli("group", "reset", "in", "g", "--to", "offset:1", "--yes")[1]["reset"] is True
    assert {p: str(at) for p, at in bus.positions("in", group="g").items()} == {
        0: "offset:1",
        1: "offset:1",
    }
    assert cli("group", "reset", "in", "g", "--yes")[1]["position"] is None
    assert bus.positions("in", group="g") == {}
    assert cli("group", "reset", "nowhere", "g", "--yes")[0] == 3


def test_a_group_at_work_is_reset_only_by_force(bus: tms.Bus, cli: Tms) -> None:
    with bus.consumer("in", group=tms.Group("g", delivery="at-least-once")) as consumer:
        next(iter(consumer))
        code, said = cli("group", "reset", "in", "g", "--to", "earliest", "--yes")
        assert code == 4 and "--force" in said["error"]["next"]
        assert cli("group", "reset", "in", "g", "--to", "earliest", "--yes", "--force")[0] == 0


def test_a_plan_says_what_is_read_again_or_skipped(bus: tms.Bus, cli: Tms) -> None:
    bus.set_positions("in", {0: "offset:2", 1: "offset:1"}, group="g")
    code, said = cli("group", "reset", "in", "g", "--to", "latest", "--dry-run")
    assert code == 0 and said["reset"] is False
    plan = {one["partition"]: (one["again"], one["skipped"]) for one in said["partitions"]}
    assert plan == {0: (0, 1), 1: (0, 2)}
    code, said = cli("group", "reset", "in", "g", "--shift", "-1", "-p", "0", "--yes")
    assert (code, said["partitions"][0]["again"], len(said["partitions"])) == (0, 1, 1)
    assert {p: str(at) for p, at in bus.positions("in", group="g").items()} == {
        0: "offset:1",
        1: "offset:1",
    }
    assert cli("group", "reset", "in", "g", "-p", "1", "--yes")[0] == 0  # forgotten
    assert [*bus.positions("in", group="g")] == [0]
    assert cli("group", "reset", "in", "g", "--shift", "1", "--to", "latest", "--yes")[0] == 2
    assert cli("group", "reset", "in", "g", "--to", "offset:9", "--yes")[0] != 0
    assert cli("group", "reset", "in", "g", "--to", "latest", "-p", "7", "--yes")[0] == 2


def test_a_group_at_the_end_reads_everything_that_comes(bus: tms.Bus, cli: Tms) -> None:
    assert cli("group", "reset", "in", "g", "--to", "latest", "--yes")[0] == 0
    bus.publish("in", b"next", partition=0)
    with bus.consumer("in", group="g", stop_at_end=True) as consumer:
        assert [message.value for message in consumer] == [b"next"]


def test_a_reset_changes_nothing_that_was_moved_meanwhile(
    bus: tms.Bus, cli: Tms, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.set_positions("in", {0: "offset:1"}, group="g")

    def moved(session: Session, *_: object) -> bool:
        bus.set_positions("in", {0: "offset:2"}, group="g")
        return True

    for words in (("--to", "earliest"), ("--shift", "1"), ()):
        bus.set_positions("in", {0: "offset:1"}, group="g")
        with monkeypatch.context() as patched:
            patched.setattr(Session, "proceed", moved)
            assert cli("group", "reset", "in", "g", *words, "--yes")[0] == 4
        assert str(bus.positions("in", group="g")[0]) == "offset:2"
