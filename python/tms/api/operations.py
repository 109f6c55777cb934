"""The table of operations: everything that a client may ask of an engine.

Each protocol is a port: the engine has its methods, `client.http` has them over a network. All
else that knows an operation reads it here (see `operation`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta

from tms.api import bodies, commits, delayed, erasing, routes
from tms.api.access import AccessApi
from tms.api.backups import BackupsApi
from tms.api.cloud_events import CloudEvent, CloudEvents
from tms.api.configuration import ConfigurationApi
from tms.api.glance import GlanceApi
from tms.api.history import HistoryApi
from tms.api.instances import ClusterApi, PartitionsApi, PeersApi
from tms.api.log_levels import LogApi
from tms.api.operation import (
    Caller,
    Form,
    Named,
    Operation,
    Repeat,
    Resource,
    WholeBody,
    delete,
    get,
    operations_of,
    patch,
    post,
    put,
)
from tms.api.parameters import (
    BLOCKS_DEFAULT,
    DELAY_SHAPE,
    DELAYED_DEFAULT,
    HOLDING,
    LEAVE_S,
    PRODUCERS_DEFAULT,
    PUBLISH_SHAPE,
    TIMEOUT_S,
    TOPICS_DEFAULT,
    AfterTopic,
    CommitId,
    DelayQuery,
    ExpectedPositions,
    FetchQuery,
    GroupName,
    Id,
    MemberName,
    Namespace,
    Partition,
    PublishQuery,
    SessionS,
    Shown,
    StageQuery,
    StoredPartitions,
    TimeMs,
    TimeoutS,
    TransactionS,
    TransactionToken,
)
from tms.api.queue_operations import QueuesApi
from tms.api.service import ServiceApi
from tms.errors import OffsetOutOfRange
from tms.model.access import Access
from tms.model.delayed import Deferred, DelayedId, DelayedPage, Due
from tms.model.filter import Filter
from tms.model.group import SESSION_S, GroupInfo, GroupSummary, MemberAssignment
from tms.model.ids import MessageId
from tms.model.inspection import PartitionInspection, ProducerInfo
from tms.model.message import Appended, Fetched, NewBlock, PartitionPosition
from tms.model.position import LATEST, Position, PositionKind
from tms.model.snapshot import Isolation, ReadIsolation
from tms.model.topic import Durability, TopicInfo, TopicName, TopicSettings
from tms.model.transaction import Commit, CommitResult, PositionChange, TransactionInfo

_NEW_MESSAGES = {
    routes.JSON: bodies.PublishBody,
    routes.BLOCKS: bytes,
    routes.CLOUD_EVENT: CloudEvent,
    routes.CLOUD_EVENTS: CloudEvents,
}


def _publishing(query: Any, shape: Any, *answer: Any) -> Form:
    """The form of an operation that takes new messages, and answers with the first of these bodies
    or, to blocks, with the second."""
    return Form(
        query=query,
        query_shape=shape,
        body=_NEW_MESSAGES,
        answer={routes.JSON: answer},
        idempotency_key=True,
    )


# --- topics and messages --------------------------------------------------------------------------


def _truncation(arguments: Mapping[str, Any]) -> Repeat:
    """`latest` moves: a repetition would remove what came in between."""
    moves = arguments.get("before", LATEST).kind is PositionKind.LATEST
    return Repeat.UNSAFE if moves else Repeat.SAFE


class TopicsApi(Protocol):
    """Topics, apart from their messages. `tms.engine.engine.Engine` documents the promises."""

    @get("namespaces/{namespace}/topics", Resource.NAMESPACE, Access.OBSERVE, lists=Resource.TOPIC)
    def list_topics(
        self,
        namespace: Namespace,
        after: AfterTopic | None = None,
        limit: Annotated[int, Meta(ge=1, le=10_000)] = TOPICS_DEFAULT,
    ) -> Annotated[list[TopicInfo], bodies.TOPICS]:
        """The topics of a namespace that the caller may see, in the order of their names."""

    @put("{name}", Resource.TOPIC, Access.MANAGE, statuses=(routes.CREATED, routes.OK))
    def create_topic(
        self, name: TopicName, settings: Annotated[TopicSettings, bodies.NEW_TOPIC, WholeBody]
    ) -> TopicInfo:
        """Create the topic; 200 when it exists with the same settings."""

    @get("{name}", Resource.TOPIC, Access.OBSERVE)
    def describe_topic(self, name: TopicName) -> TopicInfo:
        """The topic with its partitions."""

    @patch("{name}", Resource.TOPIC, Access.MANAGE)
    def update_topic(
        self,
        name: TopicName,
        changes: Annotated[Mapping[str, object], bodies.TOPIC_CHANGES, WholeBody],
    ) -> TopicInfo:
        """Change settings; missing ones stay. Partitions can only grow."""

    @delete("{name}", Resource.TOPIC, Access.MANAGE, repeat=Repeat.UNTIL_GONE)
    def delete_topic(self, name: TopicName) -> None:
        """Delete the topic and everything in it."""

    @post(
        "{name}/truncate",
        Resource.TOPIC,
        Access.MANAGE,
        repeat=_truncation,
        errors=(OffsetOutOfRange,),
    )
    def truncate_topic(
        self, name: TopicName, before: Position = LATEST, partition: Partition | None = None
    ) -> TopicInfo:
        """Make all messages before a position unreadable, in every partition or in one. Returns the
        topic with the partitions in question."""

    @post(
        "{name}/erase",
        Resource.TOPIC,
        Access.MANAGE,
        repeat=Repeat.NEVER,
        alone=True,
        form=Form(body={routes.JSON: erasing.ERASE}, answer={routes.JSON: erasing.ErasedBody}),
    )
    def erase(
        self,
        name: TopicName,
        key: bytes | None = None,
        id: MessageId | None = None,
        partition: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> int:
        """Take the messages with a key, or the one with an id, out of the topic and the store for
        good; with a key also the delayed ones that wait. It may take minutes; after a failure,
        send it again."""

    @get("{name}/offsets", Resource.TOPIC, Access.OBSERVE, errors=(OffsetOutOfRange,))
    def offsets(
        self,
        name: TopicName,
        at: Annotated[Position, Meta(description="A position; left out: latest.")] = LATEST,
        isolation: Shown = Isolation.COMMITTED,
    ) -> Annotated[
        Mapping[int, int], Named("Offsets", "Offsets by partition.", "offsets", dict[int, int])
    ]:
        """The offset of the first message at or after a position, by partition."""

    @get("{name}/inspect", Resource.TOPIC, Access.OBSERVE)
    def inspect(
        self,
        name: TopicName,
        partition: Partition = 0,
        limit: Annotated[
            int, Meta(ge=1, le=1_000, description="How many blocks.")
        ] = BLOCKS_DEFAULT,
    ) -> PartitionInspection:
        """The state of a partition in the store: segments, and the newest blocks."""

    @get("{name}/producers", Resource.TOPIC, Access.OBSERVE)
    def producers(
        self,
        name: TopicName,
        partition: Partition = 0,
        limit: Annotated[
            int, Meta(ge=1, le=1_000, description="How many producers.")
        ] = PRODUCERS_DEFAULT,
    ) -> Annotated[list[ProducerInfo], Named("Producers", "Producers.", "producers")]:
        """The producers and idempotency keys that a partition remembers, the one that published
        last first."""

    @post(
        "{name}/messages",
        Resource.TOPIC,
        Access.PUBLISH,
        name="publish",
        repeat=Repeat.NEVER,
        form=_publishing(PublishQuery, PUBLISH_SHAPE, bodies.PublishedBody, bodies.AppendedBody),
    )
    def append(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        durability: Durability | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Appended]:
        """Store messages: all of them, or none. JSON and CloudEvents are answered with places,
        blocks with ranges."""

    @get(
        "{name}/messages",
        Resource.TOPIC,
        Access.CONSUME,
        name="fetch",
        errors=(OffsetOutOfRange,),
        form=Form(
            query=FetchQuery,
            answer={
                routes.JSON: bodies.FetchedBody,
                routes.BLOCKS: bytes,
                routes.ARROW_STREAM: bytes,
                routes.CLOUD_EVENTS: CloudEvents,
                routes.NDJSON: bytes,
                routes.EVENTS: bytes,
            },
            answer_headers={
                routes.NEXT_HEADER: "`start` of the next fetch.",
                routes.END_HEADER: "PARTITION:OFFSET after the last message.",
                routes.REACHED_HEADER: "PARTITION:OFFSET before which everything was looked at; "
                "less than the end means that there is more, also when no message came.",
            },
        ),
    )
    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float = 0,
        isolation: ReadIsolation = Isolation.COMMITTED,
        where: Filter | None = None,
    ) -> Fetched:
        """Read messages from a position on; may wait for the first one (long poll)."""


# --- queues and groups ----------------------------------------------------------------------------


class GroupsApi(Protocol):
    """Log groups, and their positions. `tms.groups.groups.LogGroups` documents the promises."""

    @get("{topic}/groups", Resource.TOPIC, Access.OBSERVE, lists=Resource.GROUP)
    def list_groups(
        self, topic: TopicName
    ) -> Annotated[list[GroupSummary], Named("Groups", "Groups.", "groups")]:
        """The groups of a topic, with their lag."""

    @get("{topic}/groups/{group}", Resource.GROUP, Access.OBSERVE)
    def describe(self, topic: TopicName, group: GroupName) -> GroupInfo:
        """Members of a group, and of each partition owner, position and lag."""

    @post("{topic}/groups/{group}/members/{member}", Resource.GROUP, Access.CONSUME)
    def poll(
        self,
        topic: TopicName,
        group: GroupName,
        member: MemberName,
        session_s: SessionS = SESSION_S,
        holding: Annotated[Mapping[int, int], HOLDING] = {},
        reading: bool = False,
    ) -> MemberAssignment:
        """Join a group, stay in it, and let partitions go; see docs/groups.md."""

    @delete(
        "{topic}/groups/{group}/members/{member}",
        Resource.GROUP,
        Access.CONSUME,
        repeat=Repeat.NEVER,
        timeout_s=LEAVE_S,
    )
    def leave(self, topic: TopicName, group: GroupName, member: MemberName) -> None:
        """Leave a group: its partitions go to others at once."""

    @get("{topic}/positions/{group}", Resource.GROUP, Access.OBSERVE)
    def positions(
        self, topic: TopicName, group: GroupName
    ) -> Annotated[Mapping[int, Position], commits.POSITIONS]:
        """The committed positions of a group."""

    @put(
        "{topic}/positions/{group}",
        Resource.GROUP,
        Access.CONSUME,
        body_bytes_max=commits.HEAD_BYTES_MAX,
        form=Form(
            path={"topic": TopicName, "group": GroupName},
            body={routes.JSON: commits.MovesBody},
            answer={routes.JSON: commits.PositionsBody},
        ),
    )
    def move(self, changes: Sequence[PositionChange]) -> None:
        """Set positions of a group."""

    @delete("{topic}/positions/{group}", Resource.GROUP, Access.MANAGE)
    def forget_positions(
        self,
        topic: TopicName,
        group: GroupName,
        partitions: StoredPartitions | None = None,
        expected: ExpectedPositions | None = None,
    ) -> None:
        """Forget the positions of a group in some partitions or in all, so that it begins anew;
        none if one of those `expected` is not the present one."""


# --- transactions ---------------------------------------------------------------------------------


class TransactionsApi(Protocol):
    """Transactions. `tms.transactions.transactions.Transactions` documents the promises."""

    @get("transactions", Resource.TRANSACTIONS, Access.OPERATE)
    def open(
        self,
    ) -> Annotated[
        list[TransactionInfo],
        Named("Transactions", "Those in progress.", "transactions"),
    ]:
        """The transactions in progress."""

    @post("transactions", Resource.TRANSACTIONS, Access.KNOWN, statuses=(routes.CREATED,))
    def begin(
        self,
        *,
        long: bool = False,
        timeout_s: TransactionS | None = None,
        token: TransactionToken = "",
        caller: Annotated[str, Caller] = "",
    ) -> TransactionInfo:
        """Begin a transaction."""

    @get("transactions/{id}", Resource.TRANSACTIONS, Access.KNOWN)
    def describe(self, id: Id) -> TransactionInfo:
        """The state of a transaction."""

    @delete("transactions/{id}", Resource.TRANSACTIONS, Access.KNOWN)
    def abort(self, id: Id) -> TransactionInfo:
        """Abort a transaction."""

    @post("transactions/{id}/invalidate", Resource.TRANSACTIONS, Access.OPERATE)
    def invalidate(self, id: Id) -> TransactionInfo:
        """Make a transaction invalid."""

    @post("transactions/prune", Resource.TRANSACTIONS, Access.OPERATE)
    def prune(
        self, before_ms: TimeMs
    ) -> Annotated[int, Named("Pruned", "How many left the invalid list.", "pruned")]:
        """Remove old transactions from the invalid list; their messages stay hidden."""

    @post(
        "{name}/staged",
        Resource.TOPIC,
        Access.PUBLISH,
        name="stage",
        statuses=(routes.NO_CONTENT,),
        form=Form(query=StageQuery, body={routes.BLOCKS: bytes}),
    )
    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None:
        """Store blocks of a transaction, unseen until its commit names them or their producer."""

    @post(
        "transactions/{id}/commit",
        Resource.TRANSACTIONS,
        Access.KNOWN,
        name="commit",
        repeat=Repeat.NEVER,
        form=Form(
            path={"id": CommitId},
            body={routes.COMMIT: bytes},
            answer={routes.JSON: commits.CommittedBody},
        ),
    )
    def commit(self, request: Commit, timeout_s: float = TIMEOUT_S) -> CommitResult:
        """Commit with everything in it; see docs/transactions.md."""


class DelayedApi(Protocol):
    """Delayed messages. `tms.delayed.delayed.DelayedMessages` documents the promises. A publish
    that is repeated under the same token is stored once."""

    @get("{name}/delayed", Resource.TOPIC, Access.CONSUME, alone=True)
    def page(
        self,
        name: TopicName,
        after: Annotated[DelayedId, Meta(description="Begin behind the message with this id.")]
        | None = None,
        limit: Annotated[int, Meta(ge=0, le=1_000)] = DELAYED_DEFAULT,
    ) -> Annotated[DelayedPage, delayed.PAGE]:
        """The number of waiting messages, the time at which the first is due, and a page of them,
        in the order in which they are due."""

    @post(
        "{name}/delayed",
        Resource.TOPIC,
        Access.PUBLISH,
        repeat=Repeat.NEVER,
        form=_publishing(DelayQuery, DELAY_SHAPE, delayed.DelayedBody, delayed.DeferredBody),
    )
    def publish(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None = None,
        token: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> list[Deferred]:
        """Store messages until they are due: all of them, or none."""

    @delete("{name}/delayed/{id}", Resource.TOPIC, Access.PUBLISH, repeat=Repeat.NEVER)
    def cancel(
        self, name: TopicName, id: DelayedId, timeout_s: TimeoutS = TIMEOUT_S
    ) -> Annotated[
        bool, Named("Cancelled", "False: it is delivered already, or never was.", "cancelled")
    ]:
        """Cancel a message that is not delivered yet; true if it was still waiting."""


ShardKey = tuple[str, str, str]  # a kind, a topic, a group
TRANSACTIONS: ShardKey = ("transactions", "", "")
APIS: dict[str, type] = {
    "topics": TopicsApi,
    "queues": QueuesApi,
    "groups": GroupsApi,
    "transactions": TransactionsApi,
    "delayed": DelayedApi,
    "glance": GlanceApi,
    "history": HistoryApi,
    "service": ServiceApi,
    "access": AccessApi,
    "backups": BackupsApi,
    "log": LogApi,
    "configuration": ConfigurationApi,
    "cluster": ClusterApi,
    "partitions": PartitionsApi,
    "peers": PeersApi,
}
OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for name, api in APIS.items()
    for operation in operations_of(api, name)
}


def kept_with(operation: Operation, arguments: Mapping[str, Any]) -> ShardKey | None:
    """The shard or role that owns the resource of a request; None if partitions own it, or nothing
    does."""
    match operation.api, operation.on:
        case "groups", Resource.GROUP:
            return "group", "", arguments["group"]
        case "queues", Resource.QUEUE:
            return "queue", str(arguments["topic"]), arguments["group"]
        case "delayed", _:
            return "delayed", str(arguments["name"]), ""
        case "transactions", _:
            return TRANSACTIONS
    return None
