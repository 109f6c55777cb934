"""The rows of a partition, and the record that says which of them count; read only.

Invariants

* Rows that retention has dropped are told from missing ones: segments go with their topic, or below
  the floor.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tms.errors import Closed, DataCorrupt, NotFound
from tms.log.records import BlockKey, PartitionRecord, decode, key_after
from tms.log.search import BlockPlace, place_of
from tms.model import keys
from tms.model.message import StoredBlock
from tms.store.base import Map, Store

_NOTHING = PartitionRecord(epoch=0, segments=())


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The maps of one partition. `floor_now` is the smallest key of its topic that is not expired
    now, and raises `TopicNotFound` when this generation of the topic has ended."""

    store: Store
    metadata: Map
    uid: int
    partition: int
    floor_now: Callable[[], BlockKey]

    def record(self) -> PartitionRecord:
        """The record as it is now. Raises `TopicNotFound` when it went with its topic."""
        key = keys.partition_key(self.uid, self.partition)
        raw = self.metadata.get(key)
        if raw is None:
            self.floor_now()
            return _NOTHING
        return decode(raw, PartitionRecord, key)

    def floor(self) -> BlockKey:
        """The smallest key that retention holds now; rows that were there before, and were not read
        yet, may be gone below it. Raises `TopicNotFound`."""
        record = self.record()
        return max(self.floor_now(), record.floor)

    def segment(self, number: int) -> Map:
        """The map of a segment. Raises `NotFound`."""
        return self.store.open(keys.segment_map(self.uid, self.partition, number), create=False)

    def scan(
        self, number: int, start: BlockKey, stop: BlockKey, bytes_max: int
    ) -> list[StoredBlock]:
        """Blocks of a segment whose last message is in [start, stop); none of one that was dropped
        since its record was read, because the floor is above it."""
        try:
            found = self.segment(number).scan(
                keys.block_key(*start), keys.block_key(*stop), bytes_max
            )
        except (NotFound, Closed) as exc:
            self._require_dropped(number, exc)
            return []
        return [self._stored(*row) for row in found]

    def first(self, number: int, low: BlockKey, high: BlockKey) -> BlockPlace | None:
        """The first block of a segment whose last message has a key from `low` to `high`."""
        found = self.scan(number, low, key_after(high), 1) if low <= high else []
        return place_of(found[0]) if found else None

    def before(self, number: int, key: BlockKey | None) -> BlockPlace | None:
        """The last block of a segment before a key, or at all; whether it counts or not."""
        stop = None if key is None else keys.block_key(*key)
        try:
            found = self.segment(number).scan(None, stop, 1, reverse=True)
        except (NotFound, Closed) as exc:
            self._require_dropped(number, exc)
            return None
        return place_of(self._stored(*found[0])) if found else None

    def _require_dropped(self, number: int, exc: Exception) -> None:
        if any(segment.number == number for segment in self.record().segments):
            name = keys.segment_map(self.uid, self.partition, number)
            raise DataCorrupt(
                f"Segment {number} of partition {self.partition} is recorded, but its map {name} "
                "is missing. Run `tms fsck`."
            ) from exc

    def _stored(self, key: bytes, value: bytes) -> StoredBlock:
        return StoredBlock(self.partition, *keys.split_block_key(key), value)
