"""A transaction for asyncio: the synchronous one, with what may wait in a thread."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar, overload

from tms.client.aio.consumer import AsyncConsumer
from tms.client.aio.derived import Derived, in_thread
from tms.client.aio.queues import AsyncQueue
from tms.client.participants import Participant
from tms.client.queue import Deliveries
from tms.client.transaction import Transaction
from tms.errors import Invalid
from tms.model.serializer import V

T = TypeVar("T")


class AsyncTransaction(Derived[Transaction]):
    """Made by `AsyncBus.transaction`; see `Transaction`. For one task."""

    async def id(self) -> int:
        """As `Transaction.id`."""
        return await asyncio.to_thread(lambda: self._sync.id)

    send = in_thread(Transaction.send)
    send_many = in_thread(Transaction.send_many)
    change = in_thread(Transaction.change)
    commit = in_thread(Transaction.commit)
    abort = in_thread(Transaction.abort)

    @property
    def participants(self) -> tuple[Participant[object], ...]:
        """As `Transaction.participants`."""
        return self._sync.participants

    async def join(self, participant: Participant[T]) -> T:
        """As `Transaction.join`; the methods of the participant are called in threads."""
        return await asyncio.to_thread(self._sync.join, participant)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work` with the synchronous transaction, in a thread; for participants."""
        return await asyncio.to_thread(work, self._sync)

    @overload
    def ack(self, source: AsyncConsumer[V]) -> None: ...

    @overload
    def ack(self, source: AsyncQueue[V], messages: Deliveries[V]) -> None: ...

    def ack(
        self, source: AsyncConsumer[V] | AsyncQueue[V], messages: Deliveries[V] | None = None
    ) -> None:
        """As `Transaction.ack`."""
        if isinstance(source, AsyncQueue):
            ack: Callable[..., None] = self._sync.ack  # which says when there are no messages
            ack(source.queue, messages)
        elif messages is None:
            self._sync.ack(source)
        else:
            raise Invalid("tx.ack takes no messages of a consumer.", field="messages")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._sync.__exit__, kind, error, trace)
