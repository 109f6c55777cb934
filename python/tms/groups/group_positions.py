"""Committed positions of the groups of a shard, over its journal in `system:_positions`.

    plain        check ─▶ journal ─▶ moved
    in a commit  check ─▶ held ─▶ journal, under its pointer ─▶ it ends ─▶ moved, or let go

Invariants

* What is here is what the journal has of plain changes and of committed transactions.
* Of changes to the same position one at a time is on its way: nobody else moves what is held, and
  the partition does not change its owner meanwhile. Who finds it held asks what became of the
  transaction, which may be kept by another process, and has to tell nobody.
* A change by a member of a group counts only while the partition is that member's.
* A position that somebody in this process took (`take`) is moved only by who took it last.

Locks: `turn` is held by who decides, until it is journaled; `_lock` guards the state, for moments.
Neither is held while something of transactions is asked, but for the replay of a journal, when
nobody who has journaled a commit waits for the turn.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from tms.errors import Fenced, StorageUnavailable, TimedOut, TransactionConflict
from tms.groups.members import Members
from tms.groups.positions import Move, Positions, decode_entry, encode_key
from tms.journal.journaled import Cells, Journaled, JournalEntry
from tms.log.groups import Stamp
from tms.log.pending import Pending, PendingAppend
from tms.model.position import Position
from tms.model.snapshot import Fate
from tms.model.topic import Durability, TopicName
from tms.model.transaction import SYSTEM_GROUPS, Owner, PositionChange, PositionKey
from tms.topics.fetching import Decisions
from tms.topics.internal_topic import InternalTopic

WAIT_S = 2.0  # for the end of a transaction that holds a position
ATTEMPTS = 8
TURN_S = 1.0  # for a snapshot
T = TypeVar("T")
_takes = itertools.count(1)


class _PositionsMachine:
    """The positions as they follow from the journal."""

    def __init__(self, decisions: Callable[[], Decisions]) -> None:
        self._decisions = decisions

    def replay(self, entries: Iterator[JournalEntry]) -> Positions:
        positions, all_entries = Positions(), list(entries)
        pointers = {entry.write_pointer for entry in all_entries} - {0}
        fate_of = self._decisions().learn(pointers) if pointers else None
        for key, value, pointer in all_entries:
            move = decode_entry(key, value)
            fate = fate_of(pointer, True) if fate_of is not None and pointer else Fate.VISIBLE
            if fate is Fate.VISIBLE:
                positions.apply(*move)
            elif fate is Fate.OPEN:
                positions.hold(pointer, [move])
        return positions

    def apply(self, positions: Positions, move: Move) -> None:
        positions.apply(*move)

    def encode(self, moves: Sequence[Move]) -> list[list[Cells]]:
        return [[(encode_key(key), None if at is None else str(at).encode()) for key, at in moves]]


class GroupPositions:
    """Where the groups of a shard stand. Thread-safe. `is_disputed`: other processes may take the
    journal over."""

    def __init__(
        self,
        journal: InternalTopic,
        decisions: Callable[[], Decisions],
        members: Members,
        turn: threading.RLock,
        is_disputed: bool,
    ) -> None:
        self._journal = journal
        self._decisions = decisions
        self._members = members
        self._turn = turn
        self._is_disputed = is_disputed
        self._lock = threading.Lock()
        self._machine = _PositionsMachine(decisions)
        self._journaled = Journaled(journal, self._machine, self._lock)
        self._takers: dict[PositionKey, Owner] = {}
        self._ends = 0  # of transactions that held something

    # -- looking -----------------------------------------------------------------------------------

    def load(self) -> Positions:
        """All positions, read from the journal unless they are known."""
        if self._journaled.known:
            return self._journaled.state
        with self._turn:
            return self._journaled.load()

    @property
    def known(self) -> bool:
        """Whether asking needs no reading."""
        return self._journaled.known and self._members.known

    def of(self, group: str, topic: TopicName) -> Mapping[int, Position]:
        """A group's positions in a topic, with all that was committed before this call."""
        state = self.load()
        with self._lock:
            holders = state.holders_of(group, topic) if state.prepared else ()
        self._learn(holders)
        state = self.load()
        with self._lock:
            return state.of(group, topic)

    def groups(self) -> list[tuple[str, TopicName]]:
        """Which groups have positions in which topics, but for TMS's own."""
        state = self.load()
        with self._lock:
            return [group for group in state.groups() if not group[0].startswith(SYSTEM_GROUPS)]

    # -- in commits --------------------------------------------------------------------------------

    @property
    def journal_name(self) -> TopicName:
        """Its topic."""
        return self._journal.name

    def verify(self, changes: Sequence[PositionChange]) -> None:
        """Raises what keeps a transaction from changing this."""
        self._learn(self._holders(changes))
        with self._turn:
            self._check(changes)

    def prepare(
        self,
        changes: Sequence[PositionChange],
        id: int,
        durability: Durability,
        stamp: Stamp,
        inline: Durability,
    ) -> PendingAppend:
        """Hold and store what a transaction changes; the calling thread writes what needs at most
        `inline`. Raises like `verify`."""
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

    def end(self, id: int, committed: bool) -> None:
        """A transaction has ended. Never waits."""
        with self._lock:
            if self._journaled.known and id in self._journaled.state.prepared:
                self._journaled.state.end(id, committed)
                self._ends += 1

    def learn(self) -> None:
        """Ask what became of the transactions that hold something."""
        if self._journaled.known:
            self._learn(list(self._journaled.state.prepared))

    def invalidate(self) -> None:
        """Read the journal again: what was written may be there, or not."""
        self._journaled.invalidate()

    # -- outside of commits ------------------------------------------------------------------------

    def move(self, changes: Sequence[PositionChange], durability: Durability) -> None:
        """Move positions, all or none. Raises `Conflict`, `Fenced`."""

        def move() -> None:
            self._check(changes)
            if changes:
                self._journaled.write(_moves(changes), durability)

        self.undisturbed([change.key for change in changes], move)

    def forget(self, group: str, topic: TopicName) -> None:
        """Forget where a group stands in a topic: it begins anew."""
        keys = [PositionKey(group, topic, partition) for partition in self.of(group, topic)]

        def forget() -> None:
            if keys:
                self._journaled.write([(key, None) for key in keys], Durability.SYNCED)

        self.undisturbed(keys, forget)

    def take(self, key: PositionKey) -> tuple[Owner, Position | None]:
        """From now on only who names this owner moves a position, which stands there: nothing that
        began to be moved before is moved any more."""

        def take() -> tuple[Owner, Position | None]:
            with self._lock:
                position = self._journaled.state.of_key(key)
            if self._is_disputed:  # it stands there, unless the journal is another one's by now
                self._journaled.write([(key, position)], Durability.SYNCED)
            self._takers[key] = taker = Owner("taker", next(_takes))
            return taker, position

        if self._is_disputed:
            self._decisions().confirm()
        return self.undisturbed([key], take)

    def undisturbed(self, keys: Collection[PositionKey], do: Callable[[], T]) -> T:
        """Do something with the turn while no transaction holds these positions. Raises
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
        """Let a start read the positions as they are now if it had more entries to read, and
        nothing is held. For `durable` see `OwnCommits`."""
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
        """Let go what these hold as far as they have ended; those that have not."""
        if not ids:
            return set()
        fate_of, left = self._decisions().learn(ids), set[int]()
        for id in ids:
            fate = fate_of(id, True)
            if fate is Fate.OPEN:
                left.add(id)
            else:
                self.end(id, fate is Fate.VISIBLE)
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
        """Raises `Conflict` when a position is not the expected one, `Fenced` when who moves it
        has lost the partition, or did not take it, `TransactionConflict` when it is held."""
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
    return [(change.key, change.position) for change in changes]
