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

HTTP = "http"


class InstanceRecord(msgspec.Struct, frozen=True):
    """An instance, as it shows itself. `address` is the URL at which the others reach it; `keys`
    are public, see `InstanceIdentity`; `away`, `resigned` and `unreached` say what it reaches, see
    `fitness`; `number` stays with the id, 0 in records of earlier releases; `endpoints` are
    HOST:PORT of its front ends, by their names."""

    id: str
    address: str
    version: str
    capacity: int = 1
    draining: bool = False
    keys: tuple[str, ...] = ()
    away: bool = False  # it does not reach the store now
    resigned: bool = False  # it has not reached the store for a session, and owns nothing
    unreached: tuple[str, ...] = ()  # instances that have not answered it for a session
    number: int = 0
    endpoints: dict[str, str] = {}

    def endpoint(self, name: str) -> str | None:
        """The endpoint of a protocol: for `http` the URL, for a front end HOST:PORT; None if the
        instance does not speak it."""
        return self.address if name == HTTP else self.endpoints.get(name)


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
        """The record that it shows the others."""
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
