"""Observes in which order threads take the locks of the package.

`observed()` replaces the constructors of `threading` by ones whose locks note, for each acquisition
that may wait, the locks that the thread holds by then. A lock is named by the attribute that it is
assigned to, `room/file.attribute`.

Locks that were made before, or by a `default_factory`, are not observed; neither are events, whose
lock is held by no caller.
"""

import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import tms

PACKAGE = Path(tms.__file__).parent
_ATTRIBUTE = re.compile(r"\s*(?:self\.)?(\w+)(?::[^=]*)? = ")
_MADE = re.compile(r"Lock|Condition\((?!self)")
_Lock, _RLock = threading.Lock, threading.RLock


class Edge(NamedTuple):
    """A thread that holds `outer` acquires `inner`."""

    outer: str
    inner: str


class _Held(threading.local):
    """The locks that this thread holds, in the order in which it took them."""

    def __init__(self) -> None:
        self.locks: list[ObservedLock] = []


class Observer:
    """The order of acquisitions, with the stack of the first of each kind."""

    def __init__(self) -> None:
        self.edges: dict[Edge, str] = {}
        self.names: set[str] = set()
        self._held = _Held()

    def took(self, lock: "ObservedLock", waited: bool) -> None:
        """Note that this thread holds a lock from now on."""
        held = self._held.locks
        if waited and lock not in held:
            for outer in held:
                edge = Edge(outer.name, lock.name)
                if edge not in self.edges:
                    self.edges[edge] = "".join(traceback.format_stack(limit=24)[:-2])
        self.names.add(lock.name)
        held.append(lock)
        lock.holders.append(held)

    def released(self, lock: "ObservedLock") -> None:
        """Note that a lock, which another thread may have taken, is released."""
        held = lock.holders.pop()
        if lock in held:
            del held[len(held) - 1 - held[::-1].index(lock)]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within, this thread plays another process, which holds nothing."""
        before, self._held.locks = self._held.locks, []
        try:
            yield
        finally:
            self._held.locks = before


class ObservedLock:
    """A lock that tells an observer who takes and releases it."""

    def __init__(self, lock: Any, name: str, observer: Observer) -> None:
        self._lock = lock
        self.name = name
        self._observer = observer
        self.holders: list[list[ObservedLock]] = []  # one for each acquisition

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            self._observer.took(self, blocking and timeout < 0)
        return taken

    def release(self) -> None:
        self._observer.released(self)
        self._lock.release()

    def locked(self) -> bool:
        locked: bool = self._lock.locked()
        return locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ObservedRLock(ObservedLock):
    """An observed lock that its thread may take again; conditions can release it."""

    def _is_owned(self) -> bool:
        owned: bool = self._lock._is_owned()
        return owned

    def _release_save(self) -> tuple[int, Any]:
        times = len(self.holders)
        for _ in range(times):
            self._observer.released(self)
        return times, self._lock._release_save()

    def _acquire_restore(self, saved: tuple[int, Any]) -> None:
        times, state = saved
        self._lock._acquire_restore(state)
        for _ in range(times):
            self._observer.took(self, waited=False)


def _maker() -> FrameType | None:
    """The frame of the package that makes a lock; None for the lock of an event, and elsewhere."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "threading":
        if isinstance(frame.f_locals.get("self"), threading.Event):
            return None
        frame = frame.f_back
    if frame is None or not Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        return None
    return frame


@cache
def lock_name(path: str, line: int) -> str:
    """The name of the lock that a line makes: file and attribute; empty if it makes none."""
    file = Path(path)
    lines = file.read_text().splitlines()
    number = line - 1
    if not _MADE.search(lines[number]):  # by a module in C, which has no frame
        return ""
    while not (found := _ATTRIBUTE.match(lines[number])):
        number -= 1
    return f"{file.relative_to(PACKAGE).with_suffix('')}.{found[1]}"


@contextmanager
def observed() -> Iterator[Observer]:
    """Within, the locks that the package makes are observed."""
    observer = Observer()
    with (
        patch.object(threading, "Lock", making(_Lock, ObservedLock, observer)),
        patch.object(threading, "RLock", making(_RLock, ObservedRLock, observer)),
    ):
        yield observer


def making(
    make: Callable[[], Any], kind: type[ObservedLock], observer: Observer
) -> Callable[[], Any]:
    """A constructor of locks that are observed if the package makes them."""

    def made() -> Any:
        frame = _maker()
        if frame is None:
            return make()
        name = lock_name(frame.f_code.co_filename, frame.f_lineno)
        if not name:
            return make()
        return kind(make(), name, observer)

    return made
