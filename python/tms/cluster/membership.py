"""Which instances there are, as each of them sees it.

    join ─▶ MEMBER ⇄ SUSPENDED ─▶ LOST ─▶ MEMBER …

Invariants

* Whom somebody sees may be wrong: an instance that is not seen may live, and write. What is seen
  only decides who *should* own what; the epoch of a partition decides who does.
* Of two views the one with the larger number is the newer, whoever has it.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from tms.cluster.placement import Instance


class InstanceRecord(msgspec.Struct, frozen=True):
    """An instance, as it shows itself. `address` is the URL at which the others reach it; `keys`
    are public, see `InstanceIdentity`."""

    id: str
    address: str
    version: str
    capacity: int = 1
    draining: bool = False
    keys: tuple[str, ...] = ()

    def instance(self) -> Instance:
        """As placement wants it."""
        return Instance(self.id, self.capacity, self.draining)


class MembershipView(NamedTuple):
    """The instances, by id, at a moment."""

    number: int = 0
    instances: tuple[InstanceRecord, ...] = ()


class MembershipState(Enum):
    """How an instance stands with the others."""

    MEMBER = "member"
    SUSPENDED = (
        "suspended"  # it cannot be told whether the others see it: it reads, and does not write
    )
    LOST = "lost"  # the others do not see it: it owns nothing


class ClusterMember(Protocol):
    """One instance among the others. Thread-safe."""

    @property
    def record(self) -> InstanceRecord:
        """What it says of itself."""
        ...

    @property
    def state(self) -> MembershipState: ...

    @property
    def view(self) -> MembershipView:
        """The newest view; without instances before there was one."""
        ...

    def join(self, changed: Callable[[], None]) -> None:
        """Be seen by the others, from some time on. `changed` is called, from any thread, whenever
        state or view are others."""
        ...

    def drain(self) -> None:
        """Tell the others that this instance wants to own nothing."""
        ...

    def show(self, keys: tuple[str, ...]) -> None:
        """Let the others see these keys of this instance."""
        ...

    def leave(self) -> None:
        """Be seen no more. A second call does nothing."""
        ...
