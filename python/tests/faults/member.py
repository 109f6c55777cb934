"""A process that is a member of the group `g` of the topic `in`, until it is killed. Its arguments,
with which `faults.forker` starts it:

    URL SESSION_S exactly-once|at-least-once
    URL LEASE_S queue

Exactly once, it makes a message in `out` of each message, in a transaction; at least once, it only
prints each message. A line on standard output for each: `did VALUE`, or `fenced VALUE` if its
commit came too late; then it begins anew, as another member. In a queue it works likewise, as one
of its workers, and dies of a message `poison`.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Self

import tms
from tests.faults.forker import Child
from tests.waiting import PATIENCE_S
from tms.client.client import Bus
from tms.errors import Conflict, Fenced, TimedOut, Unavailable


def say(what: str, value: bytes | None) -> None:
    os.write(1, b"%s %s\n" % (what.encode(), value or b""))


def work(bus: Bus, session_s: float, delivery: str) -> None:
    with bus.consumer(
        "in", group=tms.Group("g", delivery=delivery, session_s=session_s)
    ) as consumer:
        for message in consumer:
            if delivery == "exactly-once":
                try:
                    with bus.transaction() as tx:
                        tx.send("out", message.value)
                        tx.ack(consumer)
                except Fenced:
                    say("fenced", message.value)
                    return
                except Conflict:  # its answer came late: the new owner was told before
                    say("conflict", message.value)
                    return
            say("did", message.value)


def take(bus: Bus, lease_s: float) -> None:
    queue = bus.queue("in", group="g", lease_s=lease_s, deliveries_max=3, backoff_first_s=0.05)
    try:
        messages = queue.receive(4, wait_s=1)
    except (Unavailable, TimedOut):  # the service was killed during the answer: not repeated
        return
    for message in messages:
        if message.value == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            with bus.transaction() as tx:
                tx.send("out", message.value)
                tx.ack(queue, message)
        except Fenced:
            say("fenced", message.value)
        else:
            say("did", message.value)


class Process:
    """A member process; `said` has its output so far."""

    def __init__(self, url: str, session_s: float, delivery: str) -> None:
        stream, its_own = os.pipe()
        arguments = [url, str(session_s), delivery]
        self._process = Child("tests.faults.member", arguments, os.environ, (its_own, 2))
        os.close(its_own)
        self.said: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: int) -> None:
        with open(stream, "rb") as lines:
            for line in lines:
                what, _, value = line.decode().rstrip("\n").partition(" ")
                with self._changed:
                    self.said.append((what, value))
                    self._changed.notify_all()

    def values(self, what: str = "did") -> list[str]:
        return [value for said, value in list(self.said) if said == what]

    def until(self, true: Callable[["Process"], bool]) -> None:
        """Wait until its output satisfies a condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: true(self), PATIENCE_S), self.said[-5:]

    @property
    def died(self) -> bool:
        return self._process.poll() is not None

    def send(self, signal: int) -> None:
        self._process.send_signal(signal)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main() -> None:
    with tms.connect(sys.argv[1], timeout_s=60) as connected:
        while True:
            if sys.argv[3] == "queue":
                take(connected, float(sys.argv[2]))
            else:
                work(connected, float(sys.argv[2]), sys.argv[3])
