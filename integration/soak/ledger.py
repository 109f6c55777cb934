"""The ledger: operations and their outcomes.

One file for each process that loads the service, of lines of JSON, each written with one system
call: at whatever moment the process dies, its last operation is in the file. Times are those of the
machine's monotonic clock, which all of its processes share.

    try      op kind topic-messages …      before the call
    end      op how ids error              after it: `done`, `refused` (nothing happened), `unknown`
    …        observations of queues, groups and scans, with fields of their own
    wrong    what                          the process itself saw a violation

An operation without an end is unknown, too.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from integration.soak.content import Content, value_digest

Placed = tuple[str, int | None, Content]  # topic, partition if one was given, content
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


class Ledger:
    """The file of one process."""

    def __init__(self, path: Path, writer: str) -> None:
        self.directory = path.parent
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._writer = writer
        self._ops = 0

    def note(self, event: str, **fields: Any) -> None:
        """Write one line, with the time."""
        line = {"event": event, "t": time.monotonic(), **fields}
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def begin(self, kind: str, messages: Sequence[Placed] = (), **fields: Any) -> str:
        """Note the begin of an operation; returns its name."""
        op = f"{self._writer}#{self._ops}"
        self._ops += 1
        cells = [
            [
                topic,
                partition,
                one.name,
                None if one.key is None else one.key.hex(),
                one.digest,
                value_digest(one.value),
            ]
            for topic, partition, one in messages
        ]
        self.note("try", op=op, kind=kind, messages=cells, **fields)
        return op

    def end(self, op: str, how: str, ids: Sequence[str] | None = None, **fields: Any) -> None:
        """Note the outcome of an operation, with the ids of its messages if the answer had them."""
        self.note("end", op=op, how=how, ids=None if ids is None else list(ids), **fields)

    def wrong(self, what: str) -> None:
        """Note a violation that the process saw."""
        self.note("wrong", what=f"{self._writer}: {what}")


def lines(directory: Path) -> Iterator[dict[str, Any]]:
    """The lines of all files of a directory; a truncated last line does not count."""
    for path in sorted(directory.glob("*.ledger")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)
