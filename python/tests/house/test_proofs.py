"""Every fault, contract, vector and planted bug is in a lane, and docs/testing.md says in which."""

import ast

import pytest

from sim.bugs.bugs import BUGS
from sim.bugs.found import ELSEWHERE
from sim.bugs.instances import OF_INSTANCES
from tests.house import proofs
from tests.house.proofs import ROOT, Fault, contracts, faults, tests, vectors

FAULTS = 38
PLANTED = "python/tests/simulation/test_planted_bugs.py"


@pytest.mark.parametrize("row", faults(), ids=lambda row: str(row.number))
def test_a_fault_has_tests_that_exist(row: Fault) -> None:
    assert row.tests, f"no test injects fault {row.number}, {row.fault}"
    unknown = [name for name in row.tests if name not in tests()]
    assert not unknown, f"{proofs.LIST.name} names tests that are not there: {unknown}"


def test_no_fault_is_missing() -> None:
    assert [row.number for row in faults()] == list(range(1, FAULTS + 1))


def test_every_contract_is_run() -> None:
    idle = [suite for suite, running in contracts().items() if not running]
    assert len(contracts()) >= 12 and not idle, f"nothing runs these contracts: {idle}"


def test_every_vector_is_read() -> None:
    unread = [vector for vector, readers in vectors().items() if not readers]
    assert len(vectors()) >= 9 and not unread, f"no test reads these vectors: {unread}"


def test_every_planted_bug_is_looked_for_in_each_landing() -> None:
    looking = [test for name, test in tests().items() if name.startswith(PLANTED)]
    assert looking and not any(test.long for test in looking)
    text = (ROOT / PLANTED).read_text()
    assert all(table in text for table in ("PLANTED", "ELSEWHERE"))
    assert len({*BUGS, *OF_INSTANCES, *ELSEWHERE}) >= 66


def test_the_page_shows_the_list() -> None:
    written = proofs.shown(proofs.PAGE.read_text())
    assert written == proofs.page(), "run `../.venv/bin/python -m tests.house.proofs` in python/"


def test_a_test_is_long_if_it_or_its_file_says_so() -> None:
    text = "@pytest.mark.long\ndef test_a(): ...\ndef test_b(): ...\nclass TestC(XContract): ...\n"
    found = {test.name: test for test in proofs.tests_of("f.py", text)}
    assert found["f.py::test_a"].long and not found["f.py::test_b"].long
    assert found["f.py::TestC"].bases == ("XContract",)
    whole = list(proofs.tests_of("f.py", f"pytestmark = [pytest.mark.long]\n{text}"))
    assert len(whole) == 3 and all(test.long for test in whole)
    assert ast.parse(text)
