"""The background work of an engine: expired segments are dropped, aged segments rolled, failed maps
recovered.

One thread wakes at an interval; each task can also be called directly, as tests do with a clock of
their own. Nothing here decides what may be read: expired messages are unreadable at once, with or
without a pass.
"""

from collections.abc import Callable, Mapping

from tms.errors import Closed, TMSError, TopicNotFound
from tms.log.records import PartitionRecord, decode
from tms.model import keys
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import Durability, TopicName
from tms.runtime.background import BackgroundThread
from tms.runtime.events import EventLog
from tms.store.base import pages
from tms.topics.registry import TopicRecord
from tms.topics.retention import floor_by_time
from tms.topics.topics import Topics

CLOSE_TIMEOUT_S = 30.0
TRANSACTION_MS_MAX = 26 * 3_600_000  # from a transaction's begin to its last reference
_RECOVERY_S = 0.5
SCAN_BYTES = 4 << 20
_log = EventLog(__name__)


class Maintenance(BackgroundThread):
    """Cleans and recovers. `start` runs it in a thread, `clean` and `recover` do one pass."""

    def __init__(
        self,
        topics: Topics,
        interval_s: float,
        expire: Callable[[], object],
        forget: Callable[[int], None],
    ) -> None:
        super().__init__("tms-maintenance")
        self._metadata = topics.metadata
        self._clock = topics.clock
        self._registry = topics.registry
        self._partitions = topics.partitions
        self._retention = topics.retention
        self._interval_s = interval_s
        self._expire = expire
        self._forget = forget  # drops the state of a topic, by uid, in other rooms

    def clean(self) -> None:
        """One pass over every topic: roll old segments, drop expired and deleted ones."""
        self._registry.refresh_default()
        now_ms = self._retention.now_ms()
        self._metadata.write([(keys.RETENTION_CLOCK, b"%d" % now_ms)], Durability.WRITTEN)
        held_back_ms = self._retention.held_back_ms()
        if held_back_ms:
            _log.warning(
                "retention_clock_held_back", ms=held_back_ms, next_step="confirm the clock"
            )
        for uid in self._registry.deleted():
            self.finish_deletion(uid)
        opened = {log.uid for log in self._partitions.opened()}
        topics = self._registry.refresh()
        for uid in opened - {record.uid for _, record in topics}:
            self._close_deleted(uid)
        staged = set(self._partitions.staged_places())
        stored = self._partition_records()
        for name, record in topics:
            for partition in range(record.partitions):
                try:
                    self._clean_partition(name, record, partition, now_ms, stored)
                    if (record.uid, partition) in staged and self._partitions.owns(
                        name, record, partition
                    ):
                        self._clean_staged(name, record, partition, now_ms)
                except (TopicNotFound, Closed):
                    pass  # deleted meanwhile
                except TMSError as error:
                    _log.warning(
                        "cleaning_failed", topic=str(name), partition=partition, error=error.message
                    )

    def _close_deleted(self, uid: int) -> None:
        """Close the partitions of a deleted topic; another process may have deleted it."""
        self._forget(uid)
        self._partitions.close_topic(uid, CLOSE_TIMEOUT_S)

    def finish_deletion(self, uid: int) -> None:
        """Close the partitions of a deleted topic and drop its maps; the next pass repeats a step
        that fails."""
        self._close_deleted(uid)
        try:
            self._registry.drop_maps(uid)
        except TMSError as error:
            _log.warning("deleting_unfinished", topic_uid=uid, error=error.message)

    def recover(self) -> None:
        """One attempt to make every map writable again whose last write failed."""
        try:
            self._metadata.recover()
        except TMSError:
            return  # the store decides when it can; `readiness` has the reason
        for log in self._partitions.opened():
            if log.state.failed:
                try:
                    log.recover()
                    _log.info("partition_recovered", uid=log.uid, partition=log.partition)
                except TMSError as error:
                    if error.retriable:
                        return

    def _partition_records(self) -> dict[bytes, bytes]:
        """All records of partitions by key, in few reads: there may be very many."""
        records: dict[bytes, bytes] = {}
        start, stop = keys.PARTITION_PREFIX, keys.prefix_stop(keys.PARTITION_PREFIX)
        for page in pages(self._metadata, start, stop, SCAN_BYTES):
            records.update(page)
        return records

    def _clean_partition(
        self,
        name: TopicName,
        topic: TopicRecord,
        partition: int,
        now_ms: int,
        stored: Mapping[bytes, bytes],
    ) -> None:
        if not self._partitions.owns(name, topic, partition):
            return
        floor = floor_by_time(now_ms, topic.retention_ms)
        if self._partitions.logs.get((topic.uid, partition)) is None and not _worth_opening(
            topic, partition, floor[0], stored
        ):
            return
        log = self._partitions.get(name, topic, partition)
        dropped = log.clean(self._clock.now_ms(), floor[0], topic.retention_bytes)
        if dropped:
            _log.info(
                "segments_dropped", topic_uid=topic.uid, partition=partition, segments=dropped
            )

    def _clean_staged(
        self, name: TopicName, topic: TopicRecord, partition: int, now_ms: int
    ) -> None:
        """Drop the blocks of transactions so old that no reference to their blocks is readable."""
        if topic.retention_ms is None:
            return
        oldest_ms = max(0, now_ms - topic.retention_ms - TRANSACTION_MS_MAX)
        bound = keys.payload_map(topic.uid, partition, oldest_ms * POINTERS_PER_MS)
        self._partitions.get(name, topic, partition).staged.drop_before(bound)

    def _run(self) -> None:
        waited_s = 0.0
        while not self._stop.wait(_RECOVERY_S):
            waited_s += _RECOVERY_S
            try:
                self.recover()
                self._expire()
                if waited_s >= self._interval_s:
                    waited_s = 0.0
                    self.clean()
            except TMSError as error:
                _log.warning("maintenance_failed", error=error.message)
            except Exception:
                _log.exception("maintenance_failed")


def _worth_opening(
    topic: TopicRecord, partition: int, floor_ms: int, stored: Mapping[bytes, bytes]
) -> bool:
    key = keys.partition_key(topic.uid, partition)
    raw = stored.get(key)
    if raw is None:
        return False
    segments = decode(raw, PartitionRecord, key).segments
    if topic.retention_bytes is not None and len(segments) > 1:
        return True
    return bool(segments) and segments[0].created_ms < floor_ms
