"""Every fault, contract, file of vectors and planted bug is in a run, by the list of proofs, and
docs/testing.md shows that list."""

import ast
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from lanes.lanes import LANDING
from sim.bugs.bugs import BUGS
from sim.bugs.found import ELSEWHERE
from sim.bugs.instances import OF_INSTANCES
from tests.house import proofs
from tests.house.collected import Run, Source
from tests.house.proofs import FAULTS, ROOT, Fault, Proofs, findings, listed

PLANTED = "python/tests/simulation/"  # the folder of the tests that plant bugs
KILL = "python/tests/faults/test_faults_kill.py"
SPARK = "python/tests/spark/test_spark_kills.py"


def test_the_list_is_whole_and_right() -> None:
    assert list(findings(listed())) == []


def test_the_page_shows_the_list() -> None:
    written = proofs.shown(proofs.PAGE.read_text())
    assert written == proofs.page(listed()), f"run `{proofs.COMMAND}` in python/"


def test_every_folder_of_tests_is_in_a_lane_of_a_landing() -> None:
    paths = {word for lane in LANDING for word in lane.command}
    assert paths >= {*proofs.FOLDERS, "python/tests/spark"}


# -- planted bugs ----------------------------------------------------------------------------------


def _planting() -> Iterator[str]:
    """The tests that plant a bug and look whether it is found."""
    for file, text in proofs.texts().items():
        if file.startswith(PLANTED) and "def test_a_planted_bug" in text:
            yield from (
                name for name in proofs.source(file).tests if "::test_a_planted_bug" in name
            )


def test_every_planted_bug_is_looked_for_once_in_each_landing() -> None:
    names = list(_planting())
    assert {proofs.run_of(name) for name in names} == {Run.LANDING}
    planted = [getattr(one, "bug", one) for name in names for one in proofs.parameters(name)]
    assert Counter(planted) == Counter([*BUGS, *OF_INSTANCES, *ELSEWHERE])


def test_every_bug_that_is_written_stands_in_a_table() -> None:
    unused = []
    for path in (ROOT / "python/sim/bugs").glob("*.py"):
        tree = ast.parse(path.read_text())
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        unused += [f"{path.name}: {one}" for one in _plants(tree) if one not in named]
    assert unused == []


def _plants(tree: ast.Module) -> list[str]:
    """The functions that plant a bug."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns) == "list[Replacement]"
    ]


# -- a wrong list is noticed -----------------------------------------------------------------------


def _with(fault: Fault) -> Proofs:
    """The list, with another row for a fault."""
    others = [fault if one.number == fault.number else one for one in listed().faults]
    return listed()._replace(faults=others)


FIRST = listed().faults[0]
NOWHERE = f"{KILL}::test_that_is_not_there"
LONG = f"{SPARK}::test_fault_32_a_batch_query_whose_executors_are_killed_writes_every_row_once"
WRONG_ROWS = {
    "lacks a test with its number": (
        FIRST._replace(landing=FIRST.landing[1:]),
        f"fault 1 lacks {FIRST.landing[0]}, which has its number",
    ),
    "no test": (FIRST._replace(number=11, landing=(), long=()), "fault 11 has no test; "),
    "a test that is not there": (
        FIRST._replace(landing=(*FIRST.landing, NOWHERE)),
        f"fault 1 names {NOWHERE}, which does not exist",
    ),
    "a file that is not there": (
        FIRST._replace(long=("python/tests/test_none.py::test_a",)),
        "fault 1 names python/tests/test_none.py::test_a, which does not exist",
    ),
    "a long test in a landing": (
        FIRST._replace(landing=(*FIRST.landing, LONG)),
        f"fault 1 names {LONG} in the wrong run; it belongs under `long`",
    ),
    "a test of a landing in the long run": (
        FIRST._replace(long=FIRST.landing[1:2]),
        f"fault 1 names {FIRST.landing[1]} in the wrong run; it belongs under `landing`",
    ),
    "a lane that is not there": (
        FIRST._replace(lanes=("soak", "nothing")),
        "fault 1 names nothing, which are no lanes of `make test-long`",
    ),
    "a method of Java that is not there": (
        FIRST._replace(landing=(*FIRST.landing, f"{proofs.JAVA}/io/tms/hbase/CacheTest.java::no")),
        f"fault 1 names {proofs.JAVA}/io/tms/hbase/CacheTest.java::no, which does not exist",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_a_wrong_row_is_found(wrong: str) -> None:
    fault, sentence = WRONG_ROWS[wrong]
    assert any(one.startswith(sentence) for one in findings(_with(fault)))


def _changed(
    table: dict[str, list[str]], key: str, value: list[str] | None
) -> dict[str, list[str]]:
    others = {name: names for name, names in table.items() if name != key}
    return others if value is None else {**others, key: value}


BUS = listed().contracts["BusContract"]
HTTP = BUS["HTTP"]
WRONG_LISTS = {
    "a fault is missing": (
        listed()._replace(faults=listed().faults[:-1]),
        f"faults must have the numbers 1 to {FAULTS}",
    ),
    "a contract is missing": (
        listed()._replace(contracts={"BusContract": BUS}),
        "contract StoreContract has no entry",
    ),
    "a contract that is not there": (
        listed()._replace(contracts={**listed().contracts, "OtherContract": {}}),
        "contract OtherContract does not exist",
    ),
    "an implementation is missing": (
        listed()._replace(contracts={"BusContract": {"embedded": BUS["embedded"]}}),
        f"contract BusContract lacks {HTTP}, which runs it",
    ),
    "a class that runs another contract": (
        listed()._replace(contracts={"DelayContract": {"HTTP": HTTP}}),
        f"contract DelayContract names {HTTP}, which does not run it",
    ),
    "a file of vectors is missing": (
        listed()._replace(vectors=_changed(listed().vectors, "ids.json", None)),
        "vectors/ids.json has no entry",
    ),
    "a file of vectors that is not there": (
        listed()._replace(vectors=_changed(listed().vectors, "no.json", [])),
        "vectors/no.json does not exist",
    ),
    "no test reads vectors": (
        listed()._replace(vectors=_changed(listed().vectors, "ids.json", [])),
        "vectors/ids.json is read by no test",
    ),
    "a test that does not read them": (
        listed()._replace(vectors=_changed(listed().vectors, "ids.json", [HTTP])),
        f"vectors/ids.json names {HTTP}, which does not read it",
    ),
    "a class of Java that does not read them": (
        listed()._replace(vectors={"ids.json": [f"{proofs.JAVA}/io/tms/hbase/SnapshotTest.java"]}),
        f"vectors/ids.json names {proofs.JAVA}/io/tms/hbase/SnapshotTest.java, which does not",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_LISTS)
def test_a_wrong_list_is_found(wrong: str) -> None:
    changed, sentence = WRONG_LISTS[wrong]
    assert any(one.startswith(sentence) for one in findings(changed))


NEW = "python/tests/log/test_log_new.py"
NEW_TESTS = """
class NewContract: ...
class TestIdle(UsedContract): ...
class UsedContract: ...
def test_fault_12_a_second_one(): ...
ODD = pytest.mark.long
"""


def test_a_new_test_contract_or_mark_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before, everything = set(findings(listed())), {**proofs.texts(), NEW: NEW_TESTS}
    monkeypatch.setattr(proofs, "texts", lambda: everything)
    for name in ("contracts", "numbered"):  # without their caches of the tree
        monkeypatch.setattr(proofs, name, cache(getattr(proofs, name).__wrapped__))
    assert [one for one in findings(listed()) if one not in before] == [
        f"fault 12 lacks {NEW}::test_fault_12_a_second_one, which has its number",
        "contract NewContract has no entry",
        "contract UsedContract has no entry",
        f"{NEW}:6: this mark of the long run is on no test, class, file or list of parameters",
    ]
    unused = listed().contracts | {
        "NewContract": {},
        "UsedContract": {"memory": f"{NEW}::TestIdle"},
    }
    found = list(findings(listed()._replace(contracts=unused)))
    assert "contract NewContract is run by no test" in found
    assert not any("UsedContract" in one for one in found)


# -- the run of a test is read from its source -----------------------------------------------------

TEXT = """
POINTS = [2, pytest.param(4, marks=pytest.mark.long)]
ALL = (pytest.param(4, marks=[pytest.mark.long, pytest.mark.timeout(9)]),)

@pytest.fixture(params=POINTS)
def kills(request): ...

def test_plain(): ...
@pytest.mark.long
def test_long(): ...
@pytest.mark.parametrize("most", POINTS)
def test_more(most): ...
@pytest.mark.parametrize("most", ALL)
async def test_all(most): ...
@pytest.mark.parametrize("most", [1, 2])
def test_of_a_fixture(most, kills): ...
class TestPlain(XContract):
    def test_one(self): ...
    @pytest.mark.long
    def test_two(self): ...
@pytest.mark.long
class TestLong:
    def test_one(self): ...
class TestMarked:
    pytestmark = pytest.mark.long
    def test_one(self): ...
TestMade = Machine.TestCase
"""
RUNS = {
    "test_plain": Run.LANDING,
    "test_long": Run.LONG,
    "test_more": Run.BOTH,
    "test_all": Run.LONG,
    "test_of_a_fixture": Run.BOTH,
    "TestPlain": Run.LANDING,
    "TestPlain::test_one": Run.LANDING,
    "TestPlain::test_two": Run.LONG,
    "TestLong": Run.LONG,
    "TestLong::test_one": Run.LONG,
    "TestMarked": Run.LONG,
    "TestMarked::test_one": Run.LONG,
    "TestMade": Run.LANDING,
}


def _runs(text: str) -> dict[str, Run]:
    found = Source("f.py", text).tests
    return {name.removeprefix("f.py::"): test.run for name, test in found.items()}


def test_a_mark_counts_on_a_test_a_class_and_parameters() -> None:
    found = _runs(TEXT)
    assert {name: found[name] for name in RUNS} == RUNS
    assert Source("f.py", TEXT).untold == []


@pytest.mark.parametrize(
    "marks", ["pytest.mark.long", "[pytest.mark.long, pytest.mark.timeout(9)]", "[mark.long]"]
)
def test_a_mark_of_a_file_counts_for_all_of_it(marks: str) -> None:
    found = _runs(f"pytestmark = {marks}\n{TEXT}")
    assert {found[name] for name in RUNS} == {Run.LONG}


@pytest.mark.parametrize(
    "text",
    [
        "LONG = pytest.mark.long\n@LONG\ndef test_a(): ...",
        "if SLOW:\n    pytestmark = pytest.mark.long",
        "@pytest.mark.parametrize('n', [n for n in (pytest.param(1, marks=pytest.mark.long),)])\n"
        "def test_a(n): ...",
        "def test_a(request):\n    request.node.add_marker(pytest.mark.long)",
    ],
)
def test_a_mark_that_comes_about_in_another_way_is_named(text: str) -> None:
    assert len(Source("f.py", text).untold) == 1


def test_a_class_of_another_file_is_resolved() -> None:
    text = textwrap.dedent("""
        from tests.client import test_client
        from tests.contracts.bus_contract import BusContract as Contract
        class TestOne(Contract): ...
        class TestTwo(test_client.TestHttp): ...
        class TestThree(TestOne): ...
    """)
    assert {name: test.bases for name, test in Source("f.py", text).tests.items()} == {
        "f.py::TestOne": ("python/tests/contracts/bus_contract.py::BusContract",),
        "f.py::TestTwo": ("python/tests/client/test_client.py::TestHttp",),
        "f.py::TestThree": ("f.py::TestOne",),
    }
