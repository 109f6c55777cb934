"""The seeds that tests run: a corpus that is kept, and fresh ones that each run seed draws.

A file of the corpus has a line for each seed, its number and then why it is kept:

    74 found: a consumer with stop_at_end never stopped
    12 cover

`found` seeds have found something and stay for ever. `cover` seeds are chosen by `sim.corpus` and
replaced each time. A `#` begins a comment.
"""

import gc
import logging
import subprocess
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sim.instances import ClusterWorld
from sim.simulation import run
from sim.world import World

FOLDER = Path(__file__).parent
FRESH_MIN, FRESH_MAX = 1_000_000, 999_000_000  # far from the seeds that the corpus is made of
COVER = "cover"
_GARBAGE_OBJECTS = 50_000  # made before the youngest generation is collected; 700 by default


class WrongRun(AssertionError):
    """A run that has findings, gets stuck, or raises. The message says how to replay it."""


class Kind(NamedTuple):
    """A kind of simulation: of one engine, or of the instances of a cluster."""

    name: str
    world: type[World]
    flags: str

    @property
    def file(self) -> Path:
        """The file with the corpus of this kind."""
        return FOLDER / f"{self.name}.txt"

    def command(self, seed: int) -> str:
        """The command that replays the seed."""
        return f"make sim {self.flags and f'SIM_FLAGS={self.flags} '}SEED={seed}"

    def check(self, seed: int) -> None:
        """Run the seed; raises `WrongRun`."""
        try:
            findings = run(seed, of=self.world).findings
        except Exception as error:  # stuck, or an engine that contradicts itself
            raise WrongRun(self._told(seed, f"{type(error).__name__}: {error}")) from error
        if findings:
            raise WrongRun(self._told(seed, str(findings[:3])))

    def _told(self, seed: int, wrong: str) -> str:
        return (
            f"{wrong}\n`{self.command(seed)}` replays this run. Once it is understood, add the line"
            f" `{seed} found: …` to python/sim/corpus/{self.file.name}, and a test of its own."
        )


ENGINE = Kind("engine", World, "")
INSTANCES = Kind("instances", ClusterWorld, "--instances")
KINDS = (ENGINE, INSTANCES)


class Kept(NamedTuple):
    """A seed of the corpus, and why it is kept."""

    seed: int
    why: str


def corpus(kind: Kind) -> list[Kept]:
    """The seeds of this kind that are kept. A line that cannot be read raises `ValueError`."""
    return parse(kind.file.read_text().splitlines(), kind.file.name)


def parse(lines: Iterable[str], file: str) -> list[Kept]:
    """The seeds of these lines of a file."""
    kept: dict[int, Kept] = {}
    for number, line in enumerate(lines, 1):
        if not (line := line.partition("#")[0].strip()):
            continue
        seed, _, why = line.partition(" ")
        if not seed.isdigit() or not (why == COVER or why.startswith("found: ")):
            raise ValueError(
                f"{file}:{number}: {line!r} must be `SEED found: …` or `SEED {COVER}`."
            )
        if int(seed) in kept:
            raise ValueError(f"{file}:{number}: seed {seed} stands there twice; keep one line.")
        kept[int(seed)] = Kept(int(seed), why)
    return [*kept.values()]


def number(run_seed: str, purpose: str, below: int) -> int:
    """A number from 0 up to `below` that this run seed draws for this purpose."""
    digest = sha256(f"{purpose} {run_seed}".encode()).digest()
    return int.from_bytes(digest) % below


def fresh(kind: Kind, run_seed: str, count: int) -> Sequence[int]:
    """`count` consecutive seeds that this run seed draws."""
    first = FRESH_MIN + number(run_seed, f"seeds of {kind.name}", FRESH_MAX - FRESH_MIN)
    return range(first, first + count)


def commit(directory: Path = FOLDER) -> str:
    """The commit that this directory is at, abbreviated; empty without a repository or git."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def prepare() -> None:
    """Make this process one that only runs seeds: it logs nothing, and collects rarely."""
    logging.disable()
    collect_rarely()


def collect_rarely() -> None:
    """Exclude imported objects from garbage collection: searching them took half of the time of a
    run."""
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS, 10, 10)
