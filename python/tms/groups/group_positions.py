"""Committed positions of the groups of a shard, over its journal in `system:_positions`.

    plain        check ─▶ journal ─▶ moved
    in a commit  check ─▶ held ─▶ journal, under its pointer ─▶ it ends ─▶ moved, or released

Invariants

* The state is the plain changes and the committed transactions of the journal.
* One change of a position is under way at a time: no other change moves a held position, and its
  partition does not change its owner meanwhile. A change that meets a held position asks for the
  outcome of the transaction, which another process may coordinate.
* A change by a member of a group counts only while the member owns the partition.
* A position that was taken in this process (`take`) is moved only by its last taker.

Locks: a change holds `turn` from its decision until it is journaled; `_lock` guards the state, for
moments. Neither is held while the outcome of a transaction is asked for, except in the replay of a
journal, when no thread that has journaled a commit waits for the turn.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from tms.errors import Fenced, StorageUnavailable, TimedOut, TransactionConflict
from tms.groups.members import Members
from tms.groups.positions import Move, Positions, decode_entry, encode_key, encode_value
from tms.log.groups import Stamp
from tms.log.journaled import Cells, Journaled, JournalEntry
from tms.log.pending import Pending, PendingAppend
from tms.model.position import Position
from tms.model.snapshot import Fate
from tms.model.topic import Durability, TopicName
from tms.model.transaction import (
    SYSTEM_GROUPS,
    CommittedPosition,
    Owner,
    PositionChange,
    PositionKey,
)
from tms.topics.decisions import Decisions
from tms.topics.sharding import POSITIONS
from tms.topics.topics import Topics

WAIT_S = 2.0  # for the end of a transaction that holds a position
ATTEMPTS = 8
TURN_S = 1.0  # for a snapshot
T = TypeVar("T")
_takes = itertools.count(1)


class _PositionsMachine:
    """The positions that follow from the journal."""

    def __init__(self, decisions: Callable[[], Decisions]) -> None:
        self._decisions = decisions

    def replay(self, entries: Iterator[JournalEntry]) -> Positions:
        positions, all_entries = Positions(), list(entries)
        pointers = {entry.write_pointer for entry in all_entries} - {0}
        ask = self._decisions().learn(pointers) if pointers else None
        for key, value, pointer in all_entries:
            move = decode_entry(key, value)
            outcome = ask(pointer, True) if ask is not None and pointer else Fate.VISIBLE
            if outcome is Fate.VISIBLE:
                positions.apply(*move)
            elif outcome is Fate.OPEN:
                positions.hold(pointer, [move])
        return positions

    def apply(self, positions: Positions, move: Move) -> None:
        positions.apply(*move)

    def encode(self, moves: Sequence[Move]) -> list[list[Cells]]:
        return [[(encode_key(key), encode_value(at)) for key, at in moves]]


class GroupPositions:
    """The committed positions of the groups of a shard. Thread-safe."""

    def __init__(self, topics: Topics, number: int, members: Members) -> None:
        self._journal = topics.journal_of_shard(POSITIONS, number)
        self._decisions: Callable[[], Decisions] = lambda: topics.decisions
        self._members = members
        self._turn = threading.RLock()
        self._is_disputed = topics.store.shared  # others may take the journal over
        self._lock = threading.Lock()
        self._machine = _PositionsMachine(self._decisions)
        self._journaled = Journaled(self._journal, self._machine, self._lock)
        self._takers: dict[PositionKey, Owner] = {}
        self._ends = 0  # of transactions that held positions

    # -- looking -----------------------------------------------------------------------------------

    def load(self) -> Positions:
        """All positions, read from the journal unless they are known."""
        if self._journaled.known:
            return self._journaled.state
        with self._turn:
            return self._journaled.load()

    @property
    def known(self) -> bool:
        """True if no journal has to be read."""
        return self._journaled.known and self._members.known

    def of(self, group: str, topic: TopicName) -> Mapping[int, CommittedPosition]:
        """A group's positions in a topic, with all that was committed before this call."""
        return self.of_topics(group, (topic,))[topic]

    def of_topics(
        self, group: str, topics: Collection[TopicName] | None, stable: bool = False
    ) -> dict[TopicName, Mapping[int, CommittedPosition]]:
        """A group's positions in these topics, or in all in which it has some, as of one moment,
        with all that was committed before this call. With `stable`, raises `StorageUnavailable`
        while a transaction that may move some of them has not ended."""
        state = self.load()
        with self._lock:
            holders = state.holders_of(group, topics) if state.prepared else ()
        self._learn(holders)
        state = self.load()
        with self._lock:
            if stable and state.holders_of(group, topics):
                raise _busy()
            wanted = state.topics_of(group) if topics is None else topics
            return {topic: state.of(group, topic) for topic in wanted}

    def groups(self) -> list[tuple[str, TopicName]]:
        """The groups with positions, each with its topic, without those of TMS itself."""
        state = self.load()
        with self._lock:
            return [group for group in state.groups() if not group[0].startswith(SYSTEM_GROUPS)]

    # -- in commits --------------------------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        """The topic of the journal."""
        return self._journal.name

    def verify(self, changes: Sequence[PositionChange]) -> Durability:
        """The durability that these changes need. Raises an error if a transaction cannot make
        them."""
        self._learn(self._holders(changes))
        with self._turn:
            self._check(changes)
        return Durability.SYNCED

    def prepare(
        self,
        changes: Sequence[PositionChange],
        id: int,
        durability: Durability,
        stamp: Stamp,
        inline: Durability,
    ) -> PendingAppend:
        """Hold and store the changes of a transaction; the calling thread writes if the write needs
        at most `inline`. Raises like `verify`."""
        self._learn(self._holders(changes))
        moves = _moves(changes)
        with self._turn:
            self._check(changes)
            with self._lock:
                self._journaled.state.hold(id, moves)
        (entries,) = self._machine.encode(moves)
        try:
            return self._journal.append(entries, durability, stamp, inline)
        except BaseException:
            self.invalidate()
            raise

    def require_prepared(self, changes: Iterable[PositionChange], id: int) -> None:
        """Raise `StorageUnavailable` if the journal was read again since `prepare`, without it."""
        with self._lock:
            keys = (change.key for change in changes)
            if self._journaled.known and self._journaled.state.are_held(keys, id):
                return
        raise StorageUnavailable(
            f"The journal of positions was read again while the transaction {id} was being "
            "committed. Do it again."
        )

    def _end(self, id: int, committed: bool) -> None:
        """End a transaction. Never waits."""
        with self._lock:
            if self._journaled.known and id in self._journaled.state.prepared:
                self._journaled.state.end(id, committed)
                self._ends += 1

    def committed(self, changes: Sequence[PositionChange], id: int) -> None:
        """Move the positions that a committed transaction has changed. Never waits."""
        self._end(id, committed=True)

    def follow(self, id: int) -> None:
        """Nothing to do: the next operation on positions that the transaction holds asks for its
        outcome."""

    def learn(self) -> None:
        """Learn the outcomes of the transactions that hold positions."""
        if self._journaled.known:
            self._learn(list(self._journaled.state.prepared))

    def invalidate(self) -> None:
        """Make the journal be read again: a write may or may not have been stored."""
        self._journaled.invalidate()

    # -- outside of commits ------------------------------------------------------------------------

    def move(self, changes: Sequence[PositionChange], durability: Durability) -> None:
        """Move positions, all or none. Raises `Conflict`, `Fenced`."""

        def move() -> None:
            self._check(changes)
            if changes:
                self._journaled.write(_moves(changes), durability)

        self.undisturbed([change.key for change in changes], move)

    def forget(
        self,
        group: str,
        topic: TopicName,
        partitions: Collection[int] | None = None,
        expected: Mapping[int, str] | None = None,
    ) -> None:
        """Delete the positions of a group in these partitions of a topic, or in all: the group
        starts there from the beginning. Raises `Conflict` if one of those `expected` is not the
        present one."""
        changes = [
            PositionChange(PositionKey(group, topic, partition), Position.earliest(), text)
            for partition, text in (expected or {}).items()
        ]
        keys = [
            PositionKey(group, topic, partition)
            for partition in self.of(group, topic)
            if partitions is None or partition in partitions
        ]

        def forget() -> None:
            with self._lock:
                self._journaled.state.check(changes)
            if keys:
                self._journaled.write([(key, None) for key in keys], Durability.SYNCED)

        self.undisturbed([*keys, *(change.key for change in changes)], forget)

    def take(self, key: PositionKey) -> tuple[Owner, Position | None]:
        """Take a position: from now on only changes that name the returned owner move it, so
        changes that began earlier fail. Returns the owner and the position."""

        def take() -> tuple[Owner, Position | None]:
            with self._lock:
                committed = self._journaled.state.of_key(key)
            if self._is_disputed:  # fails if another process owns the journal by now
                self._journaled.write([(key, committed)], Durability.SYNCED)
            self._takers[key] = taker = Owner("taker", next(_takes))
            return taker, None if committed is None else committed.position

        if self._is_disputed:
            self._decisions().confirm()
        return self.undisturbed([key], take)

    def undisturbed(self, keys: Collection[PositionKey], do: Callable[[], T]) -> T:
        """Run `do` with the turn while no transaction holds these positions. Raises
        `StorageUnavailable` if that takes too long."""
        for _ in range(ATTEMPTS):
            with self._turn:
                self.load()
                holders = self._journaled.state.holders(keys)
                if not holders:
                    return do()
            self._await(holders)
        raise _busy()

    def shorten(
        self, entries_max: int, durable: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Write a snapshot if a start would read more than `entries_max` entries and no position is
        held. `durable` is `InternalCommits.durable`."""
        if self._journal.length <= entries_max or not self._journal.is_worth_a_snapshot:
            return
        self.learn()
        ends = self._ends
        with durable():  # the snapshot must not outlive the commits that it rests on
            if self._turn.acquire(timeout=TURN_S):
                try:
                    if self._ends == ends and not self.load().prepared:
                        self._journaled.snapshot(Positions.all)
                finally:
                    self._turn.release()

    # -- parts -------------------------------------------------------------------------------------

    def _holders(self, changes: Iterable[PositionChange]) -> set[int]:
        state = self.load()
        with self._lock:
            return state.holders([change.key for change in changes])

    def _learn(self, ids: Collection[int]) -> set[int]:
        """End the holds of those of these transactions that have ended; returns the others."""
        if not ids:
            return set()
        outcome_of, left = self._decisions().learn(ids), set[int]()
        for id in ids:
            outcome = outcome_of(id, True)
            if outcome is Fate.OPEN:
                left.add(id)
            else:
                self._end(id, outcome is Fate.VISIBLE)
        return left

    def _await(self, holders: Collection[int]) -> None:
        left = self._learn(holders)
        if not left:
            return
        ended: Pending[None] = Pending(1)
        cancel = self._decisions().watch_end(min(left), lambda: ended.settle(0, None))
        try:
            ended.result(WAIT_S)
        except TimedOut:
            raise _busy() from None
        finally:
            cancel()

    def _check(self, changes: Sequence[PositionChange]) -> None:
        """Raises `Conflict` if a position is not the expected one, `Fenced` if the member has lost
        the partition or the owner did not take the position last, `TransactionConflict` if a
        transaction holds it."""
        if not changes:
            return
        self._members.check(one for one in changes if not one.key.group.startswith(SYSTEM_GROUPS))
        state = self._journaled.load()
        for change in changes:
            key = change.key
            is_ours = key.group.startswith(SYSTEM_GROUPS)
            if is_ours and self._takers.get(key) != change.owner:
                raise Fenced(
                    f"The position of {key.group} in {key.topic} was taken by another one.",
                    group=key.group,
                    topic=str(key.topic),
                )
        with self._lock:
            if state.holders([change.key for change in changes]):
                raise TransactionConflict(
                    f"Another transaction is moving the group {changes[0].key.group} in "
                    f"{changes[0].key.topic}. Do yours again."
                )
            state.check(changes)


def _busy() -> StorageUnavailable:
    return StorageUnavailable("A transaction that moves these positions does not end. Try again.")


def _moves(changes: Iterable[PositionChange]) -> list[Move]:
    return [(change.key, change.committed) for change in changes]
