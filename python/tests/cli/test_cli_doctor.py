"""`tms doctor` finds planted faults, and says how to mend them."""

import contextlib
import errno
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

import tms
from tms.cli.checks import directory, machine, service
from tms.cli.checks.finding import Finding, Status
from tms.cli.checks.machine import Machine
from tms.cli.checks.probe import Who, ask

NOW_MS = 1_800_000_000_000


class FixedClock:
    """A clock that stands still."""

    def __init__(self, ms: int = NOW_MS) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return 0.0


def _mounts(tmp_path: Path, text: str) -> None:
    (tmp_path / "mounts").write_text(text)


@pytest.fixture
def healthy(tmp_path: Path) -> Machine:
    """A machine without faults."""
    _mounts(tmp_path, "/dev/sda1 / ext4 rw,relatime 0 0\n")
    return Machine(
        mounts=tmp_path / "mounts",
        environ={},
        limit=lambda name: -1,
        clock=FixedClock(),
        temporary=lambda: str(tmp_path),
    )


def _only(name: str, value: int) -> Callable[[str], int]:
    return lambda asked: value if asked == name else -1


def _no_temporary() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


MACHINE_PLANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "few descriptors": ("open files", {"limit": _only("RLIMIT_NOFILE", 256)}),
    "a limit on threads": ("threads", {"limit": _only("RLIMIT_NPROC", 100)}),
    "a clock in the past": ("clock", {"clock": FixedClock(0)}),
    "a clock far ahead": ("clock", {"clock": FixedClock(10 * NOW_MS)}),
    "no temporary directory": ("temporary files", {"temporary": _no_temporary}),
    "a misspelt variable": ("environment", {"environ": {"TMS_URLL": "http://x"}}),
}


def _bad(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {one.check: one for one in findings if one.status is not Status.OK}


def test_a_healthy_machine_gets_no_advice(healthy: Machine) -> None:
    assert _bad(machine.check(healthy)) == {}


@pytest.mark.parametrize("plant", MACHINE_PLANTS)
def test_a_planted_fault_of_the_machine_is_found(healthy: Machine, plant: str) -> None:
    check, changes = MACHINE_PLANTS[plant]
    found = _bad(machine.check(replace(healthy, **changes)))
    assert set(found) == {check}
    assert found[check].fix


def test_a_misspelt_variable_is_told_its_nearest_name(healthy: Machine) -> None:
    found = _bad(machine.check(replace(healthy, environ={"TMS_DTAA": "x"})))
    assert "TMS_DATA" in str(found["environment"].fix)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory in our format, as far as doctor checks it."""
    path = tmp_path / "data"
    (path / "maps").mkdir(parents=True)
    (path / "FORMAT").write_text('{"format": 2, "store": "leveldb"}')
    (path / "LOCK").write_text("1")
    path.chmod(0o700)
    return path


def test_a_healthy_data_directory_gets_no_advice(healthy: Machine, data: Path) -> None:
    bad = _bad(directory.check(data, healthy))
    assert set(bad) <= {"disk space"}  # of the test machine


def test_a_data_directory_that_is_a_file_is_found(healthy: Machine, data: Path) -> None:
    assert "data directory" in _bad(directory.check(data / "LOCK", healthy))


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701])
def test_a_data_directory_that_others_may_write_or_read_is_found(
    healthy: Machine, data: Path, mode: int
) -> None:
    data.chmod(mode)
    found = _bad(directory.check(data, healthy))["rights of the data directory"]
    assert found.fix == f"chmod 700 {data}"


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4", "fuse.sshfs", "overlay"])
def test_a_file_system_that_forgets_or_pretends_is_found(
    healthy: Machine, data: Path, tmp_path: Path, kind: str
) -> None:
    _mounts(tmp_path, f"x {data} {kind} rw 0 0\n")
    assert _bad(directory.check(data, healthy))["file system"].fix


def test_a_read_only_mount_is_found(healthy: Machine, data: Path, tmp_path: Path) -> None:
    _mounts(tmp_path, f"/dev/sda1 / ext4 rw 0 0\nx {data} ext4 ro,x 0 0\n")
    assert "read-only" in _bad(directory.check(data, healthy))["file system"].found


def test_a_full_disk_is_found(
    healthy: Machine, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = directory.shutil.disk_usage(data)
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda path: usage._replace(free=1))
    assert "disk space" in _bad(directory.check(data, healthy))


def test_checking_changes_nothing_in_the_data_directory(healthy: Machine, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (*data.rglob("*"), data)}
    list(directory.check(data, healthy))
    after = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    assert set(after) == set(before) - {data}
    assert all(before[path] == stamp for path, stamp in after.items())


@contextlib.contextmanager
def _listener(answer: bytes | None, wait: bool = False) -> Iterator[int]:
    """A server that answers every connection with `answer`; with None it accepts and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    held.append(connection)
                    if wait:
                        continue
                    connection.recv(4096)
                    if answer:
                        connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in held:
            connection.close()


def _http(body: bytes, headers: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


WRONG_ANSWERS = {
    "nginx without TLS": (_http(b"<html>"), Who.OTHER_HTTP, "not TMS"),
    "a TLS alert": (b"\x15\x03\x01\x00\x02\x02\x46", Who.TLS, "https://"),
    "a TLS server that explains itself": (
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.",
        Who.TLS,
        "https://",
    ),
    "Redis": (b"-ERR unknown command\r\n", Who.OTHER_PROTOCOL, "Redis"),
    "NATS": (b'INFO {"server_id"', Who.OTHER_PROTOCOL, "NATS"),
    "SSH": (b"SSH-2.0-OpenSSH\r\n", Who.OTHER_PROTOCOL, "SSH"),
    "RabbitMQ": (b"AMQP\x00\x00\x09\x01", Who.OTHER_PROTOCOL, "RabbitMQ"),
    "Kafka": (None, Who.SILENT, "Kafka"),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_who_answers_instead_of_tms_is_named(name: str) -> None:
    answer, who, words = WRONG_ANSWERS[name]
    with _listener(answer) as port:
        found = ask(f"http://127.0.0.1:{port}", "/", timeout_s=5)
    assert found.who is who
    assert words in f"{found.found} {found.next}"


def test_https_to_a_service_without_tls_is_named() -> None:
    with _listener(_http(b"{}")) as port:
        assert ask(f"https://127.0.0.1:{port}", "/", timeout_s=5).who is Who.PLAIN


def test_a_port_without_a_service_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert ask(f"http://127.0.0.1:{port}", "/", timeout_s=5).who is Who.REFUSED


def test_a_host_that_does_not_exist_is_named() -> None:
    assert ask("http://no-such-host.invalid:7070", "/", timeout_s=5).who is Who.UNKNOWN_HOST


def test_a_service_that_never_answers_is_given_up_in_time() -> None:
    with _listener(None, wait=True) as port:
        assert ask(f"http://127.0.0.1:{port}", "/", timeout_s=0.2).who is Who.SILENT


@pytest.mark.parametrize("url", ["127.0.0.1:7070", "ftp://x", "http://", "http://[::1", "tms"])
def test_a_text_that_is_not_a_url_is_named(url: str) -> None:
    assert ask(url, "/", timeout_s=1).who is Who.BAD_URL


def test_a_service_that_is_not_ready_of_another_version_and_time_is_found(healthy: Machine) -> None:
    body = b'{"name": "tms", "version": "9.9", "reasons": ["the disk is full"]}'
    with _listener(_http(body, f"Date: {formatdate(NOW_MS / 1000 - 60)}\r\n")) as port:
        found = _bad(service.check(f"http://127.0.0.1:{port}/v2", True, healthy))
    assert set(found) == {"URL", "version of the service", "readiness", "clocks"}
    assert "the disk is full" in found["readiness"].found
    assert "ahead" in found["clocks"].found


def test_a_ready_service_with_warnings_is_found_with_their_remedies(healthy: Machine) -> None:
    warned = "The clock of the instance b is 20.0 s behind. Let NTP set the clocks."
    body = json.dumps({"name": "tms", "version": tms.__version__, "warnings": [warned]}).encode()
    date = f"Date: {formatdate(NOW_MS / 1000)}\r\n"
    with _listener(_http(body, date)) as port:
        found = _bad(service.check(f"http://127.0.0.1:{port}", True, healthy))
    assert set(found) == {"readiness"}
    assert (found["readiness"].found, found["readiness"].status) == (warned, Status.WARNING)
    assert found["readiness"].fix == "do what each warning says"


def test_messages_in_clear_text_over_a_network_are_found(healthy: Machine) -> None:
    found = _bad(service.check("http://no-such-host.invalid", True, healthy))
    assert set(found) == {"encryption", "service"}
