"""`python -m lanes test|long [LANE …]`: run the lanes of `make test` or `make test-long`, or only
the named ones, and report. Exits with 1 if a lane failed or a test file took too long."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence

from lanes.durations import LongFile, long_files
from lanes.lanes import LANDING, LANDING_AT_ONCE, LONG_AT_ONCE, WITH_WORKERS, Lane, long_lanes
from lanes.plugin import INTO, SPREAD
from lanes.running import Ended, run


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="lanes", description=__doc__)
    parser.add_argument("which", choices=("test", "long"))
    parser.add_argument("lane", nargs="*", help="only these lanes")
    given = parser.parse_args()
    every = LANDING if given.which == "test" else tuple(long_lanes())
    names = [lane.name for lane in every]
    if unknown := set(given.lane) - set(names):
        parser.error(f"no lane {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    lanes = [lane for lane in every if not given.lane or lane.name in given.lane]
    shutil.rmtree(INTO, ignore_errors=True)
    started = time.monotonic()
    at_once = LANDING_AT_ONCE if given.which == "test" else LONG_AT_ONCE
    ended = run(lanes, at_once, INTO, os.environ)
    run_s = time.monotonic() - started
    too_long = long_files(INTO, WITH_WORKERS, run_s, SPREAD) if given.which == "test" else []
    return report(lanes, ended, run_s, too_long)


def report(
    lanes: Sequence[Lane], ended: Sequence[Ended], run_s: float, too_long: Sequence[LongFile]
) -> int:
    """Print a line for each lane, and the files that took too long; returns 1 after any failure."""
    print(f"== {len(lanes)} lanes in {run_s:.0f} s; seconds of each test: {INTO}/")
    for one in ended:
        how = "passed" if one.status == 0 else f"failed with {one.status}"
        took = f"{one.seconds:6.0f} s {one.cpu_s:6.0f} s CPU"
        print(f"   {one.lane.name:16} {took}  {how}")
    for file in too_long:
        print(f"   {file}")
    return 1 if too_long or any(one.status for one in ended) else 0


if __name__ == "__main__":
    sys.exit(main())
