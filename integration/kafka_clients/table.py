"""The requests and the highest versions that clients used, as the lane saw them.

    python -m integration.kafka_clients.table     # puts the last run's table into docs/kafka.md

Each module of tests notes the requests of its client in `build/tests/kafka/`; the end of the run
writes the table of all notes to `build/tests/kafka-clients.md`.
"""

import json
import re
import sys
from collections import defaultdict
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


def note(
    module: str, client: str, version: str, recorded: Iterable[tuple[int, int]], into: Path = NOTES
) -> None:
    """Keep the requests of a module of tests. Versions that are not answered count as unused: a
    client begins with its newest version of ApiVersions, and goes on with the newest of both
    sides."""
    spoken = requests.load()
    highest: dict[str, int] = {}
    for key, asked in recorded:
        request = spoken.get(key)
        if request is not None and asked in request.versions:
            highest[request.name] = max(asked, highest.get(request.name, 0))
    into.mkdir(parents=True, exist_ok=True)
    used = Used(client, version, highest)
    (into / f"{module}-{re.sub('[^a-z]+', '-', client.lower())}.json").write_text(
        json.dumps(used._asdict())
    )


def table(notes: Path = NOTES) -> str:
    """The table of all notes: a row for each client."""
    rows: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for path in sorted(notes.glob("*.json")):
        used = Used(**json.loads(path.read_text()))
        row = rows[used.client, used.version]
        for name, version in used.requests.items():
            row[name] = max(version, row.get(name, 0))
    lines = [
        f"| {client} | {version} | {', '.join(f'{name} {row[name]}' for name in sorted(row))} |\n"
        for (client, version), row in sorted(rows.items())
    ]
    return _HEAD + "".join(lines)


def versions(text: str) -> dict[str, str]:
    """The version of each client in a table."""
    cells = [line.strip("| \n").split(" | ") for line in text.splitlines()[2:]]
    return {row[0]: row[1] for row in cells}


def of_page(page: Path = PAGE) -> str:
    """The table in the page."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    """Replace the table of the page by that of the last run, if it has every client."""
    if not TABLE.exists():
        print(f"{TABLE} does not exist; run `make test-kafka` first", file=sys.stderr)
        return 1
    new = TABLE.read_text()
    if missing := pins().items() - versions(new).items():
        print(f"the last run left out {sorted(missing)}; run `make test-kafka`", file=sys.stderr)
        return 1
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + new + END + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
