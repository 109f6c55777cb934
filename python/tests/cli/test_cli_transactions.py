"""`tms tx` and `tms position`, on a data directory and on a service."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.block import encode
from tms.cli.main import run
from tms.model.message import NewBlock
from tms.model.topic import TopicName, TopicSettings

Tms = Callable[..., tuple[int, Any]]


@pytest.fixture
def bus() -> Iterator[tms.Bus]:
    with serving() as served, tms.connect(served.url) as bus:
        bus.create_topic("in", partitions=2, durability="written")
        yield bus


@pytest.fixture
def cli(bus: tms.Bus, capsysbinary: pytest.CaptureFixture[bytes]) -> Tms:
    """Run `tms` against the service; returns its exit code and its JSON."""
    url = bus._transport.addresses.now.url  # type: ignore[union-attr]

    def cli(*arguments: str) -> tuple[int, Any]:
        capsysbinary.readouterr()
        code = run([*arguments, "--url", url, "--json", "--no-input"])
        return code, json.loads(capsysbinary.readouterr().out)

    return cli


def test_transactions_are_listed_shown_and_ended(bus: tms.Bus, cli: Tms) -> None:
    assert cli("tx", "list") == (0, [])
    one, other = (str(bus.admin.transactions.begin().transaction_id) for _ in range(2))
    assert [str(info["transaction_id"]) for info in cli("tx", "list")[1]] == [one, other]
    assert cli("tx", "abort", one)[1]["outcome"] == "aborted"
    assert cli("tx", "invalidate", other)[0] == 2  # not confirmed
    assert cli("tx", "invalidate", other, "--yes")[1]["outcome"] == "invalid"
    assert cli("tx", "show", other)[1]["outcome"] == "invalid"
    assert cli("tx", "show", "77")[0] == 3
    assert cli("tx", "abort", one)[0] == 0
    assert cli("tx", "list") == (0, [])


def test_a_transaction_begun_elsewhere_is_listed_with_what_it_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving() as served:
        engine, url = served.service.engine, served.url
        topic = TopicName("default", "in")
        engine.create_topic(topic, TopicSettings(1))
        pointer = served.service.clock.now_ms() * 1_000_000
        engine.transactions.submit(topic, [NewBlock(0, encode([b"x"]))], pointer, "ann").result(5)
        assert run(["tx", "list", "--url", url]) == 0
        listed = capsys.readouterr().out
        assert str(pointer) in listed and "in/0 since 20" in listed and "ann" in listed
        assert run(["tx", "abort", str(pointer), "--url", url]) != 0
        assert f"tms tx invalidate {pointer}" in capsys.readouterr().err
        assert run(["tx", "invalidate", str(pointer), "--yes", "--url", url]) == 0
        assert run(["tx", "show", str(pointer), "--url", url]) == 0
        assert "invalid" in capsys.readouterr().out
        assert engine.transactions.open() == []


def test_a_group_is_shown_with_its_lag_and_moved(bus: tms.Bus, cli: Tms) -> None:
    for number in range(6):
        bus.publish("in", b"%d" % number, partition=number % 2)
    assert [row["lag"] for row in cli("position", "show", "in", "g")[1]] == [3, 3]
    for wrong in ([], ["-p", "1"]):  # without a partition; not confirmed
        assert cli("position", "set", "in", "g", "offset:1", *wrong)[0] == 2
    dry = cli("position", "set", "in", "g", "offset:1", "-p", "1", "--dry-run")
    assert dry[1]["moved"] is False and bus.positions("in", group="g") == {}
    assert cli("position", "set", "in", "g", "offset:1", "-p", "1", "--yes")[0] == 0
    shown = cli("position", "show", "in", "g")[1]
    assert [(row["position"], row["lag"]) for row in shown] == [(None, 3), ("offset:1", 2)]
    consumer = bus.consumer("in", group="g", stop_at_end=True)
    list(consumer)
    consumer.ack()
    assert [row["lag"] for row in cli("position", "show", "in", "g")[1]] == [0, 0]
    cli("position", "set", "in", "g", "offset:0", "-p", "0", "--yes")
    bus.truncate_topic("in", "latest")
    assert [row["lag"] for row in cli("position", "show", "in", "g")[1]] == [0, 0]


def test_positions_have_metadata_and_are_forgotten(bus: tms.Bus, cli: Tms) -> None:
    set_, shown = ("position", "set", "in", "g"), ("position", "show", "in", "g")
    assert cli(*set_, "offset:1", "-p", "0", "--metadata", "a\tb", "--yes")[0] == 0
    assert cli(*set_, "offset:1", "-p", "1", "--yes")[0] == 0
    assert [(row["metadata"], row["leader_epoch"]) for row in cli(*shown)[1]] == [
        ("a\tb", -1),
        ("", -1),
    ]
    parts = cli("group", "show", "in", "g")[1]["partitions"]
    assert [part["metadata"] for part in parts] == ["a\tb", ""]
    code, said = cli(*set_, "offset:1", "-p", "0", "--metadata", "x" * 4_097, "--yes")
    assert code == 2 and "4096" in said["error"]["message"]
    forget = "position", "forget", "in", "g"
    for wrong in ([], ["-p", "0"]):  # without a partition; not confirmed
        assert cli(*forget, *wrong)[0] == 2
    assert cli(*forget, "-p", "0", "--dry-run")[1]["forgotten"] is False
    assert len(bus.positions("in", group="g")) == 2
    assert cli(*forget, "-p", "0", "--yes")[1]["forgotten"] is True
    assert list(bus.positions("in", group="g")) == [1]


def test_tables_show_metadata_only_if_there_are_some(
    bus: tms.Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bus._transport.addresses.now.url  # type: ignore[union-attr]
    for metadata in ("", "from\x1b[2J here"):
        at = tms.CommittedPosition(tms.Position.offset(1), metadata)
        bus.set_positions("in", {0: at}, group="g")
        for command in ("position", "group"):
            assert run([command, "show", "in", "g", "--url", url, "-o", "table"]) == 0
            shown = capsys.readouterr().out
            assert ("METADATA" in shown, "from\\x1b[2J here" in shown) == (bool(metadata),) * 2


def test_invalid_transactions_are_pruned(bus: tms.Bus, cli: Tms) -> None:
    id = bus.admin.transactions.begin().transaction_id
    bus.admin.transactions.invalidate(id)
    assert cli("tx", "prune", "--older-than", "1s")[0] == 2  # nobody confirmed it
    assert cli("tx", "prune", "--dry-run")[1]["pruned"] == 0
    assert cli("tx", "prune", "--yes")[1]["pruned"] == 0  # it is young
    assert cli("tx", "prune", "--older-than", "forever", "--yes")[1]["pruned"] in (0, 1)
    assert bus.admin.transactions.describe(id).outcome == "invalid"


def test_consume_may_read_what_is_not_committed(tmp_path: Path, capsysbinary: Any) -> None:
    data = str(tmp_path / "data")
    with tms.open(data) as bus:
        bus.create_topic("in")
        engine: Any = bus._transport
        id = bus.admin.transactions.begin().transaction_id
        from tms.block import encode
        from tms.model.message import NewBlock
        from tms.model.topic import TopicName

        blocks = [NewBlock(0, encode([b"open"]))]
        engine.transactions.submit(TopicName.parse("in"), blocks, id).result(PATIENCE_S)
        bus.publish("in", b"behind")
    for isolation, expected in (("committed", b""), ("uncommitted", b"open\nbehind\n")):
        capsysbinary.readouterr()
        arguments = ["consume", "in", "--start", "earliest", "-e", "--data", data]
        assert run([*arguments, "--isolation", isolation]) == 0
        assert capsysbinary.readouterr().out == expected
