"""The behaviour on which tests and people rely when they start HBase here."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from thriftpy2.thrift import TException

from integration.cluster import (
    Endpoint,
    LocalEndpoint,
    Process,
    Runtime,
    Standalone,
    Unavailable,
    resolve,
)
from integration.containers import Containers
from integration.shared import Mortal, make_hbase, shared_hbase

ROOT = Path(__file__).resolve().parents[1]
ROWS = {b"%04d" % number: {b"m:b": b"value %d" % number} for number in range(500)}


# The HBase that tests share.


def test_rows_go_in_and_come_out_of_the_shared_hbase(hbase: Endpoint, hbase_namespace: str) -> None:
    table = f"{hbase_namespace}:rows"
    with hbase.connect() as gateway:
        gateway.create_table(table, "m", split_keys=[b"0100", b"0300"])
        gateway.put(table, ROWS)
        assert gateway.get(table, b"0007") == {b"m:b": b"value 7"}
        assert gateway.get(table, b"none") == {}
        assert gateway.scan(table) == ROWS


def test_scans_continue_beyond_one_answer(
    hbase: Endpoint, hbase_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("integration.cluster.gateway.SCAN_ROWS", 50)
    with hbase.connect() as gateway:
        gateway.create_table(f"{hbase_namespace}:rows", "m")
        gateway.put(f"{hbase_namespace}:rows", ROWS)
        assert gateway.scan(f"{hbase_namespace}:rows") == ROWS


def test_each_test_has_a_namespace_of_its_own(hbase: Endpoint, hbase_url: str) -> None:
    server, _, namespace = hbase_url.rpartition("/")
    assert server == f"hbase://127.0.0.1:{hbase.port}"
    with hbase.connect() as gateway:
        assert namespace in gateway.namespaces()
        assert gateway.call("getTableNamesByNamespace", namespace) == []


def test_a_namespace_is_dropped_with_its_tables(hbase: Endpoint) -> None:
    with hbase.connect() as gateway:
        gateway.create_namespace("doomed")
        gateway.create_table("doomed:one", "m")
        gateway.create_table("doomed:two", "m")
        gateway.call("disableTable", gateway.table_name("doomed:two"))
        gateway.drop_namespace("doomed")
        assert "doomed" not in gateway.namespaces()


def test_everybody_who_asks_gets_the_same_hbase(
    hbase: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    again = shared_hbase(hbase.directory.parent, os.getpid())
    assert (again.port, again.zookeeper) == (hbase.port, hbase.zookeeper)
    assert again.answers()


def test_the_logs_of_the_shared_hbase_can_be_shown(hbase: Endpoint) -> None:
    assert "starting HBase ThreadPool Thrift server" in hbase.tails()


def test_a_back_end_that_is_not_there_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMS_TEST_CLUSTER", "podman")
    with pytest.raises(Unavailable, match="'podman'; give process"):
        make_hbase(tmp_path)


def test_without_a_docker_engine_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMS_TEST_CLUSTER", "docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable, match=r"needs a Docker engine.*\n.*unset TMS_TEST_CLUSTER"):
        make_hbase(tmp_path)


def test_admin_flushes_compacts_splits_merges_and_moves(
    hbase: Endpoint, hbase_namespace: str
) -> None:
    table, admin = f"{hbase_namespace}:rows", hbase.admin()
    with hbase.connect() as gateway:
        gateway.create_table(table, "m")
        for rows in (ROWS, {b"0500": {b"m:b": b"more"}}):
            gateway.put(table, rows)
            admin.run("flush", table)
        assert [admin.run("files", table)[1]] == ["2"]
        admin.run("major_compact", table)
        assert [admin.run("files", table)[1]] == ["1"]
        admin.run("split", table, "0250")
        regions = admin.run("regions", table)
        assert (regions[1:3], regions[5:7]) == (["", "0250"], ["0250", ""])
        admin.run("move", regions[0], *admin.run("servers"))
        admin.run("major_compact", table)
        admin.run("merge", table)
        assert len(admin.run("regions", table)) == 4
        assert len(gateway.scan(table)) == 501


def test_what_admin_cannot_do_is_an_error_with_hbases_reason(hbase: Endpoint) -> None:
    with pytest.raises(Unavailable, match="TableNotFoundException: absent"):
        hbase.admin().run("flush", "absent")
    assert hbase.admin().run("servers")


def test_thrift_1_is_started_when_it_is_wanted(hbase: Endpoint) -> None:
    port = hbase.thrift1_port()
    assert port != hbase.port
    assert hbase.thrift1_port() == port


# An HBase that tests kill in turn.


def test_an_hbase_that_a_test_has_left_broken_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [MagicMock(spec=Standalone) for _ in range(2)]
    monkeypatch.setattr("integration.shared.make_hbase", lambda directory: made[0])
    mortal = Mortal(tmp_path)
    assert mortal.take() is made[0]
    gateway = made[0].connect.return_value.__enter__.return_value
    gateway.namespaces.return_value = ["default", "hbase", "tms"]
    made[0].answers.return_value = False
    assert mortal.take() is made[0]
    made[0].kill.assert_called_once()  # it was paused
    gateway.drop_tables.assert_called_once_with("default")
    gateway.drop_namespace.assert_called_once_with("tms")
    made[0].start.side_effect = Unavailable("its files are gone")
    monkeypatch.setattr("integration.shared.make_hbase", lambda directory: made[1])
    assert mortal.take() is made[1]
    made[0].remove.assert_called_once()
    mortal.close()
    made[1].remove.assert_called_once()


def test_acknowledged_rows_survive_kills_and_restarts_at_the_same_address(
    own_hbase: Standalone | Containers,
) -> None:
    with own_hbase.connect() as gateway:
        gateway.create_table("rows", "m")
        gateway.put("rows", ROWS)
    own_hbase.server.kill()
    assert not own_hbase.server.running()
    own_hbase.start()
    with own_hbase.connect() as gateway:
        assert gateway.scan("rows") == ROWS

    own_hbase.thrift.kill()
    with pytest.raises((OSError, TException)):
        own_hbase.connect()
    own_hbase.start()
    assert own_hbase.answers()

    own_hbase.thrift.pause()
    with own_hbase.connect(timeout_s=0.2) as gateway, pytest.raises((OSError, TException)):
        gateway.scan("rows")
    own_hbase.thrift.resume()
    with own_hbase.connect() as gateway:
        assert gateway.scan("rows") == ROWS


def test_an_hbase_that_cannot_start_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    hbase = Standalone(tmp_path, {"hbase.rootdir": "nowhere://data"})
    with pytest.raises(Unavailable, match=r"(?s)server.*the last \d+ lines of .*server.*log"):
        hbase.start()
    assert not hbase.server.running()


# The command for people.


@pytest.mark.long
def test_the_command_runs_hbase_until_it_is_interrupted(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "integration.cluster", "--directory", str(tmp_path / "kept")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    with command.stdout:
        url = command.stdout.readline().strip()
    hbase = LocalEndpoint.attach(tmp_path / "kept")
    assert url == hbase.url()
    assert hbase.answers()
    command.send_signal(signal.SIGINT)
    assert command.wait(180) == 0
    assert not hbase.answers()
    log = next((tmp_path / "kept").glob("server-*.log")).read_text()
    assert "STOPPING region server" in log


# Children.


def _child(tmp_path: Path, script: str) -> Process:
    return Process("child", [sys.executable, "-uc", script], tmp_path / "child.log")


def test_a_child_that_ends_early_is_an_error_with_its_exit_code_and_log(tmp_path: Path) -> None:
    child = _child(tmp_path, "print('said'); raise SystemExit(3)")
    child.start()
    with pytest.raises(Unavailable, match=r"(?s)exit code 3.*ready.*said"):
        child.wait_for_line("ready", 60)


def test_waiting_for_a_child_has_a_deadline(tmp_path: Path) -> None:
    child = _child(tmp_path, "import signal; signal.pause()")
    child.start()
    with pytest.raises(Unavailable, match=r"not within 0.1 s"):
        child.wait_for_line("ready", 0.1)
    child.kill()
    assert child.ending() == "signal 9"


def test_only_what_a_child_printed_in_this_life_counts(tmp_path: Path) -> None:
    child = _child(tmp_path, "print('ready\\n', end=''); import signal; signal.pause()")
    child.start()
    child.wait_for_line("ready", 60)
    child.kill()
    child.start()
    assert "ready" not in child.printed() or child.running()
    child.wait_for_line("ready", 60)
    child.kill()
    assert child.log.read_text().split() == ["ready", "ready"]


def test_a_child_that_does_not_listen_to_sigterm_is_killed(tmp_path: Path) -> None:
    script = "import signal; signal.signal(15, signal.SIG_IGN); print('up'); signal.pause()"
    child = _child(tmp_path, script)
    child.start()
    child.wait_for_line("up", 60)
    child.stop(seconds=0.1)
    assert child.ending() == "signal 9"


def test_a_paused_child_can_be_killed(tmp_path: Path) -> None:
    child = _child(tmp_path, "import signal; signal.pause()")
    child.start()
    child.pause()
    child.kill()
    assert not child.running()


def test_children_die_with_their_parent_even_if_it_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "child.log")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = os.pidfd_open(int(parent.stdout.readline()))
    ended = threading.Event()
    threading.Thread(target=_wait_for, args=(child, ended), daemon=True).start()
    assert not ended.is_set()
    parent.kill()
    parent.wait(60)
    assert ended.wait(60)
    os.close(child)


_PARENT = """
import signal, sys
from pathlib import Path
from integration.cluster import Process
child = Process("child", [sys.executable, "-c", "import signal; signal.pause()"], Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
signal.pause()
"""


def _wait_for(process: int, ended: threading.Event) -> None:
    import select

    select.select([process], [], [])
    ended.set()


# Java and the jars.


def test_an_archive_of_classes_that_java_does_not_take_changes_nothing(tmp_path: Path) -> None:
    found = resolve()
    (tmp_path / "jars").symlink_to(found.lib)
    runtime = dataclasses.replace(found, lib=tmp_path / "jars")
    command = ("org.apache.hadoop.hbase.util.VersionInfo",)
    assert not any("Archive" in word for word in runtime.command(*command, conf=ROOT, heap_mb=64))
    runtime.archive.parent.mkdir()
    runtime.archive.write_bytes(b"of another Java")
    shared = runtime.command(*command, conf=ROOT, heap_mb=64)
    assert f"-XX:SharedArchiveFile={runtime.archive}" in shared
    done = subprocess.run(shared, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("HBase 2."), done


def test_without_java_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Unavailable, match="apt-get install openjdk-17-jdk-headless"):
        resolve()


def test_without_maven_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _programs(tmp_path / "bin", java="exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install maven"):
        resolve()


def test_a_failing_maven_is_quoted_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _programs(tmp_path / "bin", java="exit 0", mvn="echo no such artefact; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=r"(?s)no such artefact.*try again"):
        resolve()
    assert not list((tmp_path / "tms").glob("hbase-*/"))


def test_of_two_that_resolve_at_once_one_asks_maven(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    maven = (
        f'echo called >> {calls}; for word in "$@"; do case "$word" in '
        '-DoutputDirectory=*) /bin/mkdir -p "${word#*=}";; esac; done'
    )
    _programs(tmp_path / "bin", java="exit 0", mvn=maven)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found: list[Runtime] = []
    threads = [threading.Thread(target=lambda: found.append(resolve())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({runtime.lib for runtime in found}) == 1
    assert found[0].lib.is_dir()
    assert calls.read_text().split() == ["called"]


def _programs(directory: Path, **scripts: str) -> None:
    directory.mkdir()
    for name, script in scripts.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
