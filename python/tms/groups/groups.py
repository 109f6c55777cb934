"""The groups of one engine: their members, assignments, positions and lag.

Invariants

* A group is served from its shard; calls for shards of other processes are refused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from random import Random
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from tms.errors import GroupNotFound, StorageUnavailable, TMSError, TopicNotFound
from tms.groups.classic_calls import Answered, ClassicKey
from tms.groups.classic_member import KeptEntry
from tms.groups.classic_shard import ClassicShard
from tms.groups.group_positions import GroupPositions
from tms.groups.members import Members
from tms.groups.membership import GroupKey, Membership, Poll
from tms.model.group import (
    SESSION_S,
    GroupInfo,
    GroupKind,
    GroupLag,
    GroupPartition,
    GroupSummary,
    MemberAssignment,
    MemberInfo,
    check_member,
    check_session,
)
from tms.model.lag import PAGE, LagPlace, named_like
from tms.model.position import EARLIEST, Position
from tms.model.topic import Durability, TopicName
from tms.model.transaction import (
    CommittedPosition,
    Owner,
    PositionChange,
    PositionKey,
    check_group,
)
from tms.runtime.events import EventLog
from tms.topics.sharding import OpenShards
from tms.topics.topics import Topics

_NOWHERE = CommittedPosition(EARLIEST)  # of a group without a position
_log = EventLog(__name__)
T = TypeVar("T")


class GroupShard:
    """The groups of one shard, of TMS's own protocol and of Kafka's. Raises an error if its
    journals cannot be read; in a store of this process alone, errors that may pass are ignored, and
    the journals are read when they are needed."""

    def __init__(self, topics: Topics, number: int, new_id: Callable[[], str]) -> None:
        self.classic = ClassicShard(topics.clock, new_id, self)
        self.members = Members(topics, number, self._undisturbed, self.classic)
        self.positions = GroupPositions(topics, number, self.members)
        try:
            self.positions.load()
            self.members.load()
        except StorageUnavailable:
            if topics.partitions.are_of_several:
                raise

    def _undisturbed(self, keys: Collection[PositionKey], do: Callable[[], bool]) -> bool:
        return self.positions.undisturbed(keys, do)

    def without_members(self, key: ClassicKey, do: Callable[[], T]) -> T | None:
        """Run `do` while a group has no members of TMS's own protocol, and none can join; returns
        None, and does nothing, if it has some."""
        return self.members.without(key, do)

    def keep(self, take: Callable[[], Sequence[KeptEntry]]) -> None:
        """Store what `take` returns of Kafka's groups, as `Members.keep` does."""
        self.members.keep(take)

    def kind(self, key: ClassicKey) -> GroupKind | None:
        """The protocol of the members that a group has now, in any topic of the namespace; None
        without members."""
        if self.classic.has(key):
            return GroupKind.CLASSIC
        is_free = self.members.without(key, lambda: True)
        return None if is_free else GroupKind.TMS


class LogGroups:
    """The groups of one engine. Thread-safe. `random` makes the ids of Kafka's members."""

    def __init__(self, topics: Topics, random: Random) -> None:
        self._topics = topics
        self._random = random
        self._classic_answers: Callable[[Sequence[Answered]], None] = lambda answers: None
        self._registry = topics.registry
        self._open_shards = OpenShards[GroupShard](topics.shards)
        self._lags = topics.lags

    # -- shards ------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Open a shard. Raises an error if its journals cannot be read."""
        self._open_shards.open(number, GroupShard(self._topics, number, self._new_id))

    def close(self, number: int) -> None:
        """Close a shard."""
        shard = self._open_shards.close(number)
        if shard is not None and (answers := shard.classic.close()):
            self._classic_answers(answers)

    def deliver_classic(self, deliver: Callable[[Sequence[Answered]], None]) -> None:
        """Have the answers of Kafka's callers delivered that wait while a shard is closed or
        tidied, by the thread that does so."""
        self._classic_answers = deliver

    def at(self, number: int) -> GroupShard:
        """An open shard. Raises `NotOwner`, `Unavailable`."""
        return self._open_shards.at(number)

    def of(self, group: str) -> GroupShard:
        """The shard of a group in all topics and namespaces: its owner is the coordinator of a
        Kafka group, and holds all of its positions. Raises `NotOwner`, `Unavailable`."""
        return self._open_shards.at(self._topics.shards.of_group(group))

    def classic_shards(self) -> list[ClassicShard]:
        """Kafka's groups of each open shard: to list them, and to call `expire` at the earliest
        deadline of all."""
        return [shard.classic for shard in self._open_shards.parts.values()]

    def _new_id(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    # -- members -----------------------------------------------------------------------------------

    def poll(
        self,
        topic: TopicName,
        group: str,
        member: str,
        session_s: float = SESSION_S,
        holding: Mapping[int, int] = MappingProxyType({}),
        reading: bool = False,
    ) -> MemberAssignment:
        """Poll for a member that holds these partitions with their epochs; returns its assignment.
        `reading` is True if the member reads up to an end that it has not reached. May be repeated.
        Raises `TopicNotFound`, `Invalid`, `Overloaded`."""
        key = GroupKey(check_group(group), topic)
        poll = Poll(check_member(member), check_session(session_s), holding)
        return self.of(group).members.poll(key, poll, reading)

    def leave(self, topic: TopicName, group: str, member: str) -> None:
        """Remove a member: its partitions go to others at once. May be repeated. Raises
        `TopicNotFound`, `Invalid`."""
        poll = Poll(check_member(member), SESSION_S, {}, leaving=True)
        key = GroupKey(check_group(group), topic)
        self.of(group).members.poll(key, poll, reading=False)

    def describe(self, topic: TopicName, group: str) -> GroupInfo:
        """Describe a group. Raises `TopicNotFound`, `GroupNotFound`."""
        partitions = self._registry.find(topic).partitions
        key = GroupKey(check_group(group), topic)
        shard = self.of(group)
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
        """The groups of a topic, by name, in some shards or in all. Raises `TopicNotFound`, and
        `NotOwner` for a shard of another instance."""
        self._registry.find(topic)
        keys = [GroupKey(*key) for key in self._keys(shards) if key[1] == topic]
        return [lag.summary() for lag in self.lags(sorted(keys))]

    def page(
        self,
        namespace: str,
        after: tuple[str, str] | None = None,
        limit: int = PAGE,
        shards: Iterable[int] | None = None,
        search: str | None = None,
    ) -> list[GroupSummary]:
        """Up to `limit` groups of the topics of a namespace whose `TOPIC/GROUP` contains a text, by
        topic and name, after the one of a topic and a name, in some shards or in all. Raises
        `NotOwner`."""
        is_wanted = named_like(search)
        owned = (
            (topic, group)
            for group, topic in self._keys(shards)
            if topic.namespace == namespace and is_wanted(f"{topic.topic}/{group}")
        )
        return self._registry.page_of(
            owned,
            after,
            limit,
            lambda page: [one.summary() for one in self.lags(GroupKey(g, t) for t, g in page)],
        )

    def lags(self, keys: Iterable[GroupKey]) -> list[GroupLag]:
        """The number of members of each group and its lag in each partition, in the given order,
        without groups of deleted topics."""
        groups: list[tuple[GroupKey, int, list[LagPlace], GroupKind | None]] = []
        shards = self._open_shards.parts
        present = {number: shard.members.present() for number, shard in shards.items()}
        reading = {
            ClassicKey(key.topic.namespace, key.group) for at in present.values() for key in at
        }
        for key in keys:
            try:
                partitions = self._registry.find(key.topic).partitions
            except TopicNotFound:  # its positions are still here
                continue
            number = self._topics.shards.of_group(key.group)
            at = self.at(number).positions.of(*key)
            places = [
                LagPlace(key.topic, p, at.get(p, _NOWHERE).position) for p in range(partitions)
            ]
            group = ClassicKey(key.topic.namespace, key.group)
            kind = GroupKind.TMS if group in reading else None
            if self.at(number).classic.has(group):
                kind = GroupKind.CLASSIC
            groups.append((key, present.get(number, {}).get(key, 0), places, kind))
        lags = self._lags.of(place for _, _, places, _ in groups for place in places)
        return [
            GroupLag(key.group, str(key.topic), members, tuple(map(lags.__getitem__, places)), kind)
            for key, members, places, kind in groups
        ]

    def lags_here(self, partitions_max: int) -> tuple[list[GroupLag], int]:
        """Groups of this instance that have together at most `partitions_max` partitions, with
        their lag, and the number of the other groups, for metrics; no groups if their lag cannot be
        read."""
        keys = sorted(GroupKey(*key) for key in self._keys(self._open_shards.parts))
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

    # -- positions ---------------------------------------------------------------------------------

    def _positions_of(self, topic: TopicName, group: str) -> GroupPositions:
        return self._open_shards.at(self._topics.shards.of_position(topic, group)).positions

    def positions(self, topic: TopicName, group: str) -> Mapping[int, Position]:
        """The positions of a group in a topic, by partition."""
        committed = self.committed_in(topic, group)
        return {partition: one.position for partition, one in committed.items()}

    def committed_in(self, topic: TopicName, group: str) -> Mapping[int, CommittedPosition]:
        """The positions of a group in a topic with their metadata, by partition."""
        return self._positions_of(topic, group).of(group, topic)

    def committed(
        self, group: str, topics: Collection[TopicName] | None = None, stable: bool = False
    ) -> Mapping[TopicName, Mapping[int, CommittedPosition]]:
        """The positions of a group with their metadata, as of one moment: in these topics, or in
        all topics that exist and in which the group has a position. Raises `NotOwner`, and with
        `stable` `StorageUnavailable` while a transaction that may move some of them has not
        ended."""
        found = self.of(check_group(group)).positions.of_topics(group, topics, stable)
        return {topic: at for topic, at in found.items() if topics is not None or self._has(topic)}

    def _has(self, topic: TopicName) -> bool:
        try:
            self._registry.find(topic)
        except TopicNotFound:  # its positions are still here
            return False
        return True

    def move(
        self, changes: Sequence[PositionChange], durability: Durability = Durability.SYNCED
    ) -> None:
        """Move positions outside of a transaction, in any number of topics; those of one group all
        or none. Topics, partitions and offsets need not exist. Raises `Conflict`, `Fenced`."""
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

    def forget_positions(
        self,
        topic: TopicName,
        group: str,
        partitions: Collection[int] | None = None,
        expected: Mapping[int, str] | None = None,
    ) -> None:
        """Delete the positions of a group in these partitions of a topic, or in all: the group
        starts there from the beginning. Deletes none, and raises `Conflict`, if one of those
        `expected`, as text, is not the present one."""
        self._positions_of(topic, group).forget(group, topic, partitions, expected)

    def forget_topic(self, topic: TopicName, shards: Iterable[int] | None = None) -> None:
        """Delete the positions of all groups in a topic, in some shards or in all. Raises
        `NotOwner` for a shard of another instance."""
        for shard in self._open_shards.some(shards):
            for group in {group for group, name in shard.positions.groups() if name == topic}:
                shard.positions.forget(group, topic)

    def take(self, key: PositionKey) -> tuple[Owner, Position | None]:
        """Take a position for its owner, as `GroupPositions.take` does."""
        return self._positions_of(key.topic, key.group).take(key)

    def shorten_journals(
        self, entries_max: int, durable: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Write snapshots of positions where a start would read more than `entries_max` entries.
        `durable` is `InternalCommits.durable`."""
        for shard in self._open_shards.parts.values():
            shard.positions.shorten(entries_max, durable)

    # -- operating ---------------------------------------------------------------------------------

    def forget_members(self) -> None:
        """Remove all members: none from before this start will return, so the others need not wait
        for their sessions."""
        for shard in self._open_shards.parts.values():
            shard.members.forget()
            shard.classic.forget()

    def tidy(self) -> None:
        """Remove members that are long silent, shorten journals, and learn outcomes of
        transactions."""
        for shard in self._open_shards.parts.values():
            shard.members.tidy()
            shard.positions.learn()
            if answers := shard.classic.tidy():
                self._classic_answers(answers)

    def _keys(self, shards: Iterable[int] | None) -> set[tuple[str, TopicName]]:
        """The groups of some shards, or of all, each with its topic; plain pairs, of which there
        may be many."""
        keys: set[tuple[str, TopicName]] = set()
        for shard in self._open_shards.some(shards):
            keys.update(shard.positions.groups())
            keys.update(shard.members.groups())
        return keys

    def _info(
        self,
        key: GroupKey,
        membership: Membership,
        left_s: Mapping[str, float],
        partitions: int,
    ) -> GroupInfo:
        positions = self.of(key.group).positions.of(*key)
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
        places = [
            LagPlace(key.topic, p, positions.get(p, _NOWHERE).position) for p in range(partitions)
        ]
        lags, partitions_ = self._lags.of(places), []
        for place in places:
            number, (lag, lag_ms) = place.partition, lags[place] or (None, None)
            owner, at = membership.owners.get(number), positions.get(number, _NOWHERE)
            name, epoch = (None, 0) if owner is None else (owner.member, owner.epoch)
            text = str(at.position) if number in positions else None
            more = at.metadata, at.leader_epoch
            partitions_.append(GroupPartition(number, name, epoch, text, lag, lag_ms, *more))
        return GroupInfo(
            key.group,
            str(key.topic),
            membership.generation,
            tuple(members),
            tuple(partitions_),
            self.of(key.group).kind(ClassicKey(key.topic.namespace, key.group)),
        )
