"""The unit, checked by systemd itself, and the service's notifications to systemd."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.service import Service
from tests.tls_kit import Authority
from tests.waiting import until
from tms.serve.config_sources import load
from tms.server.systemd import SystemdNotifier, without_systemd

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "docker" / "systemd" / "tms.service"
EXPOSURE_MAX = 1.5  # of 10, as `systemd-analyze security` counts
WAIT_S = 30


class Systemd:
    """The socket of systemd: the received datagrams, in order."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self.wait_s(WAIT_S)
        self.told: list[str] = []

    def close(self) -> None:
        self._socket.close()

    def wait_s(self, seconds: float) -> None:
        """Wait so long for each datagram; then raise `TimeoutError`."""
        self._socket.settimeout(seconds)

    def next(self) -> list[str]:
        """The lines of the next datagram."""
        lines = self._socket.recv(65_536).decode().split("\n")
        self.told += lines
        return lines

    def until(self, line: str) -> list[str]:
        """The first datagram that has this line."""
        while line not in (lines := self.next()):
            pass
        return lines


def closed_port() -> int:
    """A port at which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    receiver = Systemd(str(tmp_path / "notify"))
    yield receiver
    receiver.close()


# The unit.


def _unit(tmp_path: Path) -> Path:
    """The unit, with programs that this machine has."""
    program = tmp_path / "tms"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/tms/bin/tms", str(program)))
    return path


def test_systemd_has_nothing_to_say_against_the_unit(tmp_path: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(_unit(tmp_path))]
    verified = subprocess.run(command, capture_output=True, text=True)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_systemd_has_something_to_say_against_a_misspelt_option(tmp_path: Path) -> None:
    path = _unit(tmp_path)
    path.write_text(path.read_text().replace("ProtectHome=", "ProtectHouse="))
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    verified = subprocess.run(command, capture_output=True, text=True)
    assert "ProtectHouse" in verified.stderr


def test_the_unit_exposes_little() -> None:
    limit = f"--threshold={EXPOSURE_MAX * 10:.0f}"
    command = ["systemd-analyze", "security", "--offline=true", limit, "--no-pager", str(UNIT)]
    judged = subprocess.run(command, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stdout


def test_settings_in_the_unit_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = UNIT.read_text()
    named = re.findall(r"(TMS__\w+)=(\S+)", text)
    assert len(named) == 4  # the data, a certificate, its key, a secret
    for name, value in named:
        if name == "TMS__STORE_FILE":
            (tmp_path / "store").write_text("hbase://hbase:9090")
            value = str(tmp_path / "store")
        monkeypatch.setenv(name, value)
        if name.startswith("TMS__STORE"):
            monkeypatch.delenv("TMS__DATA")
    settings = load(None, {})
    assert settings.store == "hbase://hbase:9090"
    assert settings.tls.cert == "%d/tls.crt"


def test_systemd_waits_longer_than_the_service_drains() -> None:
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)s$", UNIT.read_text(), re.M)
    assert int(stop_s) > 2 * load(None, {"data": "x"}).server.drain_s


def test_files_that_the_page_of_deploying_names_are_there() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    named = set(re.findall(r"\b(?:docker/[\w./-]+|compose[\w.]*\.yaml|requirements\.lock)", text))
    assert {"docker/systemd/tms.service", "docker/chart", "compose.node.yaml"} <= named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "docker" / name).exists(), name


# The notifications of the service.


def test_systemd_is_told_of_start_life_reload_and_end(tmp_path: Path, systemd: Systemd) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with Service(tmp_path / "data", env=env) as service:
        assert f"STATUS=Serving {service.url}" in systemd.until("READY=1")
        for _ in range(3):
            systemd.until("WATCHDOG=1")
        os.kill(service.pid, signal.SIGHUP)  # without a certificate there is nothing to read
        systemd.until("RELOADING=1")
        systemd.until("READY=1")
        os.kill(service.pid, signal.SIGTERM)
        systemd.until("STOPPING=1")


def test_a_certificate_has_been_read_anew_when_systemd_is_told_so(
    tmp_path: Path, systemd: Systemd
) -> None:
    (tmp_path / "ca").mkdir()
    cert, key = Authority(tmp_path / "ca").sign("localhost").pair
    flags = ("--tls-cert", cert, "--tls-key", key)
    with Service(tmp_path / "data", *flags, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as one:
        systemd.until("READY=1")
        os.kill(one.pid, signal.SIGHUP)
        systemd.until("RELOADING=1")
        systemd.until("READY=1")
        until(lambda: bool(one.events("certificate_reloaded")))


def test_systemd_is_told_of_workers_by_their_supervisor_only(
    tmp_path: Path, systemd: Systemd
) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with Service(tmp_path / "data", "--workers", "2", env=env) as service:
        systemd.until("READY=1")
        systemd.until("WATCHDOG=1")
        os.kill(service.pid, signal.SIGHUP)
        systemd.until("RELOADING=1")
        systemd.until("READY=1")
        os.kill(service.pid, signal.SIGTERM)
        systemd.until("STOPPING=1")
    assert systemd.told.count("READY=1") == 2  # at its start, and after the reload


def test_systemd_is_told_that_the_store_is_waited_for(tmp_path: Path, systemd: Systemd) -> None:
    nobody = f"hbase://127.0.0.1:{closed_port()}"
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    service = Service(nobody, "--call-timeout-s", "2", env=env, wait=False)
    try:
        systemd.wait_s(90)  # the store retries for a while by itself
        (line,) = systemd.next()
        assert line.startswith("STATUS=Waiting for the store: ")
    finally:
        service.kill()


def test_a_loop_that_hangs_is_not_called_alive(tmp_path: Path, systemd: Systemd) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with Service(tmp_path / "data", env=env) as service:
        systemd.until("WATCHDOG=1")
        os.kill(service.pid, signal.SIGSTOP)
        systemd.wait_s(1.0)
        try:
            with pytest.raises(TimeoutError):
                while True:
                    systemd.next()
        finally:
            os.kill(service.pid, signal.SIGCONT)


def test_without_a_systemd_socket_nothing_is_notified() -> None:
    notifier = SystemdNotifier({"WATCHDOG_USEC": "1000000"})
    assert (notifier.listens, notifier.watchdog_s) == (False, 0.0)
    notifier.ready("http://127.0.0.1:7070")


def test_a_socket_that_is_gone_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with caplog.at_level("WARNING"):
        notifier.alive()
        notifier.alive()
    assert sum("systemd_not_told" in record.getMessage() for record in caplog.records) == 1


def test_an_abstract_socket_is_told() -> None:
    name = f"tms-test-{os.getpid()}"
    receiver = Systemd(f"\0{name}")
    try:
        SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"}).status("two\nlines\nREADY=1")
        assert receiver.next() == ["STATUS=two lines READY=1"]  # no text becomes a line of its own
    finally:
        receiver.close()


@pytest.mark.parametrize(
    ("usec", "pid", "watchdog_s"),
    [
        ("30000000", "", 30.0),
        ("30000000", str(os.getpid()), 30.0),
        ("30000000", "1", 0.0),
        ("", "", 0.0),
        ("soon", "", 0.0),
    ],
    ids=["of anybody", "of this process", "of another process", "none", "no number"],
)
def test_the_watchdog_is_that_of_this_process(usec: str, pid: str, watchdog_s: float) -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
    assert SystemdNotifier(environment).watchdog_s == watchdog_s


def test_a_child_is_not_given_what_is_for_its_parent() -> None:
    environment = {"PATH": "/bin", "NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    assert without_systemd(environment) == {"PATH": "/bin"}
