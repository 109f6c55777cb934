"""What the house may hold at most, by `rails.toml`: a number may only fall.

Each counter is a function of source text (`counting`), and is tried on a small text that has what
it counts.
"""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.house import counting, test_imports
from tests.house.counting import PACKAGE, room, texts, trees

RAILS = Path(__file__).with_name("rails.toml")
ROOT = PACKAGE.parents[1]
LIMITS = tomllib.loads(RAILS.read_text())
IN_EACH_FILE = {
    "gathered_parameters": counting.gathered_parameters,
    "wired_from_outside": counting.wired_from_outside,
    "saved_lines": counting.saved_lines,
    "locks": counting.locks,
}
SLACK_LINES = 20  # of a room, so that not every edit edits the rail
SHOWN_MAX = 60
_NUMBER = re.compile(r"^(\w+) = ([\d_]+)(?: # .*?(docs/decisions/\S+\.md))?", re.MULTILINE)


def _found(name: str) -> list[str]:
    """All places of what is counted under this name."""
    if name in IN_EACH_FILE:
        return [
            f"{file}{place}" for file, tree in trees().items() for place in IN_EACH_FILE[name](tree)
        ]
    match name:
        case "entries":
            return counting.entries()
        case "folders":
            return counting.folders()
        case "ambiguous_aliases":
            return counting.ambiguous_aliases(trees())
        case "exceptions":
            return [
                f"{file} may import {granted}"
                for file, rooms in test_imports.EXCEPTIONS.items()
                for granted in sorted(rooms)
            ]
        case "circles":
            return counting.circles(test_imports.arrows())
    raise AssertionError(f"rails.toml has {name!r}, which nothing counts")


@pytest.mark.parametrize("name", LIMITS["tree"])
def test_there_is_no_more_than_the_rail_and_the_rail_is_no_higher(name: str) -> None:
    found, most = _found(name), LIMITS["tree"][name]
    shown = "\n".join(found[:SHOWN_MAX])
    assert len(found) <= most, f"{len(found)} {name}, {most} is the most:\n{shown}"
    assert len(found) == most, f"lower {name} in {RAILS.name} to {len(found)}, so that it stays so"


def test_no_room_has_more_lines_of_code_than_its_rail() -> None:
    lines: Counter[str] = Counter()
    for file, tree in trees().items():
        lines[room(file)] += counting.code_lines(texts()[file], tree)
    lines["all"] = lines.total()
    most = LIMITS["code_lines"]
    assert set(lines) == set(most), "rails.toml names each room once"
    wrong = {name: (count, most[name]) for name, count in lines.items() if count > most[name]}
    assert not wrong, f"lines of code, and the most there may be: {wrong}"
    slack = {name: count for name, count in lines.items() if count < most[name] - SLACK_LINES}
    assert not slack, f"lower these in {RAILS.name}, so that it stays so: {slack}"


def test_a_rail_that_rises_names_a_record_that_is_there() -> None:
    records = [record for _, _, record in _NUMBER.findall(RAILS.read_text()) if record]
    assert all((ROOT / record).is_file() for record in records), records


PLANTED = {
    "gathered_parameters": "class A:\n    def __init__(self, *more: int) -> None: ...\n",
    "wired_from_outside": "class A:\n    def __init__(self, b):\n        b.told = self\n",
    "saved_lines": "a, b = 1, 2\na, b = b, a\n",
    "locks": "lock = threading.Lock()\nevent = asyncio.Event()\n",
}


@pytest.mark.parametrize("name", IN_EACH_FILE)
def test_a_counter_finds_what_it_counts(name: str) -> None:
    found = list(IN_EACH_FILE[name](ast.parse(PLANTED[name])))
    assert len(found) == 1 and found[0].startswith(":"), found


def test_a_method_that_is_set_elsewhere_is_wired() -> None:
    method = "    def go(self, b):\n        b.told = self.on\n        b.count = 1\n"
    text = f"class A:\n    def on(self): ...\n{method}"
    assert list(counting.wired_from_outside(ast.parse(text))) == [":4 b.told"]


def test_code_is_what_is_no_comment_no_docstring_and_not_blank() -> None:
    text = '"""Doc.\n\nMore."""\n\n# why\nx = (\n    1,\n)\n'
    assert counting.code_lines(text, ast.parse(text)) == 3


def test_an_alias_that_another_file_has_too_is_ambiguous() -> None:
    files = {
        "a": ast.parse("Place = tuple[int, int]\nROOM = list[int]\nOwn = int | None"),
        "b": ast.parse("Place = tuple[str, int]"),
        "c": ast.parse("class Own: ..."),
    }
    assert counting.ambiguous_aliases(files) == ["Own: a, c", "Place: a, b"]


def test_files_that_import_one_another_are_a_circle() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert counting.circles(arrows) == ["a, b, c"]
