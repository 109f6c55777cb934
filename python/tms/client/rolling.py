"""Restarting the instances of a cluster one after another.

Invariants

* The next one is restarted when the one before is ready and all that were there are there again.
* The coordinator comes last: what it keeps moves away and back once.
"""

from collections.abc import Callable, Iterator
from functools import partial

from tms.errors import Conflict, TimedOut, Unavailable
from tms.model.cluster import ClusterView, InstanceInfo


def restart_all(
    look: Callable[[], ClusterView],
    is_ready: Callable[[InstanceInfo], bool],
    restart: Callable[[InstanceInfo], None],
    wait_for: Callable[[Callable[[], bool]], bool],
) -> Iterator[InstanceInfo]:
    """Restart each instance that `look` shows now, and give it once it is back. `wait_for` waits
    until something holds and says whether it did in time. Raises `Conflict` for a service that is
    alone, `TimedOut` for an instance that does not come back, and what `restart` raises; the
    instances after it stay as they are."""
    view = look()
    if len(view.instances) < 2:
        raise Conflict(
            f"There is {'one instance' if view.instances else 'no cluster'}: while it restarts "
            "nobody answers. Restart it by itself, or start another one first."
        )
    ids = {one.id for one in view.instances}
    for one in sorted(view.instances, key=lambda one: (one.id == view.coordinator, one.id)):
        restart(one)
        if not wait_for(partial(_is_back, one.id, ids, look, is_ready)):
            raise TimedOut(
                f"{one.id} was restarted and is not ready in time. See its log, and `tms cluster "
                "status`; the instances after it were not restarted."
            )
        yield one


def _is_back(
    id: str,
    ids: set[str],
    look: Callable[[], ClusterView],
    is_ready: Callable[[InstanceInfo], bool],
) -> bool:
    try:
        there = {one.id: one for one in look().instances}
    except (Unavailable, TimedOut):
        return False
    return ids <= there.keys() and not there[id].draining and is_ready(there[id])
