"""The groups of one engine: who is a member, who reads what, and how far they are behind.

Invariants

* What concerns a group is answered from its shard; one that this process does not keep is refused.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

from tms.errors import GroupNotFound, StorageUnavailable, TMSError, TopicNotFound
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
from tms.model.position import Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Owner, PositionChange, PositionKey, check_group
from tms.topics.sharding import GROUPS, POSITIONS
from tms.topics.topics import Topics

_log = EventLog(__name__)


class GroupShard:
    """The groups of one shard. Raises what keeps its journals from being read, but in a store that
    this process has for itself what may pass: they are read when they are needed."""

    def __init__(self, topics: Topics, number: int) -> None:
        turn = threading.RLock()
        self.members = Members(
            topics.journal_of_shard(GROUPS, number),
            topics.registry,
            topics.clock,
            self._undisturbed,
        )
        journal = topics.journal_of_shard(POSITIONS, number)
        self.positions = GroupPositions(
            journal, lambda: topics.decisions, self.members, turn, topics.store.shared
        )
        try:
            self.positions.load()
            self.members.load()
        except StorageUnavailable:
            if topics.partitions.are_of_several:
                raise

    def _undisturbed(self, keys: Collection[PositionKey], do: Callable[[], bool]) -> bool:
        return self.positions.undisturbed(keys, do)


class LogGroups:
    """The groups of one engine. Thread-safe."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._registry = topics.registry
        self._kept: dict[int, GroupShard] = {}
        self._lags = Lags(topics.fetcher, topics.clock)
        self._lock = threading.Lock()  # guards the lags

    # -- shards ------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Keep a shard. Raises what keeps its journals from being read."""
        self._kept = {**self._kept, number: GroupShard(self._topics, number)}

    def close(self, number: int) -> None:
        """Keep it no more."""
        self._kept = {n: shard for n, shard in self._kept.items() if n != number}

    def at(self, number: int) -> GroupShard:
        """A shard that is kept here. Raises `NotOwner`, `Unavailable`."""
        shard = self._kept.get(number)
        if shard is None:
            raise self._topics.shards.missing(number)
        return shard

    def _of(self, group: str) -> GroupShard:
        return self.at(self._topics.shards.of_group(group))

    # -- members -----------------------------------------------------------------------------------

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
        return self._of(group).members.poll(key, poll, reading)

    def leave(self, topic: TopicName, group: str, member: str) -> None:
        """A member leaves: its partitions go to others at once. May be repeated. Raises
        `TopicNotFound`, `Invalid`."""
        poll = Poll(check_member(member), SESSION_S, {}, leaving=True)
        key = GroupKey(check_group(group), topic)
        self._of(group).members.poll(key, poll, reading=False)

    def describe(self, topic: TopicName, group: str) -> GroupInfo:
        """How a group stands. Raises `TopicNotFound`, `GroupNotFound`."""
        partitions = self._registry.find(topic).partitions
        key = GroupKey(check_group(group), topic)
        shard = self._of(group)
        membership, left_s = shard.members.look(key)
        if not membership.sessions and not shard.positions.of(group, topic):
            raise GroupNotFound(
                f"The topic {topic} has no group {group!r}: nobody is a member of it, and it has "
                "no positions.",
                group=group,
                topic=str(topic),
            )
        return self._info(key, membership, left_s, partitions)

    def list_groups(
        self, topic: TopicName, shards: Iterable[int] | None = None
    ) -> list[GroupSummary]:
        """The groups of a topic, by name, in some shards or in all. Raises `TopicNotFound`,
        `NotOwner` for a shard that is not kept here."""
        partitions = self._registry.find(topic).partitions
        numbers = range(self._topics.shards.count) if shards is None else shards
        return [
            self._info(key, *self._of(key.group).members.look(key), partitions).summary()
            for key in self._keys([self.at(number) for number in numbers])
            if key.topic == topic
        ]

    def all(self, partitions_max: int) -> list[GroupInfo]:
        """How groups stand, for metrics: those that have together at most so many partitions, and
        whose lag can be told."""
        groups: list[GroupInfo] = []
        try:
            for key in self._keys(self._kept.values()):
                with contextlib.suppress(TopicNotFound):  # deleted, its positions are still here
                    partitions = self._registry.find(key.topic).partitions
                    if partitions <= partitions_max:
                        look = self._of(key.group).members.look(key)
                        groups.append(self._info(key, *look, partitions))
                        partitions_max -= partitions
        except TMSError as error:
            _log.warning("lag_unknown", why=str(error))
        return groups

    # -- positions ---------------------------------------------------------------------------------

    def _positions_of(self, topic: TopicName, group: str) -> GroupPositions:
        return self.at(self._topics.shards.of_position(topic, group)).positions

    def positions(self, topic: TopicName, group: str) -> Mapping[int, Position]:
        """A group's positions in a topic."""
        return self._positions_of(topic, group).of(group, topic)

    def move(
        self, changes: Sequence[PositionChange], durability: Durability = Durability.SYNCED
    ) -> None:
        """Move positions outside of a transaction; those of a group all or none. Raises `Conflict`,
        `Fenced`."""
        for positions, some in self._by_shard(changes).items():
            positions.move(some, durability)

    def _by_shard(
        self, changes: Sequence[PositionChange]
    ) -> dict[GroupPositions, list[PositionChange]]:
        shards: dict[GroupPositions, list[PositionChange]] = {}
        for change in changes:
            positions = self._positions_of(change.key.topic, change.key.group)
            shards.setdefault(positions, []).append(change)
        return shards

    def forget_positions(self, topic: TopicName, group: str) -> None:
        """Forget where a group stands in a topic: it begins anew."""
        self._positions_of(topic, group).forget(group, topic)

    def take(self, key: PositionKey) -> tuple[Owner, Position | None]:
        """See `GroupPositions.take`."""
        return self._positions_of(key.topic, key.group).take(key)

    def shorten_journals(
        self, entries_max: int, durable: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Let a start read the positions as they are now where it had more entries to read. For
        `durable` see `OwnCommits`."""
        for shard in self._kept.values():
            shard.positions.shorten(entries_max, durable)

    # -- operating ---------------------------------------------------------------------------------

    def forget_members(self) -> None:
        """Nobody who was a member before this start will come back: others need not wait for their
        sessions."""
        for shard in self._kept.values():
            shard.members.forget()

    def tidy(self) -> None:
        """What is to be done now and then."""
        for shard in self._kept.values():
            shard.members.tidy()
            shard.positions.learn()

    def _keys(self, shards: Iterable[GroupShard]) -> list[GroupKey]:
        keys: set[GroupKey] = set()
        for shard in shards:
            keys.update(GroupKey(*place) for place in shard.positions.groups())
            keys.update(shard.members.groups())
        return sorted(keys)

    def _info(
        self,
        key: GroupKey,
        membership: Membership,
        left_s: Mapping[str, float],
        partitions: int,
    ) -> GroupInfo:
        positions = self._of(key.group).positions.of(*key)
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
