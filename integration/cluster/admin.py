"""HBase's Java Admin as a child process, for commands that its Thrift gateways do not have.

    admin.run("flush", "ns:rows")          admin.run("split", "ns:rows", "8000")

Words go to its standard input as one line, separated by tabs; one line comes back: `ok`, then
results, or `error` and a text. `Admin.java` beside this file lists the commands.
"""

import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from integration.cluster.process import die_with
from integration.cluster.runtime import Unavailable

RUN_S = 120


class Admin:
    """One JVM that carries out commands, one after another. Not thread-safe."""

    SOURCE = Path(__file__).with_name("Admin.java")

    def __init__(self, command: Sequence[str], log: Path) -> None:
        parent = os.getpid()
        self._log = log
        with open(log, "ab") as errors:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
                preexec_fn=lambda: die_with(parent),
            )

    def running(self) -> bool:
        return self._child.poll() is None

    def run(self, *words: str, seconds: float = RUN_S) -> list[str]:
        """Carry out a command and wait until it is done; its results."""
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write("\t".join(words).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise Unavailable(f"HBase's admin ended; its log: {self._log}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.close()
                raise Unavailable(f"not within {seconds} s: {' '.join(words)}; log: {self._log}")
        answer, *results = self._child.stdout.readline().decode().rstrip("\n").split("\t")
        if answer != "ok":
            raise Unavailable(f"{' '.join(words)}: {' '.join(results)}; log: {self._log}")
        return results

    def close(self) -> None:
        """End the JVM."""
        if self.running():
            self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            stream.close()
