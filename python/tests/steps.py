"""The steps of a story at which a process dies, if dying at each of them would take too long.

A step is one operation of a store; its kind is the operation and the map that it concerns. Steps
between the same two kinds leave the same things half done, so the first and the last step of each
pair of kinds stand for the others. Tests marked `long` take every step.
"""

import re
from collections.abc import Callable, Hashable, Sequence

Kind = tuple[str, str]
_OWN = re.compile(r"[0-9a-f]{8,}|\d+")  # the part of a name that differs from map to map of a kind


def kind(operation: str, name: str) -> Kind:
    """The kind of an operation on a map."""
    return operation, _OWN.sub("", name)


def first_and_last(kinds: Sequence[Kind]) -> list[int]:
    """The first and the last step of each pair of kinds that follow one another, in order."""
    return first_and_last_of_each(list(zip([None, *kinds], kinds, strict=False)))


def first_and_last_of_each(steps: Sequence[Hashable]) -> list[int]:
    """The first and the last of each group of equal steps, in order."""
    first = {what: step for step, what in reversed(list(enumerate(steps)))}
    last = {what: step for step, what in enumerate(steps)}
    return sorted({*first.values(), *last.values()})


def noting(into: list[Kind]) -> Callable[[str, str], None]:
    """The function that a store calls ahead of each operation: adds its kind."""
    return lambda operation, name: into.append(kind(operation, name))
