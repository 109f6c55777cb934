"""Faults 4 and 5: a disk that is full, and one that fails once, under a service with publishers."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from tests.databases import make_directory
from tests.faults.full_disk import SmallFiles, small_disk
from tests.faults.history import read_all
from tests.faults.load import Load
from tests.faults.service import Service, within
from tests.faults.strace import strace
from tests.http_kit import Client
from tests.waiting import PATIENCE_S
from tms.api import routes

DISK_BYTES = 48 << 20
TOPIC, OTHER = "load", "other"
LARGE_BYTES = 64 << 10  # several pages: does not fit into space that a file already has
NOT_READY_S = 1.0
RECOVERY_S = 5.0
SLACK_S = 20.0  # for a busy machine


@pytest.mark.parametrize("mount", [True, False], ids=["tmpfs", "file-size limit"])
def test_fault_4_a_full_disk_is_told_reads_go_on_and_publishing_recovers_by_itself(
    mount: bool, tmp_path: Path, database: str
) -> None:
    with (
        small_disk(tmp_path / "disk", mount, DISK_BYTES) as disk,
        Service(make_directory(disk.path / "data")) as service,
        tms.connect(service.url) as bus,
        Load(service.url, TOPIC, publishers=4, timeout_s=60) as load,
    ):
        left_bytes = 256 << 10
        if isinstance(disk, SmallFiles):
            disk.process_id, left_bytes = service.pid, 0
        bus.create_topic(OTHER)
        within(PATIENCE_S, lambda: load.acknowledged() > 100)

        disk.fill(left_bytes)
        within(PATIENCE_S, lambda: publish(service, LARGE_BYTES) == (507, "storage-full"))
        within(NOT_READY_S + SLACK_S, lambda: not service.ready())
        before = dict(load.history.acknowledged)
        there = {str(message.id) for message in read_all(bus, TOPIC)}
        assert set(before.values()) <= there, "an acknowledged message cannot be read"
        time.sleep(1.5)
        assert not service.ready()
        assert publish(service, LARGE_BYTES) == (507, "storage-full")

        disk.free()
        within(RECOVERY_S + SLACK_S, lambda: publish(service)[0] == routes.OK)
        within(RECOVERY_S + SLACK_S, service.ready)
        published = load.acknowledged()
        within(PATIENCE_S, lambda: load.acknowledged() > published + 100)
        load.stop()
        assert not load.errors, load.errors
        messages = read_all(bus, TOPIC)
        load.history.check(messages)
        assert len(messages) == len(load.history.tried), "a repeated publish was stored twice"
        assert service.stop() == 0


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_fault_5_an_io_error_is_a_short_outage_and_a_repeated_publish_gives_one_copy(
    call: str, tmp_path: Path, database: str
) -> None:
    data = make_directory(tmp_path / "data")
    with (
        Service(data) as service,
        tms.connect(service.url) as bus,
        Load(service.url, TOPIC, publishers=2, timeout_s=60) as load,
    ):
        bus.create_topic(OTHER)
        assert publish(service)[0] == routes.OK
        within(PATIENCE_S, lambda: load.acknowledged() > 50)
        with failing(service, call, sorted((data / "maps").glob("t*/*.log"))):
            said = publish(service)
            assert said == (503, "storage-unavailable"), said
            within(RECOVERY_S + SLACK_S, lambda: publish(service)[0] == routes.OK)
            published = load.acknowledged()
            within(PATIENCE_S, lambda: load.acknowledged() > published + 50)
        within(RECOVERY_S + SLACK_S, service.ready)
        load.stop()
        assert not load.errors, load.errors
        messages = read_all(bus, TOPIC)
        load.history.check(messages)
        assert len(messages) == len(load.history.tried), "a repeated publish was stored twice"
        assert service.events("partition_recovered") or service.events("map_recovered")
        assert service.stop() == 0
    with tms.open(data) as own:
        load.history.check(read_all(own, TOPIC))


@contextlib.contextmanager
def failing(service: Service, call: str, files: list[Path]) -> Iterator[None]:
    """Let every such call on these files fail, once for each file: recovery continues in new
    files."""
    paths = [word for file in files for word in ("-P", str(file))]
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:error=EIO"]
    tracer = subprocess.Popen(
        [strace(), "-f", "-o", os.devnull, *paths, *inject, "-p", str(service.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    try:
        attached = tracer.stderr.readline()
        while "attached" not in attached:
            assert attached, "strace does not attach"
            attached = tracer.stderr.readline()
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=PATIENCE_S)


def publish(service: Service, value_bytes: int = 1) -> tuple[int, str]:
    """Publish to `OTHER` without a client that repeats; returns status and code of the problem."""
    path = f"/v2/namespaces/default/topics/{OTHER}/messages"
    with Client(service.address) as client:
        body = json.dumps({"messages": [{"value": "x" * value_bytes}]}).encode()
        answer = client.request("POST", path, body)
        return answer.status, "" if answer.status == routes.OK else answer.problem
