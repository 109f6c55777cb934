"""The seconds that each test took of a worker, and of a processor, as a file per lane:
`build/tests/LANE.durations.tsv`.

    SECONDS      PROCESSOR_SECONDS       python/tests/log/test_log.py::test_a_block_is_stored_once

A run is as short as its longest file allows, because a file stays with one worker. So a file may
take `FILE_S` of a worker, or `FILE_SHARE` of the run on a busy machine, where everything takes
longer.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILE_S = 90.0
FILE_SHARE = 0.125  # of the whole run
SUFFIX = ".durations.tsv"


class Taken(NamedTuple):
    """Seconds of a worker, and of a processor."""

    seconds: float
    cpu_s: float = 0.0


class Durations:
    """The noted seconds of tests."""

    def __init__(self) -> None:
        self.taken: dict[str, Taken] = {}

    def note(self, test: str, more: Taken) -> None:
        """Add to the seconds of a test: set-up, call and tear-down come one by one."""
        before = self.taken.get(test, Taken(0.0))
        self.taken[test] = Taken(before.seconds + more.seconds, before.cpu_s + more.cpu_s)

    def write(self, path: Path) -> None:
        """Write all, longest first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        longest = sorted(self.taken.items(), key=lambda noted: -noted[1].seconds)
        lines = [f"{taken.seconds:.3f}\t{taken.cpu_s:.2f}\t{test}\n" for test, taken in longest]
        path.write_text("".join(lines))


class LongFile(NamedTuple):
    """A file that takes more of a worker than a run can give it."""

    file: str
    seconds: float
    most_s: float

    def __str__(self) -> str:
        return (
            f"{self.file} took {self.seconds:.0f} s of a worker, {self.most_s:.0f} s is the most: "
            "make its slowest tests cheaper, or mark those `long` that a landing can do without"
        )


def by_file(folder: Path, lanes: Iterable[str]) -> "Counter[str]":
    """Seconds by test file, of the files of these lanes in a folder."""
    files: Counter[str] = Counter()
    for path in [folder / f"{lane}{SUFFIX}" for lane in lanes]:
        for line in path.read_text().splitlines() if path.exists() else ():
            seconds, _, test = line.split("\t")
            files[test.partition("::")[0]] += float(seconds)  # type: ignore[assignment]
    return files


def long_files(
    folder: Path, lanes: Iterable[str], run_s: float, spread: tuple[str, ...]
) -> list[LongFile]:
    """Files of lanes with several workers that take too much of a run of `run_s` seconds. Files
    whose names begin with one of `spread` are exempt: they do not stay with one worker."""
    most_s = max(FILE_S, FILE_SHARE * run_s)
    return [
        LongFile(file, seconds, most_s)
        for file, seconds in by_file(folder, lanes).most_common()
        if seconds > most_s and not file.startswith(spread)
    ]
