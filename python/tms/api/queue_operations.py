"""What a client may ask of work queues: their part of the table of operations."""

from collections.abc import Mapping
from typing import Annotated, Protocol

from msgspec import Meta

from tms.api import queues, routes
from tms.api.operation import (
    DeclaredOnly,
    Form,
    Repeat,
    Resource,
    WholeBody,
    delete,
    get,
    named,
    patch,
    post,
    put,
)
from tms.api.parameters import LARGE_BYTES, Cause, DelayS, Group, LeaseS, Tokens
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


class QueuesApi(Protocol):
    """Work queues. `tms.queues.Queues` documents the promises. A call with tokens answers which of
    them came too late."""

    @get("{topic}/queues", Resource.TOPIC, Access.OBSERVE, lists=Resource.QUEUE)
    def list_queues(
        self, topic: TopicName
    ) -> Annotated[list[QueueInfo], named("Queues", "Queues.", "queues", queues.QUEUES)]:
        """The queues of a topic, by the names of their groups."""
        raise DeclaredOnly

    @put(
        "{topic}/queues/{group}",
        Resource.QUEUE,
        Access.MANAGE,
        statuses=(routes.CREATED, routes.OK),
    )
    def declare(
        self,
        topic: TopicName,
        group: Group,
        settings: Annotated[QueueSettings, queues.NEW_QUEUE, WholeBody],
    ) -> Annotated[QueueInfo, queues.QUEUE]:
        """Make the queue; 200 when it is there with the same settings."""
        raise DeclaredOnly

    @get("{topic}/queues/{group}", Resource.QUEUE, Access.OBSERVE)
    def describe(self, topic: TopicName, group: Group) -> Annotated[QueueInfo, queues.QUEUE]:
        """The queue and how it stands."""
        raise DeclaredOnly

    @patch("{topic}/queues/{group}", Resource.QUEUE, Access.MANAGE)
    def update(
        self,
        topic: TopicName,
        group: Group,
        changes: Annotated[Mapping[str, object], queues.QUEUE_CHANGES, WholeBody],
    ) -> Annotated[QueueInfo, queues.QUEUE]:
        """Change settings; missing ones stay."""
        raise DeclaredOnly

    @delete("{topic}/queues/{group}", Resource.QUEUE, Access.MANAGE, repeat=Repeat.UNTIL_GONE)
    def delete(self, topic: TopicName, group: Group) -> None:
        """Delete the queue, not the messages of the topic."""
        raise DeclaredOnly

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
        group: Group,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        """Lease messages; may wait for the first one (long poll)."""
        raise DeclaredOnly

    @get("{topic}/queues/{group}/peek", Resource.QUEUE, Access.CONSUME)
    def peek(
        self,
        topic: TopicName,
        group: Group,
        limit: Annotated[int, Meta(ge=1, le=PEEK_MAX)] = 10,
    ) -> Annotated[list[QueuedMessage], named("Queued", "Messages.", "messages", queues.QUEUED)]:
        """Messages that are not settled, without leasing them."""
        raise DeclaredOnly

    @post("{topic}/queues/{group}/ack", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES)
    def ack(
        self, topic: TopicName, group: Group, tokens: Tokens
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Messages are done with."""
        raise DeclaredOnly

    @post("{topic}/queues/{group}/nack", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES)
    def nack(
        self,
        topic: TopicName,
        group: Group,
        tokens: Tokens,
        delay_s: DelayS | None = None,
        cause: Cause = "",
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Messages are to be delivered again after `delay_s`, or the back-off of the queue; those
        whose last delivery that was become dead letters with this cause."""
        raise DeclaredOnly

    @post(
        "{topic}/queues/{group}/release", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES
    )
    def release(
        self, topic: TopicName, group: Group, tokens: Tokens
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Messages that no handler has had are to be delivered again at once; this delivery does
        not count."""
        raise DeclaredOnly

    @post(
        "{topic}/queues/{group}/extend", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES
    )
    def extend(
        self, topic: TopicName, group: Group, tokens: Tokens, lease_s: LeaseS | None = None
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """The leases of messages begin anew, for `lease_s`, or as long as the queue says."""
        raise DeclaredOnly

    @post(
        "{topic}/queues/{group}/reject", Resource.QUEUE, Access.CONSUME, body_bytes_max=LARGE_BYTES
    )
    def reject(
        self, topic: TopicName, group: Group, tokens: Tokens, cause: Cause = ""
    ) -> Annotated[TokenResult, queues.TOKEN_RESULT]:
        """Messages go to the dead letters, with this cause."""
        raise DeclaredOnly

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
        group: Group,
        limit: Annotated[int, Meta(ge=1, le=queues.REDRIVE_MAX)] = queues.REDRIVE_DEFAULT,
    ) -> Annotated[int, named("Redriven", "How many were moved.", "moved", int)]:
        """Move dead letters back to the topic, in one transaction."""
        raise DeclaredOnly
