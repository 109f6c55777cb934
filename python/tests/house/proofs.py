"""The list of what is proven where, as docs/testing.md shows it: faults, contracts and vectors,
with the lane of each.

`python -m tests.house.proofs`, in `python/`, writes the page anew. `test_proofs` keeps it whole.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
LIST = Path(__file__).with_name("proofs.toml")
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- proofs -->", "<!-- end of proofs -->"
FOLDERS = ("python/tests", "integration", "python/tests_spark35")
JAVA = "coprocessor/src/test/java"
LANDING, LONG = "`make test`", "`make test-long`"
_NUMBERED = re.compile(r"test_faults?_(\d+)(?:_and_(\d+))?_")


class Test(NamedTuple):
    """A test, or a class of tests: `python/tests/log/test_log.py::test_…`."""

    name: str
    long: bool  # every case of it runs in `make test-long` only
    bases: tuple[str, ...] = ()  # of a class


class Fault(NamedTuple):
    """A fault that is injected, what must hold, and the tests that say so."""

    number: int
    fault: str
    holds: str
    tests: tuple[str, ...]


@cache
def tests() -> dict[str, Test]:
    """Every test of Python, by its name, and every file of tests of Java."""
    found = [test for path in _paths() for test in tests_of(_name(path), path.read_text())]
    java = [Test(_name(path), False) for path in (ROOT / JAVA).rglob("*Test.java")]
    return {test.name: test for test in (*found, *java)}


def _paths() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("test_*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tests_of(file: str, text: str) -> Iterator[Test]:
    """The tests and classes of tests of a file."""
    tree = ast.parse(text, file)
    module_long = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "mark.long" in ast.unparse(node.value)
        for node in tree.body
    )
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            long = module_long or any(
                ast.unparse(one).startswith("pytest.mark.long") for one in node.decorator_list
            )
            bases = node.bases if isinstance(node, ast.ClassDef) else ()
            names = tuple(ast.unparse(base).rpartition(".")[2] for base in bases)
            yield Test(f"{file}::{node.name}", long, names)


@cache
def faults() -> list[Fault]:
    """The faults of the list, with the tests that are named in it and those that carry a number."""
    numbered: dict[int, list[str]] = {}
    for name in tests():
        if match := _NUMBERED.search(name):
            for number in filter(None, match.groups()):
                numbered.setdefault(int(number), []).append(name)
    listed = tomllib.loads(LIST.read_text())
    missing = set(numbered) - {int(number) for number in listed}
    assert not missing, f"{LIST.name} lacks faults that tests name: {sorted(missing)}"
    return [
        Fault(
            int(number),
            row["fault"],
            row["holds"],
            tuple(sorted({*row.get("tests", ()), *numbered.get(int(number), ())})),
        )
        for number, row in listed.items()
    ]


@cache
def contracts() -> dict[str, list[str]]:
    """The contract suites, with the classes that run each of them."""
    suites: dict[str, tuple[str, ...]] = {}
    for path in sorted((ROOT / "python/tests/contracts").glob("*_contract.py")):
        for test in tests_of(_name(path), path.read_text()):
            suite = test.name.partition("::")[2]
            if suite.endswith("Contract"):
                suites[suite] = test.bases
    running: dict[str, list[str]] = {suite: [] for suite in suites}
    for test in tests().values():
        for suite in _with_parts(test.bases, suites):
            running[suite].append(test.name)
    return running


def _with_parts(bases: tuple[str, ...], suites: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for base in bases:
        if base in suites:
            yield base
            yield from _with_parts(suites[base], suites)


@cache
def vectors() -> dict[str, list[str]]:
    """The files of vectors, with the files of tests, of Python and Java, that name each."""
    sources = [*(ROOT / "python/tests").rglob("*.py"), *(ROOT / JAVA).rglob("*.java")]
    texts = {_name(path): path.read_text() for path in sources}
    return {
        path.name: sorted(
            name
            for name, text in texts.items()
            if path.name in text or ("vectors" in text and f'"{path.stem}"' in text)
        )
        for path in sorted((ROOT / "vectors").iterdir())
    }


def lanes(names: tuple[str, ...]) -> str:
    """The commands that run these tests."""
    long = {tests()[name].long for name in names}
    return ", ".join(([LANDING] if False in long else []) + ([LONG] if True in long else []))


def page() -> str:
    """The three tables."""
    lines = ["| fault | must hold | in |", "|---|---|---|"]
    lines += [f"| {row.fault} | {row.holds} | {lanes(row.tests)} |" for row in faults()]
    lines += ["", "| contract | runs in |", "|---|---|"]
    for suite, classes in contracts().items():
        files = sorted({name.partition("::")[0].rpartition("/")[2] for name in classes})
        lines.append(f"| `{suite}` | {', '.join(f'`{file}`' for file in files)} |")
    lines += ["", "| vectors | read by |", "|---|---|"]
    for vector, readers in vectors().items():
        names = sorted({name.rpartition("/")[2] for name in readers})
        lines.append(f"| `{vector}` | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def shown(text: str) -> str:
    """The tables that a page has."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{page()}\n{END}{after}")
