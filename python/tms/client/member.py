"""A member of a group: which partitions it reads, and what it says and does about that.

    look:  poll ─▶ lost: forget · given: begin where the group stands · to let go: pause
             └──── let go of what is acknowledged ◀──┘ then poll again, without holding it

Its consumer looks between messages, and while it waits for some, every `LOOK_S`. That is also the
heartbeat: a member that handles one message for longer than its session has lost its partitions.

Invariants

* Of a partition that was lost, or is to be let go, nothing more is handed out.
* A call that fails because the service is away may be made again: what it has learned up to then,
  such as that a partition is lost, is in `touched`.
* A position is moved only while the partition is this member's; the service refuses everything
  else (`Fenced`).
* What was handed out of a partition and not acknowledged before it was lost is owed: the next
  acknowledgement, and the transaction that contains it, fail. Where positions move by themselves
  nothing is owed: the next owner gets those messages again, or nobody does.
* Two processes are two members: one that was forked joins under another name, and has nothing yet.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tms.client.committed import KnownPositions
from tms.client.cursor import Batch, Cursor
from tms.client.group_options import DeliveryMode, MemberOptions
from tms.client.transport import Transport
from tms.errors import Conflict, Fenced, Invalid, TMSError
from tms.model.group import MemberAssignment
from tms.model.ids import MessageId
from tms.model.message import Message
from tms.model.position import Position, PositionKind
from tms.model.topic import TopicName
from tms.model.transaction import Owner, PositionChange
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.events import BoundedLog

LOOK_S = 0.2
COMING_S = 0.05  # between two looks while partitions are on their way to this member
COMMIT_S = 1.0
_ANY = tuple(PositionKind)
_TRIES = 3  # to move positions, while partitions are lost meanwhile
_log = BoundedLog(__name__)
_NOTHING_TO_ACK = (
    "With at-most-once the position moved before the messages were handed out: there is nothing to "
    "ack."
)


class Member:
    """One membership; its consumer's thread uses it, only `finish` may come from another one.
    `starts` is where partitions begin in which the group has no position; `leavers` are members
    whose consumers were dropped, for whoever looks next to let them leave."""

    def __init__(
        self,
        make_name: Callable[[], str],
        name: TopicName,
        transport: Transport,
        clock: Clock,
        options: MemberOptions,
        leavers: "deque[Member]",
    ) -> None:
        self._make_name = make_name
        self._topic = name
        self._groups = transport.groups
        self._clock = clock
        self.options = options
        self._leavers = leavers
        self._closed = self.reading = self._inherited = False
        self._join_anew()

    def _join_anew(self) -> None:
        self.name = self._make_name()
        self._lock = threading.RLock()
        self._releasing: dict[int, float] = {}  # partition → when it was asked for
        self._holding: dict[int, int] = {}
        self._look_at_s = self._commit_at_s = 0.0
        self._told = MemberAssignment(0, {}, frozenset(), 0)
        self._joined = False
        self._touched: set[int] = set()  # what is in hand of these is void
        self.out: Message[Any] | Batch[Any] | None = None  # handed out, the next not asked for

    def _forked(self) -> None:
        self._join_anew()
        self.cursor.waiting.clear()
        self._leavers.clear()
        self._committed.forget()
        self._inherited = True

    def begin(
        self, cursor: Cursor, committed: KnownPositions, starts: Mapping[int, Position]
    ) -> None:
        """Give the member its cursor, positions and starts; once, before everything else."""
        self._group = committed.group
        self.cursor = cursor
        self._committed = committed
        self._starts = dict(starts)
        if self.options.delivery is DeliveryMode.AT_MOST_ONCE:
            committed.by_itself = _NOTHING_TO_ACK
        forks.in_child(self._forked)

    # -- looking ---------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """True if it is time to `tend`."""
        return self._clock.monotonic_s() >= self._look_at_s

    @property
    def pause_s(self) -> float:
        """Seconds until `due`."""
        return max(0.0, self._look_at_s - self._clock.monotonic_s())

    def is_complete(self) -> bool:
        """True if a member that reads up to the end has read everything; may `tend`."""
        if looked := self.due:
            self.tend()
        if not self.cursor.finished:
            self.reading = True
            return False
        if self.reading or not looked:
            self.reading = False
            self.tend()
        coming = self._told.coming or self._told.reading
        return self.cursor.finished and (bool(self._releasing) or not coming)

    def hand_out(self, out: Message[Any] | Batch[Any]) -> None:
        """The caller gets a message or a batch; the next one is not asked for."""
        self.out = out

    def take_touched(self) -> set[int]:
        """Partitions of which messages that were on their way are void."""
        touched, self._touched = self._touched, set()
        return touched

    def tend(self) -> None:
        """Commit if it is time, and look."""
        try:
            self._tend()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Drop the batches of touched partitions that wait."""
        if self._touched:
            self.cursor.drop(self._touched)

    def _tend(self) -> None:
        while self._leavers:
            with contextlib.suppress(TMSError, IndexError):  # another thread was faster
                self._leavers.popleft().finish()
        with self._lock:
            if self._closed:
                return
            self._give_up_inherited()
            if self._clock.monotonic_s() >= self._commit_at_s:
                self._commit()
            while True:
                self._learn(self._poll())
                if not self._let_go():
                    return

    def _give_up_inherited(self) -> None:
        """Partitions that the parent reads: a child begins where the group stands."""
        if not self._inherited:
            return
        self._inherited = False
        inherited = set(self.cursor.positions())
        self._touched |= inherited
        for partition in inherited:
            self.cursor.take(partition)

    def _poll(self) -> MemberAssignment:
        self._joined = True
        told = self._groups.poll(
            self._topic,
            self._group,
            self.name,
            self.options.session_s,
            self._holding,
            reading=self.reading,
        )
        self._told = told
        pause_s = COMING_S if told.coming else LOOK_S
        self._look_at_s = self._clock.monotonic_s() + pause_s
        return told

    def _learn(self, told: MemberAssignment) -> set[int]:
        """Do what the service said; the partitions that are touched by it."""
        lost = [p for p, epoch in self._holding.items() if told.partitions.get(p) != epoch]
        self._touched.update(lost)
        for partition in lost:
            self._lose(partition)
        if lost:
            _log.warning("partitions_lost", **self._facts(lost))
            self.options.on_revoked(lost)
        given = [p for p in told.partitions if p not in self._holding]
        if given:
            stored = self._groups.positions(self._topic, self._group)
            for partition in given:
                self._take(partition, told.partitions[partition], stored.get(partition))
            _log.info("partitions_assigned", **self._facts(given))
            self.options.on_assigned(given)
        kept = [p for p in self._releasing if p not in told.release]
        for partition in kept:
            del self._releasing[partition]
            self.cursor.resume(partition)
        if kept:
            self.options.on_assigned(kept)
        wanted = [p for p in sorted(told.release) if p not in self._releasing]
        for partition in wanted:
            self._releasing[partition] = self._clock.monotonic_s()
            self.cursor.pause(partition)
        if wanted:
            _log.info("partitions_revoked", **self._facts(wanted))
            self.options.on_revoked(wanted)
        touched = {*lost, *given, *kept, *wanted, *self.cursor.keep(self._holding)}
        self._touched |= touched
        return touched

    def _facts(self, partitions: Iterable[int]) -> dict[str, object]:
        return {
            "group": self._group,
            "topic": str(self._topic),
            "member": self.name,
            "partitions": sorted(partitions),
        }

    def _take(self, partition: int, epoch: int, stored: Position | None) -> None:
        """Begin where the group stands; where this one was, if it stood there already."""
        mine = self.cursor.positions().get(partition)
        if mine is None or self._committed.known(partition) != _text(stored):
            mine = stored or self._starts.get(partition, Position.earliest())
        self.cursor.give(partition, mine)
        self._committed.know(partition, stored)
        self._committed.owners[partition] = Owner(self.name, epoch)
        self._holding[partition] = epoch

    def _lose(self, partition: int) -> None:
        if not self.moves_by_itself:
            at = {partition: self.cursor.positions()[partition]}
            self._committed.owed.update((partition, one) for one in self._committed.changes(at))
        self.cursor.take(partition)
        for places in (self._holding, self._committed.owners, self._releasing):
            places.pop(partition, None)

    def _let_go(self) -> bool:
        """Let go of what is acknowledged, or has kept others waiting for too long; whether there
        was something."""
        if not self._releasing:
            return False
        self._commit()
        now_s = self._clock.monotonic_s()
        handed = self.cursor.positions()
        if self.options.delivery is DeliveryMode.AT_MOST_ONCE:
            self._move({p: handed[p] for p in self._releasing}, _ANY)
        ready = [
            partition
            for partition, since_s in self._releasing.items()
            if self.moves_by_itself
            or now_s - since_s >= self.options.session_s / 3
            or not self._committed.changes({partition: handed[partition]})
        ]
        for partition in ready:
            self._lose(partition)
        return bool(ready)

    # -- positions -------------------------------------------------------------------------------

    def require_ack(self) -> None:
        """Raises `Invalid` when positions move with transactions only."""
        if self.options.delivery is DeliveryMode.EXACTLY_ONCE:
            raise Invalid(
                "With exactly-once the position moves in the transaction that has what was made of "
                "the messages: use tx.ack(consumer)."
            )

    @property
    def moves_by_itself(self) -> bool:
        """True if the group's position moves without a call of `ack`."""
        modes = (DeliveryMode.AT_MOST_ONCE, DeliveryMode.AT_LEAST_ONCE)
        return self.options.delivery in modes

    def claim(self) -> None:
        """The batches that wait are to be handed out. With at-most-once the group moves behind it
        before that."""
        if self.options.delivery is not DeliveryMode.AT_MOST_ONCE:
            return
        ends = {batch.partition: Position.after(batch.last_id) for batch in self.cursor.waiting}
        with self._lock:
            try:
                self._move(ends)
            finally:
                self._touched |= ends.keys() - self._holding.keys()
                self._forget()

    def handled(self) -> dict[int, Position]:
        """Behind what was handed out, but for the last, if no other was asked for since."""
        positions, out = self.cursor.positions(), self.out
        if isinstance(out, Batch):
            positions[out.partition] = Position.at(MessageId(out.timestamp_ms, out.first_sequence))
        elif out is not None:
            positions[out.partition] = Position.at(out.id)
        return positions

    def give(self, partition: int, position: Position) -> None:
        """Go on at another position of a partition, unless it is to be released."""
        self.cursor.give(partition, position)
        if partition in self._releasing:
            self.cursor.pause(partition)

    def put_back(self, message: Message[Any]) -> None:
        """The message that was handed out last is not handled: it comes again, and everything
        behind it, unless its partition was lost, or the group was moved."""
        partition = message.partition
        with self._lock:
            here = self.cursor.positions().get(partition)
            if partition not in self._holding or here != Position.after(message.id):
                return
            self.give(partition, Position.at(message.id))
            self._touched.add(partition)
            self._forget()

    def is_behind(self, message: Message[Any]) -> bool:
        """True if the group stands right behind a message by now, by a commit whose answer was
        lost: then it goes on from there."""
        partition, behind = message.partition, Position.after(message.id)
        with self._lock:
            if partition not in self._holding:
                return False
            stored = self._groups.positions(self._topic, self._group).get(partition)
            if stored == behind:
                self._committed.know(partition, stored)
            return stored == behind

    def unsuspend(self, partition: int) -> None:
        """Fetch from a suspended partition again, unless it is to be released."""
        self.cursor.unsuspend(partition)
        if partition in self._releasing:
            self.cursor.pause(partition)

    def look_now(self) -> None:
        """Let the next `tend` commit and look, whatever the time is."""
        self._look_at_s = self._commit_at_s = 0.0

    def commit(self) -> None:
        """With at-least-once: move the group behind what was handled."""
        with self._lock:
            self._commit()

    def _commit(self) -> None:
        self._commit_at_s = self._clock.monotonic_s() + COMMIT_S
        if self.options.delivery is DeliveryMode.AT_LEAST_ONCE:
            self._move(self.handled(), (PositionKind.AFTER, PositionKind.ID))

    def _move(
        self, to: Mapping[int, Position], kinds: Collection[PositionKind] = (PositionKind.AFTER,)
    ) -> None:
        """Move the group to these positions as far as this member may. In partitions that it has
        lost, or that were moved by hand, it goes on at the group's position."""
        void: set[int] = set()
        for left in reversed(range(_TRIES)):
            here = {p: at for p, at in to.items() if p not in void and p in self._holding}
            changes = self._committed.changes(here, kinds)
            if not changes:
                break
            try:
                self._groups.move(changes)
            except Fenced as error:
                if not left:
                    raise
                _log.warning("member_fenced", **self._facts(here), error=error.message)
                void |= self._learn(self._poll())
            except Conflict:
                if not left:
                    raise
                void.update(self._go_where_the_group_stands(changes))
                self._touched |= void
            else:
                self._committed.note(changes)
                break

    def _go_where_the_group_stands(self, changes: Iterable[PositionChange]) -> list[int]:
        stored = self._groups.positions(self._topic, self._group)
        moved = []
        for partition, there in ((change.key.partition, change.position) for change in changes):
            position = stored.get(partition)
            if position == there:  # by a call whose answer was lost
                self._committed.know(partition, position)
            elif self._committed.known(partition) != _text(position):
                self._committed.know(partition, position)
                start = self._starts.get(partition, Position.earliest())
                self.give(partition, position or start)
                moved.append(partition)
        return moved

    # -- the end ---------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Forget what was fetched but not handed out."""
        self.out = None  # the next is asked for
        self.reading = self.cursor.stop_at_end
        with contextlib.suppress(ValueError):
            self._leavers.remove(self)
        self.cursor.rewind(p for p in self._holding if p not in self._releasing)

    def abandon(self) -> None:
        """Leave the group at the bus's next look: the consumer was dropped. From any thread, at any
        moment."""
        if self._joined:
            self._leavers.append(self)

    def close(self) -> None:
        """Finish, for good."""
        with self._lock:
            self._closed = True
            self.finish()

    def finish(self) -> None:
        """Commit what was handled, and leave, at once. What was handed out may still be
        acknowledged, as long as nobody else moves the group. A second call does nothing."""
        with self._lock:
            if not self._joined:
                return
            self._joined = False
            try:
                self._commit()
                if self.options.delivery is DeliveryMode.AT_MOST_ONCE:
                    self._move(self.cursor.positions(), _ANY)
            finally:
                self._leave()

    def _leave(self) -> None:
        self._holding.clear()
        self._releasing.clear()
        self._committed.owners.clear()
        self._look_at_s = 0.0
        with contextlib.suppress(TMSError):  # its session ends by itself
            self._groups.leave(self._topic, self._group, self.name)


def _text(position: Position | None) -> str:
    return "" if position is None else str(position)
