"""The outcomes of transactions at an instance that does not coordinate: it asks the coordinator.

    known here ─▶ answered at once        unheard ─▶ asked, many together ─▶ remembered if decided

Invariants

* Only decided outcomes are remembered: they never change.
* An outcome that is not remembered is asked for after the request has come. So a client that has
  seen a commit acknowledged sees its messages at every instance.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress

from tms.api.instances import PeersApi
from tms.errors import TMSError
from tms.log.visibility import UnknownOutcome
from tms.model.snapshot import POINTERS_PER_MS, Fate
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

REMEMBERED = 200_000
AGAIN_S = 0.02  # between two questions while callbacks wait for an end
_log = EventLog(__name__)


class RemoteDecisions:
    """Decisions that are asked of the coordinator. Thread-safe. `lifetime_ms` bounds a transaction
    that was begun elsewhere."""

    def __init__(self, coordinator: Callable[[], PeersApi], clock: Clock, lifetime_ms: int) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._lifetime_ms = lifetime_ms
        self._lock = threading.Lock()  # guards what follows
        self._decided: OrderedDict[int, Fate] = OrderedDict()
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._asking = False
        self.asked = 0  # times

    def fate_at_once(self, pointer: int, issued: bool) -> Fate:
        """The fate of a message, if it is remembered. Raises `UnknownOutcome`."""
        if not issued:
            late = pointer // POINTERS_PER_MS + self._lifetime_ms < self._clock.now_ms()
            return Fate.SKIPPED if late else Fate.OPEN
        known = self._decided.get(pointer)
        if known is None:
            raise UnknownOutcome(self.learn)
        return known

    def fate(self, pointer: int, issued: bool) -> Fate:
        """The fate of a message; asks the coordinator if it is not remembered. Raises
        `Unavailable`."""
        try:
            return self.fate_at_once(pointer, issued)
        except UnknownOutcome:
            return self._ask({pointer})[pointer]

    def learn(self, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        """The fates of the messages of these transactions; those not remembered are asked for
        now."""
        unknown = {pointer for pointer in pointers if pointer not in self._decided}
        found = self._ask(unknown) if unknown else {}

        def fate(pointer: int, issued: bool) -> Fate:
            return found[pointer] if pointer in found else self.fate_at_once(pointer, issued)

        return fate

    def confirm(self) -> None:
        """Do nothing; as in `Decisions`. The coordinator confirms itself before it answers."""

    def watch_end(self, pointer: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when a transaction that was begun here ends, at once if it has.
        Returns a cancel."""
        with self._lock:
            if pointer not in self._decided:
                self._waiting.setdefault(pointer, []).append(callback)
                if not self._asking:
                    threading.Thread(target=self._watch, name="tms-decisions", daemon=True).start()
                    self._asking = True  # only if it has been started
                return lambda: self._cancel(pointer, callback)
        callback()
        return lambda: None

    def undecided_since_ms(self, now_ms: int, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided."""
        return min(now_ms, self._coordinator().undecided_since_ms(foreign))

    def _ask(self, pointers: Collection[int]) -> dict[int, Fate]:
        self.asked += 1
        ended = self._coordinator().fates(sorted(pointers))
        fates = {pointer: ended.get(pointer, Fate.OPEN) for pointer in pointers}
        with self._lock:
            for pointer, fate in fates.items():
                if fate is not Fate.OPEN:
                    self._decided[pointer] = fate
            while len(self._decided) > REMEMBERED:
                self._decided.popitem(last=False)
        return fates

    def _watch(self) -> None:
        """Ask until no callback waits. If the coordinator does not answer, the callbacks are
        called, and find out themselves."""
        while True:
            threading.Event().wait(AGAIN_S)
            with self._lock:
                pointers = set(self._waiting)
                if not pointers:
                    self._asking = False
                    return
            ended = pointers
            with suppress(TMSError):
                fates = self._ask(pointers)
                ended = {pointer for pointer in pointers if fates[pointer] is not Fate.OPEN}
            with self._lock:
                due = [callback for one in ended for callback in self._waiting.pop(one, ())]
            for callback in due:
                try:
                    callback()
                except Exception:  # one of many: the others wait for this thread
                    _log.exception("watcher_failed")

    def _cancel(self, pointer: int, callback: Callable[[], None]) -> None:
        with self._lock:
            waiting = self._waiting.get(pointer, [])
            if callback in waiting:
                waiting.remove(callback)
                if not waiting:
                    del self._waiting[pointer]
