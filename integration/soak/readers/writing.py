"""Writes readings; reads one back."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from integration.soak.content import digest, name_of, value_digest
from integration.soak.load.consuming import cells
from tms.model.message import Headers

__all__ = ["Place", "cells", "row", "write"]


class Place(NamedTuple):
    """The directory of the readings, and the service to read."""

    directory: Path
    url: str
    topics: dict[str, dict[str, Any]]
    seed: str


def row(
    partition: int | None,
    offset: int | None,
    id: str | None,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> list[object]:
    """A message as a row of a reading that shows every field."""
    name = name_of(value, headers)
    return [partition, offset, id, name, digest(key, headers, value), value_digest(value)]


def write(
    place: Place, reader: str, topic: str, rows: Iterable[list[object]], **fields: Any
) -> int:
    """Write one reading; returns its number of rows. A failed reading has no end."""
    safe = reader.replace("/", "-").replace(" ", "_")
    path = place.directory / f"{topic}.{safe}.reading"
    count = 0
    with path.open("w") as out:
        out.write(json.dumps({"reader": reader, "topic": topic, **fields}) + "\n")
        for cells in rows:
            out.write(json.dumps(cells) + "\n")
            count += 1
        out.write(json.dumps({"end": True}) + "\n")
    return count
