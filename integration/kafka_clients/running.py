"""Programs that tests run: a client to its end, or one that is watched while it runs."""

import json
import subprocess
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from tests.waiting import busily

RUN_S = 120.0
ERRORS_MAX = 200  # lines


def run(command: Sequence[str], given: bytes = b"", seconds: float = RUN_S) -> str:
    """Run a program to its end; its standard output. Fails if the program does."""
    done = subprocess.run(command, input=given, capture_output=True, timeout=busily(seconds))
    said = done.stderr.decode(errors="replace")[-4000:]
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{said}"
    return done.stdout.decode()


class Running(ABC):
    """A running program, and what it has printed. It ends with the `with` block."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors: deque[str] = deque(maxlen=ERRORS_MAX)
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        works = (self._read, self._read_errors)
        self._readers = [threading.Thread(target=work, daemon=True) for work in works]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.kill()
        if error is not None:
            error.add_note(f"a program printed:\n{self.errors}")

    @abstractmethod
    def understand(self, line: bytes) -> None:
        """Take a line of its output."""

    @property
    def errors(self) -> str:
        """The last lines of its standard error."""
        return "".join(list(self._errors))

    def kill(self) -> None:
        """Send SIGKILL, if it still runs; returns once all its output is read."""
        self._process.kill()
        self._process.wait()
        self._end_reading()

    def wait(self, seconds: float = RUN_S) -> None:
        """Wait until it has ended by itself, without an error."""
        code = self._process.wait(busily(seconds))
        self._end_reading()
        assert code == 0, f"a program ended with {code}:\n{self.errors}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.understand(line)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.decode(errors="replace"))

    def _end_reading(self) -> None:
        for reader in self._readers:
            reader.join()


class Tool(Running):
    """A program that prints one JSON object a line; other lines are left out."""

    def __init__(self, command: Sequence[str], *arguments: object) -> None:
        self.told: list[dict[str, Any]] = []
        super().__init__([*command, *map(str, arguments)])

    def understand(self, line: bytes) -> None:
        """Take an object."""
        if line.startswith(b"{"):
            self.told.append(json.loads(line))

    def named(self, name: str) -> list[dict[str, Any]]:
        """The objects with this name."""
        return [one for one in self.told if one.get("name") == name]
