"""The asyncio consumer that is a member of a group: what `tms.client.group_consumer` does. What
the member asks the service runs in a thread; the callbacks run on the event loop.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from tms.client.aio.consumer import AsyncConsumer
from tms.client.cursor import Batch
from tms.client.group_letters import GroupLetters
from tms.client.group_options import DeliveryMode, MemberOptions, Told, check_handler
from tms.client.member import LOOK_S, Member
from tms.errors import Conflict, TMSError
from tms.model.message import Message
from tms.model.serializer import V

AsyncTold = Callable[[Sequence[int]], object]


def on_this_loop(options: MemberOptions) -> MemberOptions:
    """The same options; the callbacks, which may be coroutine functions, are called on the loop
    that runs now, while a thread waits for them."""
    loop = asyncio.get_running_loop()

    def there(told: AsyncTold) -> Told:
        async def call(partitions: Sequence[int]) -> None:
            found = told(partitions)
            if inspect.isawaitable(found):
                await found

        return lambda partitions: asyncio.run_coroutine_threadsafe(call(partitions), loop).result()

    return replace(
        options,
        on_assigned=there(options.on_assigned),
        on_revoked=there(options.on_revoked),
    )


class AsyncMemberConsumer(AsyncConsumer[V]):
    """Made by `AsyncBus.consumer` with a group; see `Bus.consumer` and docs/groups.md."""

    def __init__(
        self, *place: Any, make_member: Callable[[], Member], letters: GroupLetters
    ) -> None:
        super().__init__(*place)
        self._wait_s = min(self._wait_s, LOOK_S)
        self._make_member = make_member
        self._letters = letters

    def _begin_anew(self) -> None:
        """In a process that was forked it is another member."""
        super()._begin_anew()
        self._cursor_made = None
        self.committed.forget()
        self._member_made: Member | None = None
        self._ended = asyncio.Event()
        self._void: set[int] = set()  # partitions of which a handler's message came to nothing

    async def __aiter__(self) -> AsyncIterator[Message[V]]:
        """See `AsyncConsumer`."""
        async for batch in self._fetched():
            cursor, member = self._cursor, self._member
            for message in batch.messages():
                member.out = cursor.message = message
                if self._closed:  # maybe by another task, which has given it to others
                    return
                yield message
                member.out = None
                if await self._is_void(batch.partition):
                    break
            else:
                cursor.hand_out(batch)

    async def batches(self) -> AsyncIterator[Batch[V]]:
        """See `AsyncConsumer`."""
        async for batch in self._fetched():
            member = self._member
            member.out = batch
            self._cursor.hand_out(batch)
            if self._closed:
                return
            yield batch
            member.out = None
            if member.due:
                await self._tend()

    async def ack(self) -> None:
        """See `Consumer.ack`. Raises `Fenced` when a partition was lost before that, and
        `Invalid` with exactly-once."""
        if self._member_made is not None:
            self._member_made.require_ack()
        await super().ack()

    async def handle(self, handler: Callable[[Message[V]], object]) -> None:
        """See `Consumer.handle`; the handler may be a coroutine function."""
        check_handler(handler)
        letters = self._letters
        async for message in self:
            while True:
                try:
                    handling = handler(message)
                    if inspect.isawaitable(handling):
                        await handling
                except Exception as error:
                    pause_s = letters.failed(message, error)
                    if pause_s is None:
                        await self._move(message, error)
                        break
                    if not await self._pause(message, pause_s):
                        break
                else:
                    letters.handled(message)
                    if self._member.options.delivery is DeliveryMode.EXPLICIT:
                        await self._ack_handled()
                    break

    async def close(self) -> None:
        """Commit what was handled, if the consumer does that by itself, leave the group, and end
        the iteration, also one that waits in another task. A second call does nothing."""
        self._closed = True
        self._ended.set()
        self._settings.outage.ended.set()
        try:
            if self._member_made is not None:
                await asyncio.to_thread(self._member_made.close)
        finally:
            await super().close()

    async def _ack_handled(self) -> None:
        try:
            await self.ack()
        except TMSError:
            if not self._closed:  # else it has left meanwhile, and the message comes to others
                raise

    def __del__(self) -> None:
        member = getattr(self, "_member_made", None)
        if member is not None and not self._closed:
            member.abandon()

    @property
    def _member(self) -> Member:
        assert self._member_made is not None, "every way in begins with _begin"
        return self._member_made

    async def _begin(self) -> None:
        await super()._begin()
        if self._member_made is None:
            member = self._make_member()
            member.options = on_this_loop(member.options)
            starts = self._cursor.positions()
            for partition in starts:
                self._cursor.take(partition)
            member.begin(self._cursor, self.committed, starts)
            self._member_made = member

    async def _is_void(self, partition: int) -> bool:
        """Whether the rest of a batch of this partition is not to be handed out."""
        void, self._void = self._void, set()
        return partition in void or (self._member.due and partition in await self._tend())

    async def _pause(self, message: Message[V], pause_s: float) -> bool:
        """Wait, as a member that is there; whether the handler gets the message again then."""
        member = self._member
        until_s = self._clock.monotonic_s() + pause_s
        while not self._closed:
            if member.due and message.partition in await self._tend():
                break
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return True
            await self._sleep(min(left_s, member.pause_s))
        await self._put_back(message)
        return False

    async def _move(self, message: Message[V], error: Exception) -> None:
        """See `MemberConsumer`."""
        try:
            await self._survive(self._letters.mover(message, error, self))
        except TMSError as failure:
            if not self._closed:
                if not isinstance(failure, Conflict) or not self._member.moves_by_itself:
                    raise
                self._member.look_now()
                await self._tend()
            await self._put_back(message)

    async def _put_back(self, message: Message[V]) -> None:
        await asyncio.to_thread(self._member.put_back, message)
        self._drop_touched()
        self._void.add(message.partition)

    async def _fetched(self) -> AsyncIterator[Batch[V]]:
        iterations = self._iterations
        done = False
        with iterations.begin() as mine:
            self._abandon(self._ahead)
            await self._begin()
            self._member.rewind()
        member, cursor = self._member, self._cursor
        try:
            while not self._closed and not await self._is_complete():
                with iterations.fetch(mine):
                    if member.due:
                        await self._tend()
                    if not cursor.asks:
                        await self._sleep(member.pause_s)
                        continue
                    await self._fetch_next()
                while member.waiting:
                    yield member.waiting.popleft()
                    iterations.require_last(mine)
                cursor.settle()
            done = True
        except TMSError:
            if not self._closed:
                raise
        finally:
            if iterations.is_last(mine):
                self._abandon(self._ahead)
                if cursor.stop_at_end and not done:
                    member.abandon()
        if cursor.stop_at_end and not self._closed:
            await self._survive(member.commit)
            await asyncio.to_thread(member.finish)

    async def _fetch_next(self) -> None:
        """See `MemberConsumer`."""
        batches = self._cursor.accept(await self._answer(self._ahead))
        if self._cursor.asks:
            self._ahead = asyncio.create_task(self._fetch(self._timeout_s))
        self._member.waiting.extend(batches)
        await self._survive(self._member.claim)
        self._drop_touched()

    async def _is_complete(self) -> bool:
        """Whether everything was read that had to be."""
        if not self._cursor.stop_at_end:
            return False
        complete = await self._survive(self._member.is_complete)
        self._drop_touched()
        return complete

    async def _tend(self) -> set[int]:
        await self._survive(self._member.tend)
        return self._drop_touched()

    def _drop_touched(self) -> set[int]:
        """Partitions of which messages that are on their way may be void."""
        touched = self._member.take_touched()
        if touched:
            self._abandon(self._ahead)
        return touched

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return
