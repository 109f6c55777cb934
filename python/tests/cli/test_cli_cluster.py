"""`tms cluster`, on two instances, on a single service and on a data directory."""

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_kit import Instances, instances
from tests.http_kit import serving
from tests.waiting import until
from tms.cli.main import run

Tms = Callable[..., tuple[int, Any]]
DOWN_S = 0.5  # of an instance that restarts


@pytest.fixture
def two() -> Iterator[Instances]:
    with instances("a", "b") as both, both.connect("a") as bus:
        bus.create_topic("orders", partitions=4)
        yield both


@pytest.fixture
def tms(capsysbinary: pytest.CaptureFixture[bytes]) -> Tms:
    """Run `tms` at a place; returns its exit code and its JSON."""

    def tms(*arguments: str) -> tuple[int, Any]:
        capsysbinary.readouterr()
        code = run([*arguments[:2], "--json", "--no-input", *arguments[2:]])
        return code, json.loads(capsysbinary.readouterr().out)

    return tms


def test_instances_are_shown_with_what_they_own(
    two: Instances, tms: Tms, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    at = ("--url", two.url("b"))
    code, view = tms("cluster", "status", *at)
    assert code == 0 and [one["id"] for one in view["instances"]] == ["a", "b"]
    assert view["answered_by"] == "b" and view["coordinator"] == two.coordinator()
    assert {one["address"] for one in view["instances"]} == {two.url("a"), two.url("b")}
    code, owners = tms("cluster", "owners", "orders", *at)
    assert code == 0 and set(owners["owners"]) == {"a", "b"} and len(owners["owners"]) == 4
    assert run(["cluster", "status", *at]) == 0
    table = capsysbinary.readouterr().out.decode()
    assert two.url("a") in table and "coordinates" in table.lower()
    assert tms("cluster", "owners", "nowhere", *at)[0] == 3


def test_events_of_all_instances_are_shown(
    two: Instances, tms: Tms, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    at = ("--url", two.url("b"))
    coordinator = two.coordinator()
    until(lambda: len(tms("cluster", "events", *at)[1]) >= 7)
    code, events = tms("cluster", "events", *at)
    assert code == 0 and [e["time_ms"] for e in events] == sorted(e["time_ms"] for e in events)
    for instance in "ab":
        mine = [(e["what"], e["details"]) for e in events if e["instance"] == instance]
        assert ("membership", "member") in mine
        assert {("an instance joined", "a"), ("an instance joined", "b")} <= {*mine}
    [opened] = {e["instance"] for e in events if e["what"] == "coordinates"} & {coordinator}
    assert opened == coordinator
    other = "b" if coordinator == "a" else "a"
    two.stop(coordinator)
    url = two.url(other)

    def told() -> list[tuple[str, str]]:
        return [(e["what"], e["details"]) for e in tms("cluster", "events", "--url", url)[1]]

    until(lambda: "took over" in str(told()) and ("an instance left", coordinator) in told())
    assert run(["cluster", "events", "--url", url]) == 0
    assert "an instance left" in capsysbinary.readouterr().out.decode()


def test_a_partition_goes_where_it_is_told_and_back(two: Instances, tms: Tms) -> None:
    at = ("--url", two.url("a"))
    before = two.owners("orders")
    other = "b" if before[2] == "a" else "a"
    assert tms("cluster", "move", "orders", "2", other, *at) == (
        0,
        {"topic": "orders", "partition": 2, "instance": other},
    )
    assert two.owners("orders", "b")[2] == two.owners("orders", "a")[2] == other
    assert tms("cluster", "unpin", "orders", "2", *at)[0] == 0
    assert two.owners("orders") == before
    assert tms("cluster", "move", "orders", "2", "nobody", *at)[0] == 2
    assert tms("cluster", "move", "orders", "4", other, *at)[0] == 3
    assert tms("cluster", "move", "nowhere", "0", other, *at)[0] == 3


def test_an_instance_is_drained_through_any_other(two: Instances, tms: Tms) -> None:
    at = ("--url", two.url("b"))
    assert tms("cluster", "drain", "a", *at)[0] == 2  # not confirmed
    assert tms("cluster", "drain", "a", "--dry-run", *at)[1] == {"instance": "a", "drained": False}
    assert tms("cluster", "drain", "nobody", "--yes", *at)[0] == 3
    assert tms("cluster", "drain", "a", "--yes", *at)[0] == 0
    until(lambda: set(two.owners("orders", "b")) == {"b"})
    assert [one["draining"] for one in tms("cluster", "status", *at)[1]["instances"]] == [1, 0]


def test_of_several_addresses_one_has_to_answer(two: Instances, tms: Tms) -> None:
    urls = f"http://127.0.0.1:1,{two.url('a')},http://127.0.0.1:1"
    assert tms("cluster", "owners", "orders", "--url", urls)[0] == 0
    assert tms("topic", "describe", "orders", "--url", urls)[0] == 0
    assert tms("cluster", "status", "--url", "http://127.0.0.1:1,http://127.0.0.1:2")[0] == 6


def test_who_is_alone_has_no_instances(tms: Tms, tmp_path: Path) -> None:
    with serving() as served:
        at = ("--url", served.url)
        code, view = tms("cluster", "status", *at)
        assert code == 0 and view["instances"] == [] and view["state"] == "alone"
        assert tms("cluster", "owners", "orders", *at)[0] in (3, 4)
        assert tms("cluster", "drain", "a", "--yes", *at)[0] == 4
    code, said = tms("cluster", "status", "--data", str(tmp_path))
    assert code != 0 and "--url" in said["error"]["next"]


def test_instances_are_restarted_one_after_another(
    two: Instances,
    tms: Tms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command is run for each; the coordinator comes last, and not before the other is back. No
    warning is printed about the effects of the command itself."""
    coordinator, starting = two.coordinator(), list[threading.Timer]()
    order, warned = list[str](), list[str]()
    urls = {id: two.url(id) for id in "ab"}
    other = "b" if coordinator == "a" else "a"

    def restart(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        program, id, host, address = words
        assert (program, host, address) == ("restart", "127.0.0.1", urls[id])
        order.append(id)
        port = two.served[id].address[1]
        two.stop(id)
        starting.append(threading.Timer(DOWN_S, partial(two.start, id, port=port)))
        starting[-1].start()
        return subprocess.CompletedProcess(words, 0)

    command = threading.get_ident()  # instances are in this process, and ask one another, too

    def noted(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if order and record.thread == command and urls[order[-1]] in text:
            warned.append(text)
        return True

    monkeypatch.setattr(subprocess, "run", restart)
    monkeypatch.setattr(logging.getLogger("tms.client.http.addresses"), "filter", noted)
    words = ("--", "restart", "{instance}", "{host}", "{address}")
    at = ("--url", two.url(coordinator))
    code, answer = tms("cluster", "restart", "--dry-run", *at, *words)
    assert (code, answer, order) == (0, {"restarted": []}, [])
    code, answer = tms("cluster", "restart", *at, *words)
    assert (code, answer) == (0, {"restarted": order}), answer
    assert order == [other, coordinator]
    for timer in starting:
        timer.join()
    assert not warned


def test_a_restart_ends_with_the_first_instance_that_is_not_back(
    two: Instances, tms: Tms, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--url", two.url("a"))
    code, error = tms("cluster", "restart", *at, "--", "false", "{instance}")
    assert code != 0 and "ended with 1" in str(error)
    code, error = tms("cluster", "restart", *at, "--", "/no/such/program")
    assert code == 2 and "cannot be run" in str(error)
    stopped: list[str] = []

    def stop(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        stopped.extend(words)
        two.stop(words[0])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", stop)
    code, error = tms("cluster", "restart", "--wait", "1s", *at, "--", "{instance}")
    assert code != 0 and "not ready in time" in str(error)
    assert len(stopped) == 1
    [left] = two.served
    code, error = tms("cluster", "restart", "--url", two.url(left), "--", "{instance}")
    assert code != 0 and "one instance" in str(error)


def test_a_service_that_is_alone_is_not_restarted_so(tms: Tms) -> None:
    with serving() as served:
        host, port = served.address
        at = ("--url", f"http://{host}:{port}")
        code, error = tms("cluster", "restart", *at, "--", "true")
    assert code != 0 and "no cluster" in str(error)
