"""Groups of consumers: what a member is told, and how a group stands. Values that engine, wire and
client share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tms.model.lag import Lag
from tms.model.quantity import Duration, seconds
from tms.model.transaction import check_name

SESSION_S = 10.0
SESSION_S_MIN, SESSION_S_MAX = 1.0, 1_800.0
MEMBER_CHARS_MAX = 128
EPOCH_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """What a member is told by each poll.

    `partitions` are its own, each with the epoch at which it was given; those in `release` are to
    be let go: the member commits where it stands in them and polls without holding them. `coming`
    is how many others will let go for it, `reading` how many of the others read up to an end that
    they have not reached.
    """

    generation: int
    partitions: Mapping[int, int]
    release: frozenset[int]
    members: int
    coming: int = 0
    reading: int = 0


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member, and how long it may still be silent."""

    member: str
    session_s: float
    left_s: float
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How a group stands in one partition. Without a position it has everything before it.

    `lag` counts messages; `lag_ms` is for how long the first of them has been there. Both are None
    where that cannot be told, because the partition is damaged.
    """

    partition: int
    owner: str | None
    epoch: int
    position: str | None
    lag: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """How a group stands in a topic."""

    group: str
    topic: str
    generation: int
    members: tuple[MemberInfo, ...]
    partitions: tuple[GroupPartition, ...]

    def summary(self) -> "GroupSummary":
        """The same in few numbers."""
        lags = [
            None if part.lag is None or part.lag_ms is None else Lag(part.lag, part.lag_ms)
            for part in self.partitions
        ]
        return GroupLag(self.group, self.topic, len(self.members), tuple(lags)).summary()


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """How many members a group has, how many messages before it in all partitions, and for how long
    the oldest of them has been there. The last two are None where a partition is damaged."""

    group: str
    topic: str
    members: int
    lag: int | None
    lag_ms: int | None


class GroupLag(NamedTuple):
    """How many members a group has, and how far it is behind in each partition; None where that
    cannot be told."""

    group: str
    topic: str
    members: int
    lags: tuple[Lag | None, ...]

    def summary(self) -> GroupSummary:
        """The same of all partitions together."""
        known = [lag for lag in self.lags if lag is not None]
        if len(known) < len(self.lags):
            return GroupSummary(self.group, self.topic, self.members, None, None)
        messages, ms = sum(lag.messages for lag in known), max((lag.ms for lag in known), default=0)
        return GroupSummary(self.group, self.topic, self.members, messages, ms)


def check_member(member: str) -> str:
    """The member's name itself. Raises `Invalid`."""
    return check_name("member", member, MEMBER_CHARS_MAX)


def check_session(session_s: Duration) -> float:
    """The session time-out in seconds. Raises `Invalid`."""
    return seconds("session_s", session_s, SESSION_S_MIN, SESSION_S_MAX)
