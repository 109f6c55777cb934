"""What becomes of objects in a process that was forked.

A fork copies all memory and one thread. Connections, numbers of messages and locks are there twice
from then on, and whoever held a lock is gone. So whatever has such things says what becomes of it:

    in_child(self._forked)      called in the child, before anything else runs there
    leave(self, self._store)    in the child: every use raises, see `Inherited`
    generation                  another one in the child, for what is too small to be told

Invariants

* What is called in the child takes no lock, writes to nothing that the parent has, too, and ends no
  connection: it closes the child's end.
"""

import ctypes
import os
from collections.abc import Callable
from types import MethodType
from typing import Any, cast
from weakref import ref

from tms.errors import Closed

generation = 0  # how many forks lie between this process and the one that loaded TMS
_told: dict[ref[Any], Callable[[Any], None]] = {}  # objects, and what to call with them


def in_child(forked: Callable[[], None]) -> None:
    """Call a method of an object, one of each, in every process that is forked while the object
    lives."""
    method = cast(MethodType, forked)
    _told[ref(method.__self__, _told.pop)] = method.__func__


class Inherited:
    """What an object of the parent is in a child that must not touch it: closing it does nothing,
    everything else raises `Closed`."""

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
    """In the child: these objects stay with the parent, and nothing of theirs is released."""
    for one in objects:
        object.__setattr__(one, "__class__", Inherited)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _nothing() -> None:
    pass


def _forked() -> None:
    global generation
    generation += 1
    for there, forked in list(_told.items()):
        if (one := there()) is not None:
            forked(one)


os.register_at_fork(after_in_child=_forked)
