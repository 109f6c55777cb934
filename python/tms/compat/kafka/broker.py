"""The state of a front end for Kafka's clients, who see the topics of one namespace."""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import NamedTuple, ParamSpec, TypeVar

from tms.compat.kafka.brokers import Brokers
from tms.compat.kafka.coordinated import CoordinatedIds
from tms.compat.kafka.groups import Coordinator
from tms.compat.kafka.records import encode
from tms.compat.kafka.records_cache import EncodedBatches, identity
from tms.errors import TMSError, TopicNotFound
from tms.groups.classic_calls import ClassicKey
from tms.model import keys
from tms.model.message import Buffer, StoredBlock
from tms.model.topic import TopicName, TopicSettings
from tms.model.transaction import check_group
from tms.server.framed import FramedConnection
from tms.server.http.exchange import settle
from tms.server.service import Service
from tms.topics.registry import TopicRecord

NAMES_MAX = 100_000  # of topics, by their ids; others are looked up
LIST_S = 1.0  # for so long no other list of all topics is read to find one by its id
CACHE_BYTES = 32 << 20  # of encoded batches
_TOPIC_ID = Struct(">8sII")  # of the store, uid, generation
_P = ParamSpec("_P")
_T = TypeVar("_T")


class BrokerOptions(NamedTuple):
    """The settings of the broker: HOST:PORT that clients are told, the namespace of its topics,
    whether a client may create a topic by asking for it, and how many partitions it gets then."""

    endpoint: str
    namespace: str
    creates_topics: bool
    partitions: int
    rebalance_delay_ms: int


class Broker:
    """The state that the requests of all connections share. Used by the event loop's thread."""

    def __init__(self, service: Service, options: BrokerOptions) -> None:
        self.service = service
        self.engine = service.engine
        self.options = options
        self.cluster_id = _cluster_id(service)
        self._store_id = uuid.UUID(self.cluster_id).bytes[:8]
        self._names: dict[bytes, TopicName] = {}  # by topic id
        self._listed: dict[int, TopicName] = {}  # by uid
        self._list_until_s = 0.0
        self._listing = asyncio.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self.draining = False
        self._batches = EncodedBatches(CACHE_BYTES)
        self.brokers = Brokers(service.engine, options.endpoint)
        self.producers = CoordinatedIds(service)
        self.groups = Coordinator(service)
        with suppress(TMSError):  # else it is read when it is needed
            service.engine.transactional_ids.load()

    # -- topics --------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicName:
        """The full name of a topic. Raises `Invalid`."""
        return TopicName.of(self.options.namespace, name)

    def topic_id(self, name: TopicName, uid: int, generation: int) -> bytes:
        """The id of a topic, which no other topic of any store has."""
        id = _TOPIC_ID.pack(self._store_id, uid, generation)
        if len(self._names) >= NAMES_MAX:  # some may be of topics that are gone
            self._names.clear()
        self._names[id] = name
        return id

    def id_of(self, name: TopicName) -> bytes:
        """The id of a topic. Raises `TopicNotFound`."""
        record = self.record(name)
        return self.topic_id(name, record.uid, record.generation)

    def record(self, name: TopicName) -> TopicRecord:
        """A topic's record, from memory if it is known. Raises `TopicNotFound`."""
        registry = self.engine.topics.registry
        return registry.known.get(name) or registry.find(name)

    async def with_id(self, id: bytes) -> TopicName:
        """The topic with this id. Raises `TopicNotFound`."""
        found = self._names.get(id)
        store, uid, generation = _TOPIC_ID.unpack(id)
        registry = self.engine.topics.registry
        if found is None and store == self._store_id:
            found = await self._named(uid)
        if found is not None:
            record = registry.known.get(found)
            if record is None:
                record = await self.in_thread(registry.find, found)
            is_here = found.namespace == self.options.namespace
            if is_here and (record.uid, record.generation) == (uid, generation):
                self._names[id] = found
                return found
        self._names.pop(id, None)
        raise TopicNotFound(f"There is no topic with the id {uuid.UUID(bytes=id)}.")

    async def _named(self, uid: int) -> TopicName | None:
        """The topic with this uid, if it was there at most `LIST_S` ago. Clients have its id from
        this broker, which then knows it without a list, or from another one, which they ask again.
        """
        topics = self.engine.topics
        async with self._listing:
            if topics.clock.monotonic_s() >= self._list_until_s:
                stored = await self.in_thread(topics.registry.all)
                self._listed = {record.uid: name for name, record in stored}
                self._list_until_s = topics.clock.monotonic_s() + LIST_S
        return self._listed.get(uid)

    @property
    def defaults(self) -> TopicSettings:
        """The settings that a topic has if no one chooses."""
        default_ms = self.engine.topics.registry.default_retention_ms
        return TopicSettings(retention_ms=default_ms, retention_is_default=True)

    def group(self, name: str) -> ClassicKey:
        """The key of a group. Raises `Invalid`, `Forbidden`."""
        return ClassicKey(self.options.namespace, check_group(name))

    def batch(self, name: TopicName, stored: StoredBlock) -> Buffer:
        """A stored block as a batch of records. Raises `DataCorrupt`."""
        key = identity(self.record(name).uid, stored, -1)
        batch = self._batches.find(key)
        if batch is None:
            batch = encode(stored)
            self._batches.add(key, batch)
        return batch

    async def doubt(self) -> TMSError | None:
        """The reason why an answer from what this process holds may be stale; None if it held that
        at a moment during this call."""
        ownership = self.service.ownership
        if ownership is None:
            return None
        try:
            await ownership.confirm()
        except TMSError as error:
            return error
        return None

    # -- waiting -------------------------------------------------------------------------------

    async def sleep(
        self, connection: FramedConnection, woken: asyncio.Future[None], timeout_s: float
    ) -> None:
        """Wait until `woken` is done, for that long, and no longer than the client and the service
        are there."""
        if self.draining or timeout_s <= 0:
            return
        connection.when_left(partial(settle, woken))
        self._waiting.add(woken)
        try:
            await asyncio.wait([woken], timeout=timeout_s)
        finally:
            self._waiting.discard(woken)

    def drain(self) -> None:
        """End all waits: the service stops."""
        self.draining = True
        self.groups.drain()
        for woken in list(self._waiting):
            settle(woken)

    async def in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do what may wait for the store outside of the event loop."""
        return await self.service.in_thread(work, *args, **kwargs)


def _cluster_id(service: Service) -> str:
    """The id of the store, which its first broker drew."""
    metadata = service.engine.topics.registry.metadata
    raw = metadata.get(keys.KAFKA_CLUSTER_ID)
    if raw is None:
        drawn = str(uuid.uuid4()).encode()
        metadata.compare_and_set(keys.KAFKA_CLUSTER_ID, None, drawn)
        raw = metadata.get(keys.KAFKA_CLUSTER_ID) or drawn
    return raw.decode()
