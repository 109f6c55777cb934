"""What an asyncio bus does with views."""

import asyncio
from typing import Any

from tms.client.aio.calls import AsyncCalls
from tms.client.view import View


class AsyncViewCalls(AsyncCalls):
    """The part of an asyncio bus that makes views."""

    async def view(self, topic: str, **options: Any) -> View[Any]:
        """See `Bus.view`. What a view has is in memory, so it is read without `await`; only
        `refresh` waits: `await asyncio.to_thread(view.refresh)`."""
        return await asyncio.to_thread(lambda: self._bus.view(topic, **options))
