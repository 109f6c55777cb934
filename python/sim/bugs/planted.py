"""The seed that finds each planted bug, so that no test has to search: `sim/corpus/planted.txt` has
a line `KIND BUG SEED` for each bug of each kind of simulation.

    python -m sim.bugs          searches anew for bugs that their seed no longer finds
    python -m sim.bugs --all    searches anew for all bugs
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import process_time
from typing import NamedTuple

from sim.bugs.bugs import BUGS
from sim.bugs.instances import OF_INSTANCES
from sim.corpus.seeds import ENGINE, FOLDER, INSTANCES, Kind, WrongRun
from sim.replacing import Replacement, replaced
from sim.world import Stuck
from tms.errors import TMSError

FILE = FOLDER / "planted.txt"
NEAR = 2  # seeds before and after the one that found the bug
SEARCHED_MAX = 2_000  # tried seeds for a bug
# A seed that takes longer is kept only if none of the first seeds is quicker.
CHEAP_S, CHEAP_MAX = 3.0, 200
HEADER = """\
# The seed that finds a planted bug: `KIND BUG SEED`. `make bugs` writes this file.

"""


class Planted(NamedTuple):
    """A bug, in the kind of simulation that must find it."""

    kind: Kind
    bug: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.bug}"

    def planted(self) -> AbstractContextManager[None]:
        """While this lasts, the product has the bug."""
        return replaced(_TABLES[self.kind.name][self.bug]())

    def is_found(self, seed: int) -> bool:
        """True if the run of the planted bug has findings, or ends with an error of the simulation
        or of TMS.

        Findings alone would be too little: many bugs leave an actor waiting for ever, and the run
        then ends before its history is checked. Other exceptions do not count: they may come from
        the planted code, not from the product.
        """
        try:
            self.kind.check(seed)
        except WrongRun as wrong:
            return isinstance(wrong.__cause__, Stuck | TMSError | None)
        return False

    def finder(self, seed: int) -> int | None:
        """The first seed that finds the bug, of this one and those near it."""
        near = (seed + way * step for step in range(1, NEAR + 1) for way in (-1, 1))
        with self.planted():
            return next((one for one in (seed, *near) if self.is_found(one)), None)

    def search(self) -> int | None:
        """The first seed that finds the bug, or one that finds it sooner if that takes long."""
        found: list[tuple[float, int]] = []
        with self.planted():
            for seed in range(1, SEARCHED_MAX + 1):
                if found and seed > CHEAP_MAX:
                    break
                began = process_time()
                if self.is_found(seed):
                    found.append((process_time() - began, seed))
                    if found[-1][0] <= CHEAP_S:
                        break
        return min(found)[1] if found else None


_TABLES: dict[str, dict[str, Callable[[], list[Replacement]]]] = {
    ENGINE.name: BUGS,
    INSTANCES.name: OF_INSTANCES,
}
PLANTED = [Planted(kind, bug) for kind in (ENGINE, INSTANCES) for bug in _TABLES[kind.name]]


def seeds() -> dict[str, int]:
    """The seeds of the file, by kind and bug. A line that cannot be read raises `ValueError`."""
    table: dict[str, int] = {}
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        if not (line := line.partition("#")[0].strip()):
            continue
        name, _, seed = line.rpartition(" ")
        if not seed.isdigit() or not name or name in table:
            raise ValueError(f"{FILE.name}:{number}: {line!r} must be `KIND BUG SEED`, once a bug.")
        table[name] = int(seed)
    return table


def renew(every: bool) -> Iterator[str]:
    """Search for bugs that their seed does not find, or for all, and write the file; yields a line
    for each bug that was searched for."""
    known, missing = seeds() if FILE.exists() else {}, 0
    for planted in PLANTED:
        before = known.get(str(planted))
        if before is not None and not every and planted.finder(before) is not None:
            continue
        seed = planted.search()
        if seed is None:
            missing += 1
            yield f"{planted}: no seed up to {SEARCHED_MAX} finds it"
            known.pop(str(planted), None)
        else:
            yield f"{planted}: seed {seed} finds it"
            known[str(planted)] = seed
    lines = [f"{each} {known[str(each)]}\n" for each in PLANTED if str(each) in known]
    FILE.write_text(HEADER + "".join(lines))
