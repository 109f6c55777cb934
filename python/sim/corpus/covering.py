"""Chooses the `cover` part of a corpus: few seeds that together take every step of the engine's
code that all candidates take.

    candidates ──run, traced──▶ the arcs that each takes ──greedy cover──▶ seeds

An arc is a step from one line of a file to the line that runs next, so the arcs of a file are its
lines and its branches. The arcs that the found seeds take count as covered.
"""

import pkgutil
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import coverage

import tms
from sim.corpus.seeds import COVER, Kind, WrongRun, prepare

ROOMS = ("log", "topics", "transactions", "groups", "queues", "delayed", "cluster", "compaction")
SEEDS_MAX = 150  # of a cover
_RUNS_AT_ONCE = 4  # handed to a process together
Arc = tuple[str, int, int]  # a file, from which line, to which line


class Traced(NamedTuple):
    """The run of a seed: why it is wrong, if it is, and the arcs that it takes."""

    seed: int
    wrong: str
    arcs: list[Arc]


class Cover(NamedTuple):
    """Chosen seeds. They and the found seeds take `covered` of the `reached` arcs that these and
    all candidates take."""

    seeds: list[int]
    covered: int
    reached: int


def trace(kind: Kind, seeds: Iterable[int], processes: int) -> Iterator[Traced]:
    """Run the seeds in several processes; yields the runs in the order of the seeds."""
    with get_context("fork").Pool(processes, _begin, (kind,)) as pool:
        yield from pool.imap(partial(_trace, kind), seeds, _RUNS_AT_ONCE)


def choose(runs: Iterable[Traced], found: Iterable[int], seeds_max: int = SEEDS_MAX) -> Cover:
    """Choose the seed that adds most arcs, again and again, until none adds any. A seed whose run
    is wrong is never chosen: it is to be understood."""
    bits: dict[Arc, int] = {}
    taken: dict[int, int] = {}  # by seed; arcs are bits of a number
    for run in runs:
        if not run.wrong:
            taken[run.seed] = 0
            for arc in run.arcs:
                taken[run.seed] |= 1 << bits.setdefault(arc, len(bits))
    covered = 0
    for seed in found:
        covered |= taken.pop(seed, 0)
    chosen: list[int] = []
    while taken and len(chosen) < seeds_max:
        best = max(taken, key=lambda seed: ((taken[seed] & ~covered).bit_count(), -seed))
        if not taken[best] & ~covered:
            break
        covered |= taken.pop(best)
        chosen.append(best)
    return Cover(chosen, covered.bit_count(), len(bits))


def renewed(text: str, cover: Cover, candidates: int, commit: str) -> str:
    """The text of a corpus with this cover in the place of its own; found seeds all stay."""
    before, _, after = text.partition("\n# Cover: ")
    added = [line for line in after.splitlines() if " found: " in line.partition("#")[0]]
    kept = "\n".join([before.rstrip(), *added])
    rooms = f"{', '.join(ROOMS[:-1])} and {ROOMS[-1]}"
    about = (
        f"# Cover: with the seeds above, these take {cover.covered:,} of the {cover.reached:,} arcs"
        f" of tms/\n# {rooms}\n# that they and seeds 1 to {candidates:,} take at commit {commit}."
        " `make corpus` writes what follows.\n"
    )
    seeds = "".join(f"{seed} {COVER}\n" for seed in sorted(cover.seeds))
    return f"{kept}\n\n{about}\n{seeds}"


_tracer: coverage.Coverage  # of this process
_caches: list[Any] = []  # functions that cache answers of earlier runs


def _begin(kind: Kind) -> None:
    global _tracer
    prepare()
    folder = Path(tms.__file__).parent
    for room in ROOMS:
        for module in pkgutil.walk_packages([str(folder / room)], f"tms.{room}."):
            names = vars(import_module(module.name)).values()
            _caches.extend(name for name in names if hasattr(name, "cache_clear"))
    _tracer = coverage.Coverage(
        data_file=None,
        branch=True,
        config_file=False,
        include=[f"{folder / room}/*" for room in ROOMS],
        messages=False,
    )
    _trace(kind, 1)  # the first run of a process also takes the steps that happen once in each


def _trace(kind: Kind, seed: int) -> Traced:
    wrong = ""
    for cache in _caches:
        cache.cache_clear()
    _tracer.start()
    try:
        kind.check(seed)
    except WrongRun as error:
        wrong = str(error)
    finally:
        _tracer.stop()
    taken = _tracer.get_data()
    folder = Path(tms.__file__).parent
    arcs = [
        (str(Path(file).relative_to(folder)), before, after)
        for file in taken.measured_files()
        for before, after in taken.arcs(file) or ()
    ]
    _tracer.erase()
    return Traced(seed, wrong, arcs)
