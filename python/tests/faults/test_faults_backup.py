"""A service that is backed up under load, and destroyed: messages acknowledged before the backup
began are restored elsewhere, once, in one order, transactions whole."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import tms
from tests.backup.test_backup import Work, check
from tests.cli_kit import tms_command
from tests.faults.history import read_all
from tests.faults.mending import fsck
from tests.faults.service import TMS, Service, within
from tests.run_seed import one_of
from tests.waiting import PATIENCE_S
from tms.client.client import Bus

pytestmark = pytest.mark.timeout(240)
TOPICS = ("first", "second", "left", "right", "jobs")


def tms_json(*arguments: object) -> Any:
    ended = tms_command(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def facts(bus: Bus, topic: str) -> list[tuple[object, ...]]:
    return [(m.partition, m.offset, str(m.id), m.key, m.value) for m in read_all(bus, topic)]


def by_partition(messages: list[tuple[object, ...]]) -> dict[object, list[tuple[object, ...]]]:
    return {n: [m for m in messages if m[0] == n] for n in {m[0] for m in messages}}


def test_a_service_is_backed_up_under_load_destroyed_and_restored_elsewhere(
    tmp_path: Path,
) -> None:
    backup, place = tmp_path / "backup", tmp_path / "first" / "data"
    with Service(place) as service, tms.connect(service.url, timeout_s=5) as bus:
        work = Work(bus, tables=False)
        with work.going_on():
            work.reach(20)
            full = tms_json("backup", "--to", backup, "--url", service.url)
            work.reach(40)
            known = work.acknowledged()
            kept = tms_json("backup", "--to", backup, "--url", service.url)
            work.reach(min(work.done.values()) + 10)  # these are lost
            before = {topic: facts(bus, topic) for topic in TOPICS}
            work.end()
            service.kill()
            shutil.rmtree(place)
        ever = work.acknowledged()
    assert kept["id"] != full["id"]
    restored = tms_json("restore", "--from", backup, "--data", tmp_path / "second")
    assert restored["id"] == kept["id"]
    with Service(tmp_path / "second") as service, tms.connect(service.url) as bus:
        for topic in TOPICS:
            here, there = by_partition(facts(bus, topic)), by_partition(before[topic])
            for partition, messages in here.items():
                assert messages == there[partition][: len(messages)]
        check(bus, known, ever, tables=False)
        bus.publish("first", b"-1")  # it continues behind them
        assert read_all(bus, "first")[-1].value == b"-1"
        assert service.stop() == 0
    code, said = fsck(tmp_path / "second")
    assert code == 0, said


def test_a_backup_whose_service_is_killed_changes_nothing_and_is_made_anew(tmp_path: Path) -> None:
    backup, place = tmp_path / "backup", tmp_path / "data"
    with Service(place) as service, tms.connect(service.url) as bus:
        bus.create_topic("t", durability="written")
        tms_json("backup", "--to", backup, "--url", service.url)
        whole = (backup / "manifest.json").read_bytes()
        for _ in range(20):
            bus.publish_many("t", [bytes(100_000)] * 20)
        command = [*TMS, "backup", "--to", str(backup), "--url", service.url, "--timeout", "3"]
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        within(
            PATIENCE_S, lambda: any((backup / "incoming").glob("*")) or running.poll() is not None
        )
        service.kill()
        assert running.wait(PATIENCE_S) != 0
    assert (backup / "manifest.json").read_bytes() == whole
    tms_json("restore", "--from", backup, "--data", tmp_path / "restored")
    with Service(place) as service:  # the start removes the rest of the image
        assert not list((place / "temporary").iterdir())
        kept = tms_json("backup", "--to", backup, "--url", service.url)
        assert kept["copied_bytes"] > 40_000_000


def test_a_backup_that_is_killed_holds_nothing_and_the_next_one_is_whole(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with Service(tmp_path / "data") as service, tms.connect(service.url) as bus:
        bus.create_topic("t", durability="written")
        for _ in range(60):  # a backup must not be complete before the kill
            bus.publish_many("t", [bytes(100_000)] * 20)
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            command = [*TMS, "backup", "--to", str(backup), "--url", service.url]
            running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            within(PATIENCE_S, lambda: any((backup / "incoming").glob("*")))
            time.sleep(0.02)
            running.send_signal(number)
            assert running.wait(PATIENCE_S) != 0
            assert not (backup / "manifest.json").exists()
        tms_json("backup", "--to", backup, "--url", service.url)
        restored = tms_json("restore", "--from", backup, "--data", tmp_path / "new")
        assert restored["bytes"] > 40_000_000


def test_workers_refuse_a_backup_and_say_how_their_directory_is_backed_up(tmp_path: Path) -> None:
    place, backup = tmp_path / "data", tmp_path / "backup"
    with Service(place, "--workers", "2") as service, tms.connect(service.url) as bus:
        bus.create_topic("t", partitions=4)
        bus.publish_many("t", [b"%d" % number for number in range(100)])
        for kept in (("--url", service.url), ("--data", str(place))):
            ended = tms_command("backup", "--to", backup, *kept)
            assert ended.returncode in (4, 75), ended.stderr
            assert "stop the service" in ended.stderr or "in use by process" in ended.stderr
        assert not backup.exists()
        assert service.stop() == 0
    tms_json("backup", "--to", backup, "--data", place)
    tms_json("restore", "--from", backup, "--data", tmp_path / "new")
    flags = ("--workers", one_of("workers on what was restored", "12"))
    with Service(tmp_path / "new", *flags) as service, tms.connect(service.url) as bus:
        within(PATIENCE_S, service.ready)
        assert len(read_all(bus, "t")) == 100
        assert service.stop() == 0
