"""Which topics there are, and what is read once for all partitions of one: retention, and the image
of all transactions.

Invariants

* The image is read before the partitions: of a transaction that is committed in it everything is
  found, in every partition.
* A view is of one life of a topic; of the next one it shows nothing.
"""

import re
from collections.abc import Iterator

from tms.clock import Clock
from tms.errors import DataCorrupt, PartitionNotFound, TopicNotFound
from tms.log.records import BlockKey, decode
from tms.model import keys
from tms.model.topic import TopicName
from tms.model.transaction_image import Fates, TransactionImage, decode_image
from tms.store.base import Store
from tms.topic.registry import TopicRecord
from tms.topic.retention import RetentionClock, floor_by_time
from tms.view.partition import PartitionView

FOREIGN_LIFETIME_MS = 25 * 3_600_000  # unless the service says otherwise
_PAGE_BYTES = 4 << 20
_NO_TRANSACTIONS = TransactionImage(0, 0, 0)


class View:
    """The topics of a store. It belongs to the caller, who closes the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._metadata = store.open(keys.METADATA_MAP, create=False)

    def topics(self, pattern: str) -> list[str]:
        """Topics whose `name`, or `namespace:name`, a regular expression matches as a whole."""
        wanted = re.compile(pattern)
        return [
            str(name)
            for name in self._names()
            if wanted.fullmatch(name.topic) or wanted.fullmatch(f"{name.namespace}:{name.topic}")
        ]

    def topic(self, name: str) -> "TopicView":
        """A topic as it stands now. Raises `TopicNotFound`, `DataCorrupt`."""
        parsed = TopicName.parse(name)
        key = keys.topic_key(*parsed)
        raw = self._metadata.get(key)
        if raw is None:
            raise TopicNotFound(f"There is no topic {name} in this store.", topic=name)
        image = self._metadata.get(keys.TRANSACTIONS_IMAGE)
        judged = self._metadata.get(keys.RETENTION_CLOCK)
        return TopicView(
            self._store,
            parsed,
            decode(raw, TopicRecord, key),
            Fates(_NO_TRANSACTIONS if image is None else decode_image(image), FOREIGN_LIFETIME_MS),
            RetentionClock(self._clock, None if judged is None else int(judged)),
        )

    def _names(self) -> Iterator[TopicName]:
        start, stop = b"topic/", keys.prefix_stop(b"topic/")
        while rows := self._metadata.scan(start, stop, _PAGE_BYTES):
            for key, _ in rows:
                parts = key.decode("ascii", "replace").split("/")
                if len(parts) != 3:
                    raise DataCorrupt(f"{key!r} is no key of a topic. Run `tms fsck`.")
                yield TopicName(parts[1], parts[2])
            start = rows[-1][0] + b"\0"


class TopicView:
    """One life of a topic, with the transactions as their image shows them."""

    def __init__(
        self,
        store: Store,
        name: TopicName,
        record: TopicRecord,
        fates: Fates,
        retention: RetentionClock,
    ) -> None:
        self.name = name
        self.record = record
        self._fates = fates
        self._store = store
        self._metadata = store.open(keys.METADATA_MAP, create=False)
        self._retention = retention

    @property
    def floor(self) -> BlockKey:
        """The smallest key that is not expired now."""
        return floor_by_time(self._retention.now_ms(), self.record.retention_ms)

    def partition(self, number: int) -> PartitionView:
        """One partition as it stands now. Raises `PartitionNotFound`, `StorageUnavailable`."""
        if not 0 <= number < self.record.partitions:
            raise PartitionNotFound(
                f"The topic {self.name} has partitions 0 to {self.record.partitions - 1}, not "
                f"{number}.",
                partition=number,
                partitions=self.record.partitions,
            )
        return PartitionView(
            self._store,
            self._metadata,
            self.record,
            number,
            self._fates,
            self.floor,
        )

    def partitions(self) -> Iterator[PartitionView]:
        """All of them, in order."""
        return map(self.partition, range(self.record.partitions))
