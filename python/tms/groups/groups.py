"""The groups of one engine: who is a member, who reads what, and how far they are behind."""

import contextlib
import threading
from collections.abc import Mapping
from types import MappingProxyType

from tms.errors import GroupNotFound, TMSError, TopicNotFound
from tms.events import EventLog
from tms.groups.group_positions import GroupPositions
from tms.groups.lag import Lags
from tms.groups.members import Members
from tms.groups.membership import GroupKey, Membership, Poll
from tms.model.group import (
    SESSION_S,
    GroupInfo,
    GroupPartition,
    GroupStanding,
    GroupSummary,
    MemberInfo,
    check_member,
    check_session,
)
from tms.model.topic import SYSTEM_NAMESPACE, TopicName
from tms.model.transaction import PositionKey, check_group
from tms.topics.topics import Topics
from tms.transactions.transactions import Transactions

GROUPS = TopicName(SYSTEM_NAMESPACE, "_groups")
POSITIONS = TopicName(SYSTEM_NAMESPACE, "_positions")
_log = EventLog(__name__)


class LogGroups:
    """The groups of one engine. Thread-safe."""

    def __init__(self, topics: Topics, transactions: Transactions) -> None:
        self._registry = registry = topics.registry
        manager = transactions.manager
        journal = topics.journal(GROUPS)
        self._members = Members(journal, registry, topics.clock, manager.alone)
        positions = topics.journal(POSITIONS, manager.fate)
        self._positions = GroupPositions(positions, manager, self._members)
        transactions.join_positions(self._positions)
        self._positions.load()
        self._members.load()
        self._lags = Lags(topics.fetcher, topics.clock)
        self._lock = threading.Lock()  # guards the lags

    def poll(
        self,
        topic: TopicName,
        group: str,
        member: str,
        session_s: float = SESSION_S,
        holding: Mapping[int, int] = MappingProxyType({}),
        reading: bool = False,
    ) -> GroupStanding:
        """A member is there, holding these partitions with their epochs; what it is told.
        `reading`: it reads up to an end, and has not reached it. May be repeated. Raises
        `TopicNotFound`, `Invalid`, `Overloaded`."""
        key = GroupKey(check_group(group), topic)
        poll = Poll(check_member(member), check_session(session_s), holding)
        return self._members.poll(key, poll, reading)

    def leave(self, topic: TopicName, group: str, member: str) -> None:
        """A member leaves: its partitions go to others at once. May be repeated. Raises
        `TopicNotFound`, `Invalid`."""
        poll = Poll(check_member(member), SESSION_S, {}, leaving=True)
        self._members.poll(GroupKey(check_group(group), topic), poll, reading=False)

    def describe(self, topic: TopicName, group: str) -> GroupInfo:
        """How a group stands. Raises `TopicNotFound`, `GroupNotFound`."""
        partitions = self._registry.find(topic).partitions
        key = GroupKey(check_group(group), topic)
        membership, left_s = self._members.look(key)
        if not membership.sessions and not self._positions.of(group, topic):
            raise GroupNotFound(
                f"The topic {topic} has no group {group!r}: nobody is a member of it, and it has "
                "no positions.",
                group=group,
                topic=str(topic),
            )
        return self._info(key, membership, left_s, partitions)

    def list_groups(self, topic: TopicName) -> list[GroupSummary]:
        """The groups of a topic, by name. Raises `TopicNotFound`."""
        partitions = self._registry.find(topic).partitions
        return [
            self._info(key, *self._members.look(key), partitions).summary()
            for key in self._keys()
            if key.topic == topic
        ]

    def all(self, partitions_max: int) -> list[GroupInfo]:
        """How groups stand, for metrics: those that have together at most so many partitions, and
        whose lag can be told."""
        groups: list[GroupInfo] = []
        try:
            for key in self._keys():
                with contextlib.suppress(TopicNotFound):  # deleted, its positions are still here
                    partitions = self._registry.find(key.topic).partitions
                    if partitions <= partitions_max:
                        groups.append(self._info(key, *self._members.look(key), partitions))
                        partitions_max -= partitions
        except TMSError as error:
            _log.warning("lag_unknown", why=str(error))
        return groups

    def forget_members(self) -> None:
        """Nobody who was a member before this start will come back: others need not wait for their
        sessions."""
        self._members.forget()

    def tidy(self) -> None:
        """What is to be done now and then."""
        self._members.tidy()

    def _keys(self) -> list[GroupKey]:
        moved = (GroupKey(*place) for place in self._positions.groups())
        return sorted({*moved, *self._members.groups()})

    def _info(
        self,
        key: GroupKey,
        membership: Membership,
        left_s: Mapping[str, float],
        partitions: int,
    ) -> GroupInfo:
        positions = self._positions.of(*key)
        members = [
            MemberInfo(
                member,
                session_s,
                round(left_s[member], 3),
                tuple(sorted(p for p, o in membership.owners.items() if o.member == member)),
            )
            for member, session_s in membership.sessions.items()
            if left_s[member] > 0
        ]
        partitions_ = []
        for partition in range(partitions):
            owner, at = membership.owners.get(partition), positions.get(partition)
            with self._lock:
                lag = self._lags.of(PositionKey(*key, partition), at)
            name, epoch = (None, 0) if owner is None else (owner.member, owner.epoch)
            text = None if at is None else str(at)
            partitions_.append(GroupPartition(partition, name, epoch, text, lag.messages, lag.ms))
        return GroupInfo(
            key.group, str(key.topic), membership.generation, tuple(members), tuple(partitions_)
        )
