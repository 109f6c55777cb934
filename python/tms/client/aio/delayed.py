"""What an asyncio bus does with delayed messages: what the bus does, in a thread."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tms.client.aio.calls import AsyncCalls
from tms.model.delayed import DelayedId, DelayedInfo, DelayedMessage


class AsyncDelayedCalls(AsyncCalls):
    """The part of an asyncio bus that is about delayed messages."""

    async def publish_later(
        self, topic: str, value: bytes | None, *args: Any, **more: Any
    ) -> DelayedId:
        """See `Bus.publish_later`."""
        return await asyncio.to_thread(self._bus.publish_later, topic, value, *args, **more)

    async def publish_later_many(
        self, topic: str, values: Sequence[bytes | None], *args: Any, **more: Any
    ) -> list[DelayedId]:
        """See `Bus.publish_later_many`."""
        return await asyncio.to_thread(self._bus.publish_later_many, topic, values, *args, **more)

    async def cancel(self, topic: str, id: DelayedId | str, timeout_s: float | None = None) -> bool:
        """See `Bus.cancel`."""
        return await asyncio.to_thread(self._bus.cancel, topic, id, timeout_s)

    async def delayed(self, topic: str) -> DelayedInfo:
        """See `Bus.delayed`."""
        return await asyncio.to_thread(self._bus.delayed, topic)

    async def delayed_messages(
        self, topic: str, after: DelayedId | str | None = None
    ) -> AsyncIterator[DelayedMessage]:
        """See `Bus.delayed_messages`."""
        found = self._bus.delayed_messages(topic, after)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one
