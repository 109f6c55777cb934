"""A process that publishes to a data directory which it opens itself, in steps, and notes
acknowledgements.

    python publisher.py DATA LEDGER     all steps in one go, for a recording
    python publisher.py                 forks a child for each line `DATA LEDGER STEP` that it reads

A child makes the steps before STEP and stops itself (SIGSTOP); then its process id is printed.
Continued, it makes STEP; then its exit code is printed. Forking saves the start of the interpreter
for each of the many points at which tests kill it.
"""

import ctypes
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import tms
from tests.databases import obey
from tests.faults.history import SYNCED, WRITTEN, Ledger, value_of
from tms.block import encode
from tms.client.client import Bus
from tms.log.partition import LogLimits

STEPS = ("create", "roll", "delete", "reopen")
LIMITS = LogLimits(segment_bytes=24 << 10, snapshot_bytes=10 << 10)
PARTITIONS = 2
_BIG = 900_000  # five of these fill a write buffer of LevelDB
_PR_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)


class Publisher:
    """Works on one data directory, one step after the other."""

    def __init__(self, data: Path, ledger: Ledger) -> None:
        self._data = data
        self._ledger = ledger
        self._bus: Bus | None = None
        self._lives = {"": 0}
        self._next: dict[str, int] = {}

    def make(self, step: str) -> None:
        """Make one of `STEPS`."""
        match step:
            case "create":
                self._create("first")
                self._publish("first", 6)
            case "roll":
                self._publish("first", 40)
            case "delete":
                self._delete("first")
                self._create("first")
                self._publish("first", 6)
            case "reopen":  # with large segments, so that logs become tables
                self._close()
                self._bus = tms.open(self._data, threads=2)
                self._create("big")
                self._publish("big", 10, _BIG)
                self._close()

    def _open(self) -> Bus:
        if self._bus is None:
            self._bus = open_bus(self._data)
        return self._bus

    def _create(self, topic: str) -> None:
        life = self._lives.get(topic, 0) + 1
        self._lives[topic], self._next[topic] = life, 0
        self._ledger.note("creating", topic, life, PARTITIONS)
        self._open().create_topic(topic, partitions=PARTITIONS)
        self._ledger.note("created", topic)

    def _publish(self, topic: str, count: int, size: int = 0) -> None:
        bus = self._open()
        for number in range(self._next[topic], self._next[topic] + count):
            self._next[topic] = number + 1
            durability = WRITTEN if number % 5 in (1, 2) else SYNCED
            value = value_of(self._lives[topic], number, size)
            self._ledger.note("try", topic, number)
            id = bus.publish(topic, value, partition=number % PARTITIONS, durability=durability)
            self._ledger.note("ack", topic, number, str(id), durability)

    def _delete(self, topic: str) -> None:
        self._ledger.note("deleting", topic)
        self._open().delete_topic(topic)
        self._ledger.note("deleted", topic)

    def _close(self) -> None:
        if self._bus is not None:
            self._bus.close()
        self._bus = None


def open_bus(data: Path) -> Bus:
    """A bus as the publisher's, with small segments."""
    return tms.open(data, log=LIMITS, threads=2)


def serve() -> None:
    """Fork a child for every line of standard input, one after the other."""
    obey()
    for module in ("tms.engine.engine", "tms.store.leveldb"):
        import_module(module)
    encode([b""])  # pyarrow loads the rest of itself with the first block
    for line in sys.stdin:
        data, ledger, step = line.split()
        child = os.fork()
        if child == 0:
            _child(Path(data), Path(ledger), step)
        _, status = os.waitpid(child, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the child ended before its step"
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _child(data: Path, ledger: Path, step: str) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        publisher = Publisher(data, Ledger(ledger))
        for before in STEPS[: STEPS.index(step)]:
            publisher.make(before)
        os.kill(os.getpid(), signal.SIGSTOP)
        publisher.make(step)
        code = 0
    finally:
        os._exit(code)


def main(data: str, ledger: str) -> None:
    obey()
    publisher = Publisher(Path(data), Ledger(Path(ledger)))
    for step in STEPS:
        publisher.make(step)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else serve()
