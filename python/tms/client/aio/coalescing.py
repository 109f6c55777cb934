"""Coalescing of single publishes on an event loop; see `tms.client.coalescing`."""

import asyncio

from tms.client.aio.pool import ChannelPool
from tms.client.batching import KnownTopic
from tms.client.coalescing import (
    PublishKey,
    SingleFlight,
    WaitingPublish,
    late,
    pack,
    told,
    unacknowledged,
)
from tms.client.delivery import deliver_async
from tms.client.topic_cache import Lone, TopicCache
from tms.errors import TMSError
from tms.model.ids import MessageId
from tms.model.quantity import Duration, timeout
from tms.runtime import forks
from tms.runtime.clock import Clock

PublishFuture = asyncio.Future[MessageId | None]


class AsyncCoalescing:
    """Single publishes of all tasks of a bus."""

    def __init__(
        self, publishing: TopicCache, channels: ChannelPool, timeout_s: float, clock: Clock
    ) -> None:
        self._publishing = publishing
        self._channels = channels
        self._timeout_s = timeout_s
        self._clock = clock
        self._begin()
        forks.in_child(self._begin)  # those who were under way, or waited, are the parent's tasks

    def _begin(self) -> None:
        self._publishes: SingleFlight[PublishFuture] = SingleFlight()
        self._groups: set[asyncio.Task[None]] = set()

    async def publish(
        self, known: KnownTopic, message: Lone, durability: str | None, timeout_s: Duration | None
    ) -> MessageId | None:
        """Publish one message; its id, or None with durability `none`. Raises `Invalid`."""
        limit_s = timeout(timeout_s, self._timeout_s)
        place = (known.name, durability)
        if self._publishes.begin(place):
            try:
                (id,) = await self._publish(known, place, [message], limit_s)
                return id
            finally:
                self._hand_over(known, place)
        size = message.check(known)
        answer: PublishFuture = asyncio.get_running_loop().create_future()
        self._publishes.join(place, WaitingPublish(message, size, answer))
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TMSError:
            raise
        except TimeoutError as exc:
            raise late(limit_s) from exc

    async def _publish(
        self, known: KnownTopic, place: PublishKey, messages: list[Lone], timeout_s: float
    ) -> list[MessageId | None]:
        numbering = self._publishing.take_numbering()
        packed = pack(self._publishing, known, messages, numbering)
        left = unacknowledged(known, place[1], numbering, packed.blocks, timeout_s)
        async with self._channels.channel() as channel:
            appended = await deliver_async(channel.append, left, self._clock, timeout_s)
        self._publishing.return_numbering(numbering)
        return packed.ids(appended)

    def _hand_over(self, known: KnownTopic, place: PublishKey) -> None:
        group = self._publishes.next_group(place)
        if group:
            task = asyncio.get_running_loop().create_task(self._lead(known, place, group))
            self._groups.add(task)
            task.add_done_callback(self._groups.discard)

    async def _lead(
        self, known: KnownTopic, place: PublishKey, group: list[WaitingPublish[PublishFuture]]
    ) -> None:
        group = [one for one in group if not one.answer.done()]  # cancelled, or late
        try:
            if group:
                messages = [one.message for one in group]
                ids = await self._publish(known, place, messages, self._timeout_s)
                for one, id in zip(group, ids, strict=True):
                    if not one.answer.done():
                        one.answer.set_result(id)
        except BaseException as error:
            for one in group:
                if not one.answer.done():
                    one.answer.set_exception(told(error))
            if not isinstance(error, TMSError):
                raise
        finally:
            self._hand_over(known, place)
