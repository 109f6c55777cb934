"""The outcomes of transactions at an instance that does not coordinate: it asks who does.

    known here ─▶ answered at once        unheard ─▶ asked, many together ─▶ remembered if decided

Invariants

* Only what is decided is remembered: that never changes.
* What is not remembered is asked for after a request has come: who has seen a commit acknowledged
  sees its messages at every instance.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol

from tms.clock import Clock
from tms.errors import TMSError
from tms.log.visibility import Unheard
from tms.model.snapshot import POINTERS_PER_MS, Fate

REMEMBERED = 200_000
AGAIN_S = 0.02  # after which somebody who waits for an end asks again


class Coordinating(Protocol):
    """What is asked of the instance that coordinates."""

    def learn(self, pointers: Collection[int]) -> dict[int, Fate]:
        """What becomes of messages of transactions that were begun here."""
        ...

    def undecided_since_ms(self, foreign: bool) -> int:
        """See `Decisions`."""
        ...


class AskedDecisions:
    """Decisions that are asked for. Thread-safe. `lifetime_ms`: of a transaction that was begun
    elsewhere."""

    def __init__(
        self, coordinator: Callable[[], Coordinating], clock: Clock, lifetime_ms: int
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._lifetime_ms = lifetime_ms
        self._lock = threading.Lock()  # guards what follows
        self._decided: OrderedDict[int, Fate] = OrderedDict()
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._asking = False
        self.asked = 0  # times

    def fate_at_once(self, pointer: int, issued: bool) -> Fate:
        """What becomes of a message. Raises `Unheard`."""
        if not issued:
            late = pointer // POINTERS_PER_MS + self._lifetime_ms < self._clock.now_ms()
            return Fate.SKIPPED if late else Fate.OPEN
        known = self._decided.get(pointer)
        if known is None:
            raise Unheard(self.learn)
        return known

    def fate(self, pointer: int, issued: bool) -> Fate:
        """The same; it may wait. Raises `Unavailable`."""
        try:
            return self.fate_at_once(pointer, issued)
        except Unheard:
            return self._ask({pointer})[pointer]

    def learn(self, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        """What becomes of the messages of these transactions, asked for now."""
        unknown = {pointer for pointer in pointers if pointer not in self._decided}
        found = self._ask(unknown) if unknown else {}

        def fate(pointer: int, issued: bool) -> Fate:
            return found[pointer] if pointer in found else self.fate_at_once(pointer, issued)

        return fate

    def confirm(self) -> None:
        """See `Decisions`: whoever is asked looks before it answers."""

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction that was begun here ends, at once if it has.
        Returns a cancel."""
        with self._lock:
            if pointer not in self._decided:
                self._waiting.setdefault(pointer, []).append(callback)
                if not self._asking:
                    self._asking = True
                    threading.Thread(target=self._watch, name="tms-decisions", daemon=True).start()
                return lambda: self._cancel(pointer, callback)
        callback()
        return lambda: None

    def undecided_since_ms(self, now_ms: int, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided."""
        return min(now_ms, self._coordinator().undecided_since_ms(foreign))

    def _ask(self, pointers: Collection[int]) -> dict[int, Fate]:
        self.asked += 1
        fates = self._coordinator().learn(pointers)
        with self._lock:
            for pointer, fate in fates.items():
                if fate is not Fate.OPEN:
                    self._decided[pointer] = fate
            while len(self._decided) > REMEMBERED:
                self._decided.popitem(last=False)
        return fates

    def _watch(self) -> None:
        """Ask until nobody waits. Whoever cannot be told looks for himself."""
        while True:
            threading.Event().wait(AGAIN_S)
            with self._lock:
                pointers = set(self._waiting)
                if not pointers:
                    self._asking = False
                    return
            try:
                fates = self._ask(pointers)
                ended = [pointer for pointer in pointers if fates[pointer] is not Fate.OPEN]
            except TMSError:
                ended = list(pointers)
            with self._lock:
                due = [callback for one in ended for callback in self._waiting.pop(one, ())]
            for callback in due:
                callback()

    def _cancel(self, pointer: int, callback: Callable[[], None]) -> None:
        with self._lock:
            waiting = self._waiting.get(pointer, [])
            if callback in waiting:
                waiting.remove(callback)
                if not waiting:
                    del self._waiting[pointer]
