"""`tms serve` as a process of its own, on a free port, for tests that fail or limit all of it.

    with Service(path) as service, tms.connect(service.url) as bus: …

It ends with the block, by its process id, and its log is kept.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.faults.forker import Child
from tests.waiting import PATIENCE_S

START_S = 2 * PATIENCE_S
TMS = (sys.executable, "-c", "from tms.cli.main import main; main()")


class Service:
    """One run of `tms serve` on a directory or on HBase (`hbase://…`); with `wait` False the caller
    waits for its start. Without `env` and `before_exec` it is forked by `faults.forker`."""

    def __init__(
        self,
        place: Path | str,
        *flags: str,
        env: Mapping[str, str] | None = None,
        before_exec: Callable[[], None] | None = None,
        wait: bool = True,
    ) -> None:
        kept = "--store" if str(place).startswith("hbase://") else "--data"
        arguments = ["serve", kept, str(place), "--port", "0", "--log-format", "json", *flags]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})}
        stream, its_own = os.pipe()
        self._process: Child | subprocess.Popen[bytes]
        if env is None and before_exec is None:
            self._process = Child("tms.cli.main", arguments, environment, (1, its_own))
        else:  # they may change the start of the interpreter or its libraries
            self._process = subprocess.Popen(
                [*TMS, *arguments], stderr=its_own, env=environment, preexec_fn=before_exec
            )
        os.close(its_own)
        self.pid = self._process.pid
        self.lines: list[str] = []
        self._url = ""
        self._told = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()
        if wait and not (self._told.wait(START_S) and self._url):
            self.kill()
            raise AssertionError(f"the service did not start: {self.lines}")

    @property
    def url(self) -> str:
        return self._url

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self._url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._process.poll() is None:
            self.kill()
        if error is not None:
            error.add_note("the service logged:\n" + "\n".join(self.lines[-20:]))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """Send SIGTERM; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code, once it has ended."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def running(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> bool:
        """True if `/readyz` says so."""
        try:
            with urllib.request.urlopen(f"{self._url}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            assert error.code == 503
            return False

    def resident_bytes(self) -> int:
        """The memory of the process now."""
        return 1024 * self._status("VmRSS")

    def peak_resident_bytes(self) -> int:
        """The peak of its memory since `forget_peak`, or since its start."""
        return 1024 * self._status("VmHWM")

    def forget_peak(self) -> None:
        """Reset the peak of `peak_resident_bytes`; proc(5) explains the 5."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def address_space_bytes(self) -> int:
        """The address space of the process, in memory or not."""
        return 1024 * self._status("VmSize")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = (json.loads(line) for line in self.lines if line.startswith("{"))
        return [line for line in lines if line.get("event") == name]

    def _status(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == field:
                return int(rest.split()[0])
        raise AssertionError(f"/proc has no {field}")

    def _read(self, stream: int) -> None:
        with open(stream, "rb") as lines:
            for line in lines:
                self.lines.append(line.decode(errors="replace").rstrip())
                if '"ready"' in self.lines[-1] and not self._url:
                    self._url = json.loads(self.lines[-1])["url"]
                    self._told.set()
        self._told.set()


def within(seconds: float, happens: Callable[[], bool], every_s: float = 0.05) -> float:
    """Wait until a condition is true; returns the time that took, and fails if it takes too
    long."""
    began = time.monotonic()
    while not happens():
        assert time.monotonic() - began < seconds, f"it did not happen within {seconds} s"
        time.sleep(every_s)
    return time.monotonic() - began


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def metric(service: Service, name: str) -> float:
    """A number of `/metrics`, by its name and labels as printed there."""
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"there is no metric {name}")
