"""The groups of one engine: who is a member, who reads what, and how far they are behind.

Invariants

* What concerns a group is answered from its shard; one that this process does not keep is refused.
"""

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

from tms.errors import GroupNotFound, StorageUnavailable, TMSError, TopicNotFound
from tms.events import EventLog
from tms.groups.group_positions import GroupPositions
from tms.groups.members import Members
from tms.groups.membership import GroupKey, Membership, Poll
from tms.model.group import (
    SESSION_S,
    GroupInfo,
    GroupLag,
    GroupPartition,
    GroupStanding,
    GroupSummary,
    MemberInfo,
    check_member,
    check_session,
)
from tms.model.lag import PAGE, LagPlace
from tms.model.position import EARLIEST, Position
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
        self._lock = threading.Lock()  # held by who changes what is kept
        self._kept: dict[int, GroupShard] = {}
        self._lags = topics.lags

    # -- shards ------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Keep a shard. Raises what keeps its journals from being read."""
        shard = GroupShard(self._topics, number)
        with self._lock:
            self._kept = {**self._kept, number: shard}

    def close(self, number: int) -> None:
        """Keep it no more."""
        with self._lock:
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
        self._registry.find(topic)
        keys = [key for key in self._keys(shards) if key.topic == topic]
        return [lag.summary() for lag in self.lags(sorted(keys))]

    def page(
        self,
        namespace: str,
        after: tuple[str, str] | None = None,
        limit: int = PAGE,
        shards: Iterable[int] | None = None,
    ) -> list[GroupSummary]:
        """Up to `limit` groups of the topics of a namespace, by topic and name, after the one of a
        topic and a name, in some shards or in all. Raises `NotOwner`."""
        begin = after or ("", "")
        places = {
            (key.topic.topic, key.group): key
            for key in self._keys(shards)
            if key.topic.namespace == namespace
        }
        exist = {topic for topic in {key.topic for key in places.values()} if self._exists(topic)}
        behind = (at for at, key in places.items() if at > begin and key.topic in exist)
        keys = [places[at] for at in heapq.nsmallest(limit, behind)]
        return [lag.summary() for lag in self.lags(keys)]

    def lags(self, keys: Iterable[GroupKey]) -> list[GroupLag]:
        """How many members groups have, and how far they are behind in each partition, in this
        order. Those whose topic is gone are left out."""
        found: list[tuple[GroupKey, int, list[LagPlace]]] = []
        present = {number: shard.members.present() for number, shard in self._kept.items()}
        for key in keys:
            try:
                partitions = self._registry.find(key.topic).partitions
            except TopicNotFound:  # its positions are still here
                continue
            number = self._topics.shards.of_group(key.group)
            at = self.at(number).positions.of(*key)
            places = [LagPlace(key.topic, p, at.get(p, EARLIEST)) for p in range(partitions)]
            found.append((key, present.get(number, {}).get(key, 0), places))
        lags = self._lags.of(place for _, _, places in found for place in places)
        return [
            GroupLag(key.group, str(key.topic), members, tuple(lags[place] for place in places))
            for key, members, places in found
        ]

    def lags_here(self, partitions_max: int) -> tuple[list[GroupLag], int]:
        """The groups that are kept here and have together at most so many partitions, with their
        lag, and how many there are besides; for metrics. Where nothing can be told: none."""
        keys = sorted(self._keys(self._kept))
        looked: list[GroupKey] = []
        for key in keys:
            record = self._registry.known.get(key.topic)
            partitions_max -= 1 if record is None else record.partitions
            if partitions_max < 0:
                break
            looked.append(key)
        try:
            return self.lags(looked), len(keys) - len(looked)
        except TMSError as error:
            _log.warning("lag_unknown", why=str(error))
            return [], len(keys)

    def _exists(self, topic: TopicName) -> bool:
        try:
            self._registry.find(topic)
        except TopicNotFound:
            return False
        return True

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

    def _keys(self, shards: Iterable[int] | None) -> set[GroupKey]:
        """The groups of some shards, or of all."""
        numbers = range(self._topics.shards.count) if shards is None else shards
        keys: set[GroupKey] = set()
        for shard in [self.at(number) for number in numbers]:
            keys.update(GroupKey(*place) for place in shard.positions.groups())
            keys.update(shard.members.groups())
        return keys

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
        places = [LagPlace(key.topic, p, positions.get(p, EARLIEST)) for p in range(partitions)]
        lags, partitions_ = self._lags.of(places), []
        for place in places:
            number, lag = place.partition, lags[place] or (None, None)
            owner, at = membership.owners.get(number), positions.get(number)
            name, epoch = (None, 0) if owner is None else (owner.member, owner.epoch)
            text = None if at is None else str(at)
            partitions_.append(GroupPartition(number, name, epoch, text, *lag))
        return GroupInfo(
            key.group, str(key.topic), membership.generation, tuple(members), tuple(partitions_)
        )
