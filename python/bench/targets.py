"""The measured systems: an embedded bus, a service in its own process, raw LevelDB; their messages.

Every target lives in a fresh directory below the runner's directory, and removes it.
"""

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import plyvel

import tms
from bench import machine
from integration.cluster.site import free_ports
from tms.client.client import Bus
from tms.engine.engine import Engine
from tms.runtime.clock import SystemClock
from tms.store.leveldb import WRITE_BUFFER_BYTES
from tms.store.leveldb.store import LevelDBStore

START_S = 20.0
STOP_S = 30.0
_VALUES = 4_096
TOPIC = "measured"


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a run, for every benchmark."""

    folder: Path
    quick: bool
    runs: int

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A new empty directory, removed afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def values(size: int, count: int = _VALUES) -> list[bytes]:
    """Different messages of `size` bytes that look like JSON records, equal in every call."""
    seeded = random.Random(size)
    made = []
    for number in range(count):
        head = b'{"id":%d,"user":"u%06d","pad":"' % (number, seeded.randrange(10**6))
        pad = seeded.randbytes(max(0, size - len(head) - 2) // 2 + 1).hex().encode()
        made.append((head + pad)[: size - 2] + b'"}')
    return made


@dataclass(frozen=True, slots=True)
class Embedded:
    """An engine in this process and the bus on it."""

    engine: Engine
    bus: Bus

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path) -> Iterator["Embedded"]:
        """A bus as `tms.open` makes it, with the engine at hand for its counters."""
        clock = SystemClock()
        engine = Engine(LevelDBStore(path, create=True, clock=clock), clock)
        engine.start()
        bus = Bus(engine, clock=clock)
        try:
            yield cls(engine, bus)
        finally:
            bus.close()


@dataclass(frozen=True, slots=True)
class Service:
    """`tms serve` in a process of its own, and a bus connected to it."""

    url: str
    pid: int
    bus: Bus

    @classmethod
    @contextlib.contextmanager
    def start(cls, path: Path, *flags: str, ca: Path | None = None) -> Iterator["Service"]:
        """Serve the directory on a free port until the block ends; over TLS with `ca`."""
        url = f"http{'' if ca is None else 's'}://127.0.0.1:{free_ports(1)[0]}"
        command = [str(Path(sys.executable).with_name("tms")), "serve"]
        options = ["--data", str(path / "data"), "--port", url.rpartition(":")[2]]
        with (path / "service.log").open("wb") as log:
            process = subprocess.Popen([*command, *options, *flags], stdout=log, stderr=log)
        try:
            with tms.connect(url, ca=ca) as bus:
                _wait_until_ready(bus, process, path / "service.log")
                yield cls(url, process.pid, bus)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def workers(self) -> list[int]:
        """The processes that the service has started."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def memory_mib(self) -> dict[str, float]:
        """The service's memory."""
        return machine.memory_mib(self.pid)

    def metric(self, name: str) -> float:
        """A number of the service's `/metrics`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def _wait_until_ready(bus: Bus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            next(bus.list_topics(), None)
            return
        except tms.TMSError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"The service did not start: {log.read_text()}") from error


@contextlib.contextmanager
def raw_leveldb(path: Path) -> Iterator[plyvel.DB]:
    """A database with the options of the LevelDB store and nothing around it."""
    database = plyvel.DB(
        str(path / "raw"),
        create_if_missing=True,
        paranoid_checks=True,
        compression=None,
        write_buffer_size=WRITE_BUFFER_BYTES,
    )
    try:
        yield database
    finally:
        database.close()
