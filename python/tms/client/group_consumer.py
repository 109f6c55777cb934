"""The consumer that is a member of a group: its partitions come and go while it is iterated over.

Where it reads up to the end, it is a member while it is iterated over, and ends when everything is
read: what it has itself, and what others have who read up to the end too. If one of them dies, its
part comes to those who are left.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from tms.client.consumer import Consumer
from tms.client.cursor import Batch
from tms.client.member import LOOK_S, Member
from tms.client.transport import PendingAnswer
from tms.errors import Closed, TMSError
from tms.model.message import Fetched, Message
from tms.model.serializer import V


class MemberConsumer(Consumer[V]):
    """Made by `Bus.consumer` with a group; see there, and docs/groups.md."""

    def __init__(self, *place: Any, member: Member) -> None:
        super().__init__(*place)
        self._wait_s = min(self._wait_s, LOOK_S)
        self._member = member
        self._ahead: PendingAnswer[Fetched] | None = None

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
                if member.due and batch.partition in self._tend():
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

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._member.abandon()

    def _fetched(self) -> Iterator[Batch[V]]:
        member, cursor, done = self._member, self._cursor, False
        member.rewind()
        try:
            while not self._closed and not self._is_complete():
                if member.due:
                    self._tend()
                if not cursor.asks:
                    self._settings.outage.ended.wait(member.pause_s)
                    continue
                ahead, self._ahead = self._ahead, None
                batches = cursor.accept(self._answer(ahead))
                if cursor.asks:
                    self._ahead = self._begin()
                member.waiting.extend(batches)
                self._survive(member.claim)
                self._drop_touched()
                while member.waiting:
                    yield member.waiting.popleft()
                cursor.settle()
            done = True
        except TMSError:
            if not self._closed:
                raise
        finally:
            self._drop_ahead()
            if cursor.stop_at_end and not done:
                member.abandon()
        if cursor.stop_at_end and not self._closed:
            self._survive(member.commit)
            member.finish()

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
