"""Groups of consumers: the state of members and of groups. Values that engine, wire and client
share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tms.model.lag import Lag
from tms.model.quantity import Duration, seconds
from tms.model.transaction import NO_LEADER_EPOCH, check_name

SESSION_S = 10.0
SESSION_S_MIN, SESSION_S_MAX = 1.0, 1_800.0
MEMBER_CHARS_MAX = 128
EPOCH_MAX = 2**63 - 1


class GroupKind(StrEnum):
    """The protocol of a group's members."""

    TMS = "tms"
    CLASSIC = "classic"  # that of Kafka's clients


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The answer to a member's poll.

    `partitions` are its own, each with the epoch of its assignment; the member must release those
    in `release`: it commits its positions there and polls without holding them. `coming` is the
    number of partitions that other members will release for it, `reading` the number of other
    members that read up to an end that they have not reached.
    """

    generation: int
    partitions: Mapping[int, int]
    release: frozenset[int]
    members: int
    coming: int = 0
    reading: int = 0


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member, and the time in which it has to poll again."""

    member: str
    session_s: float
    left_s: float
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """The position of a group in one partition. Without a position all of its messages are ahead of
    it.

    `lag` counts messages; `lag_ms` is the age of the first of them. Both are None if they are
    unknown, because the partition is damaged. `metadata` and `leader_epoch` were committed with the
    position; see `CommittedPosition`.
    """

    partition: int
    owner: str | None
    epoch: int
    position: str | None
    lag: int | None
    lag_ms: int | None
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The state of a group in a topic. `kind` is the protocol of the members that the group has in
    any topic of the namespace, None without members; `members` has those of TMS's own protocol that
    read this topic."""

    group: str
    topic: str
    generation: int
    members: tuple[MemberInfo, ...]
    partitions: tuple[GroupPartition, ...]
    kind: GroupKind | None = None

    def summary(self) -> "GroupSummary":
        """The totals of the group."""
        lags = [
            None if part.lag is None or part.lag_ms is None else Lag(part.lag, part.lag_ms)
            for part in self.partitions
        ]
        members = len(self.members)
        return GroupLag(self.group, self.topic, members, tuple(lags), self.kind).summary()


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The number of a group's members, its lag in messages over all partitions, and the age of the
    oldest of those. The lag is None if a partition is damaged. `members` and `kind` are as in
    `GroupInfo`."""

    group: str
    topic: str
    members: int
    lag: int | None
    lag_ms: int | None
    kind: GroupKind | None = None


class GroupLag(NamedTuple):
    """The number of a group's members, and its lag in each partition; None if that is unknown."""

    group: str
    topic: str
    members: int
    lags: tuple[Lag | None, ...]
    kind: GroupKind | None = None

    def summary(self) -> GroupSummary:
        """The totals over all partitions."""
        known = [lag for lag in self.lags if lag is not None]
        if len(known) < len(self.lags):
            return GroupSummary(self.group, self.topic, self.members, None, None, self.kind)
        messages, ms = sum(lag.messages for lag in known), max((lag.ms for lag in known), default=0)
        return GroupSummary(self.group, self.topic, self.members, messages, ms, self.kind)


def check_member(member: str) -> str:
    """The member's name itself. Raises `Invalid`."""
    return check_name("member", member, MEMBER_CHARS_MAX)


def check_session(session_s: Duration) -> float:
    """The session time-out in seconds. Raises `Invalid`."""
    return seconds("session_s", session_s, SESSION_S_MIN, SESSION_S_MAX)
