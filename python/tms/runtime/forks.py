"""Fork safety: the state of objects in a forked child.

After a fork, child and parent share connections and sequence numbers, and a lock held by another
thread stays locked in the child. Every object with such state declares what happens in the child:

    in_child(self._forked)      called in the child, before any other code runs there
    leave(self, self._store)    in the child: every use raises, by `Inherited`
    generation                  differs in the child, for objects too small to register

Invariants

* Code that runs in the child takes no lock, writes to no file or connection of the parent, and ends
  no connection: it closes the child's end.
"""

import ctypes
import os
from collections.abc import Callable
from types import MethodType
from typing import Any, cast
from weakref import ref

from tms.errors import Closed

generation = 0  # number of forks between the process that loaded TMS and this one
_registered: dict[ref[Any], Callable[[Any], None]] = {}  # functions to call in a child, by object


def in_child(forked: Callable[[], None]) -> None:
    """Register a method of an object, one for each object, to be called in every process that is
    forked while the object lives."""
    method = cast(MethodType, forked)
    _registered[ref(method.__self__, _registered.pop)] = method.__func__


class Inherited:
    """The class that an object of the parent gets in a child that must not touch it: closing does
    nothing, every other use raises `Closed`."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        if name == "close":
            return _nothing
        raise Closed(
            "This log was opened by the process from which this one was forked, and stays with "
            "it. Open logs after the fork, or share one through a service: `tms serve` and "
            "tms.connect()."
        )


def leave(*objects: object) -> None:
    """In the child: leave these objects to the parent; none of their resources are released."""
    for one in objects:
        object.__setattr__(one, "__class__", Inherited)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _nothing() -> None:
    pass


def _forked() -> None:
    global generation
    generation += 1
    for there, forked in list(_registered.items()):
        if (one := there()) is not None:
            forked(one)


os.register_at_fork(after_in_child=_forked)
