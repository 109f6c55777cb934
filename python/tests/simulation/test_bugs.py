"""Every bug can still be planted, and the tests that bugs name exist."""

import ast
from pathlib import Path

import pytest

from sim.bugs.bugs import BUGS, planted
from sim.bugs.found import ELSEWHERE

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("bug", [*BUGS, *ELSEWHERE])
def test_a_bug_can_be_planted(bug: str) -> None:
    with planted(bug):
        pass


@pytest.mark.parametrize("bug", ELSEWHERE)
def test_the_test_that_a_bug_names_exists(bug: str) -> None:
    file, _, test = ELSEWHERE[bug].test.partition("::")
    (path,) = TESTS.glob(f"*/{file}")
    names = {getattr(node, "name", None) for node in ast.walk(ast.parse(path.read_text()))}
    assert set(test.partition("[")[0].split("::")) <= names
