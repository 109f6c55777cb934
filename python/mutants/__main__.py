"""`python -m mutants ROOM`: make a sample of mutants, run them, print survivors and the score."""

import argparse
import os
import sys

from mutants.making import sample
from mutants.report import Report, shown
from mutants.rooms import ROOMS
from mutants.running import Result, measure, project, run


def main() -> int:
    """Run a sample; returns 0 if at least `--least` of the mutants were noticed."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("room", choices=sorted(ROOMS))
    parser.add_argument("--count", type=int, default=200, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at the same time")
    parser.add_argument("--least", type=float, default=0.9, help="share to be noticed")
    parser.add_argument("--match", default="", help="only files whose path has this in it")
    given = parser.parse_args()
    os.chdir(project())
    os.environ.setdefault("TMS_TEST_SEED", "1")  # the same draws at every commit
    room = ROOMS[given.room]
    files = [file for file in room.files() if given.match in str(file)]
    mutants = sample(files, given.count, given.seed)
    print(f"{len(mutants)} mutants of {given.room}, seed {given.seed}", flush=True)
    baseline = measure(room)
    print(f"{len(baseline.seconds)} tests, {sum(baseline.seconds.values()):.0f} s", flush=True)
    results: list[Result] = []
    for result in run(mutants, baseline, given.jobs):
        results.append(result)
        if result.lives:
            print(shown(result), flush=True)
    report = Report(results)
    print(f"{given.room}: {report.text()}")
    return 0 if report.score >= given.least else 1


if __name__ == "__main__":
    sys.exit(main())
