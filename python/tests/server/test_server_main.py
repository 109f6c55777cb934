"""The service as a process: start, refusals to start, draining, logs."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from tests.faults.forker import Child
from tests.http_kit import Client, request
from tests.waiting import PATIENCE_S
from tms import block
from tms.api import bodies, routes
from tms.model.message import NewBlock
from tms.serve.running import end_after

PROGRAM = "tests.server.service_program"
SERVE = f"from {PROGRAM} import main; main()"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Process:
    """A service in a process of its own. It is forked by `faults.forker`, or, with code that runs
    before, an interpreter of its own."""

    def __init__(self, *flags: str, before: str | None = None) -> None:
        stream, its_own = os.pipe()
        self.stderr = os.fdopen(stream, "rb", buffering=0)
        self.process: Child | subprocess.Popen[bytes]
        if before is None:
            self.process = Child(PROGRAM, flags, environment(), (1, its_own))
        else:
            command = [sys.executable, "-c", f"{before}\n{SERVE}", *flags]
            self.process = subprocess.Popen(command, stderr=its_own, env=environment())
        os.close(its_own)
        self.lines: list[bytes] = []

    def ready(self) -> tuple[str, int]:
        """The address at which it listens, once it is ready."""
        url = self.event("ready")["url"]
        host, _, port = url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def event(self, name: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next log line of this event."""
        while select.select([self.stderr], [], [], timeout_s)[0]:
            line = self.stderr.readline()
            assert line, f"it ended: {self.lines}"
            self.lines.append(line)
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"no event {name}: {self.lines}")

    def end(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """End it with this signal; returns its exit code."""
        self.process.send_signal(number)
        while select.select([self.stderr], [], [], timeout_s)[0] and (
            line := self.stderr.readline()
        ):
            self.lines.append(line)
        return self.process.wait(timeout_s)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.stderr.close()


@contextlib.contextmanager
def running(
    path: Path, *flags: str, before: str | None = None
) -> Iterator[tuple[Process, tuple[str, int]]]:
    with Process(f"data={path}", "server.port=0", *flags, before=before) as process:
        yield process, process.ready()


TOPIC = "/v2/namespaces/default/topics/a"
BLOCK = b"".join(bodies.frames([NewBlock(0, block.encode([b"x" * 100]))]))


def test_the_collector_of_cycles_passes_over_what_was_made_at_the_start(tmp_path: Path) -> None:
    counting = """
import gc
from tms.serve import running
async def count(*_):
    print(gc.get_freeze_count(), len(gc.get_objects()))
running._serve = count
"""
    command = [sys.executable, "-c", counting + SERVE, f"data={tmp_path}", "server.port=0"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, timeout=60, env=environment()
    )
    passed_over, looked_at = map(int, done.stdout.split())
    assert passed_over > 20 * looked_at


def test_it_says_when_it_is_ready_and_ends_with_zero_at_sigterm(tmp_path: Path) -> None:
    with running(tmp_path / "data", before="") as (process, address):
        with Client(address) as client:
            assert client.request("GET", "/readyz").json == {
                "ready": True,
                "reasons": [],
                "warnings": [],
            }
            assert client.request("PUT", TOPIC, b"{}").status == routes.CREATED
        assert process.end() == 0
    with running(tmp_path / "data", before="") as (process, address), Client(address) as client:
        assert client.request("GET", TOPIC).status == routes.OK
        assert process.end(signal.SIGINT) == 0


def refusal(*flags: str) -> str:
    """The error of a process that does not start."""
    with TemporaryFile() as printed, TemporaryFile() as said:
        child = Child(PROGRAM, flags, environment(), (printed.fileno(), said.fileno()))
        code = child.wait(PATIENCE_S)
        for file in (printed, said):
            file.seek(0)
        errors = said.read()
        assert code == 3, errors
        assert b"Traceback" not in errors
        return printed.read().decode()


def test_row_66_a_port_in_use_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(f"data={tmp_path / 'data'}", f"server.port={port}")
    assert said.startswith("config ")
    assert str(port) in said
    assert "--port" in said
    assert not (tmp_path / "data").exists()


def test_row_66_a_data_directory_that_cannot_be_is_a_fault_of_the_configuration(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("not a directory")
    said = refusal(f"data={tmp_path / 'file'}", "server.port=0")
    assert said.startswith("config ")
    assert str(tmp_path / "file") in said


def test_a_second_service_on_the_same_data_does_not_start(tmp_path: Path) -> None:
    with running(tmp_path / "data"):
        said = refusal(f"data={tmp_path / 'data'}", "server.port=0")
    assert said.startswith("already-running ")


def test_sigterm_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = [0] * 4
    refused: list[str] = []

    def publish(number: int, address: tuple[str, int]) -> None:
        with Client(address) as client:
            while True:
                try:
                    answer = client.request("POST", f"{TOPIC}/messages", BLOCK, media=routes.BLOCKS)
                except (EOFError, ConnectionError):
                    return
                if answer.status != routes.OK:
                    refused.append(answer.problem)
                    return
                acknowledged[number] += 1

    with running(tmp_path / "data") as (process, address):
        with Client(address) as client:
            client.request("PUT", TOPIC, b"{}")
        threads = [threading.Thread(target=publish, args=(n, address)) for n in range(4)]
        for thread in threads:
            thread.start()
        while min(acknowledged) < 5:
            time.sleep(0.01)
        assert process.end() == 0
        for thread in threads:
            thread.join()
    assert set(refused) <= {"unavailable"}
    with running(tmp_path / "data") as (_, address), Client(address) as client:
        end = client.request("GET", f"{TOPIC}/messages?start=latest").headers["tms-end"]
        assert int(end.removeprefix("0:")) >= sum(acknowledged)


def test_draining_answers_what_was_received_and_shows_in_readyz(tmp_path: Path) -> None:
    with running(tmp_path / "data") as (process, address), contextlib.ExitStack() as stack:
        slow, poll, idle, other = (stack.enter_context(Client(address)) for _ in range(4))
        slow.request("PUT", TOPIC, b"{}")
        assert idle.request("GET", "/livez").status == routes.OK
        sent = request("POST", f"{TOPIC}/messages", BLOCK, media=routes.BLOCKS)
        slow.send(sent[:-1])
        poll.send(request("GET", f"{TOPIC}/messages?start=latest&wait_s=60"))
        other.send(b"GET /readyz HTTP/1.1\r\n")
        with Client(address) as client:  # everything before was received
            assert client.request("GET", "/livez").status == routes.OK
        process.process.send_signal(signal.SIGTERM)
        process.event("draining")
        assert idle.is_closed()
        assert poll.answer().json["messages"] == []
        with Client(address) as late:
            answer = late.request("GET", "/readyz")
            assert answer.status == routes.NOT_READY
            assert "draining" in answer.json["reasons"][0]
            assert late.is_closed()
        backup = f"/v2/backups/{'0' * 32}"
        refused = ("POST", f"{TOPIC}/messages"), ("GET", TOPIC), ("POST", "/v2/backups")
        reading = ("GET", f"{backup}/files"), ("GET", f"{backup}/bytes?file=0"), ("DELETE", backup)
        for method, path in (*refused, *reading):
            with Client(address) as late:
                answer = late.request(method, path, BLOCK, media=routes.BLOCKS)
                assert answer.problem == "unavailable"
                assert answer.headers["retry-after"]
        slow.send(sent[-1:])
        assert slow.answer().status == routes.OK
        assert process.process.wait(PATIENCE_S) == 0


def test_draining_ends_when_its_time_is_over_or_at_the_second_signal(tmp_path: Path) -> None:
    for flag, again in (("server.drain_s=0.3", False), ("server.drain_s=3600", True)):
        with running(tmp_path / "data", flag) as (process, address), Client(address) as client:
            client.request("PUT", TOPIC, b"{}")
            client.send(request("POST", f"{TOPIC}/messages", BLOCK, media=routes.BLOCKS)[:-1])
            with Client(address) as other:
                assert other.request("GET", "/livez").status == routes.OK
            process.process.send_signal(signal.SIGTERM)
            process.event("draining")
            if again:
                process.process.send_signal(signal.SIGTERM)
            process.event("drain_incomplete")
            assert process.process.wait(PATIENCE_S) == 0


def test_logs_are_json_lines_of_at_most_4_kib_without_payloads(tmp_path: Path) -> None:
    with running(tmp_path / "data", "server.log_level=debug") as (process, address):
        with Client(address) as client:
            for _ in range(3):
                client.request("PUT", TOPIC, b'{"secret-payload":"' + b"x" * 50_000 + b'"}')
                client.request("GET", "/" + "%0d%0a%1b" * 500)
        assert process.end() == 0
    for line in process.lines:
        assert len(line) <= 4_096
        assert b"secret-payload" not in line
        assert {"event", "level", "timestamp"} <= json.loads(line).keys()


def test_at_rest_it_needs_at_most_120_mib(tmp_path: Path) -> None:
    with running(tmp_path / "data", before="") as (process, address):
        with Client(address) as client:
            client.request("PUT", TOPIC, b"{}")
            for _ in range(100):
                client.request("POST", f"{TOPIC}/messages", BLOCK, media=routes.BLOCKS)
        status = Path(f"/proc/{process.process.pid}/status").read_text()
        assert int(status.partition("VmRSS:")[2].split()[0]) <= 120 << 10


def test_few_descriptors_are_enough_for_connections_and_the_store(tmp_path: Path) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    with (
        running(tmp_path / "data", before=limited) as (process, address),
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(Client(address))
        assert first.request("PUT", TOPIC, b"{}").status == routes.CREATED
        crowd = [stack.enter_context(Client(address)) for _ in range(400)]
        assert first.request("GET", "/readyz").json["ready"] is True
        answer = first.request("POST", f"{TOPIC}/messages", BLOCK, media=routes.BLOCKS)
        assert answer.status == routes.OK
        assert crowd[-1].is_closed()
        assert process.end() == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_form_of_logs_can_be_chosen(tmp_path: Path, form: str) -> None:
    with Process(
        f"data={tmp_path / 'data'}", "server.port=0", f"server.log_format={form}"
    ) as process:
        line = process.stderr.readline()
        assert b"ready" in line
        assert line.startswith(b"{") is (form == "json")


def test_a_process_that_does_not_close_is_ended_when_its_time_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes: list[int] = []
    ended = threading.Event()
    end_after(0.01, lambda code: (codes.append(code), ended.set()))
    assert ended.wait(PATIENCE_S) and codes == [os.EX_OK]
    assert "closing_incomplete" in caplog.text
