"""What the parts of a bus have in common."""

from collections import deque
from collections.abc import Mapping
from threading import Event
from typing import Protocol
from weakref import WeakSet

from tms.api.access import AccessApi
from tms.api.operations import TransactionsApi
from tms.api.queue_operations import QueuesApi
from tms.block import Compression
from tms.client.batching import KnownTopic
from tms.client.cursor import Page, asks, page, page_of
from tms.client.delivery import Delivery, Numbering
from tms.client.known import PublishMemory, as_durability
from tms.client.member import Member
from tms.client.transport import LocalTransport, RemoteTransport
from tms.clock import Clock
from tms.model.position import Position
from tms.model.quantity import Duration, timeout
from tms.model.topic import TopicName
from tms.retrying import Outage


class Closing(Protocol):
    """What a bus closes."""

    def close(self) -> None: ...


class BusCalls:
    """Calls over one transport. Thread-safe."""

    def __init__(
        self,
        transport: LocalTransport | RemoteTransport,
        publishing: PublishMemory,
        clock: Clock,
        timeout_s: float,
        outage_s: float | None,
    ) -> None:
        self._transport = transport
        self._publishing = publishing
        self._clock = clock
        self._timeout_s = timeout_s
        self._outage_s = outage_s
        self._closed = False
        self._open: WeakSet[Closing] = WeakSet()  # producers, consumers and views to close
        self._leavers: deque[Member] = deque()  # of groups, whose consumers were dropped

    @property
    def publishing(self) -> PublishMemory:
        """The remembered topics, for the asyncio bus."""
        return self._publishing

    @property
    def transactions(self) -> TransactionsApi:
        """All transactions, for those who look after them; to make one: `Bus.transaction`."""
        return self._transport.transactions

    @property
    def access(self) -> AccessApi:
        """Tokens, grants, and who asks."""
        return self._transport.access

    @property
    def queue_port(self) -> QueuesApi:
        """All queues, for those who look after them; to work on one: `Bus.queue`."""
        return self._transport.queues

    def delivery(
        self,
        name: TopicName,
        numbering: Numbering,
        durability: str | None,
        timeout_s: Duration | None,
        compression: Compression = Compression.NONE,
    ) -> Delivery:
        """How blocks under this numbering are appended to a topic. Raises `Invalid`."""
        limit_s = timeout(timeout_s, self._timeout_s)
        return Delivery(name, numbering, as_durability(durability), compression, limit_s)

    def outage(self, name: str) -> Outage:
        """How something that reads or works on and on survives outages; its name for the log."""
        local = not hasattr(self._transport, "open_channel")
        return Outage(name, self._outage_s, Event(), local)

    def refresh_topic(self, topic: str) -> KnownTopic:
        """Ask for a topic's partitions and limits, and remember them. Raises `TopicNotFound`."""
        self._publishing.forget(topic)
        info = self._transport.describe_topic(TopicName.parse(topic))
        return self._publishing.learn(topic, info)

    def _fetch(
        self, name: TopicName, positions: Mapping[int, Position], bytes_max: int, wait_s: float
    ) -> Page:
        turns = asks(positions)
        if len(turns) == 1:
            fetched = self._transport.fetch(name, turns[0], max(1, bytes_max), wait_s)
            return page_of(str(name), positions, fetched)
        each = max(1, bytes_max // max(1, len(turns)))
        answers = (self._transport.fetch(name, turn, each, wait_s / len(turns)) for turn in turns)
        return page(str(name), positions, answers)
