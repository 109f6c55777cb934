"""Whole lists with their numbers, from which pages in the order of a number are cut.

    request ─▶ a list that is fresh ─▶ its entries
             ▶ one that is old ─▶ its entries, and a thread makes a new one
             ▶ none, or one that is too old ─▶ a thread makes it; soon: its entries, else: try again

* A list is made by one thread at a time, and a request waits for it for `WAIT_S` at most.
* Making a list takes `SHARE` of the time at most; it is fresh for so long, and too old after twice
  that.
* Few lists are kept, and none that is too old once another one is made.
* An error of making is raised once, by the request that waits for it or by the next one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Any, NamedTuple

from tms.errors import Overloaded, without_frames
from tms.runtime.clock import Clock

FRESH_S = 15.0  # at least
SHARE = 0.02
WAIT_S = 0.05  # of a request, for a list that is made
LISTS_MAX = 4
ListKey = tuple[str, str]  # kind and namespace


class _WholeList(NamedTuple):
    entries: Sequence[Any]
    made_s: float
    took_s: float

    @property
    def fresh_s(self) -> float:
        """The time for which it is fresh, from `made_s` on."""
        return max(FRESH_S, self.took_s / SHARE)


class WholeLists:
    """Makes whole lists and keeps them for a while. Thread-safe: each change of a dict is atomic.
    `threads` make the lists."""

    def __init__(self, clock: Clock, threads: Executor) -> None:
        self._clock = clock
        self._threads = threads
        self._lists: dict[ListKey, _WholeList] = {}
        self._making: dict[ListKey, object] = {}
        self._errors: dict[ListKey, Exception] = {}

    def get(self, key: ListKey, read: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The entries of a list; `read` reads all of them. Raises `Overloaded` while it is made,
        and the errors of `read`."""
        kept = self._lists.get(key)
        age_s = 0.0 if kept is None else self._clock.monotonic_s() - kept.made_s
        if kept is not None and age_s <= kept.fresh_s:
            return kept.entries
        made: Future[None] | None = None
        own = object()
        if self._making.setdefault(key, own) is own:
            made = self._threads.submit(self._make, key, read)
        if kept is not None and age_s <= 2 * kept.fresh_s:
            return kept.entries
        if made is not None:
            wait((made,), WAIT_S)
        if (error := self._errors.pop(key, None)) is not None:
            raise error
        newer = self._lists.get(key)
        if newer is None or newer is kept:
            raise Overloaded(
                "The list is being put into the order of its numbers, for the first time or after "
                "a while. Try again.",
                retry_after_s=1,
            )
        return newer.entries

    def _make(self, key: ListKey, read: Callable[[], Sequence[Any]]) -> None:
        began_s = self._clock.monotonic_s()
        try:
            entries = read()
            made_s = self._clock.monotonic_s()
            self._lists[key] = _WholeList(entries, made_s, made_s - began_s)
            self._errors.pop(key, None)
            self._drop_old(made_s)
        except Exception as error:
            without_frames(error)  # they hold what was read
            self._errors[key] = error
        finally:
            self._making.pop(key, None)

    def _drop_old(self, now_s: float) -> None:
        kept = sorted(self._lists.copy().items(), key=lambda one: -one[1].made_s)
        for nth, (key, one) in enumerate(kept):
            if nth >= LISTS_MAX or now_s - one.made_s > 2 * one.fresh_s:
                self._lists.pop(key, None)
