"""The corpus of seeds: its files can be read, a wrong run names the remedy, and a cover is small
and loses no arc."""

from pathlib import Path
from typing import Any

import pytest

from sim.corpus import seeds as reading
from sim.corpus.covering import SEEDS_MAX, Cover, Traced, choose, renewed, trace
from sim.corpus.seeds import COVER, ENGINE, INSTANCES, KINDS, Kept, Kind, WrongRun, corpus, parse
from sim.history import History
from sim.rules.findings import Finding
from sim.rules.findings import Kind as Rule
from sim.simulation import Outcome
from sim.world import Stuck


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_corpus_has_found_seeds_and_a_cover(kind: Kind) -> None:
    covering = [kept.seed for kept in corpus(kind) if kept.why == COVER]
    assert 0 < len(covering) <= SEEDS_MAX
    assert len(covering) < len(corpus(kind))


def test_the_lines_of_a_corpus_are_seeds_and_why_they_are_kept() -> None:
    lines = ["# Seeds", "", "74 found: a reader never stopped", "12 cover  # of many"]
    assert parse(lines, "x") == [Kept(74, "found: a reader never stopped"), Kept(12, COVER)]


@pytest.mark.parametrize("line", ["74", "found: it", "7 because", "-1 cover", "7 found:"])
def test_a_line_of_a_corpus_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"engine\.txt:2: .* must be `SEED found: …`"):
        parse(["# Seeds", line], "engine.txt")


def test_a_seed_stands_in_a_corpus_once() -> None:
    with pytest.raises(ValueError, match=r"engine\.txt:2: seed 7 stands there twice"):
        parse(["7 cover", "7 found: it"], "engine.txt")


@pytest.mark.parametrize(
    ("kind", "command"),
    [(ENGINE, "make sim SEED=5"), (INSTANCES, "make sim SIM_FLAGS=--instances SEED=5")],
)
@pytest.mark.parametrize("raised", [False, True])
def test_a_run_that_is_wrong_says_how_to_replay_and_where_to_keep_it(
    kind: Kind, command: str, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(seed: int, of: Any) -> Outcome:
        assert (seed, of) == (5, kind.world)
        if raised:
            raise Stuck("nobody answers")
        return Outcome(History(), [Finding(Rule.LOST, "nobody answers")])

    monkeypatch.setattr(reading, "run", run)
    with pytest.raises(WrongRun, match="nobody answers") as wrong:
        kind.check(5)
    assert f"`{command}` replays" in str(wrong.value)
    assert f"`5 found: …` to python/sim/corpus/{kind.name}.txt" in str(wrong.value)


def _run(seed: int, arcs: str, wrong: str = "") -> Traced:
    return Traced(seed, wrong, [("file", 0, ord(arc)) for arc in arcs])


def test_a_cover_takes_every_arc_that_a_candidate_takes_with_few_seeds() -> None:
    runs = [_run(1, "ab"), _run(2, "abcd"), _run(3, "de"), _run(4, "ce"), _run(5, "abcd")]
    assert choose(runs, []) == Cover([2, 3], 5, 5)


def test_the_arcs_of_found_seeds_are_covered_already() -> None:
    runs = [_run(9, "abc"), _run(1, "abcd"), _run(2, "e")]
    assert choose(runs, [9]) == Cover([1, 2], 5, 5)
    assert choose([*runs, _run(3, "ed")], [9]).seeds == [3]


def test_a_cover_that_may_be_no_larger_says_what_it_leaves_out() -> None:
    runs = [_run(1, "abc"), _run(2, "de"), _run(3, "f")]
    assert choose(runs, [], seeds_max=2) == Cover([1, 2], 5, 6)


def test_a_seed_that_finds_something_is_not_taken_into_a_cover() -> None:
    assert choose([_run(1, "abc", wrong="lost"), _run(2, "a")], []) == Cover([2], 1, 1)


def test_a_new_cover_replaces_the_old_one_and_keeps_found_seeds() -> None:
    before = "# Seeds\n\n7 found: it\n\n# Cover: old\n# of old\n\n1 cover\n8 found: that\n2 cover\n"
    after = renewed(before, Cover([5, 3], 10, 1_000), 400, "abc")
    assert parse(after.splitlines(), "x") == [
        Kept(7, "found: it"),
        Kept(8, "found: that"),
        Kept(3, COVER),
        Kept(5, COVER),
    ]
    assert "these take 10 of the 1,000 arcs" in after and "1 to 400 take at commit abc" in after
    assert renewed(after, Cover([5, 3], 10, 1_000), 400, "abc") == after


def test_a_seed_takes_the_same_arcs_in_whichever_process_it_runs() -> None:
    first, second = (list(trace(ENGINE, seeds, 1)) for seeds in ((3, 2), (2, 3)))
    assert [sorted(run.arcs) for run in first] == [sorted(run.arcs) for run in reversed(second)]
    files = {Path(file).parts[0] for file, _, _ in first[0].arcs}
    assert {"log", "topics", "transactions", "queues"} <= files
    assert not any(run.wrong for run in first)
