"""The other instances, as an instance asks them."""

from typing import Protocol

from tms.cluster.decisions import Coordinating
from tms.cluster.identity import InstanceIdentity
from tms.cluster.membership import InstanceRecord
from tms.model.cluster import ClusterEvent
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad
from tms.model.log_level import LogLevel
from tms.model.message import Appended
from tms.model.queue import QueueInfo, QueueSummary
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult
from tms.topics.owners import Peer


class ClusterPeer(Peer, Coordinating, Protocol):
    """Another instance, also as the coordinator."""

    def erase_delayed(self, name: TopicName, key: bytes, partition: int | None) -> int:
        """Erase the messages of a key that are not due yet; how many."""
        ...

    def answer_tephra(self, message: bytes) -> bytes:
        """Answer a message of Tephra's protocol."""
        ...

    def events(self) -> list[ClusterEvent]:
        """What it noticed and did."""
        ...

    def verify_share(self, number: int, share: Commit) -> Durability:
        """See `transactions.participants.CommitShare`; this and the next, of what a commit changes
        in a shard that it keeps."""
        ...

    def prepare_share(
        self, number: int, share: Commit, write_pointer: int, durability: Durability
    ) -> Appended:
        """Hold what changes, and write it; where."""
        ...

    def commit_own(self, request: Commit) -> CommitResult:
        """Commit blocks that an instance made, as the coordinator."""
        ...

    def sync_commits(self) -> None:
        """Make every commit so far durable, as the coordinator."""
        ...

    def list_queues_of(self, topic: TopicName, shards: list[int]) -> list[QueueInfo]:
        """The queues of a topic in shards that it keeps."""
        ...

    def list_groups_of(self, topic: TopicName, shards: list[int]) -> list[GroupSummary]:
        """The groups of a topic in shards that it keeps."""
        ...

    def queues_of(
        self, namespace: str, shards: list[int], after: str | None, limit: int
    ) -> list[QueueSummary]:
        """A page of the queues of a namespace in shards that it keeps."""
        ...

    def groups_of(
        self, namespace: str, shards: list[int], after: str | None, limit: int
    ) -> list[GroupSummary]:
        """A page of the groups of a namespace in shards that it keeps."""
        ...

    def set_log_level(self, level: str, logger: str, for_s: float | None) -> LogLevel:
        """Set the level of a logger of it."""
        ...

    def load(self) -> InstanceLoad:
        """What it did since it was started, and does."""
        ...

    def answers(self, timeout_s: float) -> None:
        """Ask whether it answers. Raises `Unavailable`, `TimedOut` if it does not."""
        ...

    def ask_once(self) -> None:
        """From now on what fails is not asked again."""
        ...

    def give_up(self) -> None:
        """The others see it no more: what is asked of it fails with `Unavailable`, also what is
        under way. Never waits."""
        ...


class PeerConnector(Protocol):
    """Makes peers of the records of other instances, and proves to them that this one asks."""

    @property
    def identity(self) -> InstanceIdentity: ...

    def __call__(self, record: InstanceRecord) -> ClusterPeer: ...
