"""The topics of a store, and the records that are read once for all partitions of one: retention,
and the image of all transactions.

Invariants

* The image is read before the partitions: of a transaction that is committed in it everything is
  found, in every partition.
* A view of a topic is of one generation of it; of the next one it shows nothing.
"""

from collections.abc import Iterator

from tms.engine.observer.partition import KnownPartition, ObservedPartition
from tms.engine.observer.rows import PartitionRows
from tms.errors import PartitionNotFound, TopicNotFound
from tms.log.records import BlockKey, decode
from tms.log.staging import StagedBlocks
from tms.model import keys
from tms.model.topic import TopicName
from tms.model.transaction_image import Fates, TransactionImage, decode_image
from tms.runtime.clock import Clock
from tms.store.base import Store, pages
from tms.topics.registry import TopicRecord
from tms.topics.retention import RetentionClock, floor_by_time

FOREIGN_LIFETIME_MS = 25 * 3_600_000
PAGE_BYTES = 4 << 20
_NO_TRANSACTIONS = TransactionImage(0, 0, 0)


class StoreObserver:
    """The topics of a store. It belongs to the caller, who closes the store. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.metadata = store.open(keys.METADATA_MAP, create=False)
        self._known: dict[tuple[int, int], KnownPartition] = {}  # by topic uid and partition
        self._clock = clock

    def names(self, namespace: str) -> Iterator[TopicName]:
        """The topics of a namespace."""
        prefix = keys.topic_key(namespace, "")
        for page in pages(self.metadata, prefix, keys.prefix_stop(prefix), PAGE_BYTES):
            for key, _ in page:
                yield TopicName(namespace, key[len(prefix) :].decode("ascii"))

    def topic(self, name: str) -> "ObservedTopic":
        """A topic as it stands now. Raises `TopicNotFound`, `DataCorrupt`."""
        parsed = TopicName.parse(name)
        record = self.record(parsed)
        image = self.metadata.get(keys.TRANSACTIONS_IMAGE)
        decoded = _NO_TRANSACTIONS if image is None else decode_image(image)
        return ObservedTopic(self, parsed, record, Fates(decoded, FOREIGN_LIFETIME_MS))

    def known(self, uid: int, partition: int) -> KnownPartition:
        """The knowledge of earlier reads of a partition."""
        return self._known.setdefault((uid, partition), KnownPartition())

    def record(self, name: TopicName) -> TopicRecord:
        """The record of a topic now. Raises `TopicNotFound`."""
        key = keys.topic_key(*name)
        raw = self.metadata.get(key)
        if raw is None:
            raise TopicNotFound(f"There is no topic {name} in this store.", topic=str(name))
        record = decode(raw, TopicRecord, key)
        if not record.retention_is_default:
            return record
        default = self.metadata.get(keys.RETENTION_DEFAULT)
        return record.resolved(None if default is None else int(default))

    def floor(self, record: TopicRecord) -> BlockKey:
        """The smallest key of a topic that is not expired now: neither by this clock nor by that of
        the service, after which HBase cleans."""
        raw = self.metadata.get(keys.RETENTION_CLOCK)
        judged_ms = None if raw is None else int(raw)
        now_ms = RetentionClock(self._clock, judged_ms).now_ms()
        return floor_by_time(max(now_ms, judged_ms or 0), record.retention_ms)


class ObservedTopic:
    """One generation of a topic, with the transactions as their image showed them."""

    def __init__(
        self, view: StoreObserver, name: TopicName, record: TopicRecord, fates: Fates
    ) -> None:
        self.name = name
        self.record = record
        self.fates = fates
        self.floor = view.floor(record)  # the smallest key that was not expired
        self._view = view

    def floor_now(self) -> BlockKey:
        """The smallest key that is not expired now. Raises `TopicNotFound` when this generation of
        the topic has ended."""
        record = self._view.record(self.name)
        if record.uid != self.record.uid:
            raise TopicNotFound(
                f"The topic {self.name} was deleted and created anew while it was read. Start the "
                "query again.",
                topic=str(self.name),
            )
        return self._view.floor(record)

    def partition(self, number: int) -> ObservedPartition:
        """One partition as it stands now. Raises `PartitionNotFound`, `TopicNotFound`."""
        if not 0 <= number < self.record.partitions:
            raise PartitionNotFound(
                f"The topic {self.name} has partitions 0 to {self.record.partitions - 1}, not "
                f"{number}.",
                partition=number,
                partitions=self.record.partitions,
            )
        view = self._view
        uid = self.record.uid
        rows = PartitionRows(view.store, view.metadata, uid, number, self.floor_now)
        staged, known = StagedBlocks(view.store, uid, number), view.known(uid, number)
        foreign = self.record.has_foreign
        return ObservedPartition(rows, staged, foreign, self.fates, self.floor, known)
