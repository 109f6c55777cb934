"""Every planted bug is found: by the simulation with its noted seed, or by the test that it
names."""

from pathlib import Path

import pytest

from sim.bugs import planted as planting
from sim.bugs.found import ELSEWHERE
from sim.bugs.planted import FILE, NEAR, PLANTED, Planted, renew, seeds
from tests import planted_kit

pytestmark = pytest.mark.usefixtures("no_logs")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", PLANTED, ids="{0.kind.name}-{0.bug}".format)
def test_a_planted_bug_is_found_by_its_seed(planted: Planted) -> None:
    seed = seeds()[str(planted)]
    assert planted.finder(seed) is not None, (
        f"No seed from {seed - NEAR} to {seed + NEAR} finds the bug {planted.bug} any more. Run"
        f" `make bugs`, which searches for another seed and writes {FILE.name}."
    )


def test_every_planted_bug_has_a_seed_and_every_seed_has_a_bug() -> None:
    assert seeds().keys() == {str(planted) for planted in PLANTED}, (
        f"Run `make bugs` for bugs without a seed; remove lines without a bug from {FILE}."
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bug", ELSEWHERE)
def test_a_planted_bug_that_no_run_comes_by_is_found_by_the_test_that_it_names(
    bug: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert planted_kit.fails(bug, log), log.read_text()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of its own, in the place of the real one."""
    file = tmp_path / FILE.name
    monkeypatch.setattr(planting, "FILE", file)
    return file


def test_a_search_replaces_only_seeds_that_find_nothing(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, kept, found = PLANTED[:3]
    monkeypatch.setattr(planting, "PLANTED", [lost, kept, found])
    monkeypatch.setattr(Planted, "finder", lambda self, seed: seed if self != lost else None)
    monkeypatch.setattr(Planted, "search", lambda self: 5)
    table.write_text(f"{lost} 100\n{kept} 7  # for years\n")
    assert [*renew(every=False)] == [f"{lost}: seed 5 finds it", f"{found}: seed 5 finds it"]
    assert seeds() == {str(lost): 5, str(kept): 7, str(found): 5}
    assert [*renew(every=True)][1] == f"{kept}: seed 5 finds it"


def test_a_search_says_which_bug_no_seed_finds(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = PLANTED[0]
    monkeypatch.setattr(planting, "PLANTED", [lost])
    monkeypatch.setattr(Planted, "is_found", lambda self, seed: False)
    table.write_text(f"{lost} 100\n")
    assert [*renew(every=False)] == [f"{lost}: no seed up to 2000 finds it"]
    assert seeds() == {}


def test_of_seeds_that_take_long_the_quickest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, spent = {3: 9.0, 40: 5.0, 90: 7.0, 300: 1.0}, [0.0]

    def is_found(_: Planted, seed: int) -> bool:
        spent[0] += seconds.get(seed, 0.1)
        return seed in seconds

    monkeypatch.setattr(Planted, "is_found", is_found)
    monkeypatch.setattr(planting, "process_time", lambda: spent[0])
    assert PLANTED[0].search() == 40


@pytest.mark.parametrize("line", ["engine any-member", "any-member x", "7", "a b 1\na b 2"])
def test_a_line_of_the_table_that_cannot_be_read_is_named(table: Path, line: str) -> None:
    table.write_text(line + "\n")
    with pytest.raises(ValueError, match=f"{FILE.name}:[12]: .* must be `KIND BUG SEED`"):
        seeds()
