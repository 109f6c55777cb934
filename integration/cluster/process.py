"""One child process: started, watched through its log, paused, killed, started again.

A `with` block kills it at its end; an error in the block gets the log's end as a note.

Invariants

* It does not outlive the process that started it, however that ends: the kernel kills it. (That
  holds for the thread that called `start`, so only a thread that stays may call it: the main one.)
* All its output is in its log file; a start after the first appends.
* Nothing waits without a deadline; a missed deadline is an error with the log's end.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from integration.cluster.runtime import Unavailable

STOP_S = 10  # after a kill HBase replays its log, so waiting longer wins nothing
POLL_S = 0.05
TAIL_LINES = 40

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """A program of a cluster, under one name, with one command for all of its lives."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.kill()
        if error is not None:
            error.add_note(self.tail())

    @property
    def pid(self) -> int:
        """The process id; that of its last life if it has ended."""
        assert self._child is not None, f"{self.name} was never started"
        return self._child.pid

    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the process; returns without waiting."""
        assert not self.running(), f"{self.name} runs already"
        parent = os.getpid()
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                process_group=0,  # Ctrl-C is for the parent, which stops its children in order
                preexec_fn=lambda: die_with(parent),
            )

    def wait_for_line(self, text: str, seconds: float) -> None:
        """Wait until it has printed this text, in this life."""
        self.wait_until(lambda: text in self.printed(), seconds, f"its log says “{text}”")

    def wait_until(self, happens: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for an event while it runs; `Unavailable` if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while not happens():
            if not self.running():
                raise Unavailable(
                    f"{self.name} ended ({self.ending()}) before {what}\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name}: not within {seconds} s: {what}\n{self.tail()}")
            time.sleep(POLL_S)

    def wait_until_done(self, seconds: float) -> None:
        """Wait until it has ended by itself, with exit code 0."""
        assert self._child is not None, f"{self.name} was never started"
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Unavailable(
                f"{self.name} did not end within {seconds} s\n{self.tail()}"
            ) from None
        if code != 0:
            raise Unavailable(f"{self.name} failed ({self.ending()})\n{self.tail()}")

    def kill(self) -> None:
        """Kill it with SIGKILL, even if it is paused; returns when it is gone."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            self._child.wait(STOP_S)

    def stop(self, seconds: float = STOP_S) -> None:
        """Ask it to end, and kill it if it does not."""
        self._signal(signal.SIGTERM)
        if self._child is not None:
            try:
                self._child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()

    def pause(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def ending(self) -> str:
        code = None if self._child is None else self._child.poll()
        if code is None:
            return "not ended"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def printed(self) -> str:
        """Its output in this life."""
        with contextlib.suppress(FileNotFoundError), open(self.log, "rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")
        return ""

    def tail(self) -> str:
        """The end of the log, and the path of the whole."""
        return tail_of(self.log)

    def _signal(self, number: int) -> None:
        if self.running():
            assert self._child is not None
            self._child.send_signal(number)


def tail_of(log: Path) -> str:
    """The end of a log, and the path of the whole."""
    said = log.read_text(errors="replace") if log.exists() else ""
    last = said.splitlines()[-TAIL_LINES:]
    return "\n".join([f"--- the last {len(last)} lines of {log}", *last])


def die_with(parent: int) -> None:
    """Run in the child before its program: let the kernel kill it when the parent is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
