"""Kills the publisher at the nth call of a name within one of its steps.

Counting begins where the step begins: strace attaches to a publisher that has stopped itself there.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Self

from tests.faults import publisher
from tests.faults.strace import strace
from tests.waiting import PATIENCE_S

CALLS = ("write", "pwritev2", "fdatasync", "fsync", "openat", "rename", "unlink", "mkdir")


class Publishers:
    """Forks publishers; a context manager."""

    def __init__(self) -> None:
        self._forker = subprocess.Popen(
            [sys.executable, publisher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forker.kill()
        self._forker.communicate()

    def count(self, data: Path, ledger: Path, step: str) -> dict[str, int]:
        """The largest number of each call that a thread makes in a step."""
        trace = ledger.with_suffix(".trace")
        code = self._run(data, ledger, step, ["-o", str(trace), "-e", f"trace={','.join(CALLS)}"])
        assert code == 0, f"the publisher ended with {code}"
        counts = Counter(
            (words[0], words[1].partition("(")[0])
            for line in trace.read_text().splitlines()
            if len(words := line.split(maxsplit=1)) == 2
        )
        return {
            call: max((counts[key] for key in counts if key[1] == call), default=0)
            for call in CALLS
        }

    def kill(self, data: Path, ledger: Path, step: str, call: str, nth: int) -> int:
        """Kill at the nth call of a step; returns the exit code, 0 if the step has fewer calls."""
        options = ["-o", os.devnull, "-e", f"trace={call}"]
        return self._run(
            data, ledger, step, [*options, "-e", f"inject={call}:signal=KILL:when={nth}"]
        )

    def _run(self, data: Path, ledger: Path, step: str, options: list[str]) -> int:
        assert self._forker.stdin is not None and self._forker.stdout is not None
        self._forker.stdin.write(f"{data} {ledger} {step}\n")
        self._forker.stdin.flush()
        pid = int(self._forker.stdout.readline())
        tracer = subprocess.Popen(
            [strace(), "-f", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if "attached" not in attached:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"strace does not attach: {attached}{tracer.stderr.read()}")
        os.kill(pid, signal.SIGCONT)
        code = int(self._forker.stdout.readline())
        tracer.communicate(timeout=PATIENCE_S)
        return code
