"""Starts lanes, at most `at_once` at a time, and reports each when it ends: its output, and its
time. The output of a lane is also kept, as `build/tests/LANE.log`.

Invariants

* Every lane runs to its end, whatever the others do.
* An interrupted lane ends every process that it started.
"""

import os
import re
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from lanes.lanes import ROOT, Lane

POLL_S = 0.2
SHOW_S = 60.0  # between two lines of progress
STOP_S = 10.0  # for a lane that is interrupted
_PERCENT = re.compile(rb"\[ *(\d+)%\]")


class Ended(NamedTuple):
    """A lane that has ended."""

    lane: Lane
    status: int
    seconds: float
    cpu_s: float  # of all processes that it started and waited for
    printed: str


class _Running:
    def __init__(self, lane: Lane, folder: Path, environment: Mapping[str, str]) -> None:
        self.lane = lane
        self.log = folder / f"{lane.name}.log"
        self._started = time.monotonic()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                lane.command,
                cwd=ROOT,
                env={**environment, **dict(lane.environment)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self) -> Ended | None:
        """The outcome of the lane; None while it runs."""
        before_s = _cpu_of_children_s()
        status = self.process.poll()
        if status is None:
            return None
        cpu_s = _cpu_of_children_s() - before_s
        printed = self.log.read_text(errors="replace")
        return Ended(self.lane, status, time.monotonic() - self._started, cpu_s, printed)

    def progress(self) -> str:
        """The progress that the lane prints."""
        shares = _PERCENT.findall(self.log.read_bytes())
        return f"{self.lane.name} {shares[-1].decode() + ' %' if shares else 'runs'}"

    def stop(self) -> None:
        """Interrupt the lane, and kill processes that ignore that."""
        for how in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(STOP_S)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(
    lanes: Iterable[Lane], at_once: int, folder: Path, environment: Mapping[str, str]
) -> list[Ended]:
    """Run all lanes, print each when it ends, and print the progress of the others now and then."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting, running, ended = deque(lanes), list[_Running](), list[Ended]()
    show_at = time.monotonic() + SHOW_S
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Running(waiting.popleft(), folder, environment))
            time.sleep(POLL_S)
            for lane in list(running):
                if (outcome := lane.ended()) is not None:
                    running.remove(lane)
                    ended.append(outcome)
                    _show(outcome)
            if running and time.monotonic() > show_at:
                show_at = time.monotonic() + SHOW_S
                print("… " + ", ".join(lane.progress() for lane in running), flush=True)
    finally:
        for lane in running:
            lane.stop()
    return ended


def _show(ended: Ended) -> None:
    how = "passed" if ended.status == 0 else f"FAILED with {ended.status}"
    print(f"== {ended.lane.name} {how} after {ended.seconds:.0f} s", flush=True)
    if ended.printed.strip():
        print(ended.printed.rstrip(), flush=True)
