"""Who owns what of a store that several processes can reach, and what one asks of another.

Invariants

* An engine opens the logs of the partitions that it owns, and asks the owners of all others.
* A question goes one step: who is asked does it itself, or refuses with `NotOwner`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from tms.log.records import BlockKey
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.lag import Lag, LagPlace, TopicSize
from tms.model.message import (
    Appended,
    Fetched,
    NewBlock,
    PartitionPosition,
    Readable,
    Staged,
)
from tms.model.position import Position
from tms.model.snapshot import Isolation, Snapshot
from tms.model.topic import Durability, PartitionInfo, TopicName


class PartitionsPort(Protocol):
    """What an instance does with partitions that it owns when others ask for it. Each call raises
    `NotOwner` where it does not, `TopicNotFound`, `PartitionNotFound`."""

    def store(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability,
        flags: int = 0,
        write_pointer: int = 0,
        internal: bool = False,
    ) -> list[Appended]:
        """Append blocks, stamped by a transaction; `internal` ones were made by an instance."""
        ...

    def count_stored(self, name: TopicName, blocks: Sequence[NewBlock]) -> int:
        """How many of these blocks were stored before, by producer id and sequence."""
        ...

    def stage(
        self, name: TopicName, blocks: Sequence[NewBlock], flags: int, write_pointer: int
    ) -> None:
        """Store blocks of a transaction where nobody sees them."""
        ...

    def staged(self, name: TopicName, partition: int, write_pointer: int) -> list[Staged]:
        """What a transaction has staged, in order."""
        ...

    def drop_staged(
        self,
        name: TopicName,
        partition: int,
        write_pointer: int,
        blocks: list[Staged] | None = None,
    ) -> None:
        """Forget what a transaction has staged, or these blocks of it."""
        ...

    def referred(
        self,
        name: TopicName,
        partition: int,
        write_pointer: int,
        from_ms: int,
        elsewhere: bool = False,
    ) -> list[Appended]:
        """The places of references to the blocks that a transaction staged, since a time. With
        `elsewhere`, of every block of a transaction that was begun elsewhere."""
        ...

    def roll_back(
        self, name: TopicName, partition: int, write_pointer: int, first: BlockKey, last: BlockKey
    ) -> int:
        """Take back the messages of a transaction in [first, last]; how many blocks there were."""
        ...

    def reaches(self, name: TopicName, partition: int, end_offset: int) -> bool:
        """Whether everything before an offset is there, as far as the store says."""
        ...

    def make_durable(self, name: TopicName, partition: int) -> None:
        """Sync what readers can see."""
        ...

    def end(self, name: TopicName, partition: int) -> tuple[int, MessageId | None]:
        """The offset behind the last message, and its id."""
        ...

    def kept(self, name: TopicName, partitions: list[int]) -> Mapping[int, Readable]:
        """What may still be shown of messages that were fetched before."""
        ...

    def describe(self, name: TopicName, partitions: list[int]) -> list[PartitionInfo]:
        """How partitions stand."""
        ...

    def offsets(
        self,
        name: TopicName,
        partitions: list[int],
        at: Position,
        isolation: Isolation | Snapshot,
    ) -> Mapping[int, int]:
        """Which offsets a position is; see `Fetcher.offsets`."""
        ...

    def truncate(self, name: TopicName, partitions: list[int], before: Position) -> None:
        """Make all messages before a position unreadable for good."""
        ...


class Peer(Protocol):
    """Another instance: its name, and the URL at which it is reached."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def partitions(self) -> PartitionsPort:
        """Its partitions."""
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
        """See `Fetcher.fetch`."""
        ...

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        isolation: Isolation | Snapshot,
    ) -> Callable[[], None]:
        """See `Fetcher.watch`."""
        ...

    def lags(self, places: list[LagPlace]) -> list[Lag | None]:
        """See `Lags.here`."""
        ...

    def sizes(self, names: list[TopicName]) -> list[TopicSize]:
        """See `OwnPartitions.sizes`."""
        ...

    def erase_own(
        self,
        name: TopicName,
        partition: int,
        key: bytes | None,
        id: MessageId | None,
        first: bool,
    ) -> int:
        """See `Compaction.erase_own`."""
        ...


class Owners(Protocol):
    """Who owns the partitions of a shared store. Thread-safe."""

    @property
    def name(self) -> str:
        """As which instance this process owns partitions; empty where it owns the whole store."""
        ...

    def confirm(self) -> None:
        """Raise `NotOwner` if this process owns nothing now. What is answered after this, to a call
        that came before it, is not stale."""
        ...

    def require_member(self) -> None:
        """Raise `StorageUnavailable` if this process surely may not write now; it costs nothing."""
        ...

    def require_owner(self) -> None:
        """Raise `NotOwner`, or `StorageUnavailable`, if this process may not write now."""
        ...

    def fence(self, owners: Collection[str]) -> None:
        """Let these instances answer nothing by what they know of a partition that they owned."""
        ...

    def announce(self) -> None:
        """Topics have changed: let no instance answer by what it knew of them."""
        ...

    def peer_of(self, name: TopicName, place: tuple[int, int], partitions: int) -> Peer | None:
        """The owner of a partition (topic's uid and number) of a topic with so many; None: this
        process. Raises `Unavailable` while nobody can tell."""
        ...

    def ask(self, question: Callable[[], None]) -> None:
        """Ask something of a peer in the background; what it raises is the caller's."""
        ...
