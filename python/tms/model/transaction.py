"""What a commit carries and answers: the values that engine, wire and client share."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from tms.errors import Forbidden, Invalid
from tms.model.message import Appended, NewBlock
from tms.model.position import Position
from tms.model.queue import Settlement
from tms.model.topic import Durability, TopicName

GROUP_CHARS_MAX = 255
SYSTEM_GROUPS = "system:"  # what the names of TMS's own begin with
TOKEN_CHARS_MAX = 64
TIMEOUT_S_MAX = 3_600  # of a transaction
TOKEN = f"[ -~]{{0,{TOKEN_CHARS_MAX}}}"  # how the token of a commit is spelled
# What stands in no name: controls, what is not seen or turns the direction of text, and a slash.
UNSEEN = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff/"
_NAME = re.compile(rf"[^{UNSEEN}\ud800-\udfff]+")  # nor what is no Unicode


class TopicBlock(NamedTuple):
    """A block for a partition of a topic."""

    topic: TopicName
    new: NewBlock


class TopicStaged(NamedTuple):
    """How many blocks a transaction staged in a partition that its commit publishes: those of
    `producers`, by the ids in their headers, or all if none is named."""

    topic: TopicName
    partition: int
    blocks: int
    producers: tuple[int, ...] = ()


class TopicAppended(Struct, frozen=True):
    """Where a block of a commit went."""

    topic: TopicName
    place: Appended


class PositionKey(NamedTuple):
    """Whose position, and where."""

    group: str
    topic: TopicName
    partition: int


class Owner(Struct, frozen=True, forbid_unknown_fields=True):
    """Which member of its group has a partition, and since which generation."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A new position of a group; with `expected`, only if it is that one now (`""`: none yet), with
    `owner`, only while that member has the partition."""

    key: PositionKey
    position: Position
    expected: str | None = None
    owner: Owner | None = None


class Commit(Struct, frozen=True):
    """Everything of a transaction that is stored when it commits.

    `transaction_id` 0: it begins with this request, and `token`, which a repetition carries too,
    keeps it from being done twice. `changes` are the keys that it changed elsewhere. What was
    staged comes before the blocks. `settlements` are messages of queues that it acknowledges.
    """

    transaction_id: int = 0
    token: str = ""
    blocks: tuple[TopicBlock, ...] = ()
    positions: tuple[PositionChange, ...] = ()
    changes: tuple[bytes, ...] = ()
    durability: Durability | None = None  # None: the strongest of the topics'
    staged: tuple[TopicStaged, ...] = ()
    settlements: tuple[Settlement, ...] = ()


class CommitResult(Struct, frozen=True):
    """What became of a commit; of one that was repeated long after, or has lost a topic since,
    without `appended`."""

    transaction_id: int
    appended: tuple[TopicAppended, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """How a transaction stands. `expires_ms` is 0 once it has ended."""

    transaction_id: int
    outcome: str
    read_pointer: int = 0
    expires_ms: int = 0
    client: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionStats:
    """How many transactions are in progress, for how long the oldest, how many are on the invalid
    list, in how many partitions readers of committed messages wait, and how many were committed
    since the start."""

    open: int
    oldest_ms: int
    invalid: int
    partitions_blocked: int
    committed: int

    def named(self) -> dict[str, int]:
        """By the names of `EngineStats`."""
        return {
            "transactions_open": self.open,
            "transactions_oldest_ms": self.oldest_ms,
            "transactions_invalid": self.invalid,
            "partitions_blocked": self.partitions_blocked,
            "transactions_committed": self.committed,
        }


def check_group(group: str) -> str:
    """The group itself. Raises `Invalid`, `Forbidden` for one of TMS's own."""
    if check_name("group", group, GROUP_CHARS_MAX).startswith(SYSTEM_GROUPS):
        raise Forbidden(f"Groups that begin with `{SYSTEM_GROUPS}` belong to TMS.", field="group")
    return group


def check_name(field: str, name: str, chars_max: int) -> str:
    """The name of a group or member itself. Raises `Invalid`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > chars_max:
        raise Invalid(
            f"A {field} is 1 to {chars_max} visible characters without /, got {name!r:.80}.",
            field=field,
        )
    return name
