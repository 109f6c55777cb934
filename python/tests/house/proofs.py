"""The list of proofs, `proofs.toml`: each fault, contract and file of vectors, with the tests that
prove it and the run that has them; and the contradictions between the list and the tests.

`python -m tests.house.proofs`, in `python/`, writes the tables of docs/testing.md. `test_proofs`
keeps the list and the page complete.
"""

import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lanes.lanes import ROOT, long_lanes
from tests.house.collected import Collected, Run, Source

LIST = Path(__file__).with_name("proofs.toml")
PAGE = ROOT / "docs" / "testing.md"
COMMAND = "../.venv/bin/python -m tests.house.proofs"
BEGIN, END = "<!-- proofs -->", "<!-- end of proofs -->"
FOLDERS = ("python/tests", "integration", "python/tests_spark35")
JAVA = "coprocessor/src/test/java"
FAULTS = 42
_NUMBERED = re.compile(r"::test_faults?_(\d+)(?:_and_(\d+))?_")
_DERIVED = re.compile(r"^class (?:Test\w*\(|\w+Contract\b)", re.MULTILINE)


class Fault(NamedTuple):
    """A fault that is injected, the promises that hold, and the tests that prove them."""

    number: int
    fault: str
    holds: str
    landing: tuple[str, ...] = ()
    long: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()  # of the long run, that are commands and not tests
    missing: str = ""


class Proofs(NamedTuple):
    """The list."""

    faults: list[Fault]
    contracts: dict[str, dict[str, str]]  # the class that runs it, by contract and implementation
    vectors: dict[str, list[str]]  # the tests that read it, by file


def parse(text: str) -> Proofs:
    """The list, as it is written in TOML."""
    listed: dict[str, Any] = tomllib.loads(text)
    faults = [
        Fault(**{key: tuple(value) if isinstance(value, list) else value for key, value in row})
        for row in (row.items() for row in listed["fault"])
    ]
    return Proofs(faults, listed["contract"], listed["vectors"])


@cache
def listed() -> Proofs:
    """The list of this tree."""
    return parse(LIST.read_text())


# -- the tests of this tree ------------------------------------------------------------------------


@cache
def texts() -> dict[str, str]:
    """The text of each file of Python below the folders of tests, by its path in the tree."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@cache
def source(file: str) -> Source:
    """A file, parsed."""
    return Source(file, texts()[file])


def run_of(name: str) -> Run | None:
    """The run that has a test, a class of tests, or a test of Java; None if there is none."""
    file, _, test = name.partition("::")
    if file.endswith(".java"):
        return Run.LANDING if _is_in_java(file, test) else None
    if file not in texts() or not Path(file).name.startswith("test_"):
        return None
    found = source(file).tests.get(name)
    return found and found.run


def _is_in_java(file: str, test: str) -> bool:
    path = ROOT / file
    if not (file.startswith(JAVA) and file.endswith(("Test.java", "IT.java")) and path.is_file()):
        return False
    return not test or f"void {test}(" in path.read_text()


@cache
def numbered() -> list[tuple[int, str]]:
    """The numbers of faults in names of tests, with those tests."""
    return [
        (int(number), name)
        for file, text in texts().items()
        if "def test_fault" in text
        for name in source(file).tests
        if (match := _NUMBERED.search(name))
        for number in match.groups()
        if number
    ]


def untold() -> list[str]:
    """Marks of the long run whose tests cannot be determined."""
    marked = [
        file
        for file, text in texts().items()
        if "mark.long" in text and Path(file).name.startswith("test_")
    ]
    return [line for file in marked for line in source(file).untold]


@cache
def contracts() -> dict[str, set[str]]:
    """The classes of tests that run each contract. A contract that only others derive from is a
    part of these."""
    files = [file for file, text in texts().items() if _DERIVED.search(text)]
    classes = {name: test for file in files for name, test in source(file).tests.items()}
    suites = {name for name in classes if name.endswith("Contract")}
    parts = {base for name in suites for base in classes[name].bases}
    running: dict[str, set[str]] = {name: set() for name in suites}
    direct: set[str] = set()
    for name, test in classes.items():
        if not name.partition("::")[2].startswith("Test"):
            continue
        direct |= suites.intersection(test.bases)
        for suite in suites.intersection(_ancestors(test, classes)):
            running[suite].add(name)
    wanted = suites - (parts - direct)
    return {name.rpartition("::")[2]: running[name] for name in sorted(wanted)}


def _ancestors(test: Collected, classes: dict[str, Collected]) -> Iterator[str]:
    for base in test.bases:
        yield base
        if base in classes:
            yield from _ancestors(classes[base], classes)


def parameters(name: str) -> list[Any]:
    """The values of the one `parametrize` of a test."""
    file, _, test = name.partition("::")
    module = file.removeprefix("python/").removesuffix(".py").replace("/", ".")
    marks = getattr(importlib.import_module(module), test).pytestmark
    (mark,) = (mark for mark in marks if mark.name == "parametrize")
    return list(mark.args[1])


def _reads(name: str, vector: str) -> bool:
    """True if the file of a test, or a file of tests that it imports, names a file of vectors."""
    file, wanted = name.partition("::")[0], {vector, Path(vector).stem}
    if file.endswith(".java"):
        return any(f'"{each}"' in (ROOT / file).read_text() for each in wanted)
    modules = {dotted.rpartition(".")[0] for dotted in source(file).imported.values()}
    files = {file, *(f"python/{module.replace('.', '/')}.py" for module in modules)}
    return any(source(each).texts & wanted for each in files & texts().keys())


# -- findings --------------------------------------------------------------------------------------


def findings(proofs: Proofs) -> Iterator[str]:
    """Each contradiction between a list and the tests of this tree, as a sentence."""
    yield from _of_numbers(proofs.faults)
    for fault in proofs.faults:
        yield from _of_fault(fault)
    yield from _of_contracts(proofs.contracts)
    yield from _of_vectors(proofs.vectors)
    for line in untold():
        yield f"{line}: this mark of the long run is on no test, class, file or list of parameters"


def _of_numbers(faults: list[Fault]) -> Iterator[str]:
    numbers = [fault.number for fault in faults]
    if numbers != list(range(1, FAULTS + 1)):
        yield f"faults must have the numbers 1 to {FAULTS} in their order, but are {numbers}"
    tests = {fault.number: {*fault.landing, *fault.long} for fault in faults}
    for number, name in numbered():
        if name not in tests.get(number, set()):
            yield f"fault {number} lacks {name}, which has its number"


def _of_fault(fault: Fault) -> Iterator[str]:
    where = f"fault {fault.number}"
    if not (fault.landing or fault.long or fault.lanes or fault.missing):
        yield f"{where} has no test; add one, or say under `missing` what no test injects"
    for name in fault.landing:
        yield from _of_name(where, name, {Run.LANDING, Run.BOTH})
    for name in fault.long:
        yield from _of_name(where, name, {Run.LONG})
    unknown = sorted({*fault.lanes} - {lane.name for lane in long_lanes()})
    if unknown:
        yield f"{where} names {', '.join(unknown)}, which are no lanes of `make test-long`"


def _of_name(where: str, name: str, runs: set[Run]) -> Iterator[str]:
    run = run_of(name)
    if run is None:
        yield f"{where} names {name}, which does not exist"
    elif run not in runs:
        right = "long" if run is Run.LONG else "landing"
        yield f"{where} names {name} in the wrong run; it belongs under `{right}`"


def _of_contracts(listed: dict[str, dict[str, str]]) -> Iterator[str]:
    for contract in sorted(contracts().keys() - listed.keys()):
        yield f"contract {contract} has no entry"
    for contract, classes in listed.items():
        found = contracts().get(contract)
        if found is None:
            yield f"contract {contract} does not exist, or others only derive from it"
            continue
        for name in sorted({*classes.values()} - found):
            yield f"contract {contract} names {name}, which does not run it"
        for name in sorted(found - {*classes.values()}):
            yield f"contract {contract} lacks {name}, which runs it"
        if not found:
            yield f"contract {contract} is run by no test"


def _of_vectors(listed: dict[str, list[str]]) -> Iterator[str]:
    files = {path.name for path in (ROOT / "vectors").iterdir()}
    for vector in sorted(files - listed.keys()):
        yield f"vectors/{vector} has no entry"
    for vector, names in listed.items():
        if vector not in files:
            yield f"vectors/{vector} does not exist"
        if not names:
            yield f"vectors/{vector} is read by no test"
        for name in names:
            if run_of(name) is None:
                yield f"vectors/{vector} names {name}, which does not exist"
            elif not _reads(name, vector):
                yield f"vectors/{vector} names {name}, which does not read it"


# -- the page --------------------------------------------------------------------------------------


def page(proofs: Proofs) -> str:
    """The tables of docs/testing.md."""
    lines = [
        "| # | fault | must hold | `make test` | `make test-long` adds |",
        "|---|---|---|---|---|",
    ]
    for one in proofs.faults:
        more = [name for name in one.landing if run_of(name) is Run.BOTH]
        adds = ", ".join([*_files([*more, *one.long]), *(f"lane `{name}`" for name in one.lanes)])
        landing = ", ".join(_files(one.landing))
        lines.append(f"| {one.number} | {one.fault} | {one.holds} | {landing} | {adds} |")
    lines += ["", "Gaps:", ""]
    lines += [f"* fault {one.number}: {one.missing}" for one in proofs.faults if one.missing]
    lines += ["", "| contract | run by |", "|---|---|"]
    for contract, classes in proofs.contracts.items():
        runs = "; ".join(f"{kind} ({_file(name)})" for kind, name in classes.items())
        lines.append(f"| `{contract}` | {runs} |")
    lines += ["", "| vectors | read by |", "|---|---|"]
    lines += [
        f"| `{file}` | {', '.join(_files(names))} |" for file, names in proofs.vectors.items()
    ]
    return "\n".join(lines)


def _files(names: Iterable[str]) -> list[str]:
    """The files of tests, each once, in their order."""
    return list(dict.fromkeys(map(_file, names)))


def _file(name: str) -> str:
    return f"`{Path(name.partition('::')[0]).stem}`"


def shown(text: str) -> str:
    """The tables that a page has."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{page(listed())}\n{END}{after}")
