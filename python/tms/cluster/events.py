"""The newest events of an instance, in memory: changes of the view, and of what it owns.

Each is logged, too.
"""

from collections import deque
from typing import Protocol

from tms.cluster.fitness import unfit
from tms.cluster.membership import MembershipState, MembershipView
from tms.model.cluster import ClusterEvent
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

EVENTS_MAX = 1_000
_log = EventLog(__name__)


class Counted(Protocol):
    """The parts of a cluster that change between two looks."""

    @property
    def view(self) -> MembershipView: ...

    @property
    def state(self) -> MembershipState: ...

    taken_over: int
    released: int


class ClusterEvents:
    """The events of one instance. `look` is for one thread at a time, `newest` for all."""

    def __init__(self, id: str, clock: Clock) -> None:
        self._id = id
        self._clock = clock
        self._events: deque[ClusterEvent] = deque(maxlen=EVENTS_MAX)
        self._seen: frozenset[str] = frozenset()
        self._draining: frozenset[str] = frozenset()
        self._away: frozenset[str] = frozenset()
        self._unfit: frozenset[str] = frozenset()
        self._state = MembershipState.LOST
        self._taken_over = self._released = 0
        self._coordinates, self._shards = False, 0

    def newest(self) -> list[ClusterEvent]:
        """All that are remembered, oldest first."""
        return list(self._events)

    def look(self, cluster: Counted, coordinates: bool, shards: int, opening_s: float) -> None:
        """Note what is different now."""
        seen = frozenset(one.id for one in cluster.view.instances)
        instances = cluster.view.instances
        draining = frozenset(one.id for one in instances if one.draining)
        away = frozenset(one.id for one in instances if one.away)
        unfit_ = unfit(instances)
        for what, ids in (
            ("joined", seen - self._seen),
            ("left", self._seen - seen),
            ("drains", draining - self._draining),
            ("does not reach the store", away - self._away),
            ("reaches the store again", (self._away - away) & seen),
            ("owns nothing until it can work", unfit_ - self._unfit),
            ("can work again", (self._unfit - unfit_) & seen),
        ):
            for id in sorted(ids):
                self._note(f"an instance {what}", id)
        if cluster.state is not self._state:
            self._note("membership", cluster.state.value)
        if coordinates != self._coordinates:
            ready = f"ready after {opening_s:.3f} s"
            self._note("coordinates" if coordinates else "coordinates no more", ready * coordinates)
        if shards != self._shards:
            self._note("keeps shards", f"{shards}, after {opening_s:.3f} s")
        for what, count in (
            ("took over", cluster.taken_over - self._taken_over),
            ("released", cluster.released - self._released),
        ):
            if count:
                self._note(what, f"{count} partition{'s' * (count > 1)}")
        self._seen, self._draining, self._state = seen, draining, cluster.state
        self._away = away
        self._unfit = unfit_
        self._taken_over, self._released = cluster.taken_over, cluster.released
        self._coordinates, self._shards = coordinates, shards

    def _note(self, what: str, details: str) -> None:
        self._events.append(ClusterEvent(self._clock.now_ms(), self._id, what, details))
        _log.info("cluster_changed", what=what, details=details)
