"""`python -m sim.corpus`: choose the covers of both kinds anew and write them to their files; exits
with 1 if the run of a candidate is wrong."""

import argparse
import os
import sys

from sim.corpus.covering import Traced, choose, renewed, trace
from sim.corpus.seeds import COVER, KINDS, Kind, commit, corpus


def main() -> int:
    """Renew the files, and print their coverage and the seeds that have found something."""
    parser = argparse.ArgumentParser(prog="sim.corpus", description=__doc__)
    parser.add_argument("--candidates", type=int, default=400, help="seeds of each kind, from 1 up")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time")
    given = parser.parse_args()
    at = commit() or "unknown"
    wrong = [run for kind in KINDS for run in _renew(kind, given.candidates, given.processes, at)]
    return 1 if wrong else 0


def _renew(kind: Kind, candidates: int, processes: int, at: str) -> list[Traced]:
    found = [kept.seed for kept in corpus(kind) if kept.why != COVER]
    runs = list(trace(kind, dict.fromkeys([*found, *range(1, candidates + 1)]), processes))
    cover = choose(runs, found)
    kind.file.write_text(renewed(kind.file.read_text(), cover, candidates, at))
    print(
        f"{kind.name}: {len(found)} found seeds and {len(cover.seeds)} of {candidates} candidates"
        f" take {cover.covered} of {cover.reached} arcs",
        flush=True,
    )
    wrong = [run for run in runs if run.wrong]
    for run in wrong:
        print(f"seed {run.seed} is wrong: {run.wrong}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
