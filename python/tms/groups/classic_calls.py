"""Requests and answers of Kafka's classic group protocol, as values.

Metadata and assignments are bytes of the clients: only they read them. Fields that a version of the
protocol does not have get the value named here.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

MEMBER_ID_VERSION = 4  # of a join: a new member must join again with the id that it gets
SKIP_VERSION = 9  # of a join: a static leader may be told to keep the assignment
ENTRY_BYTES = 256  # counted for each member, besides its own bytes

CallToken = Hashable  # names the caller that waits for an answer; never None


class Code(IntEnum):
    """Kafka's error numbers, as far as groups answer them."""

    NONE = 0
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82


class State(StrEnum):
    """The state of a group, as DescribeGroups and ListGroups name it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"  # of a group that is not here


class ClassicKey(NamedTuple):
    """A group in a namespace. It spans topics."""

    namespace: str
    group: str


class Sender(NamedTuple):
    """The names by which a member sends a request. `generation` is −1 and `member` empty for a
    client that is no member; `instance` is None before version 3 and for dynamic members."""

    member: str
    generation: int = -1
    instance: str | None = None


class Client(NamedTuple):
    """The client of a member, for operators."""

    id: str
    host: str


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup 0 to 9. `member` is empty for a new member. `protocols` are names with metadata, by
    preference. Version 0 has no rebalance time-out: use its session time-out. The first rebalance
    of a group is delayed by `delay_ms` of its first member, for members still to come."""

    version: int
    client: Client
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_ms: int
    rebalance_ms: int
    member: str = ""
    instance: str | None = None
    delay_ms: int = 3_000

    @property
    def needs_id(self) -> bool:
        """True if a new member must join again with the id that it gets."""
        return self.version >= MEMBER_ID_VERSION and self.instance is None

    @property
    def size(self) -> int:
        """Bytes that the group keeps of the member."""
        names = (self.member, self.instance or "", *self.client)
        protocols = sum(len(name) + len(metadata) for name, metadata in self.protocols)
        return ENTRY_BYTES * (1 + len(self.protocols)) + sum(map(len, names)) + protocols


class JoinedMember(NamedTuple):
    """A member as the leader learns it, with its metadata for the chosen protocol."""

    member: str
    instance: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a join. Only the leader gets `members`. Protocol type and name are None with an
    error."""

    code: Code
    member: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup 0 to 5. `assignments` by member come from the leader. Protocol type and name are
    None before version 5."""

    sender: Sender
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a sync."""

    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Answered = tuple[CallToken, JoinAnswer | SyncAnswer]


class Leaver(NamedTuple):
    """A member that leaves; with an empty `member` the static member of the instance."""

    member: str
    instance: str | None = None


class MemberDescription(NamedTuple):
    """A member for DescribeGroups; metadata and assignment are empty unless the group is stable."""

    member: str
    instance: str | None
    client: Client
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Description:
    """A group for DescribeGroups. `protocol` is empty unless the group is stable."""

    state: State
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()


class Listing(NamedTuple):
    """A group for ListGroups."""

    group: str
    protocol_type: str
    state: State


@dataclass(frozen=True, slots=True)
class ClassicBounds:
    """Limits of the groups of a shard, with Kafka's defaults where Kafka has the limit."""

    session_ms_min: int = 6_000
    session_ms_max: int = 1_800_000
    new_member_ms: int = 300_000  # a new member's first join is answered within that time
    members_max: int = 1_000  # of a group; also of those that were told to join again with an id
    groups_max: int = 10_000  # with members
    member_bytes_max: int = 1 << 20  # of a join, and of an assignment
    bytes_max: int = 64 << 20  # of all groups
    kept_bytes_max: int = 4 << 20  # of a group in the journal; a larger one is in memory only
