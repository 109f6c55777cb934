"""Ownership in a store that several processes can reach, routes to the owners, and the requests
between its instances.

    an operation and its arguments ─▶ Here | At(peer) | SplitByOwner(parts)

Invariants

* An engine opens the logs of the partitions that it owns, and sends requests for all others to
  their owners.
* A request goes one step: its receiver serves it, or refuses with `NotOwner`. The refusal names no
  address: ownership may have changed after the route was computed, so the sender computes a new
  one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from tms.api.instances import PartitionsApi, PeersApi
from tms.errors import TMSError
from tms.model.filter import Filter
from tms.model.message import Fetched, PartitionPosition
from tms.model.snapshot import Isolation, Snapshot
from tms.model.topic import TopicName

T = TypeVar("T")


class Peer(PeersApi, Protocol):
    """Another instance: its name, the URL at which it is reached, and its answers."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def partitions(self) -> PartitionsApi:
        """The partitions that it owns."""
        ...

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0,
        isolation: Isolation | Snapshot = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Fetched:
        """Read messages of its partitions, as `Fetcher.fetch` does."""
        ...

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        isolation: Isolation | Snapshot,
    ) -> Callable[[], None]:
        """As `Fetcher.watch`."""
        ...


class Here(NamedTuple):
    """This process answers."""


class At(NamedTuple):
    """Another instance answers."""

    peer: Peer


@dataclass(slots=True)
class SplitByOwner(Generic[T]):
    """Several instances answer, each its parts of an operation."""

    here: list[T] = field(default_factory=list)  # of this process
    elsewhere: dict[Peer, list[T]] = field(default_factory=dict)

    def add(self, owner: Peer | None, parts: Iterable[T]) -> None:
        """Add parts of an owner; None: this process."""
        mine = self.here if owner is None else self.elsewhere.setdefault(owner, [])
        mine.extend(parts)

    @property
    def route(self) -> "OwnerRoute[T]":
        """The route of the operation as a whole."""
        if not self.elsewhere:
            return Here()
        return self if self.here or len(self.elsewhere) > 1 else At(*self.elsewhere)


OwnerRoute = Here | At | SplitByOwner[T]


def split(parts: Iterable[T], owner_of: Callable[[T], Peer | None]) -> SplitByOwner[T]:
    """Parts of an operation by owner."""
    by_owner = SplitByOwner[T]()
    for part in parts:
        by_owner.add(owner_of(part), (part,))
    return by_owner


class Owners(Protocol):
    """The owners of a shared store's partitions. Thread-safe."""

    @property
    def name(self) -> str:
        """The name of the instance as which this process owns partitions; empty if it owns the
        whole store."""
        ...

    def confirm(self) -> None:
        """Raise `NotOwner` if this process owns nothing now. An answer that is given after this
        call, to a request from before it, is not stale."""
        ...

    def require_member(self) -> None:
        """Raise `StorageUnavailable` if this process certainly may not write now; costs nothing."""
        ...

    def require_owner(self) -> None:
        """Raise `NotOwner`, or `StorageUnavailable`, if this process may not write now."""
        ...

    def fence(self, owners: Collection[str]) -> None:
        """Stop these instances, earlier owners of a partition, from answering requests about it
        from memory."""
        ...

    def announce(self) -> None:
        """Tell all instances that topics have changed, so that none answers from memory."""
        ...

    def peer_of(self, name: TopicName, place: tuple[int, int], partitions: int) -> Peer | None:
        """The owner of a partition (topic's uid and number) of a topic with so many partitions;
        None: this process. Raises `Unavailable` while the owner is unknown."""
        ...

    def not_shard_owner(self, number: int) -> TMSError:
        """The error of a process that is asked for a shard which it does not hold: `NotOwner`, or
        `Unavailable` while the owner is unknown."""
        ...

    def ask(self, question: Callable[[], None]) -> None:
        """Run a request to a peer in the background; the caller handles its errors within
        `question`."""
        ...
