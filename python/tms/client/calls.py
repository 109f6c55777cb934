"""The common base of the parts of a bus."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from threading import Event
from typing import NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from tms.api.access import AccessApi
from tms.api.operations import TransactionsApi
from tms.api.queue_operations import QueuesApi
from tms.block import Compression
from tms.client.batching import KnownTopic
from tms.client.cursor import Page, asks, page, page_of
from tms.client.delivery import Delivery, Numbering
from tms.client.member import Member
from tms.client.topic_cache import TopicCache, as_compression, as_durability
from tms.client.transport import LocalTransport, RemoteTransport
from tms.model.position import Position
from tms.model.quantity import Duration, timeout
from tms.model.topic import TopicName
from tms.runtime.clock import Clock
from tms.runtime.retrying import Outage


class Closing(Protocol):
    """An object that a bus closes."""

    def close(self) -> None: ...


T = TypeVar("T")
Opened = TypeVar("Opened", bound=Closing)


class Administration(NamedTuple):
    """Ports for those who run a service: tokens, grants and quotas; all queues; all
    transactions."""

    access: AccessApi
    queues: QueuesApi
    transactions: TransactionsApi


class BusCalls:
    """Calls over one transport. Thread-safe."""

    def __init__(
        self,
        transport: LocalTransport | RemoteTransport,
        publishing: TopicCache,
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
    def admin(self) -> Administration:
        """Administration of the whole service: access control, queues and transactions."""
        transport = self._transport
        return Administration(transport.access, transport.queues, transport.transactions)

    def _opened(self, opened: Opened) -> Opened:
        """An object that is closed with the bus."""
        self._open.add(opened)
        return opened

    def _delivery(
        self,
        name: TopicName,
        numbering: Numbering,
        durability: str | None,
        timeout_s: Duration | None,
        compression: str = Compression.NONE,
    ) -> Delivery:
        """The delivery of blocks under this numbering to a topic. Raises `Invalid`."""
        limit_s = timeout(timeout_s, self._timeout_s)
        packing = compression if type(compression) is Compression else as_compression(compression)
        return Delivery(name, numbering, as_durability(durability), packing, limit_s)

    def _outage(self, name: str) -> Outage:
        """The outages that an object with this name in the log survives."""
        local = not hasattr(self._transport, "open_channel")
        return Outage(name, self._outage_s, Event(), local)

    def _refresh_topic(self, topic: str) -> KnownTopic:
        """Look up a topic's partitions and limits, and remember them. Raises `TopicNotFound`."""
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


def pages(
    page_of: Callable[[str, str | None, int], list[T]],
    namespace: str,
    limit: int,
    place: Callable[[T], str],
) -> Iterator[T]:
    """All entries of a namespace, read in pages of up to `limit` during the iteration. A page
    begins behind the `place` of the last entry of the page before."""
    found = page_of(namespace, None, limit)
    yield from found
    while len(found) == limit:
        found = page_of(namespace, place(found[-1]), limit)
        yield from found
