"""The shards of a store: the groups with their positions, queues and delayed messages of each shard
that this process holds, and the participants through which commits change any shard.

    open ─▶ take the journals over ─▶ replay ─▶ serve ─▶ close

Invariants

* A shard is a role (`roles`): it is opened and closed as a whole. Opening takes its journals over
  and replays them, after a start as after another process had held it.
* The owner of a shard prepares what a commit changes in it. It answers once the change is stored;
  from then on the change is held, also by the next owner of the shard.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

from tms.block import Flags
from tms.cluster.cluster import Cluster
from tms.delayed.delayed import DelayedMessages
from tms.engine.coordination import Commits, settle
from tms.engine.roles import Role
from tms.errors import TMSError
from tms.groups.group_positions import GroupPositions
from tms.groups.groups import LogGroups
from tms.groups.positions import encode_key
from tms.log.groups import Stamp
from tms.log.pending import PendingAppend
from tms.model.message import Appended
from tms.model.queue import Settlement
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, PositionChange
from tms.queues import Queues
from tms.queues.settling import Settling
from tms.topics.owners import At, Here, Peer, SplitByOwner, split
from tms.topics.sharding import POSITIONS, QUEUES
from tms.topics.topics import Topics
from tms.transactions.participants import CommitParticipant

C = TypeVar("C", contravariant=True)

PREPARE_TIMEOUT_S = 30.0
ENTRIES_MAX = 20_000  # of a journal that a start reads
CLOSING_MAX = 1_000  # the same, after it was closed


class Shard(NamedTuple):
    """The states of a shard that commits change."""

    positions: GroupPositions
    settling: Settling


class ShardRoles:
    """The shards of a store, each a role. Thread-safe. `cluster` finds the owners of the others;
    None if this process holds all."""

    def __init__(
        self, topics: Topics, commits: Commits, random: Random, cluster: Cluster | None
    ) -> None:
        self._topics = topics
        self._commits = commits
        self._cluster = cluster
        self.groups = LogGroups(topics, random)
        self.queues = Queues(topics, commits, self.groups, random)
        self.delayed = DelayedMessages(topics, commits, self.groups)
        self.roles = {
            number: Role(
                f"shard {number} (groups, queues, delayed messages)",
                partial(self._begin, number),
                partial(self._end, number),
                partial(topics.shards.missing, number),
            )
            for number in range(topics.shards.count)
        }

    @property
    def held(self) -> frozenset[int]:
        """The numbers of the shards that this process holds."""
        return frozenset(number for number, role in self.roles.items() if role.held is not None)

    def holds(self, number: int) -> bool:
        """True if this process holds a shard."""
        role = self.roles.get(number)
        return role is not None and role.held is not None

    def route(self, number: int) -> Here | At:
        """The route to a shard. Raises `Unavailable` while no instance holds it."""
        peer = self._peer(number)
        return Here() if peer is None else At(peer)

    def split(self) -> SplitByOwner[int]:
        """All shards, by the instance that holds them. Raises `Unavailable`."""
        return split(self.roles, self._peer)

    def _peer(self, number: int) -> Peer | None:
        if self._cluster is None or self.holds(number):
            return None
        return self._cluster.shard_owner(number)

    def open(self, number: int) -> None:
        """Hold a shard. Raises as `Role.open`."""
        self.roles[number].open()

    def close(self, number: int) -> None:
        """Hold a shard no more; callers that wait in it look again."""
        self.roles[number].close()

    def _begin(self, number: int) -> Shard:
        self.groups.open(number)
        self.queues.open(number)
        self.delayed.open(number)
        return Shard(self.groups.at(number).positions, self.queues.at(number).settling)

    def _end(self, number: int, _: Shard | None) -> None:
        self.queues.close(number)
        self.delayed.close(number)
        self.groups.close(number)

    def invalidate(self) -> None:
        """Read all journals again before the next request: outcomes of transactions that they were
        replayed with may have been wrong."""
        for role in self.roles.values():
            if (shard := role.held) is not None:
                shard.positions.invalidate()
                shard.settling.invalidate()

    def start(self) -> None:
        """Begin delivering in the background what is due at some time."""
        self.queues.start()
        self.delayed.start()

    def tidy(self) -> None:
        """The shards' part of each round of maintenance."""
        self.groups.tidy()
        self.groups.shorten_journals(ENTRIES_MAX, self._commits.durable)
        self.queues.shorten_journals(ENTRIES_MAX)

    def warnings(self) -> list[str]:
        """Faults that do not stop the shards, in sentences."""
        return [*self.delayed.warnings(), *self.queues.warnings()]

    def stop(self) -> None:
        """Stop the background work; callers that wait in a shard look again."""
        self.queues.stop()
        self.delayed.stop()

    def shorten_journals(self) -> None:
        """Shorten all journals, so that the next start reads little."""
        self.groups.shorten_journals(CLOSING_MAX, self._commits.durable)
        self.queues.shorten_journals(CLOSING_MAX)

    def erase_delayed(self, name: TopicName, key: bytes, partition: int | None) -> int:
        """Erase the messages of a key that are not due yet, wherever their shard is held; returns
        how many. Raises `Unavailable`."""
        route = self.route(self._topics.shards.of_delayed(name))
        if isinstance(route, Here):
            return self.delayed.erase(name, key, partition)
        return route.peer.erase_delayed(name, key, partition)

    def forget_topic(self, name: TopicName) -> None:
        """Delete the positions of all groups in a topic, wherever their shards are held. May be
        repeated. Raises `Unavailable`."""
        held = self.split()
        self.groups.forget_topic(name, held.here)
        for peer, numbers in held.elsewhere.items():
            peer.forget_topic(name, numbers)

    # -- in commits --------------------------------------------------------------------------------

    def participants(self, commit: Commit) -> Sequence[CommitParticipant]:
        """The participants of a commit: one for each shard and state that it changes. Raises
        `Unavailable`."""
        if not (commit.positions or commit.settlements):
            return ()
        shards = self._topics.shards
        moved: dict[int, list[PositionChange]] = {}
        for change in commit.positions:
            number = shards.of_position(change.key.topic, change.key.group)
            moved.setdefault(number, []).append(change)
        settled: dict[int, list[Settlement]] = {}
        for one in commit.settlements:
            settled.setdefault(shards.of_queue(one.topic, one.group), []).append(one)
        shares = [
            *((n, Commit(positions=tuple(some)), POSITIONS) for n, some in moved.items()),
            *((n, Commit(settlements=tuple(some)), QUEUES) for n, some in settled.items()),
        ]
        return [self._participant(*share) for share in shares]

    def _participant(
        self, number: int, share: Commit, journal_name: TopicName
    ) -> CommitParticipant:
        if self._cluster is None or self.holds(number):
            return _held(self.roles[number].get(), share)
        return RemoteParticipant(self._cluster, number, share, journal_name)

    def verify_share(self, number: int, share: Commit) -> Durability:
        """Verify what a commit of another instance changes in a shard of this one; as
        `CommitParticipant.verify`. Raises `NotOwner`."""
        return self._held_participant(number, share).verify()

    def prepare_share(
        self, number: int, share: Commit, write_pointer: int, durability: Durability
    ) -> Appended:
        """Prepare what a commit of another instance changes in a shard of this one; as
        `CommitParticipant.prepare`. Returns its place in the journal, from which every later owner
        of the shard replays it."""
        participant = self._held_participant(number, share)
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, write_pointer)
        try:
            pending = participant.prepare(write_pointer, durability, stamp, Durability.SYNCED)
            [place] = pending.result(PREPARE_TIMEOUT_S)
            participant.require_prepared(write_pointer)
        except TMSError:
            participant.invalidate()
            raise
        participant.ended(write_pointer)  # as soon as it has
        return place

    def _held_participant(self, number: int, share: Commit) -> CommitParticipant:
        if not self.holds(number):
            raise self._topics.shards.missing(number)
        return _held(self.roles[number].get(), share)


class ChangedByCommits(Protocol[C]):
    """A state of a shard of this process that commits change: positions, or queues."""

    @property
    def journal_name(self) -> TopicName: ...
    @property
    def known(self) -> bool: ...
    def verify(self, changes: Sequence[C]) -> Durability: ...
    def prepare(
        self,
        changes: Sequence[C],
        id: int,
        durability: Durability,
        stamp: Stamp,
        inline: Durability,
    ) -> PendingAppend: ...
    def require_prepared(self, changes: Sequence[C], id: int) -> None: ...
    def committed(self, changes: Sequence[C], id: int) -> None: ...
    def follow(self, id: int) -> None: ...
    def invalidate(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HeldParticipant(Generic[C]):
    """The changes of a commit in a state of a shard of this process."""

    state: ChangedByCommits[C]
    changes: Sequence[C]
    moved: Sequence[PositionChange] = ()

    @property
    def journal_name(self) -> TopicName:
        return self.state.journal_name

    @property
    def known(self) -> bool:
        return self.state.known

    def keys(self) -> Iterable[bytes]:
        return _keys_of(self.moved)  # none of queues: holding keeps others out

    def verify(self) -> Durability:
        return self.state.verify(self.changes)

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        return self.state.prepare(self.changes, id, durability, stamp, inline)

    def require_prepared(self, id: int) -> None:
        self.state.require_prepared(self.changes, id)

    def committed(self, id: int) -> None:
        self.state.committed(self.changes, id)

    def ended(self, id: int) -> None:
        self.state.follow(id)

    def invalidate(self) -> None:
        self.state.invalidate()


def _held(shard: Shard, share: Commit) -> CommitParticipant:
    if share.positions:
        return HeldParticipant(shard.positions, share.positions, share.positions)
    return HeldParticipant(shard.settling, share.settlements)


@dataclass(frozen=True, slots=True)
class RemoteParticipant:
    """The change of a commit in a shard of another instance, which finds out the outcome itself."""

    cluster: Cluster
    number: int
    share: Commit
    journal_name: TopicName
    known = False

    def keys(self) -> Iterable[bytes]:
        return _keys_of(self.share.positions)

    def verify(self) -> Durability:
        return self.cluster.shard_owner(self.number).verify_share(self.number, self.share)

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        peer = self.cluster.shard_owner(self.number)
        answer = PendingAppend(1)
        given = self.number, self.share, id, durability
        self.cluster.ask(lambda: settle(answer, lambda: peer.prepare_share(*given)))
        return answer

    def require_prepared(self, id: int) -> None:
        pass  # it answered when its journal had it

    def committed(self, id: int) -> None:
        pass

    def ended(self, id: int) -> None:
        pass

    def invalidate(self) -> None:
        pass


def _keys_of(changes: Iterable[PositionChange]) -> Iterator[bytes]:
    return (b"position/" + encode_key(change.key) for change in changes)
