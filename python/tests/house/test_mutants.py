"""The mutation tests notice exactly the changes that a test notices."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mutants.making import Mutant, sample
from mutants.report import SENTENCES, Report
from mutants.rooms import PYTHON, ROOMS, Room
from mutants.running import BUDGET_S, Baseline, Result, _Fork, measure, run

CODE = '''"""A room."""

def larger(one: int, other: int) -> int:
    if one > other:
        return one
    return other


def endless(count: int) -> int:
    while count:
        count = count - 1
    return count


def untested(one: int) -> int:
    return one + 1
'''
TESTS = """
from mutated_room import endless, larger

THREE = larger(3, 2)

def test_the_larger_one():
    assert larger(3, 2) == THREE
    assert larger(2, 3) == 3

def test_it_ends():
    assert endless(2) == 0
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    (tmp_path / "mutated_room.py").write_text(CODE)
    (tmp_path / "test_mutated_room.py").write_text(TESTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Room(("mutated_room.py",), ("test_mutated_room.py",), tmp_path)


def changed(room: Room, before: str, after: str) -> Mutant:
    [file] = room.files()
    line = CODE.splitlines().index(before) + 1
    return Mutant(file, CODE.replace(before, after), range(line, line + 1), before, after)


@pytest.mark.long
def test_a_change_that_a_test_notices_is_killed_and_one_that_none_notices_survives(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mutants.running.GRACE_S", 20.0)
    baseline = measure(room)
    mutants = [
        changed(room, "    if one > other:", "    if one < other:"),
        changed(room, "    if one > other:", "    if one >= other:"),
        changed(room, "        return one", "        return one / 0"),
        changed(room, "        count = count - 1", "        count = count + 1"),
        changed(room, "    return one + 1", "    return one - 1"),
    ]
    outcomes = {result.mutant: result.outcome for result in run(mutants, baseline, jobs=2)}
    expected = ["killed", "survived", "killed", "timeout", "unreached"]
    assert [outcomes[one] for one in mutants] == expected


@pytest.mark.long
def test_the_code_of_the_package_is_changed() -> None:
    """pytest may load the package differently: it has a plugin of pytest."""
    command = [sys.executable, "-m", "mutants", "journal", "--count", "3", "--least", "0.3"]
    done = subprocess.run(command, cwd=PYTHON, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_endless_process_ends_although_its_parent_has_died(tmp_path: Path) -> None:
    def endless() -> int:
        while True:
            pass

    fork = _Fork(endless, tmp_path / "log", timeout_s=0.5)
    _, status = os.waitpid(fork._child, 0)
    assert os.WIFSIGNALED(status)


def test_a_mutant_is_tried_with_the_tests_that_reach_it_quickest_first() -> None:
    mutant = Mutant(Path("x.py"), "", range(3, 5), "", "")
    reached = {"x.py": {2: ["no"], 3: ["slow", "quick"], 4: ["quick", "endless"]}}
    seconds = {"no": 0.1, "slow": 2.0, "quick": 0.2, "endless": BUDGET_S}
    assert Baseline(seconds, reached).tests_of(mutant) == ["quick", "slow"]


def test_a_change_within_a_statement_of_several_lines_is_of_all_of_them(room: Room) -> None:
    [file] = room.files()
    file.write_text("def of() -> tuple[int, ...]:\n    return (\n        1,\n        2,\n    )\n")
    assert {mutant.lines for mutant in sample([file], 99, 1)} == {range(2, 6)}


@pytest.mark.long
def test_a_sample_is_the_same_for_the_same_seed() -> None:
    files = ROOMS["groups"].files()[:3]
    assert sample(files, 5, 7) == sample(files, 5, 7) != sample(files, 5, 8)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_code_and_tests(name: str) -> None:
    assert ROOMS[name].files() and ROOMS[name].test_files()


def test_the_score_counts_what_was_noticed_and_what_nobody_reached() -> None:
    mutant = Mutant(ROOMS["log"].files()[0], "", range(1, 2), "a", "b")
    outcomes = ("killed", "timeout", "killed", "unreached", "survived")
    report = Report([Result(mutant, outcome, 1, 0.1) for outcome in outcomes])
    assert report.score == pytest.approx(0.6)


def test_what_cannot_be_noticed_is_still_in_the_source() -> None:
    """An entry without its line would excuse nothing, and hide that the line has to be judged
    anew."""
    gone = [
        (one["file"], one["before"])
        for one in tomllib.loads(SENTENCES.read_text())["mutant"]
        if "".join(one["before"].split()) not in "".join((PYTHON / one["file"]).read_text().split())
    ]
    assert not gone
