"""The score of a room, and its survivors.

`equivalent.toml` holds the survivors that no test can notice, each with a sentence that says why. A
survivor is found again by its file and its changed lines, so its entry goes stale with the code.
"""

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mutants.making import Mutant
from mutants.rooms import PYTHON
from mutants.running import Result

SENTENCES = Path(__file__).with_name("equivalent.toml")


class Report:
    """The outcomes of the mutants of one room."""

    def __init__(self, results: Sequence[Result]) -> None:
        known = {
            (one["file"], one["before"], one["after"])
            for one in tomllib.loads(SENTENCES.read_text()).get("mutant", [])
        }
        self._outcomes = Counter(one.outcome for one in results)
        self._lives = sum(one.lives for one in results)
        self._equivalent = sum(one.lives and _noted(one.mutant) in known for one in results)

    @property
    def score(self) -> float:
        """The share of noticed mutants among those that are not equivalent, 0 to 1."""
        of = self._outcomes.total() - self._equivalent
        return 1 - (self._lives - self._equivalent) / of if of else 1.0

    def text(self) -> str:
        """The score in a line."""
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self._outcomes.items()))
        return f"{self.score:.1%} noticed ({counts}; {self._equivalent} of them equivalent)"


def shown(result: Result) -> str:
    """A survivor in the form of `equivalent.toml`, ready for the sentence."""
    file, before, after = _noted(result.mutant)
    return (
        f"# {file}:{result.mutant.lines[0]} {result.outcome}, {result.tests} tests\n[[mutant]]\n"
        f'file = {file!r}\nbefore = {_quoted(before)}\nafter = {_quoted(after)}\nwhy = ""\n'
    )


def _noted(mutant: Mutant) -> tuple[str, str, str]:
    file = mutant.file.relative_to(PYTHON).as_posix()
    return file, mutant.before.strip(), mutant.after.strip()


def _quoted(text: str) -> str:
    return f"'''{text}'''"
