"""The messages that one reader saw of one topic, in its own words.

{"reader": …, "topic": …, "start": {…}, …}        the topic, and the start
[partition, offset, id, name, digest, value]      each message, in the order seen; null: not shown
{"end": true}                                     the reader came to its end
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A message as a reader saw it. Partition, offset or digest are None if the reader does not
    show them; an id may be a prefix."""

    partition: int | None
    offset: int | None
    id: str | None
    name: str
    digest: str | None
    value: str | None

    def __str__(self) -> str:
        return f"{self.name} (partition {self.partition}, offset {self.offset}, id {self.id})"


@dataclass(slots=True)
class Reading:
    """The messages that one reader saw of one topic. `fields` say how it read:

    start      {"kind": earliest|id|after|time|offset, …}; the reading has nothing before it
    live       it read while others wrote, erased and truncated
    ordered    False: rows of a partition come in any order
    """

    reader: str
    topic: str
    fields: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    ended: bool = True

    @property
    def start(self) -> dict[str, Any]:
        found: dict[str, Any] = self.fields.get("start", {"kind": "earliest"})
        return found

    def partitions(self) -> dict[int, list[Row]]:
        """Rows by partition, in the order seen; rows without a partition are of the only one."""
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.partition or 0, []).append(row)
        return found


def read(path: Path) -> Reading:
    """A reading from its file."""
    lines = path.read_bytes().split(b"\n")[:-1]
    head = json.loads(lines[0])
    found = Reading(head.pop("reader"), head.pop("topic"), head, ended=False)
    for line in lines[1:]:
        cells = json.loads(line)
        if isinstance(cells, list):
            found.rows.append(Row(*cells))
        else:
            found.ended = bool(cells.get("end"))
    return found


def read_all(directory: Path) -> Iterator[Reading]:
    """All readings of a directory, by name; without those of readers that were killed before their
    first line."""
    for path in sorted(directory.glob("*.reading")):
        if path.stat().st_size:
            yield read(path)
