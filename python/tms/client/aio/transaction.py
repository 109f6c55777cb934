"""A transaction for asyncio: the synchronous one, with what may wait in a thread."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tms.client.aio.consumer import AsyncConsumer
from tms.client.aio.queues import AsyncQueue
from tms.client.queue import Messages
from tms.client.transaction import Transaction
from tms.model.ids import MessageId


class AsyncTransaction:
    """Made by `AsyncBus.transaction`; see `Transaction`. For one task."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def id(self) -> int:
        """The transaction's id; begins it."""
        return await asyncio.to_thread(lambda: self._transaction.id)

    async def send(self, topic: str, value: bytes | None, *args: Any, **more: Any) -> None:
        """See `Transaction.send`."""
        await asyncio.to_thread(self._transaction.send, topic, value, *args, **more)

    async def send_many(
        self, topic: str, values: Sequence[bytes | None], partition: int | None = None
    ) -> None:
        """See `Transaction.send_many`."""
        await asyncio.to_thread(self._transaction.send_many, topic, values, partition)

    async def change(self, key: bytes) -> None:
        """See `Transaction.change`."""
        await asyncio.to_thread(self._transaction.change, key)

    def acknowledge(self, consumer: AsyncConsumer) -> None:
        """See `Transaction.acknowledge`."""
        self._transaction.acknowledge(consumer)

    def settle(self, queue: AsyncQueue, messages: Messages) -> None:
        """See `Transaction.settle`."""
        self._transaction.settle(queue.queue, messages)

    async def commit(self) -> list[MessageId]:
        """See `Transaction.commit`."""
        return await asyncio.to_thread(self._transaction.commit)

    async def abort(self) -> None:
        """See `Transaction.abort`."""
        await asyncio.to_thread(self._transaction.abort)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._transaction.__exit__, kind, error, trace)
