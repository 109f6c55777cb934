"""The consumer that is a member of a group: its partitions come and go while it is iterated over.

Where it reads up to the end, it is a member while it is iterated over, and ends when everything is
read: what it has itself, and what others have who read up to the end too. If one of them dies, its
part comes to those who are left.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tms.client.consumer import Consumer
from tms.client.cursor import Batch
from tms.client.group_letters import GroupLetters
from tms.client.group_options import DeliveryMode, check_handler
from tms.client.member import LOOK_S, Member
from tms.errors import Closed, Conflict, TMSError
from tms.model.message import Message
from tms.model.serializer import V


class MemberConsumer(Consumer[V]):
    """Made by `Bus.consumer` with a group; see there, and docs/groups.md."""

    def __init__(self, *place: Any, member: Member, letters: GroupLetters) -> None:
        super().__init__(*place)
        self._wait_s = min(self._wait_s, LOOK_S)
        self._member = member
        self._letters = letters
        self._void: set[int] = set()  # partitions of which a handler's message came to nothing

    def __iter__(self) -> Iterator[Message[V]]:
        """See `Consumer`."""
        cursor, member = self._cursor, self._member
        for batch in self._fetched():
            for message in batch.messages():
                member.out = cursor.message = message
                if self._closed:  # maybe by another thread, which has given it to others
                    return
                yield message
                member.out = None
                if self._is_void(batch.partition):
                    break
            else:
                cursor.hand_out(batch)

    def batches(self) -> Iterator[Batch[V]]:
        """See `Consumer`."""
        member = self._member
        for batch in self._fetched():
            member.out = batch
            self._cursor.hand_out(batch)
            if self._closed:
                return
            yield batch
            member.out = None
            if member.due:
                self._tend()

    def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """See `Consumer.handle`."""
        check_handler(handler)
        letters = self._letters
        for message in self:
            while True:
                try:
                    handler(message)
                except Exception as error:
                    pause_s = letters.failed(message, error)
                    if pause_s is None:
                        self._move(message, error)
                        break
                    if not self._pause(message, pause_s):
                        break
                else:
                    letters.handled(message)
                    if self._member.options.delivery is DeliveryMode.EXPLICIT:
                        self._ack_handled()
                    break

    def close(self) -> None:
        """Commit what was handled, if the consumer does that by itself, leave the group, and end
        the iteration, also one that waits in another thread. A second call does nothing."""
        self._closed = True
        self._settings.outage.ended.set()
        try:
            self._member.close()
        finally:
            super().close()

    def ack(self) -> None:
        """See `Consumer.ack`. Raises `Fenced` when a partition was lost before that, and
        `Invalid` with exactly-once."""
        self._member.require_ack()
        super().ack()

    def _ack_handled(self) -> None:
        try:
            self.ack()
        except TMSError:
            if not self._closed:  # else it has left meanwhile, and the message comes to others
                raise

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._member.abandon()
        super().__del__()

    def _is_void(self, partition: int) -> bool:
        """Whether the rest of a batch of this partition is not to be handed out."""
        void, self._void = self._void, set()
        return partition in void or (self._member.due and partition in self._tend())

    def _pause(self, message: Message[V], pause_s: float) -> bool:
        """Wait, as a member that is there; whether the handler gets the message again then."""
        member, ended = self._member, self._settings.outage.ended
        until_s = self._clock.monotonic_s() + pause_s
        while not self._closed:
            if member.due and message.partition in self._tend():
                break
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return True
            ended.wait(min(left_s, member.pause_s))
        self._put_back(message)
        return False

    def _move(self, message: Message[V], error: Exception) -> None:
        """The message is a dead letter, unless somebody else has the partition, or has moved the
        group: then it is theirs."""
        try:
            self._survive(self._letters.mover(message, error, self))
        except TMSError as failure:
            if not self._closed:
                if not isinstance(failure, Conflict) or not self._member.moves_by_itself:
                    raise
                self._member.look_now()
                self._tend()
            self._put_back(message)

    def _put_back(self, message: Message[V]) -> None:
        self._member.put_back(message)
        self._drop_touched()
        self._void.add(message.partition)

    def _fetched(self) -> Iterator[Batch[V]]:
        member, cursor, done = self._member, self._cursor, False
        iterations = self._iterations
        with iterations.begin() as mine:
            self._drop_ahead()
            member.rewind()
        try:
            while not self._closed and not self._is_complete():
                with iterations.fetch(mine):
                    if member.due:
                        self._tend()
                    if not cursor.asks:
                        self._settings.outage.ended.wait(member.pause_s)
                        continue
                    self._fetch_next()
                while (batch := member.next_waiting()) is not None:
                    yield batch
                    iterations.require_last(mine)
                cursor.settle()
            done = True
        except TMSError:
            if not self._closed:
                raise
        finally:
            if iterations.is_last(mine):
                self._drop_ahead()
                if cursor.stop_at_end and not done:
                    member.abandon()
        if cursor.stop_at_end and not self._closed:
            self._survive(member.commit)
            member.finish()

    def _fetch_next(self) -> None:
        """Let the next batches wait, of partitions that are this member's."""
        ahead, self._ahead = self._ahead, None
        batches = self._cursor.accept(self._answer(ahead))
        if self._cursor.asks:
            self._ahead = self._begin()
        self._member.waiting.extend(batches)
        self._survive(self._member.claim)
        self._drop_touched()

    def _is_complete(self) -> bool:
        """Whether everything was read that had to be."""
        if not self._cursor.stop_at_end:
            return False
        complete = self._survive(self._member.is_complete)
        self._drop_touched()
        return complete

    def _tend(self) -> set[int]:
        self._survive(self._member.tend)
        return self._drop_touched()

    def _drop_touched(self) -> set[int]:
        """Partitions of which messages that are on their way may be void."""
        touched = self._member.take_touched()
        if touched:
            self._drop_ahead()
        return touched

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with contextlib.suppress(Closed):
                self._channel.reset()
