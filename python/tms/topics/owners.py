"""Ownership in a store that several processes can reach, and the requests between its instances.

Invariants

* An engine opens the logs of the partitions that it owns, and sends requests for all others to
  their owners.
* A request goes one step: its receiver serves it, or refuses with `NotOwner`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from tms.api.instances import PartitionsApi, PeersApi
from tms.errors import TMSError
from tms.model.filter import Filter
from tms.model.message import Fetched, PartitionPosition
from tms.model.snapshot import Isolation, Snapshot
from tms.model.topic import TopicName


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
        """The error of a process that is asked for a shard which it does not hold: `NotOwner` with
        the owner, or `Unavailable` while that is unknown."""
        ...

    def ask(self, question: Callable[[], None]) -> None:
        """Run a request to a peer in the background; the caller handles its errors within
        `question`."""
        ...
