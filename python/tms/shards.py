"""What the shards of a store have, as far as this process keeps them: groups with their positions,
queues, and delayed messages; and what commits change in them, here or at other instances.

    open ─▶ take the journals over ─▶ replay ─▶ serve ─▶ close

Invariants

* A shard is opened and closed as a whole. Whether another process had it before, or this one was
  started, it is opened by taking its journals over and replaying them.
* What a commit changes in a shard is prepared by whoever keeps it; it is answered once it is
  stored, and held from then on, also by the next one who keeps it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Protocol, TypeVar

from tms.block import Flags
from tms.delayed.delayed import DelayedMessages
from tms.errors import TimedOut, TMSError, Unavailable
from tms.groups.group_positions import GroupPositions
from tms.groups.groups import LogGroups
from tms.groups.positions import encode_key
from tms.log.groups import Stamp
from tms.log.pending import Pending, PendingAppend
from tms.model.message import Appended
from tms.model.queue import Settlement
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, PositionChange
from tms.queues import Queues
from tms.queues.settling import Settling
from tms.topics.sharding import POSITIONS, QUEUES
from tms.topics.topics import Topics
from tms.transactions.participants import CommitShare
from tms.transactions.transactions import Transactions

PREPARE_TIMEOUT_S = 30.0
ENTRIES_MAX = 20_000  # of a journal that a start reads
CLOSING_MAX = 1_000  # the same, after it was closed
T = TypeVar("T")


class ShardPeer(Protocol):
    """Another instance, as what keeps shards, or transactions."""

    def verify_share(self, number: int, share: Commit) -> Durability:
        """See `CommitShare.verify`."""
        ...

    def prepare_share(
        self, number: int, share: Commit, write_pointer: int, durability: Durability
    ) -> Appended:
        """See `CommitShare.prepare`; where it was stored."""
        ...

    def commit_own(self, request: Commit) -> CommitResult:
        """See `OwnCommits`."""
        ...

    def sync_commits(self) -> None:
        """Make every commit so far durable."""
        ...


class PeersOfShards(Protocol):
    """Who keeps what this process does not."""

    def keeper(self, number: int) -> ShardPeer:
        """The other instance that keeps a shard. Raises `Unavailable`."""
        ...

    def coordinator(self) -> ShardPeer:
        """The other instance that keeps transactions. Raises `Unavailable`."""
        ...

    def ask(self, question: Callable[[], None]) -> None:
        """Ask something in the background."""
        ...


class Commits:
    """Transactions, which may be kept elsewhere, for the shards of this process."""

    def __init__(
        self, transactions: Callable[[], Transactions | None], peers: PeersOfShards | None
    ) -> None:
        self._transactions = transactions
        self._peers = peers

    def submit_own(self, request: Commit, begun: Callable[[], None]) -> Pending[CommitResult]:
        """See `OwnCommits`."""
        transactions, peers = self._transactions(), self._peers
        if transactions is not None or peers is None:
            assert transactions is not None, "a process that is alone keeps transactions"
            return transactions.submit_commit(request, Durability.SYNCED, begun)
        peer = peers.coordinator()
        begun()
        answer: Pending[CommitResult] = Pending(1)
        peers.ask(lambda: _settle(answer, lambda: peer.commit_own(request)))
        return answer

    @contextmanager
    def durable(self) -> Iterator[None]:
        """See `OwnCommits`."""
        transactions, peers = self._transactions(), self._peers
        if transactions is not None or peers is None:
            assert transactions is not None, "a process that is alone keeps transactions"
            with transactions.manager.alone(durable=True):
                yield
        else:
            peers.coordinator().sync_commits()
            yield


class ShardStates:
    """The shards that this process keeps. Thread-safe. `peers` keep the others; None: there are
    none."""

    def __init__(
        self, topics: Topics, commits: Commits, random: Random, peers: PeersOfShards | None
    ) -> None:
        self._topics = topics
        self._commits = commits
        self._peers = peers
        self.groups = LogGroups(topics)
        self.queues = Queues(topics, commits, self.groups, random)
        self.delayed = DelayedMessages(topics, commits, self.groups)
        self._lock = threading.Lock()  # guards what follows
        self.kept: frozenset[int] = frozenset()
        self._opening: set[int] = set()  # and not closed since

    def open(self, number: int) -> None:
        """Keep a shard. Raises what keeps its journals from being read, and `Unavailable` if
        somebody else has closed it meanwhile; nothing is kept then."""
        with self._lock:
            self._opening.add(number)
        try:
            self.groups.open(number)
            self.queues.open(number)
            self.delayed.open(number)
            with self._lock:
                if number not in self._opening:
                    raise Unavailable(
                        f"The shard {number} was lost while it was opened. Try again."
                    )
                self._opening.remove(number)
                self.kept |= {number}
        except BaseException:
            self.close(number)
            raise

    def close(self, number: int) -> None:
        """Keep it no more; who waits for something of it looks again. Also while it is opened."""
        with self._lock:
            self._opening.discard(number)
            self.kept -= {number}
        self.queues.close(number)
        self.delayed.close(number)
        self.groups.close(number)

    def invalidate(self) -> None:
        """Read all journals again before anything else is done: what was taken for the outcome of a
        transaction may have been wrong."""
        for number in self.kept:
            self.groups.at(number).positions.invalidate()
            self.queues.at(number).settling.invalidate()

    def start(self) -> None:
        """Begin in the background what is due at some time."""
        self.queues.start()
        self.delayed.start()

    def tidy(self) -> None:
        """What maintenance does each time."""
        self.groups.tidy()
        self.groups.shorten_journals(ENTRIES_MAX, self._commits.durable)
        self.queues.shorten_journals(ENTRIES_MAX)

    def warnings(self) -> list[str]:
        """What is wrong although it works, in sentences."""
        return [*self.delayed.warnings(), *self.queues.warnings()]

    def stop(self) -> None:
        """Nothing more is done in the background, and who waits for something here looks again."""
        self.queues.stop()
        self.delayed.stop()

    def shorten_journals(self) -> None:
        """Let the next start be short."""
        self.groups.shorten_journals(CLOSING_MAX, self._commits.durable)
        self.queues.shorten_journals(CLOSING_MAX)

    def doors(self) -> tuple[Queues, LogGroups, DelayedMessages]:
        """Ways in, besides the engine's."""
        return self.queues, self.groups, self.delayed

    # -- in commits --------------------------------------------------------------------------------

    def shares(self, commit: Commit) -> Sequence[CommitShare]:
        """What a commit changes in shards, by shard and state. Raises `Unavailable`."""
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
        return [
            *(self._positions_share(number, changes) for number, changes in moved.items()),
            *(self._settling_share(number, some) for number, some in settled.items()),
        ]

    def _positions_share(self, number: int, changes: Sequence[PositionChange]) -> CommitShare:
        if number in self.kept or self._peers is None:
            return PositionsShare(self.groups.at(number).positions, changes)
        share = Commit(positions=tuple(changes))
        return PeerShare(self._peers, number, share, POSITIONS)

    def _settling_share(self, number: int, settlements: Sequence[Settlement]) -> CommitShare:
        if number in self.kept or self._peers is None:
            return SettlingShare(self.queues.at(number).settling, settlements)
        share = Commit(settlements=tuple(settlements))
        return PeerShare(self._peers, number, share, QUEUES)

    def verify_share(self, number: int, share: Commit) -> Durability:
        """The same for another instance: see `CommitShare.verify`. Raises `NotOwner`."""
        return self._own_share(number, share).verify()

    def prepare_share(
        self, number: int, share: Commit, write_pointer: int, durability: Durability
    ) -> Appended:
        """The same for another instance: see `CommitShare.prepare`. When this returns the journal
        has it, and whoever replays that."""
        own = self._own_share(number, share)
        stamp = Stamp(Flags.TRANSACTIONAL | Flags.ISSUED, write_pointer)
        try:
            pending = own.prepare(write_pointer, durability, stamp, Durability.SYNCED)
            [place] = pending.result(PREPARE_TIMEOUT_S)
            own.require_prepared(write_pointer)
        except TMSError:
            own.invalidate()
            raise
        own.ended(write_pointer)  # as soon as it has
        return place

    def _own_share(self, number: int, share: Commit) -> CommitShare:
        if number not in self.kept:
            raise self._topics.shards.missing(number)
        if share.positions:
            return PositionsShare(self.groups.at(number).positions, share.positions)
        return SettlingShare(self.queues.at(number).settling, share.settlements)


class PositionsShare:
    """Positions that a commit moves in a shard of this process."""

    def __init__(self, positions: GroupPositions, changes: Sequence[PositionChange]) -> None:
        self._positions = positions
        self._changes = changes

    @property
    def journal_name(self) -> TopicName:
        return self._positions.journal_name

    @property
    def known(self) -> bool:
        return self._positions.known

    def keys(self) -> Iterable[bytes]:
        return _keys_of(self._changes)

    def verify(self) -> Durability:
        self._positions.verify(self._changes)
        return Durability.SYNCED

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        return self._positions.prepare(self._changes, id, durability, stamp, inline)

    def require_prepared(self, id: int) -> None:
        self._positions.require_prepared(self._changes, id)

    def committed(self, id: int) -> None:
        self._positions.end(id, committed=True)

    def ended(self, id: int) -> None:
        pass  # who comes upon them asks

    def invalidate(self) -> None:
        self._positions.invalidate()


class SettlingShare:
    """Messages that a commit settles in queues of a shard of this process."""

    def __init__(self, settling: Settling, settlements: Sequence[Settlement]) -> None:
        self._settling = settling
        self._settlements = settlements

    @property
    def journal_name(self) -> TopicName:
        return self._settling.journal_name

    @property
    def known(self) -> bool:
        return self._settling.known

    def keys(self) -> Iterable[bytes]:
        return ()  # holding keeps others out

    def verify(self) -> Durability:
        return self._settling.verify(self._settlements)

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        return self._settling.prepare(self._settlements, id, durability, stamp, inline)

    def require_prepared(self, id: int) -> None:
        self._settling.require_prepared(self._settlements, id)

    def committed(self, id: int) -> None:
        self._settling.committed(self._settlements, id)

    def ended(self, id: int) -> None:
        self._settling.follow(id)

    def invalidate(self) -> None:
        self._settling.invalidate()


class PeerShare:
    """What a commit changes in a shard of another instance, which looks itself how it ends."""

    known = False

    def __init__(
        self, peers: PeersOfShards, number: int, share: Commit, journal_name: TopicName
    ) -> None:
        self._peers = peers
        self._number = number
        self._share = share
        self.journal_name = journal_name

    def keys(self) -> Iterable[bytes]:
        return _keys_of(self._share.positions)

    def verify(self) -> Durability:
        return self._peers.keeper(self._number).verify_share(self._number, self._share)

    def prepare(
        self, id: int, durability: Durability, stamp: Stamp, inline: Durability
    ) -> PendingAppend:
        peer, answer = self._peers.keeper(self._number), PendingAppend(1)
        given = self._number, self._share, id, durability
        self._peers.ask(lambda: _settle(answer, lambda: peer.prepare_share(*given)))
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


def _settle(answer: Pending[T], ask: Callable[[], T]) -> None:
    """Let what is asked be the answer."""
    try:
        found = ask()
    except TMSError as error:
        answer.fail(1, error)
    except BaseException:
        answer.fail(1, TimedOut("It was not asked; whether it is done nobody knows."))
        raise
    else:
        answer.settle(0, found)
