"""Attributes that are replaced while a run lasts: drawn bounds and planted bugs."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]  # an object, the name of its attribute, the new value


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """While this lasts, the attributes have these values."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
