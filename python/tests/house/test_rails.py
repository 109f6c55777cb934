"""Numbers of the house that may only fall; `rails.toml` holds each.

A rail fails if the tree has more, if the tree has less, and if a number rises without a decision
record. Each counter is tried on a small package that has what it counts.
"""

import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house import counting
from tests.house.counting import Files
from tests.house.source import ROOT, parse, sources

RAILS = Path(__file__).with_name("rails.toml")
LIMITS = tomllib.loads(RAILS.read_text())
COUNTERS: dict[str, Callable[[Files], list[str]]] = {
    counter.__name__: counter
    for counter in (
        counting.entries,
        counting.folders,
        counting.ambiguous_aliases,
        counting.gathered_parameters,
        counting.set_from_outside,
        counting.saved_lines,
        counting.locks_of_threads,
        counting.exceptions,
        counting.imports_up,
        counting.files_in_circles,
    )
}
SLACK_LINES = 20  # of a room, so that a small edit needs neither a new number nor a record
SHOWN_MAX = 60
_NUMBER = re.compile(r"(\w+) = ([\d_]+)(?: # .*?(docs/decisions/\S+\.md))?")


class Rail(NamedTuple):
    """A line of `rails.toml`."""

    name: str
    most: int
    record: str  # empty if the line names none


def rails(lines: list[str]) -> Iterator[Rail]:
    """The rails of these lines; other lines are passed over."""
    for line in lines:
        if found := _NUMBER.match(line):
            yield Rail(found[1], int(found[2]), found[3] or "")


def slack(name: str) -> int:
    """The slack of a rail: a count may be below it, and a rail without record above its lowest
    number, by so much."""
    return SLACK_LINES if name in LIMITS["code_lines"] else 0


def off(name: str, count: int, most: int) -> str:
    """The error of a count that differs from its rail; empty without one."""
    if count > most:
        return f"{name}: {count}, {most} is the most"
    if count < most - slack(name):
        return f"{name}: lower the rail in {RAILS.name} from {most} to {count}"
    return ""


def unrecorded(now: list[Rail], past: list[Rail]) -> list[str]:
    """The rails that rose above their lowest number of the past and name no record."""
    lowest: dict[str, int] = {}
    for rail in past:
        lowest[rail.name] = min(rail.most, lowest.get(rail.name, rail.most))
    return [
        f"{rail.name}: {rail.most} needs a decision record, it was {lowest[rail.name]}"
        for rail in now
        if rail.most > lowest.get(rail.name, rail.most) + slack(rail.name) and not rail.record
    ]


def code_lines(files: Files) -> Mapping[str, int]:
    """Lines of code by room, and of all rooms."""
    lines: Counter[str] = Counter()
    for file, source in files.items():
        lines[counting.room(file)] += counting.code_lines(source)
    lines["all"] = lines.total()
    return lines


@pytest.mark.parametrize("name", LIMITS["tree"])
def test_the_tree_has_as_much_as_the_rail_says(name: str) -> None:
    found = COUNTERS[name](sources())
    wrong = off(name, len(found), LIMITS["tree"][name])
    assert not wrong, "\n".join([wrong, *found[:SHOWN_MAX]])


def test_a_room_has_as_many_lines_of_code_as_its_rail_says() -> None:
    lines, most = code_lines(sources()), LIMITS["code_lines"]
    assert set(lines) == set(most), "rails.toml names each room once"
    wrong = [off(name, lines[name], most[name]) for name in most]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_a_rail_rises_only_with_a_record() -> None:
    """Compares with all earlier versions of the file in the history of this repository."""
    log = ["git", "-C", str(ROOT), "log", "-p", "--format=", "--", str(RAILS.relative_to(ROOT))]
    history = subprocess.run(log, capture_output=True, text=True)
    assert history.returncode == 0, f"needs the repository: {history.stderr}"
    past = [line.removeprefix("+") for line in history.stdout.splitlines() if line[:1] == "+"]
    now = list(rails(RAILS.read_text().splitlines()))
    assert not unrecorded(now, list(rails(past)))
    gone = [rail for rail in now if rail.record and not (ROOT / rail.record).is_file()]
    assert not gone, f"these records are not there: {gone}"


def test_every_line_is_a_rail_with_a_name_of_its_own() -> None:
    names = [rail.name for rail in rails(RAILS.read_text().splitlines())]
    assert sorted(names) == sorted(name for table in LIMITS.values() for name in table)
    assert len(names) == len(set(names)), "a name stands twice"
    assert set(LIMITS["tree"]) == set(COUNTERS)


# --- each rail can fail --------------------------------------------------------------------------

IMPORTS = "from tms.{} import x\n"
WIRING = """
class A:
    def __init__(self, b):
        b.told = 1
        self.b = 2
    def on(self): ...
    def go(self, b, c):
        b.noted = self.on
        b.called = c
        b.count = 1
        self.b.passed = c
        self.b.size = b.size + 1
def made(b):
    other = B()
    other.limit, own = 1, 2
    b.called()
"""
# By name of a rail: a package, and how many its counter finds there.
PLANTED: dict[str, tuple[dict[str, str], int]] = {
    "entries": ({"__init__.py": "", "a/__init__.py": "", "a/b.py": "", "c.py": ""}, 2),
    "folders": ({"__init__.py": "", "a/__init__.py": "", "a/b/c.py": "", "d.py": ""}, 2),
    "ambiguous_aliases": (
        {
            "a.py": "Place = tuple[int, int]\nROOM = list[int]\nOwn = int | None\nLone = int",
            "b.py": "Place = tuple[str, int]\nROOM = list[str]",
            "c.py": "class Own: ...",
        },
        2,
    ),
    "gathered_parameters": (
        {
            "a.py": "class A:\n    def __init__(self, *rest): ...\n    def b(self, *rest): ...",
            "b.py": "class B:\n    def __init__(self, **more): ...",
            "c.py": "class C:\n    def __init__(self, a): ...",
        },
        2,
    ),
    "set_from_outside": ({"a.py": WIRING, "b.py": "class B: ..."}, 5),
    "saved_lines": ({"a.py": "a, b = 1, 2\na, b = b, a\na, b = c\na.x, b = 1, c\n"}, 2),
    "locks_of_threads": (
        {
            "a.py": "a = threading.Lock()\nb = asyncio.Event()\ndef f(a: threading.Lock): ...",
            "b.py": "from threading import Event\nc = Event()\nd = field(default_factory=Event)",
        },
        3,
    ),
    "imports_up": (
        {
            "log/a.py": f"def f():\n    {IMPORTS.format('engine')}",
            "log/b.py": IMPORTS.format("model.c"),
            "engine.py": f"if TYPE_CHECKING:\n    {IMPORTS.format('client.d')}",
            "model/c.py": "",
            "client/d.py": "",
        },
        1,
    ),
    "files_in_circles": (
        {
            "a.py": IMPORTS.format("b"),
            "b.py": f"if TYPE_CHECKING:\n    {IMPORTS.format('c')}",
            "c.py": f"def f():\n    {IMPORTS.format('a')}",
            "d.py": IMPORTS.format("a"),
        },
        3,
    ),
}


def package(texts: Mapping[str, str]) -> Files:
    return {name: parse(name, text) for name, text in texts.items()}


@pytest.mark.parametrize("name", sorted(COUNTERS.keys() - {"exceptions"}))
def test_a_counter_finds_what_it_counts(name: str) -> None:
    texts, count = PLANTED[name]
    found = COUNTERS[name](package(texts))
    assert len(found) == count, found


def test_each_grant_of_an_exception_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    granted = {"a.py": {"store"}, "b.py": {"log", "client"}}
    monkeypatch.setattr("tests.house.test_imports.EXCEPTIONS", granted)
    assert len(counting.exceptions({})) == 3


def test_code_is_neither_comment_nor_docstring_nor_blank() -> None:
    text = '"""Doc.\n\nMore."""\n\n# why\nx = (\n    1,\n)\n'
    lines = code_lines(package({"a/b.py": text, "a/c.py": "x = 1  # why", "d.py": "y = 1"}))
    assert lines == {"a": 4, "top": 1, "all": 5}


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("folders", 50, ""),
        ("folders", 51, "50 is the most"),
        ("folders", 49, "from 50 to 49"),
        ("log", 51, "50 is the most"),
        ("log", 50 - SLACK_LINES, ""),
        ("log", 49 - SLACK_LINES, f"from 50 to {49 - SLACK_LINES}"),
    ],
)
def test_a_rail_holds_both_ways(name: str, count: int, said: str) -> None:
    wrong = off(name, count, 50)
    assert said in wrong and bool(said) == bool(wrong)


def test_a_number_above_its_lowest_needs_a_record() -> None:
    past = list(rails(["[tree]", "locks = 1_009 # of threads", "locks = 1_007", "folders = 4"]))
    risen = list(rails(["locks = 1_008 # of threads", "folders = 4", "entries = 9"]))
    assert unrecorded(risen, past) == ["locks: 1008 needs a decision record, it was 1007"]
    recorded = list(rails(["locks = 1_008 # of threads; docs/decisions/0031-locks.md"]))
    assert recorded == [Rail("locks", 1_008, "docs/decisions/0031-locks.md")]
    assert not unrecorded(recorded, past)


@pytest.mark.parametrize(("rise", "needs"), [(SLACK_LINES, False), (SLACK_LINES + 1, True)])
def test_a_room_that_grows_needs_a_record(rise: int, needs: bool) -> None:
    grown = [Rail("log", 50 + rise, "")]
    assert bool(unrecorded(grown, [Rail("log", 60, ""), Rail("log", 50, "")])) == needs
