"""Bounds drawn from a seed, and set while a run lasts.

Invariants

* A bound is drawn log-uniformly between the least that the table says and its default.
* How many of them are drawn is drawn too: in some runs all are small at once, in others only a few
  among defaults, because what one bound hides another one may need.
* The same seed draws the same bounds; a bound that is added does not change those of the others.
"""

from contextlib import AbstractContextManager
from importlib import import_module
from random import Random
from typing import Any, TypeVar

from sim.bounds.source import Number, bounds, users
from sim.bounds.table import DRAWN
from sim.replacing import replaced
from tms.engine.config import EngineConfig

T = TypeVar("T")
SHARES = (0.2, 0.7, 1.0)  # of all bounds that are drawn in a run


class Bounds:
    """The drawn bounds of a run, by path, without those at their default."""

    def __init__(self, drawn: dict[str, Number] | None = None) -> None:
        self.drawn = drawn or {}

    @classmethod
    def of(cls, seed: object) -> "Bounds":
        """The bounds that a seed draws."""
        share = Random(f"{seed}").choice(SHARES)
        drawn = {}
        for path, least in DRAWN.items():
            random = Random(f"{seed} {path}")
            default = bounds()[path].default
            if random.random() < share:
                number = least * (default / least) ** random.random() if default else default
                drawn[path] = number if isinstance(default, float) else round(number)
        return cls(drawn)

    def make(self, kind: type[T], **given: Any) -> T:
        """An object of a class that holds limits."""
        name = f"{kind.__module__.removeprefix('tms.')}.{kind.__name__}."
        fields = {
            path.removeprefix(name): value
            for path, value in self.drawn.items()
            if path.startswith(name)
        }
        return kind(**{**fields, **given})

    def config(self, **given: Any) -> EngineConfig:
        """An engine configuration with the drawn bounds."""
        from tms.log.partition import LogLimits
        from tms.topics.compaction.compaction import CompactionLimits

        parts = {"log": self.make(LogLimits), "compaction": self.make(CompactionLimits)}
        return self.make(EngineConfig, **{**parts, **given})

    def set(self) -> AbstractContextManager[None]:
        """While this lasts, the names of modules have the drawn values."""
        return replaced(
            [
                (import_module(f"tms.{module}"), name, value)
                for path, value in self.drawn.items()
                if path in users()
                for module, name in users()[path]
            ]
        )
