"""The operations on a cluster, and the port between its instances. The port is declared only here;
`topics.owners.Peer` is the instance behind it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from tms.api import bodies, commits, queues, routes
from tms.api.operation import Codec, Form, Named, Repeat, Resource, delete, get, post, put
from tms.api.parameters import LARGE_BYTES, PARTITION, GroupName, Namespace, Shown, number_in
from tms.errors import Conflict
from tms.model.access import Access
from tms.model.cluster import ClusterEvent, ClusterView, TopicOwners
from tms.model.delayed import DelayedSummary
from tms.model.group import GroupSummary
from tms.model.history import Backlogs, History
from tms.model.ids import MessageId
from tms.model.lag import InstanceLoad, Lag, LagPlace, TopicSize
from tms.model.log_level import LogLevel
from tms.model.message import Appended, NewBlock, Readable, Staged
from tms.model.position import LATEST, Position
from tms.model.queue import QueueInfo, QueueSummary
from tms.model.snapshot import Fate, Isolation
from tms.model.spelling import spelled
from tms.model.topic import PARTITIONS_MAX, Durability, PartitionInfo, TopicName
from tms.model.transaction import Commit, CommitResult

ERASE_TIMEOUT_S = 3_600.0
PREPARE_TIMEOUT_S = 35.0
STORE_TIMEOUT_S = 30.0
Number = Annotated[int, spelled(PARTITION), Codec(str, number_in("partition", PARTITIONS_MAX), str)]
Pointer = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Key = tuple[int, int]
Events = Annotated[
    list[ClusterEvent],
    Named("ClusterEvents", "What instances noticed and did.", "events"),
]
InstanceId = Annotated[str, Meta(pattern="^[A-Za-z0-9_.:-]{1,128}$")]


_post, _get = (partial(one, on=Resource.INSTANCE, access=Access.OPERATE) for one in (post, get))


class StampQuery(Struct):
    """The options of blocks that an instance stores for another one."""

    flags: int = 0
    write_pointer: int = 0
    durability: Durability = Durability.SYNCED
    internal: int = 0
    expect: str | None = None


class FatesBody(Struct):
    """The outcomes of transactions that were begun here; all others may still commit."""

    visible: list[int]
    skipped: list[int]


def _fates_body(fates: Mapping[int, Fate]) -> FatesBody:
    return FatesBody(
        [pointer for pointer, fate in fates.items() if fate is Fate.VISIBLE],
        [pointer for pointer, fate in fates.items() if fate is Fate.SKIPPED],
    )


def _fates(body: FatesBody) -> dict[int, Fate]:
    fates = dict.fromkeys(body.visible, Fate.VISIBLE)
    return fates | dict.fromkeys(body.skipped, Fate.SKIPPED)


FATES: Codec[Mapping[int, Fate]] = Codec(FatesBody, _fates, _fates_body)


PLACES: Codec[list[LagPlace]] = Codec(
    list[tuple[str, int, str]],
    lambda sent: [LagPlace(TopicName.parse(t), p, Position.parse(at)) for t, p, at in sent],
    lambda places: [(str(t), p, str(at)) for t, p, at in places],
)
NAMES: Codec[list[TopicName]] = Codec(
    list[str], lambda sent: [*map(TopicName.parse, sent)], lambda names: [*map(str, names)]
)


class ClusterApi(Protocol):
    """The instances of a service that share a store."""

    @get("cluster", Resource.CLUSTER, Access.KNOWN)
    def view(self) -> ClusterView:
        """The instances, and the coordinator of transactions, groups, queues and delayed
        messages."""

    @get("cluster/events", Resource.CLUSTER, Access.OBSERVE, errors=(Conflict,))
    def events(self) -> Events:
        """The events of all live instances, oldest first."""

    @get("{name}/owners", Resource.TOPIC, Access.OBSERVE, errors=(Conflict,))
    def owners(self, name: TopicName) -> TopicOwners:
        """The instances that own the partitions of a topic, in order."""

    @post("cluster/instances/{id}/drain", Resource.CLUSTER, Access.OPERATE)
    def drain(self, id: InstanceId) -> None:
        """Let an instance own nothing while there are others, until its next start."""

    @put("{name}/owners/{partition}", Resource.TOPIC, Access.OPERATE)
    def move(self, name: TopicName, partition: Number, to: InstanceId) -> None:
        """Let an instance own a partition for as long as the instance is live."""

    @delete("{name}/owners/{partition}", Resource.TOPIC, Access.OPERATE)
    def unpin(self, name: TopicName, partition: Number) -> None:
        """Let placement choose the owner of a partition again."""


class PartitionsApi(Protocol):
    """The operations on partitions that an instance carries out for others. Each raises `NotOwner`
    for a partition of another owner, `TopicNotFound`, `PartitionNotFound`."""

    @_post(
        "{name}/owned/blocks",
        repeat=Repeat.NEVER,
        timeout_s=STORE_TIMEOUT_S,
        form=Form(
            query=StampQuery, body={routes.BLOCKS: bytes}, answer={routes.JSON: bodies.AppendedBody}
        ),
    )
    def store(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability,
        flags: int = 0,
        write_pointer: int = 0,
        internal: bool = False,
    ) -> list[Appended]:
        """Append blocks with the stamp of a transaction. `internal` blocks were made or checked
        by an instance."""

    @_post(
        "{name}/owned/staged",
        statuses=(routes.NO_CONTENT,),
        form=Form(query=StampQuery, body={routes.BLOCKS: bytes}),
    )
    def stage(
        self, name: TopicName, blocks: Sequence[NewBlock], flags: int, write_pointer: int
    ) -> None:
        """Store blocks of a transaction out of readers' sight."""

    @_post(
        "{name}/owned/count-stored",
        form=Form(body={routes.BLOCKS: bytes}, answer={routes.JSON: dict[str, int]}),
    )
    def count_stored(self, name: TopicName, blocks: Sequence[NewBlock]) -> int:
        """The number of these blocks that were stored before, by producer id and sequence."""

    @_get("{name}/owned/{partition}/staged")
    def staged(
        self, name: TopicName, partition: Number, write_pointer: Pointer
    ) -> Annotated[list[Staged], Named("StagedBlocks", "Staged blocks.", "staged")]:
        """The blocks that a transaction has staged, in order."""

    @_post("{name}/owned/{partition}/drop-staged", body_bytes_max=LARGE_BYTES)
    def drop_staged(
        self,
        name: TopicName,
        partition: Number,
        write_pointer: Pointer,
        blocks: list[Staged] | None = None,
    ) -> None:
        """Drop the staged blocks of a transaction, or these of them."""

    @_get("{name}/owned/{partition}/referred")
    def referred(
        self,
        name: TopicName,
        partition: Number,
        write_pointer: Pointer,
        from_ms: int,
        elsewhere: bool = False,
    ) -> Annotated[list[Appended], Named("Referred", "Places of blocks.", "places")]:
        """The places of references to a transaction's staged blocks since `from_ms`. With
        `elsewhere`, the places of every block of a transaction that was begun elsewhere."""

    @_post("{name}/owned/{partition}/roll-back")
    def roll_back(
        self, name: TopicName, partition: Number, write_pointer: Pointer, first: Key, last: Key
    ) -> Annotated[int, Named("RolledBack", "How many blocks there were.", "blocks")]:
        """Roll back the messages of a transaction in [first, last]; returns the number of
        blocks."""

    @_get("{name}/owned/{partition}/reaches")
    def reaches(
        self, name: TopicName, partition: Number, end_offset: int
    ) -> Annotated[bool, Named("Reaches", "Whether it does.", "reaches")]:
        """True if the store shows every message before an offset."""

    @_post("{name}/owned/{partition}/sync")
    def make_durable(self, name: TopicName, partition: Number) -> None:
        """Sync all messages that readers can see."""

    @_get("{name}/owned/{partition}/end")
    def end(
        self, name: TopicName, partition: Number
    ) -> Annotated[
        tuple[int, MessageId | None],
        Named(
            "PartitionEnd", "Offset and id.", "end", tuple[int, tuple[int, int, int, int] | None]
        ),
    ]:
        """The offset behind the last message, and its id."""

    @_post("{name}/owned/kept")
    def kept(
        self, name: TopicName, partitions: list[int]
    ) -> Annotated[
        Mapping[int, Readable], Named("Kept", "By partition.", "kept", dict[int, Readable])
    ]:
        """The parts of partitions that retention still shows, of messages that were fetched
        before."""

    @_post("{name}/owned/describe")
    def describe(
        self, name: TopicName, partitions: list[int]
    ) -> Annotated[list[PartitionInfo], Named("PartitionInfos", "Partitions.", "partitions")]:
        """The state of partitions."""

    @_post("{name}/owned/offsets")
    def offsets(
        self,
        name: TopicName,
        partitions: list[int],
        at: Position = LATEST,
        isolation: Shown = Isolation.COMMITTED,
    ) -> Annotated[Mapping[int, int], Named("OwnedOffsets", "Offsets.", "offsets", dict[int, int])]:
        """The offsets that a position means, by partition."""

    @_post("{name}/owned/truncate", repeat=Repeat.UNSAFE)
    def truncate(self, name: TopicName, partitions: list[int], before: Position) -> None:
        """Make all messages before a position unreadable for good."""


class PeersApi(Protocol):
    """The other operations that an instance carries out for others, as the coordinator or as the
    keeper of shards."""

    @_post("cluster/fates", body_bytes_max=LARGE_BYTES)
    def fates(self, pointers: list[int]) -> Annotated[Mapping[int, Fate], FATES]:
        """The outcomes of transactions that were begun here, by write pointer."""

    @_get("cluster/undecided-since")
    def undecided_since_ms(
        self, foreign: bool
    ) -> Annotated[int, Named("UndecidedSince", "In ms since 1970.", "time_ms")]:
        """A time before which no undecided transaction published a message."""

    @_post("{name}/delayed/erase", repeat=Repeat.NEVER)
    def erase_delayed(
        self, name: TopicName, key: bytes, partition: int | None = None
    ) -> Annotated[int, Named("ErasedDelayed", "How many.", "erased")]:
        """Erase the messages of a key that are not due yet; returns their number."""

    @_post("cluster/sync-commits")
    def sync_commits(self) -> None:
        """Make every commit so far durable, as the coordinator."""

    @_post(
        "cluster/commits",
        repeat=Repeat.NEVER,
        timeout_s=STORE_TIMEOUT_S,
        form=Form(body={routes.COMMIT: bytes}, answer={routes.JSON: commits.CommittedBody}),
    )
    def commit_own(self, request: Commit) -> CommitResult:
        """Commit blocks that another instance made, as the coordinator."""

    @_post("cluster/shards/{number}/verify", body_bytes_max=LARGE_BYTES)
    def verify_share(
        self, number: Number, share: Annotated[Commit, commits.SHARE]
    ) -> Annotated[Durability, Named("Verified", "How durable it has to be.", "durability")]:
        """Check that a commit may change this in a shard; returns the durability that it needs."""

    @_post(
        "cluster/shards/{number}/prepare",
        repeat=Repeat.NEVER,
        timeout_s=PREPARE_TIMEOUT_S,
        body_bytes_max=LARGE_BYTES,
    )
    def prepare_share(
        self,
        number: Number,
        share: Annotated[Commit, commits.SHARE],
        write_pointer: Pointer,
        durability: Durability,
    ) -> Annotated[Appended, Named("Prepared", "Where it is.", "place")]:
        """Hold and store the changes of a commit in a shard; returns the place."""

    @_post("{topic}/owned/queues")
    def list_queues_of(
        self, topic: TopicName, shards: list[int]
    ) -> Annotated[list[QueueInfo], Named("QueuesOf", "Queues.", "queues", queues.QUEUES)]:
        """The queues of a topic in some shards."""

    @_post("{topic}/owned/groups")
    def list_groups_of(
        self, topic: TopicName, shards: list[int]
    ) -> Annotated[list[GroupSummary], Named("GroupsOf", "Groups.", "groups")]:
        """The groups of a topic in some shards."""

    @_post("{topic}/owned/groups/forget")
    def forget_topic(self, topic: TopicName, shards: list[int]) -> None:
        """Delete the positions of all groups in a topic, in some shards."""

    @_post("cluster/queues")
    def queues_of(
        self,
        namespace: Namespace,
        shards: list[int],
        after: str | None,
        limit: int,
        search: str | None = None,
    ) -> Annotated[list[QueueSummary], Named("QueuesIn", "Queues.", "queues")]:
        """A page of the queues of a namespace in some shards."""

    @_post("cluster/groups")
    def groups_of(
        self,
        namespace: Namespace,
        shards: list[int],
        after: str | None,
        limit: int,
        search: str | None = None,
    ) -> Annotated[list[GroupSummary], Named("GroupsIn", "Groups.", "groups")]:
        """A page of the groups of a namespace in some shards."""

    @_post("cluster/delayed")
    def delayed_of(
        self, namespace: Namespace, shards: list[int], after: str | None, limit: int
    ) -> Annotated[list[DelayedSummary], Named("DelayedIn", "Topics.", "topics")]:
        """A page of the topics of a namespace that have delayed messages, in some shards."""

    @_post("cluster/lags", body_bytes_max=LARGE_BYTES)
    def lags(
        self, places: Annotated[list[LagPlace], PLACES]
    ) -> Annotated[list[Lag | None], Named("Lags", "Lags.", "lags")]:
        """The lag of readers at these places in partitions of this instance."""

    @_post("cluster/sizes", body_bytes_max=LARGE_BYTES)
    def sizes(
        self, names: Annotated[list[TopicName], NAMES]
    ) -> Annotated[list[TopicSize], Named("Sizes", "Sizes.", "sizes")]:
        """The messages and bytes in this instance's partitions of topics."""

    @put("log/own-level", Resource.INSTANCE, Access.OPERATE)
    def set_log_level(self, level: str, logger: str, for_s: float | None = None) -> LogLevel:
        """Set the level of a logger of this instance."""

    @get("cluster/load", Resource.INSTANCE, Access.OBSERVE)
    def load(self) -> InstanceLoad:
        """The load of this instance since its start."""

    @get("cluster/own-history", Resource.INSTANCE, Access.OBSERVE)
    def own_history(self, last_s: int) -> History:
        """The last seconds of this instance."""

    @get("cluster/own-backlogs", Resource.INSTANCE, Access.OBSERVE)
    def own_backlogs(self) -> Backlogs:
        """The groups and queues of this instance that need attention."""

    @get("{name}/owned/history", Resource.INSTANCE, Access.OBSERVE)
    def own_topic_history(self, name: TopicName, last_s: int) -> History:
        """The last seconds of a topic at this instance."""

    @get("{topic}/owned/groups/{group}/history", Resource.INSTANCE, Access.OBSERVE)
    def own_group_history(self, topic: TopicName, group: GroupName, last_s: int) -> History:
        """The lag of a group that this instance has kept."""

    @get("cluster/own-events", Resource.INSTANCE, Access.OBSERVE)
    def events(self) -> Events:
        """The events of this instance, oldest first."""

    @_post("cluster/tephra", body_bytes_max=LARGE_BYTES)
    def answer_tephra(
        self, message: bytes
    ) -> Annotated[bytes, Named("TephraAnswer", "A message.", "message")]:
        """Answer a message of Tephra's protocol."""

    @_post(
        "cluster/kafka",
        repeat=Repeat.NEVER,
        timeout_s=PREPARE_TIMEOUT_S,
        body_bytes_max=LARGE_BYTES,
    )
    def answer_kafka(
        self, message: bytes
    ) -> Annotated[bytes, Named("KafkaAnswer", "A message.", "message")]:
        """Answer a question about the transactional ids of Kafka's producers, as the
        coordinator."""

    @_post("{name}/owned/{partition}/erase", repeat=Repeat.NEVER, timeout_s=ERASE_TIMEOUT_S)
    def erase_own(
        self,
        name: TopicName,
        partition: Number,
        key: bytes | None = None,
        id: MessageId | None = None,
        first: bool = False,
    ) -> Annotated[int, Named("ErasedHere", "How many.", "erased")]:
        """Erase the messages of a key, or the one with an id, in a partition."""
