"""Requests and results of commits: values that engine, wire and client share."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from tms.errors import Forbidden, Invalid, TransactionNotFound
from tms.model.message import Appended, NewBlock
from tms.model.position import Position
from tms.model.queue import Settlement
from tms.model.topic import Durability, TopicName

GROUP_CHARS_MAX = 255
SYSTEM_GROUPS = "system:"  # prefix of the names of TMS's own groups
TOKEN_CHARS_MAX = 64
METADATA_CHARS_MAX = 4_096  # of a committed position
LEADER_EPOCH_MAX = (1 << 31) - 1
NO_LEADER_EPOCH = -1
TIMEOUT_S_MAX = 3_600  # of a transaction
TOKEN = f"[ -~]{{0,{TOKEN_CHARS_MAX}}}"  # the spelling of a commit's token
# Characters of no name: controls, invisible ones, those that change the direction of text, a slash.
UNSEEN = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff/"
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_NAME = re.compile(rf"[^{UNSEEN}\ud800-\udfff]+")  # nor surrogates


class TopicBlock(NamedTuple):
    """A block for a partition of a topic."""

    topic: TopicName
    new: NewBlock


class TopicStaged(NamedTuple):
    """The number of blocks that a transaction staged in a partition and its commit publishes: those
    of `producers`, by the ids in their headers, or all if none is named."""

    topic: TopicName
    partition: int
    blocks: int
    producers: tuple[int, ...] = ()


class TopicAppended(Struct, frozen=True):
    """The place of a block of a commit."""

    topic: TopicName
    place: Appended


class PositionKey(NamedTuple):
    """The group and the partition of a position."""

    group: str
    topic: TopicName
    partition: int


class Owner(Struct, frozen=True, forbid_unknown_fields=True):
    """The member that a partition is assigned to, and the generation of the assignment."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """The position of a group in a partition, with a text of up to 4,096 characters and a leader
    epoch (-1: none, up to 2**31 - 1) for the group's programs; TMS uses neither. Raises `Invalid`
    for others."""

    position: Position
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH

    def __post_init__(self) -> None:
        if self.metadata or self.leader_epoch != NO_LEADER_EPOCH:
            _check_metadata(self.metadata, self.leader_epoch)

    @property
    def is_plain(self) -> bool:
        """True if it has neither metadata nor a leader epoch."""
        return not self.metadata and self.leader_epoch == NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A new position of a group; with `expected`, only if it is that one now (`""`: none yet;
    metadata do not count), with `expected_metadata`, only if its metadata are those, with `owner`,
    only while the partition is assigned to that member. `metadata` and `leader_epoch` replace the
    former ones; see `CommittedPosition`."""

    key: PositionKey
    position: Position
    expected: str | None = None
    owner: Owner | None = None
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH
    expected_metadata: str | None = None

    def __post_init__(self) -> None:
        if self.metadata or self.leader_epoch != NO_LEADER_EPOCH:
            _check_metadata(self.metadata, self.leader_epoch)

    @property
    def committed(self) -> CommittedPosition:
        """The position with its metadata, as it will be stored."""
        return CommittedPosition(self.position, self.metadata, self.leader_epoch)


class Commit(Struct, frozen=True):
    """The writes of a transaction that are stored when it commits.

    `transaction_id` 0: it begins with this request, and `token`, which a repetition carries too,
    keeps it from being done twice. `changes` are the keys that it changed elsewhere. Staged blocks
    come before `blocks`. `settlements` are messages of queues that it acknowledges. A commit that
    `overtakes` moves its positions even if another transaction has moved them since it began.
    """

    transaction_id: int = 0
    token: str = ""
    blocks: tuple[TopicBlock, ...] = ()
    positions: tuple[PositionChange, ...] = ()
    changes: tuple[bytes, ...] = ()
    durability: Durability | None = None  # None: the strongest of the topics'
    staged: tuple[TopicStaged, ...] = ()
    settlements: tuple[Settlement, ...] = ()
    overtakes: bool = False


class CommitResult(Struct, frozen=True):
    """The result of a commit; without `appended` if it was repeated long after, or has lost a topic
    since."""

    transaction_id: int
    appended: tuple[TopicAppended, ...] = ()


class HeldPartition(Struct, frozen=True):
    """A partition whose readers of committed messages wait for a transaction that was begun
    elsewhere. `since_ms` is the publish time of the first message that is held back."""

    topic: str
    partition: int
    pointer: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The state of a transaction. `expires_ms` is 0 once it has ended. Only a transaction that was
    begun elsewhere has `held` partitions: readers go on there once it is rolled back, invalidated
    or expired."""

    transaction_id: int
    outcome: str
    read_pointer: int = 0
    expires_ms: int = 0
    client: str | None = None
    held: tuple[HeldPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionStats:
    """The number of transactions in progress, the age of the oldest, the number of invalid ones,
    the number of partitions in which readers of committed messages wait, and the number of commits
    since the start."""

    open: int
    oldest_ms: int
    invalid: int
    partitions_blocked: int
    committed: int

    def named(self) -> dict[str, int]:
        """The counts by their names in `EngineStats`."""
        return {
            "transactions_open": self.open,
            "transactions_oldest_ms": self.oldest_ms,
            "transactions_invalid": self.invalid,
            "partitions_blocked": self.partitions_blocked,
            "transactions_committed": self.committed,
        }


def unknown_transaction(id: int) -> TransactionNotFound:
    """The error for an unknown id, and for one of which a caller may not know."""
    return TransactionNotFound(
        f"There is no transaction {id}. It never began, or ended too long ago to be known.",
        transaction=id,
    )


def check_group(group: str) -> str:
    """The group itself. Raises `Invalid`, `Forbidden` for one of TMS's own."""
    if check_name("group", group, GROUP_CHARS_MAX).startswith(SYSTEM_GROUPS):
        raise Forbidden(f"Groups that begin with `{SYSTEM_GROUPS}` belong to TMS.", field="group")
    return group


def _check_metadata(metadata: str, leader_epoch: int) -> None:
    if not isinstance(metadata, str) or len(metadata) > METADATA_CHARS_MAX:
        got = len(metadata) if isinstance(metadata, str) else type(metadata).__name__
        raise Invalid(
            f"The metadata of a position have at most {METADATA_CHARS_MAX} characters, got {got}.",
            field="metadata",
        )
    if _SURROGATES.search(metadata):
        raise Invalid(
            "The metadata of a position are text that UTF-8 can encode, without surrogates, got "
            f"{metadata!a:.80}.",
            field="metadata",
        )
    if not isinstance(leader_epoch, int) or not NO_LEADER_EPOCH <= leader_epoch <= LEADER_EPOCH_MAX:
        raise Invalid(
            f"The leader epoch of a position is {NO_LEADER_EPOCH} to {LEADER_EPOCH_MAX}, got "
            f"{leader_epoch!r:.80}.",
            field="leader_epoch",
        )


def check_name(field: str, name: str, chars_max: int) -> str:
    """The name of a group or member itself. Raises `Invalid`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > chars_max:
        raise Invalid(
            f"A {field} is 1 to {chars_max} visible characters without /, got {name!r:.80}.",
            field=field,
        )
    return name
