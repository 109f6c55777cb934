"""Drivers of Spark that are killed at the requests they make, and the gate that kills them.

    Gate    between Spark and the service: counts requests, and strikes at the nth of a kind
    Life    a driver with its JVM, executors and Python workers, from its start to its end

Only processes of the session that a life has begun are killed.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Self

from tests.faults import streaming
from tests.faults.service import within
from tests.proxy import Reader
from tests.spark_kit import home
from tests.tcp_proxy import TcpProxy

WAIT_S = 150.0  # longer than the client repeats a request
KILLED_S = 30.0


class Moment(Enum):
    """The moment of a strike at a request."""

    LOST = auto()  # before the service gets it, which it never does
    BEFORE_NEXT = auto()  # likewise, but the service gets it just before the next such request
    AFTER_NEXT = auto()  # … or after the answer to it
    DONE = auto()  # after it took effect; the answer is lost
    ANSWERED = auto()  # while the answer is on its way


@dataclass(frozen=True)
class Strike:
    """An action at the nth request of a kind, counted from the strike before."""

    kind: str  # of `kind_of`
    nth: int
    moment: Moment
    act: Callable[[], None]
    delay_s: float = 0.0


class Gate(TcpProxy):
    """A proxy between Spark and the service."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, WAIT_S)
        self.url = f"http://127.0.0.1:{self.port}"
        self.late: list[int] = []  # by request that came late, the status of its answer
        self.failed: list[AssertionError] = []  # of strikes
        self._held: list[tuple[Strike, bytes]] = []
        self._strikes: deque[Strike] = deque()
        self._counted = 0
        self._deciding = threading.Lock()

    def script(self, *strikes: Strike) -> None:
        """Set the coming strikes, one after the other."""
        with self._deciding:
            self._strikes = deque(strikes)
            self._counted = 0

    @property
    def left(self) -> int:
        """The number of strikes that have not happened."""
        return len(self._strikes)

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Relay one request after the other, each with a strike or none."""
        requests, answers = Reader(client), Reader(server)
        while request := requests.message():
            kind = kind_of(request)
            strike = self._due(kind)
            if strike is not None and strike.moment not in (Moment.DONE, Moment.ANSWERED):
                self._act(strike)
                if strike.moment is not Moment.LOST:
                    self._held.append((strike, request))
                return
            self._deliver(kind, Moment.BEFORE_NEXT)
            server.sendall(request)
            answer = answers.message()
            if strike is not None and strike.moment is Moment.DONE:
                self._act(strike)
                return
            self._deliver(kind, Moment.AFTER_NEXT)
            client.sendall(answer)
            if strike is not None:
                self._act(strike)

    def _act(self, strike: Strike) -> None:
        self.pause(strike.delay_s)
        try:
            strike.act()
        except AssertionError as error:
            self.failed.append(error)

    def _due(self, kind: str) -> Strike | None:
        with self._deciding:
            if not self._strikes or self._strikes[0].kind != kind:
                return None
            self._counted += 1
            if self._counted < self._strikes[0].nth:
                return None
            self._counted = 0
            return self._strikes.popleft()

    def _deliver(self, kind: str, moment: Moment) -> None:
        with self._deciding:
            due = [held for held in self._held if held[0].kind == kind and held[0].moment is moment]
            self._held = [held for held in self._held if held not in due]
        for _, request in due:
            with self.dial() as server:
                server.sendall(request)
                self.late.append(int(Reader(server).message().split(b" ", 2)[1]))


def kind_of(request: bytes) -> str:
    """The last word of a request's path."""
    return request.split(b" ", 2)[1].partition(b"?")[0].rpartition(b"/")[2].decode()


class Life:
    """A run of `streaming.py`, in a session of processes of its own."""

    def __init__(self, job: str, master: str, url: str, folder: Path, name: str) -> None:
        self._log = folder / f"{name}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SPARK_HOME": str(home(folder)),
            "TMPDIR": str(folder),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, streaming.__file__, job, master, url, str(folder), name],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.kill()
        self._process.wait()
        if error is not None:
            error.add_note(f"the driver said:\n{self._log.read_text(errors='replace')[-8_000:]}")

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its exit code; None if it has not ended by then."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill everything at once, as when a machine dies."""
        within(KILLED_S, lambda: not _killed(self._processes()))  # just forked processes, too

    def kill_driver(self) -> None:
        """Kill the driver and its JVM; executors and Python workers stay."""
        there = self._processes()
        found = {
            pid: line for pid, line in there.items() if pid == self.pid or "SparkSubmit" in line
        }
        assert _killed(found) == 2, f"the driver and its JVM are two: {found}"

    def kill_executors(self) -> None:
        """Kill the JVMs of all executors, once there are some."""
        within(WAIT_S, lambda: self._kill("CoarseGrainedExecutorBackend") > 0)

    def kill_source(self) -> None:
        """Kill the driver's Python process that plans the stream's reads."""
        assert self._kill("python_streaming_source_runner"), "there was no source"

    def kill_sink(self) -> None:
        """Kill the driver's Python processes that commit."""
        assert self._kill("python_streaming_sink_runner"), "there was no sink"

    def kill_workers(self) -> None:
        """Kill the Python processes in which tasks run."""
        assert self._kill("pyspark.daemon pyspark.worker"), "there was no worker"

    def _kill(self, what: str) -> int:
        return _killed({pid: line for pid, line in self._processes().items() if what in line})

    def _processes(self) -> Mapping[int, str]:
        """Command lines of all processes of the session, by process id."""
        found = {}
        for place in Path("/proc").iterdir():
            if not place.name.isdecimal():
                continue
            try:
                state, _, _, session = (place / "stat").read_text().rpartition(") ")[2].split()[:4]
                if int(session) == self.pid and state not in "ZX":
                    words = (place / "cmdline").read_bytes().split(b"\0")
                    found[int(place.name)] = b" ".join(words).decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
        return found


def _killed(processes: Mapping[int, str]) -> int:
    """Send SIGKILL; returns the number of processes."""
    count = 0
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
            count += 1
        except ProcessLookupError:
            continue
    return count
