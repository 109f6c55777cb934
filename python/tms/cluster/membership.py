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


class InstanceRecord(msgspec.Struct, frozen=True):
    """An instance, as it shows itself. `address` is the URL at which the others reach it; `keys`
    are public, see `InstanceIdentity`. What it reaches is told by the last three: see `fitness`."""

    id: str
    address: str
    version: str
    capacity: int = 1
    draining: bool = False
    keys: tuple[str, ...] = ()
    away: bool = False  # it does not reach the store now
    resigned: bool = False  # it has not reached the store for a session, and owns nothing
    unreached: tuple[str, ...] = ()  # instances that have not answered it for a session


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
    def session_s(self) -> float:
        """For how long one that is silent is taken for alive."""
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

    def show(self, record: InstanceRecord) -> None:
        """Tell the others this of the instance from now on."""
        ...

    def leave(self) -> None:
        """Be seen no more. A second call does nothing."""
        ...
