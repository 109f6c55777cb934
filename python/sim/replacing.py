"""Attributes that stand for others while a run lasts: bounds that were drawn, and planted bugs."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]  # whose attribute, its name, what stands there instead


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """While this lasts, the attributes have these values."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
