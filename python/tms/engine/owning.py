"""Owning a store that other processes can reach, before an engine is opened on it."""

from tms.clock import Clock
from tms.cluster.ownership import OwnerLimits, Ownership
from tms.store.base import Store
from tms.topics.sweep import open_metadata


def own(
    store: Store, clock: Clock, name: str, limits: OwnerLimits, take_over: bool = False
) -> Ownership | None:
    """The ownership of a shared store, shown from now on; None for a store that one process has for
    itself. `name` is what people are told of this process. See `Ownership.take`."""
    if not store.shared:
        return None
    ownership = Ownership(open_metadata(store), clock, name, limits)
    ownership.take(take_over)
    ownership.start()
    return ownership
