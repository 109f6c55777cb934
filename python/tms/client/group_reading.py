"""The loop of a consumer that is a member of a group: its partitions come and go while it is read.

A consumer that reads up to the end is a member while it is iterated over, and ends when everything
is read: its own partitions, and those of other members that read up to the end too. If one of them
dies, the others get its partitions.
"""

from collections.abc import Callable

from tms.client.cursor import Batch
from tms.client.dead_letters import GroupDeadLetters, is_in_doubt
from tms.client.group_options import DeliveryMode, check_handler
from tms.client.member import LOOK_S, Member
from tms.client.reading import Reader, ReaderParts
from tms.errors import Conflict, TMSError
from tms.model.message import Message
from tms.model.position import Position
from tms.model.serializer import V


class MemberReader(Reader[V]):
    """Reads the partitions of a member, and tends the membership between messages and fetches."""

    watches = True

    def __init__(self, parts: ReaderParts, member: Member, dead_letters: GroupDeadLetters) -> None:
        super().__init__(parts)
        self._wait_s = min(self._wait_s, LOOK_S)
        self.member = member
        self._dead_letters = dead_letters

    def take(self, batch: Batch[V]) -> bool:
        """As `Reader.take`."""
        self.member.hand_out(batch)
        self.cursor.hand_out(batch)
        return not self._io.closed

    def hands_out(self, message: Message[V]) -> bool:
        """As `Reader.hands_out`; another thread may have closed the consumer, which has released
        the message to other members. The message is the member's before it is the cursor's: a close
        between the two must not commit behind it."""
        self.member.hand_out(message)
        self.cursor.message = message
        return not self._io.closed

    @property
    def due(self) -> bool:
        """As `Reader.due`."""
        return self.member.due

    async def is_void(self, partition: int) -> bool:
        """As `Reader.is_void`; tends if it is time."""
        self.member.out = None
        void = await super().is_void(partition)
        return void or (self.member.due and partition in await self._tend())

    async def ack(self) -> None:
        """As `Consumer.ack`. Raises `Fenced` when a partition was lost before that, and
        `Invalid` with exactly-once."""
        self.member.require_ack()
        await super().ack()

    async def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """As `Consumer.handle`."""
        check_handler(handler)
        with self.iteration() as iteration:
            while (message := await self.next_message(iteration)) is not None:
                while not await self._is_handled(handler, message):
                    pass

    async def close(self) -> None:
        """Commit what was handled, if the consumer does that by itself, leave the group, and end
        the iteration."""
        self._io.end()
        try:
            await self._io.call(self.member.close)
        finally:
            self._io.close()

    def abandon(self) -> None:
        """As `Reader.abandon`: the member leaves the group at the next look of the bus."""
        self.member.abandon()

    def end(self, iteration: object) -> None:
        """As `Reader.end`. A member that reads on stays one."""
        if self.iterations.is_last(iteration):
            self._drop()
            if self.cursor.stop_at_end and not self._complete:
                self.abandon()

    # -- a message in the hands of a handler -------------------------------------------------------

    async def _is_handled(
        self, handler: Callable[[Message[V]], object], message: Message[V]
    ) -> bool:
        """Call the handler once; True unless it is to get the message again."""
        try:
            await self._io.handle(handler, message)
        except Exception as error:
            if await self._is_done(message, error):
                self._dead_letters.handled(message)
                return True
            pause_s = self._dead_letters.failed(message, error)
            if pause_s is None:
                await self._move(message, error)
                return True
            return not await self._waits(message, pause_s)
        self._dead_letters.handled(message)
        if self.member.options.delivery is DeliveryMode.EXPLICIT:
            await self._ack_handled()
        return True

    async def _is_done(self, message: Message[V], error: Exception) -> bool:
        """True if the handler's transaction has committed although it raised."""
        member = self.member
        if member.moves_by_itself or not is_in_doubt(error):
            return False
        try:
            return await self._survive(lambda: member.is_behind(message))
        except TMSError:
            if not self._io.closed:
                raise
            return False

    async def _ack_handled(self) -> None:
        try:
            await self.ack()
        except TMSError:
            if not self._io.closed:  # else it has left, and other members get the message
                raise

    async def _waits(self, message: Message[V], pause_s: float) -> bool:
        """Wait as a live member; True if the handler is to get the message again then."""
        until_s = self._clock.monotonic_s() + pause_s
        while not self._io.closed:
            if self.member.due and message.partition in await self._tend():
                break
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return True
            await self._io.pause(min(left_s, self.member.pause_s))
        await self._put_back(message)
        return False

    async def _move(self, message: Message[V], error: Exception) -> None:
        """Make the message a dead letter, unless another member has its partition or has moved the
        group: then the message is that member's."""
        try:
            await self._survive(self._dead_letters.mover(message, error, self))
        except TMSError as failure:
            if not self._io.closed:
                if not isinstance(failure, Conflict) or not self.member.moves_by_itself:
                    raise
                self.member.look_now()
                await self._tend()
            await self._put_back(message)

    async def _put_back(self, message: Message[V]) -> None:
        await self._io.call(lambda: self.member.put_back(message))
        self._drop_touched()
        self.void.add(message.partition)

    # -- the loop ----------------------------------------------------------------------------------

    def _rewind(self) -> None:
        self.member.rewind()

    async def _hand_back(self) -> None:
        if self.member.out is not None:
            self.member.out = None
            if self.member.due:
                await self._tend()

    async def _is_complete(self) -> bool:
        if not self.cursor.stop_at_end:
            return False
        complete = await self._survive(self.member.is_complete)
        self._drop_touched()
        return complete

    async def _finish(self) -> None:
        if self.cursor.stop_at_end and not self._io.closed:
            await self._survive(self.member.commit)
            await self._io.call(self.member.finish)

    async def _advance(self) -> None:
        if self.member.due:
            await self._tend()
        if not self.cursor.asks:
            await self._pause(self.member.pause_s)
            return
        await self._fetch()
        await self._survive(self.member.claim)
        self._drop_touched()

    def _give(self, partition: int, position: Position) -> None:
        self.member.give(partition, position)

    def _unsuspend(self, partition: int) -> None:
        self.member.unsuspend(partition)

    async def _tend(self) -> set[int]:
        await self._survive(self.member.tend)
        return self._drop_touched()

    def _drop_touched(self) -> set[int]:
        """Partitions of which messages that are on their way may be void."""
        touched = self.member.take_touched()
        if touched:
            self._drop()
        return touched
