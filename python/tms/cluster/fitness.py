"""The fitness of instances: ZooKeeper may see an instance that reaches neither store nor peers.

    the store    no answer for `away_s` ─▶ away
                 for `bound_s`, in which another one always had answers ─▶ resigned
    other ones   no answer for `bound_s` ─▶ unreached
    a view       resigned, or unreached by most of those that watch it ─▶ unfit: owns nothing

Invariants

* Each instance shows in its own record what it reaches. `unfit` is a function of the records, the
  same at every instance, and never all of them.
* An instance is shown as away long before another one resigns, and when the store is back no
  instance resigns for `bound_s`: where the store is away for all, nobody resigns.
* An instance is fit again once it has reached for `bound_s`, without a break, what it did not.
* An instance that is away, or unfit, says nothing of other instances, and the silence of one that
  is away does not count: when the store or a network is back, no instance is blamed for the time
  before.
* Time in which this process itself stood still does not count.
* As membership is, this is a hint: the epochs of partitions decide who owns them.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec

from tms.cluster.membership import InstanceRecord
from tms.errors import TimedOut, TMSError, Unavailable
from tms.runtime.clock import Clock

WATCHED = 3  # other instances that one watches: those behind it in the ring of ids


class Reach:
    """The time since a store or peer is reached, or is not, with breaks of less than `away_s`. For
    one thread but for `reached_s`."""

    def __init__(self, now_s: float, away_s: float, bound_s: float) -> None:
        self._away_s = away_s
        self._bound_s = bound_s
        self._steady_s = self._seen_s = self.reached_s = now_s
        self.away = False  # no answer of late
        self.lost = False  # from `bound_s` without an answer on, until `bound_s` with answers

    def skip(self, seconds: float) -> None:
        """Leave out a time in which this process did not look and nothing could be answered."""
        self._steady_s += seconds
        self._seen_s += seconds
        self.reached_s += seconds

    def look(self, now_s: float) -> None:
        """Take into account what was answered until now."""
        if self.reached_s - self._seen_s > self._away_s:
            self._steady_s = self.reached_s
        self._seen_s = self.reached_s
        silent_s = now_s - self.reached_s
        self.away = silent_s > self._away_s
        if silent_s > self._bound_s:
            self.lost = True
        elif self.reached_s - self._steady_s >= self._bound_s:
            self.lost = False


class Fitness:
    """The fitness of an instance: what it reaches. `look` is for one thread. `ask` asks another
    instance whether it answers within so many seconds, and raises `Unavailable` or `TimedOut` if it
    does not."""

    def __init__(
        self,
        clock: Clock,
        away_s: float,
        session_s: float,
        ask: Callable[[InstanceRecord, float], object],
        threads: Executor | None = None,
    ) -> None:
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        self._away_s = away_s
        self._bound_s = max(session_s, 2 * away_s)
        self._ask = ask
        self._store: Reach | None = None
        self._all_away_s = float("-inf")  # when no other instance reached the store, the last time
        self._peers: dict[tuple[str, str], Reach] = {}  # by id and address
        self._asked_s: dict[tuple[str, str], float] = {}  # when each was asked for the last time
        self._asking: set[tuple[str, str]] = set()  # whose answers are to come
        self._threads = threads or ThreadPoolExecutor(WATCHED, "tms-reach")

    def look(
        self,
        record: InstanceRecord,
        view: Sequence[InstanceRecord],
        reached_s: float | None,
    ) -> InstanceRecord:
        """The record of this instance, with what it reaches now. `reached_s`: when the newest
        question began that the store has answered; None if the store is not watched."""
        now_s = self._clock.monotonic_s()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if passed_s > self._bound_s / 2:
            for reach in (*self._peers.values(), *([self._store] if self._store else ())):
                reach.skip(passed_s)
        others = [one for one in view if one.id != record.id]
        away = lost = False
        if reached_s is not None:
            store = self._store = self._store or Reach(now_s, self._away_s, self._bound_s)
            store.reached_s = max(store.reached_s, reached_s)
            store.look(now_s)
            away = store.away
            lost = store.lost
        if all(one.away or one.resigned for one in others):
            self._all_away_s = now_s
        resigned = lost and (record.resigned or now_s - self._all_away_s >= self._bound_s)
        if away or resigned or record.id in unfit(view):
            self._peers.clear()
            unreached: tuple[str, ...] = ()
        else:
            unreached = self._unreached(record.id, others, passed_s)
        return msgspec.structs.replace(record, away=away, resigned=resigned, unreached=unreached)

    def close(self) -> None:
        """Stop asking other instances. Never waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _unreached(
        self, id: str, others: Sequence[InstanceRecord], passed_s: float
    ) -> tuple[str, ...]:
        now_s = self._looked_s
        ids = sorted([id, *(one.id for one in others)])
        watched = {(one.id, one.address): one for one in others if id in _watchers(ids, one.id)}
        self._peers = {
            key: self._peers.get(key) or Reach(now_s, self._away_s, self._bound_s)
            for key in watched
        }
        for key, record in watched.items():
            if record.away:  # and says so itself
                self._peers[key].skip(passed_s)
                continue
            self._peers[key].look(now_s)
            due = now_s - self._asked_s.get(key, float("-inf")) >= self._away_s / 2
            if due and key not in self._asking:
                self._asking.add(key)
                self._threads.submit(self._question, key, record, self._peers[key])
                self._asked_s[key] = now_s
        self._asked_s = {key: self._asked_s[key] for key in watched if key in self._asked_s}
        return tuple(sorted(key[0] for key, reach in self._peers.items() if reach.lost))

    def _question(self, key: tuple[str, str], record: InstanceRecord, reach: Reach) -> None:
        began_s = self._clock.monotonic_s()
        try:
            self._ask(record, self._away_s)
            reach.reached_s = began_s
        except (Unavailable, TimedOut):
            pass
        except TMSError:  # an answer is one, whatever it says
            reach.reached_s = began_s
        finally:
            self._asking.discard(key)


def unfit(view: Sequence[InstanceRecord]) -> frozenset[str]:
    """The instances of a view that should own nothing, by id: those that have resigned, and those
    that are unreached by more than half of the fit ones that watch them. Of two that do not reach
    each other it is the one of the larger id. Never all."""
    ids = sorted(one.id for one in view)
    fit = {one.id: one for one in view if not one.resigned}
    if not fit:
        return frozenset()
    while True:
        blamed = [(share, id) for id in fit if (share := _blame(ids, fit, id)) > 0.5]
        if not blamed:
            return frozenset(id for id in ids if id not in fit)
        del fit[max(blamed)[1]]


def unfit_reason(record: InstanceRecord, session_s: float) -> str:
    """The reason why an unfit instance owns nothing, in sentences."""
    if record.resigned:
        return (
            f"The instance {record.id} owns nothing until it has reached the store for "
            f"{session_s:g} s. Go to another instance."
        )
    return (
        f"Other instances have had no answer of {record.id} at {record.address} for "
        f"{session_s:g} s, so it owns nothing until it answers them for as long. Go to another "
        "instance. Look at its load, its --advertise, and the network."
    )


def _blame(ids: list[str], fit: Mapping[str, InstanceRecord], id: str) -> float:
    """The part of the fit watchers of an instance that do not reach it."""
    watchers = [fit[one] for one in _watchers(ids, id) if one in fit]
    return sum(id in one.unreached for one in watchers) / len(watchers) if watchers else 0.0


def _watchers(ids: list[str], id: str) -> list[str]:
    """The instances before this one in the ring of sorted ids."""
    at = ids.index(id)
    return [ids[at - step] for step in range(1, min(WATCHED, len(ids) - 1) + 1)]
