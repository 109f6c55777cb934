"""The requests and the highest versions that clients used, as the lane saw them.

    python -m integration.kafka_clients.table     # puts the last run's table into docs/kafka.md

Each client's requests are noted in `build/tests/kafka/`; the end of the run writes the table of all
notes to `build/tests/kafka-clients.md`.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from integration.kafka_clients.install import pins
from lanes.plugin import INTO
from tms.compat.kafka import requests

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka.md"
NOTES, TABLE = INTO / "kafka", INTO / "kafka-clients.md"
BEGIN, END = "<!-- clients -->\n", "<!-- /clients -->\n"
_HEAD = "| client | version | requests, with the highest version that it used |\n|---|---|---|\n"


class Used(NamedTuple):
    """A client, and the highest answered version of each request that it sent, by name."""

    client: str
    version: str
    requests: Mapping[str, int]


def note(client: str, version: str, recorded: Iterable[tuple[int, int]]) -> None:
    """Add requests of a client to its notes. Versions that are not answered count as unused: a
    client begins with its newest version of ApiVersions, and goes on with the newest of both
    sides."""
    spoken = requests.load()
    path = NOTES / f"{re.sub('[^a-z]+', '-', client.lower())}.json"
    highest: dict[str, int] = {}
    if path.exists() and (before := Used(**json.loads(path.read_text()))).version == version:
        highest.update(before.requests)
    for key, asked in recorded:
        request = spoken.get(key)
        if request is not None and asked in request.versions:
            highest[request.name] = max(asked, highest.get(request.name, 0))
    NOTES.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(Used(client, version, highest)._asdict()))


def table() -> str:
    """The table of all notes: a row for each client."""
    noted = [Used(**json.loads(path.read_text())) for path in NOTES.glob("*.json")]
    lines = [
        f"| {one.client} | {one.version} | {_listed(one.requests)} |\n"
        for one in sorted(noted, key=lambda one: one.client.lower())
    ]
    return _HEAD + "".join(lines)


def _listed(highest: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(highest.items()))


def read(text: str) -> list[Used]:
    """The rows of a table."""
    rows = []
    for line in text.splitlines()[2:]:
        client, version, listed = line.strip("| ").split(" | ")
        named = (one.rsplit(" ", 1) for one in listed.split(", "))
        rows.append(Used(client, version, {name: int(highest) for name, highest in named}))
    return rows


def of_page(page: Path = PAGE) -> str:
    """The table in the page."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    """Replace the table of the page by that of the last run, if it has every client."""
    if not TABLE.exists():
        print(f"{TABLE} does not exist; run `make test-kafka` first", file=sys.stderr)
        return 1
    new = TABLE.read_text()
    found = {(one.client, one.version) for one in read(new)}
    if missing := pins().items() - found:
        print(f"the last run left out {sorted(missing)}; run `make test-kafka`", file=sys.stderr)
        return 1
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + new + END + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
