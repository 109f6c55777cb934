"""Appending to one partition: a queue, group commit, ids, idempotent producers.

    submit ─▶ queue ─▶ take all that wait ─▶ place (ids, offsets) ─▶ write ─▶ confirm, publish,
                                                                              acknowledge

A caller that finds the queue without a leader leads (`log.group_commit`), so a lone publisher never
changes threads. A leader that must not block (the event loop of the service) writes only blocks
that need no sync, and leaves the others to a background thread. Where a write counts only if the
partition is still owned afterwards, a background thread checks that, publishes and acknowledges
while the leader writes the next group.

Invariants

* Ids and offsets are assigned in the order in which blocks are written; nothing is acknowledged
  before the store has it as durably as was requested.
* After a failed write nothing is known: the end is read from the store again before anything else
  is written. A group that was written behind a failed one fails with it.
* At most one group is unconfirmed while the next is written, and the leader waits for it, or
  confirms it itself if no thread has begun to: it never depends on a free thread.
* Waiting tickets are bounded in bytes, here and over all partitions; room is reserved before a
  ticket is queued, and released before its caller gets the answer. A ticket that is written at once
  never waits.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter

from tms.errors import NotFound, StorageUnavailable, TMSError, again
from tms.log.group_commit import GroupCommit, Lead
from tms.log.groups import Ticket, WriteGroup
from tms.log.inflight import Room
from tms.log.partition import PartitionState
from tms.log.preconditions import Precondition
from tms.log.records import RememberedBlock
from tms.model.message import Appended
from tms.model.topic import Durability
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

GROUP_BYTES = 8 << 20
GROUPS_IN_A_ROW = 16  # before another thread may hold the partition
_bytes_of = attrgetter("bytes")  # of a ticket
_log = EventLog(__name__)


class PartitionWriter:
    """The only writer of a partition in this process."""

    __slots__ = (
        "_clock",
        "_closed",
        "_maintaining",
        "_room",
        "_run_in_background",
        "_state",
        "_tickets",
    )

    def __init__(
        self,
        state: PartitionState,
        clock: Clock,
        room: Room,
        run_in_background: Callable[[Callable[[], None]], object],
    ) -> None:
        self._state = state
        self._clock = clock
        self._room = room
        self._run_in_background = run_in_background
        self._tickets = GroupCommit(
            state.owner,
            self._write_groups,
            run_in_background,
            size_of=_bytes_of,
            bytes_max=GROUP_BYTES,
        )
        self._maintaining = False
        self._closed: TMSError | None = None

    def reserve(self, ticket: Ticket) -> None:
        """Reserve room for a ticket; `submit` or `release` must follow. Raises `Overloaded`, and
        the reason once the partition is closed."""
        if self._closed is not None:
            raise again(self._closed)
        self._make_room(ticket)

    def _make_room(self, ticket: Ticket) -> None:
        self._room.take(ticket.bytes)
        ticket.reserved = True

    def release(self, ticket: Ticket) -> None:
        """Release the room that was reserved for a ticket."""
        if ticket.reserved:
            self._room.give(ticket.bytes)
            ticket.reserved = False

    def submit(self, ticket: Ticket, inline: Durability | None) -> bool:
        """Take a ticket, which then always gets an answer; True if this call gave it. With
        `inline`, this thread writes it at once if it needs at most that durability and the
        partition is idle; any other ticket waits and needs room. Raises `Overloaded` unless room
        was reserved."""
        state = self._state
        alone = (
            inline is not None
            and ticket.durability.rank <= inline.rank
            and state.loaded
            and state.chain.active is not None
            and not self._maintaining  # or a busy caller would delay maintenance for ever
        )
        if alone and self._tickets.try_lead():
            try:
                self._write([ticket])
            finally:
                self._tickets.led()
            return True
        if self._closed is None:
            if not ticket.reserved:
                self._make_room(ticket)
            if self._tickets.submit(ticket, Lead.NO):
                return False
        assert self._closed is not None
        self._fail([ticket], again(self._closed))
        return True

    def write_what_waits(self, timeout_s: float) -> None:
        """Write the queued tickets in this thread, for a caller that must not depend on a free
        thread. The leader then finds an empty queue."""
        self._tickets.write_what_waits(timeout_s)

    def close(self, timeout_s: float, reason: TMSError) -> None:
        """Refuse new tickets with this reason and write the queued ones; those that cannot be
        written within `timeout_s` fail, all of them if it is 0."""
        self._closed = reason
        self._tickets.close()
        if timeout_s > 0 and self._state.owner.acquire(timeout=timeout_s):
            try:
                while batch := self._tickets.take():
                    self._write_groups(batch)
                self._state.rest()
            finally:
                self._state.owner.release()
        while left := self._tickets.take():
            self._fail(left, again(reason))

    def _write_groups(self, batch: Sequence[Ticket]) -> None:
        """Write tickets, and those that wait behind them. The caller holds the partition."""
        before = self._write(batch, go_on=True)
        for _ in range(GROUPS_IN_A_ROW - 1):
            if before is None or self._maintaining:
                break
            batch = self._tickets.take()
            if not batch:
                break
            before = self._write(batch, before, go_on=True)
        if before is not None:
            self._join_last(before)

    def _join_last(self, group: WriteGroup) -> None:
        """Answer a group that was handed on, behind which nothing is written in this turn."""
        counts = False
        try:
            counts = self._join(group)
        finally:
            if not counts:  # also after a control-C while this thread answered
                self._state.invalidate()

    def _write(
        self, batch: Sequence[Ticket], before: WriteGroup | None = None, go_on: bool = False
    ) -> WriteGroup | None:
        """Write the group after `before` and answer. With `go_on` the result may be a group that is
        still to be confirmed, which the caller has to join. The caller holds the partition."""
        state = self._state
        try:
            try:
                now_ms = self._clock.now_ms()
                if before is not None:
                    group = WriteGroup(batch, before.end_offset, before.last)
                else:
                    if not state.loaded or state.chain.active is None:
                        state.prepare(now_ms)
                    group = WriteGroup(batch, state.end_offset, state.last)
                for ticket in batch:
                    self._place(ticket, now_ms, group, before)
                if group.rows or (group.durability is Durability.SYNCED and state.unsynced):
                    state.chain.write(group.rows, group.durability)
                    state.unsynced = group.durability is not Durability.SYNCED
                    group.written = True
            finally:
                confirmed = before is None or self._join(before)
            if before is not None and not confirmed:
                raise again(before.error or StorageUnavailable("The write before it failed."))
        except BaseException as error:
            state.invalidate()
            self._fail(batch, self._failure(error))
            if not isinstance(error, Exception):  # e.g. a control-C while this thread led
                raise
            return None
        if go_on and state.chain.shared and len(self._tickets):
            group.done.acquire()
            with suppress(RuntimeError):  # no thread can be started: `_join` confirms it
                self._run_in_background(lambda: self._confirm(group))
            return group
        try:
            self._conclude(group)
        finally:
            if group.error is not None:
                state.invalidate()
        return None

    def _join(self, group: WriteGroup) -> bool:
        """Answer a group that was handed on; True if it counts."""
        if group.unclaimed.acquire(blocking=False):
            self._conclude(group)
        else:
            group.done.acquire()  # only this thread waits for it
        return group.error is None

    def _confirm(self, group: WriteGroup) -> None:
        """Conclude a group for its leader, unless the leader does."""
        if group.unclaimed.acquire(blocking=False):
            try:
                self._conclude(group)
            finally:
                group.done.release()

    def _conclude(self, group: WriteGroup) -> None:
        """Publish and answer the written blocks, or refuse them."""
        try:
            if group.written:
                self._state.publish(
                    group.rows, group.stored, group.end_offset, group.last, group.durability
                )
        except BaseException as error:
            group.error = self._failure(error)
            self._fail(group.batch, group.error)
            if not isinstance(error, Exception):
                raise
            return
        for ticket in group.batch:
            if ticket.reserved:
                self.release(ticket)
        for pending, number, appended in group.settled:
            pending.settle(number, appended)
        for pending, refusal in group.refused:
            pending.fail(1, refusal)
        if self._state.maintenance_due and not self._maintaining:
            self._begin_maintaining()

    def _failure(self, error: BaseException) -> TMSError:
        if isinstance(error, NotFound) and self._state.retired is not None:
            return again(self._state.retired)  # the map has gone with its topic
        if isinstance(error, TMSError):
            return error
        _log.exception("append_failed", partition=self._state.chain.partition)
        kind = type(error).__name__
        return StorageUnavailable(f"The append failed unexpectedly ({kind}).")

    def _fail(self, batch: Sequence[Ticket], error: TMSError) -> None:
        for ticket in batch:
            self.release(ticket)
            ticket.pending.fail(len(ticket.entries), error)

    def _begin_maintaining(self) -> None:
        self._maintaining = True
        try:
            self._run_in_background(self._maintain)
        except RuntimeError:  # as above; the next thread that holds the partition does it
            self._maintaining = False

    def _maintain(self) -> None:
        try:
            with self._state.changing():
                self._state.maintain(self._clock.now_ms())
        except TMSError as error:
            if self._state.retired is None:  # a closed partition needs no maintenance
                _log.warning(
                    "partition_maintenance_failed",
                    partition=self._state.chain.partition,
                    error=error.message,
                )
        except Exception:
            _log.exception("partition_maintenance_failed", partition=self._state.chain.partition)
        finally:
            self._maintaining = False

    def _place(
        self, ticket: Ticket, now_ms: int, group: WriteGroup, before: WriteGroup | None
    ) -> None:
        producers, partition = self._state.producers, self._state.chain.partition
        refused: TMSError | None = None
        if ticket.term is not None and not self._state.is_in(ticket.term):
            refused = StorageUnavailable(
                f"Partition {partition} has another reader, or owner, than it had. Try again."
            )
        for number, block, header in ticket.entries:
            known: RememberedBlock | None = None
            if header.producer_id and refused is None:
                try:
                    known = producers.find(header)
                except TMSError as error:
                    refused = error
            if known is None and number in ticket.preconditions and refused is None:
                refused = self._unexpected(ticket.preconditions[number], group, before)
            if refused is not None:  # later blocks of the request follow a missing one
                group.refused.append((ticket.pending, refused))
                continue
            if known is None:
                known = group.add(partition, block, header, now_ms, ticket.stamp)
                if header.producer_id:
                    producers.remember(header, known)
                duplicate = False
            else:
                duplicate = True
            appended = Appended(
                partition, known.time_ms, known.sequence, known.count, known.base_offset, duplicate
            )
            group.settled.append((ticket.pending, number, appended))
        if ticket.durability.rank > group.durability.rank:
            group.durability = ticket.durability

    def _unexpected(
        self, precondition: Precondition, group: WriteGroup, before: WriteGroup | None
    ) -> TMSError | None:
        """The error that keeps the next block of a group from being stored; None if there is
        none."""
        precondition.pass_over(self._state.chain.record.floor)  # raised since, by a truncation
        for blocks in self._state.published_after(precondition.checked):
            precondition.look(blocks)
        if before is not None:
            precondition.look(before.stored)
        precondition.look(group.stored)
        return precondition.refusal
