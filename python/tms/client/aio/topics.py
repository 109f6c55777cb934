"""What an asyncio bus does with topics: what the bus does, in a thread."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tms.client.aio.calls import AsyncCalls
from tms.client.cursor import Start
from tms.model.inspection import PartitionInspection
from tms.model.snapshot import Isolation
from tms.model.topic import TopicInfo


class AsyncTopicCalls(AsyncCalls):
    """The half of an asyncio bus that creates, describes, changes and deletes topics."""

    async def create_topic(self, topic: str, *args: Any, **settings: Any) -> TopicInfo:
        """See `Bus.create_topic`."""
        return await asyncio.to_thread(self._bus.create_topic, topic, *args, **settings)

    async def describe_topic(self, topic: str) -> TopicInfo:
        """See `Bus.describe_topic`."""
        return await asyncio.to_thread(self._bus.describe_topic, topic)

    async def list_topics(self, namespace: str = "default") -> AsyncIterator[TopicInfo]:
        """See `Bus.list_topics`."""
        found = self._bus.list_topics(namespace)
        while (info := await asyncio.to_thread(next, found, None)) is not None:
            yield info

    async def update_topic(self, topic: str, **changes: Any) -> TopicInfo:
        """See `Bus.update_topic`."""
        self._publishing.forget(topic)
        return await asyncio.to_thread(self._bus.update_topic, topic, **changes)

    async def truncate_topic(self, topic: str, before: Start = "latest") -> TopicInfo:
        """See `Bus.truncate_topic`."""
        return await asyncio.to_thread(self._bus.truncate_topic, topic, before)

    async def erase(self, topic: str, **what: Any) -> int:
        """See `Bus.erase`."""
        return await asyncio.to_thread(self._bus.erase, topic, **what)

    async def delete_topic(self, topic: str) -> None:
        """See `Bus.delete_topic`."""
        self._publishing.forget(topic)
        await asyncio.to_thread(self._bus.delete_topic, topic)

    async def offsets(
        self, topic: str, at: Start = "latest", isolation: str | bytes = Isolation.COMMITTED
    ) -> Mapping[int, int]:
        """See `Bus.offsets`."""
        return await asyncio.to_thread(self._bus.offsets, topic, at, isolation)

    async def inspect(self, topic: str, partition: int = 0, limit: int = 20) -> PartitionInspection:
        """See `Bus.inspect`."""
        return await asyncio.to_thread(self._bus.inspect, topic, partition, limit)
