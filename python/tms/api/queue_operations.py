"""The operations on work queues."""

from collections.abc import Mapping
from typing import Annotated, Protocol

from msgspec import Meta

from tms.api import queues, routes
from tms.api.operation import (
    Form,
    Named,
    Repeat,
    Resource,
    WholeBody,
    delete,
    get,
    patch,
    post,
    put,
)
from tms.api.parameters import LARGE_BYTES, Cause, DelayS, GroupName, LeaseS, Letters, Tokens
from tms.block.received import Received
from tms.model.access import Access
from tms.model.queue import (
    PEEK_MAX,
    RECEIVE_BYTES,
    QueuedMessage,
    QueueInfo,
    QueueSettings,
    TokenResult,
)
from tms.model.topic import TopicName

RedriveLimit = Annotated[int, Meta(ge=1, le=queues.REDRIVE_MAX)]


class QueuesApi(Protocol):
    """Work queues. `tms.queues.Queues` documents the promises. A call with tokens answers which of
    them came too late."""

    @get("{topic}/queues", Resource.TOPIC, Access.OBSERVE, lists=Resource.QUEUE)
    def list_queues(
        self, topic: TopicName
    ) -> Annotated[list[QueueInfo], Named("Queues", "Queues.", "queues", queues.QUEUES)]:
        """The queues of a topic, by the names of their groups."""

    @put(
        "{topic}/queues/{group}",
        Resource.QUEUE,
        Access.MANAGE,
        statuses=(routes.CREATED, routes.OK),
    )
    def declare(
        self,
        topic: TopicName,
        group: GroupName,
        settings: Annotated[QueueSettings, queues.NEW_QUEUE, WholeBody],
    ) -> Annotated[QueueInfo, queues.QUEUE]:
        """Make the queue; 200 if it exists with the same settings."""

    @get("{topic}/queues/{group}", Resource.QUEUE, Access.OBSERVE)
    def describe(self, topic: TopicName, group: GroupName) -> Annotated[QueueInfo, queues.QUEUE]:
        """The queue and its state."""

    @patch("{topic}/queues/{group}", Resource.QUEUE, Access.MANAGE)
    def update(
        self,
        topic: TopicName,
        group: GroupName,
        changes: Annotated[Mapping[str, object], queues.QUEUE_CHANGES, WholeBody],
    ) -> Annotated[QueueInfo, queues.QUEUE]:
        """Change settings; missing ones stay."""

    @delete("{topic}/queues/{group}", Resource.QUEUE, Access.MANAGE, repeat=Repeat.UNTIL_GONE)
    def delete(self, topic: TopicName, group: GroupName) -> None:
        """Delete the queue, not the messages of the topic."""

    @post(
        "{topic}/queues/{group}/receive",
        Resource.QUEUE,
        Access.CONSUME,
        name="receive",
        repeat=Repeat.UNSAFE,
        form=Form(
            body={routes.JSON: queues.ReceiveBody},
            answer={routes.JSON: queues.ReceivedBody, routes.BLOCKS: bytes},
        ),
    )
    def receive(
        self,
        topic: TopicName,
        group: GroupName,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        """Lease messages; may wait for the first one (long poll)."""

    @get("{topic}/queues/{group}/peek", Resource.QUEUE, Access.CONSUME)
    def peek(
        self,
        topic: TopicName,
        group: GroupName,
        limit: Annotated[int, Meta(ge=1, le=PEEK_MAX)] = 10,
    ) -> Annotated[list[QueuedMessage], Named("Queued", "Messages.", "messages", queues.QUEUED)]:
        """Messages that are not settled, without leasing them."""

    @post("{topic}/queues/{group}/ack", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES)
    def ack(
        self, topic: TopicName, group: GroupName, tokens: Tokens
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Acknowledge messages."""

    @post("{topic}/queues/{group}/nack", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES)
    def nack(
        self,
        topic: TopicName,
        group: GroupName,
        tokens: Tokens,
        delay_s: DelayS | None = None,
        cause: Cause = "",
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Return messages for delivery after `delay_s`, or after the back-off of the queue; a
        message that used its last delivery becomes a dead letter with this cause."""

    @post(
        "{topic}/queues/{group}/release", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES
    )
    def release(
        self, topic: TopicName, group: GroupName, tokens: Tokens
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Return messages that no handler has had, for delivery at once; this delivery does not
        count."""

    @post(
        "{topic}/queues/{group}/extend", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES
    )
    def extend(
        self, topic: TopicName, group: GroupName, tokens: Tokens, lease_s: LeaseS | None = None
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Renew the leases of messages for `lease_s`, or for the lease of the queue."""

    @post(
        "{topic}/queues/{group}/reject", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES
    )
    def reject(
        self, topic: TopicName, group: GroupName, tokens: Tokens, cause: Cause = ""
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Move messages to the dead letters, with this cause."""

    @post(
        "{topic}/queues/{group}/redrive",
        Resource.QUEUE,
        Access.MANAGE,
        repeat=Repeat.UNSAFE,
        alone=True,
    )
    def redrive(
        self,
        topic: TopicName,
        group: GroupName,
        limit: RedriveLimit = queues.REDRIVE_DEFAULT,
        letters: Letters = (),
    ) -> Annotated[int, Named("Redriven", "How many were moved.", "moved")]:
        """Move dead letters back to the topic, in transactions: those named, or the oldest. Those
        that are settled or gone are passed over."""

    @post(
        "{topic}/queues/{group}/discard",
        Resource.QUEUE,
        Access.MANAGE,
        repeat=Repeat.UNSAFE,
        alone=True,
    )
    def discard(
        self,
        topic: TopicName,
        group: GroupName,
        limit: RedriveLimit = queues.REDRIVE_DEFAULT,
        letters: Letters = (),
    ) -> Annotated[int, Named("Discarded", "How many were discarded.", "discarded")]:
        """Settle dead letters without moving them: those named, or the oldest. They stay in their
        topic, and are neither counted nor moved back any more."""
