"""The list of locks, `locks.toml`, and its page.

`python -m tests.house.locks`, in `python/`, writes docs/locks.md. `test_locks` holds the list
against the code and against what threads do.
"""

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.house.source import ROOT
from tests.locks_kit import Edge

LIST = Path(__file__).with_name("locks.toml")
PAGE = ROOT / "docs" / "locks.md"
COMMAND = "../.venv/bin/python -m tests.house.locks"
_HEAD = """# Lock order

A thread that holds one of these locks takes only locks below it in the table. It does not take the
same lock of another object either, unless no other thread knows that object yet. So no two threads
ever wait for each other.

A lock is named by its file and attribute in `python/tms`. The client's locks are taken before all
of these.

`python/tests/house/locks.toml` is the list from which `python -m tests.house.locks` writes this
page. A test compares the list with the locks that the code makes, and with the acquisitions of an
engine on a data directory and of some runs of the simulation. An attempt that does not wait may
take a lock out of this order.

| lock | guards |
|---|---|
"""


class LockList(NamedTuple):
    """The locks, outermost first, each with its rank and its purpose; the locks that are signals
    between threads, which have no rank; and the locks of which a thread may hold two."""

    ranks: dict[str, int]
    purposes: dict[str, str]
    signals: frozenset[str]
    nested: frozenset[str]


@cache
def listed() -> LockList:
    """The list as it stands."""
    read = tomllib.loads(LIST.read_text())
    purposes: dict[str, str] = read["order"]
    ranks = {name: rank for rank, name in enumerate(purposes)}
    return LockList(ranks, purposes, frozenset(read["signals"]), frozenset(read["nested"]))


def forbidden(edges: Iterable[Edge], locks: LockList) -> list[Edge]:
    """The acquisitions that the list does not allow, also of locks that it does not name."""
    ranks, wrong = locks.ranks, list[Edge]()
    for outer, inner in edges:
        if outer in locks.signals or inner in locks.signals or outer == inner in locks.nested:
            continue
        if outer not in ranks or inner not in ranks or ranks[outer] >= ranks[inner]:
            wrong.append(Edge(outer, inner))
    return sorted(wrong)


def page() -> str:
    """The text of docs/locks.md."""
    rows = (f"| `{name}` | {purpose} |\n" for name, purpose in listed().purposes.items())
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
