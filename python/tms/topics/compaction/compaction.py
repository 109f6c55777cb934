"""The schedule of compaction, and erasing on request.

One thread wakes at an interval and makes a pass over each partition of a compacted topic that is
dirty enough; each task can also be called directly, as tests do.

Invariants

* The thread works for a share of the time only, so that publishers keep the rest.
* A topic to which foreign transactions have written is not compacted: the outcomes of their
  messages are unknown here.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tms.errors import Closed, DataCorrupt, Invalid, TMSError, TopicNotFound
from tms.log.partition_log import PartitionLog
from tms.log.records import FIRST_KEY, CompactionRecord, PartitionRecord, decode
from tms.log.visibility import FateOf
from tms.model import keys
from tms.model.ids import MessageId
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import TopicName
from tms.runtime.background import BackgroundThread
from tms.runtime.events import EventLog
from tms.runtime.options import named_fields
from tms.runtime.throttle import Throttle
from tms.store.base import pages
from tms.topics.compaction.cleaning import Pass, PassBounds
from tms.topics.compaction.erasing import EraseTarget, Erasing
from tms.topics.compaction.merging import merge_small
from tms.topics.compaction.progress import Progress
from tms.topics.compaction.rewriting import Removed
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics
from tms.topics.upkeep import TRANSACTION_MS_MAX

SCAN_BYTES = 4 << 20
_log = EventLog(__name__)

# Erases the delayed messages of a key, of a partition or of all; returns their number.
EraseWaiting = Callable[[TopicName, bytes, int | None], int]


@named_fields
@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """Bounds of compaction. It takes `share` of the time; a partition is due once `dirty_ratio` of
    its sealed bytes were never compacted; a pass holds `keys_max` keys, about 150 bytes each."""

    interval_s: float = 30.0
    share: float = 0.1
    dirty_ratio: float = 0.5
    keys_max: int = 500_000


class Compaction(BackgroundThread):
    """Compacts and erases. `start` runs it in a thread, `run` makes one round."""

    def __init__(
        self, topics: Topics, limits: CompactionLimits, erase_waiting: EraseWaiting
    ) -> None:
        super().__init__("tms-compaction")
        self._passes = self._removed = self._reclaimed_bytes = self._erased = 0
        self._metadata = topics.metadata
        self._clock = topics.clock
        self._registry = topics.registry
        self._partitions = topics.partitions
        self._fate_of: FateOf = lambda pointer, issued: topics.fate(pointer, issued)
        self._now_ms = topics.retention.now_ms  # never ahead of real time
        self._limits = limits
        self._erase_waiting = erase_waiting
        self._working: Counter[tuple[int, int]] = Counter()  # by topic uid and partition
        self._lock = threading.Lock()  # guards `_working`; no work begins while it is held
        self._throttle = Throttle(topics.clock, limits.share, self._stop)

    def run(self, pause: Callable[[], None] = lambda: None) -> None:
        """One round over every partition of a compacted topic, with `pause` between pieces of the
        work; also finishes interrupted work in other partitions."""
        noted = self._noted()
        for name, topic in self._registry.all():
            compacts = topic.cleanup.compacts and not topic.has_foreign
            for partition in range(topic.partitions):
                key = keys.compaction_key(topic.uid, partition)
                if key not in noted and not (compacts and self._has_sealed(topic, partition)):
                    continue
                if not self._partitions.owns(name, topic, partition):
                    continue
                try:
                    self._partition(name, topic, partition, compacts, pause)
                except (TopicNotFound, Closed):
                    if self._stop.is_set():
                        return
                except TMSError as error:
                    _log.warning(
                        "compaction_failed",
                        topic=str(name),
                        partition=partition,
                        error=error.message,
                    )

    def erase(
        self, name: TopicName, key: bytes | None, id: MessageId | None, partition: int | None
    ) -> int:
        """Erase the messages of a key, delayed ones as well, or the message with an id, from a
        topic for good; returns their number. Raises `Invalid`, `TopicNotFound`,
        `PartitionNotFound`."""
        name.require_writable()
        topic = self._registry.find(name)
        if (key is None) is (id is None):
            raise Invalid("Give exactly one of `key` and `id`.", field="key")
        if partition is not None and partition < 0:
            raise Invalid(f"A partition is a number from 0 on, got {partition}.", field="partition")
        if id is not None and partition is None and topic.partitions > 1:
            raise Invalid(
                "An id is one within its partition: say which partition it is in.",
                field="partition",
            )
        erased, first = 0, True
        numbers = range(topic.partitions) if partition is None else (partition,)
        if key is not None:
            reclaim = [keys.delayed_map(topic.uid)]
            Progress(self._metadata, topic.uid, numbers[0]).begin(reclaim)
            erased = self._erase_waiting(name, key, partition)
            self._erased += erased
        owners = [self._partitions.peer_of(name, topic, number) for number in numbers]
        for number, peer in zip(numbers, owners, strict=True):
            erase = self.erase_own if peer is None else peer.erase_own
            erased += erase(name, number, key, id, first)
            first = False
        _log.info("erased", topic=str(name), messages=erased)
        return erased

    def erase_own(
        self, name: TopicName, partition: int, key: bytes | None, id: MessageId | None, first: bool
    ) -> int:
        """As `erase`, in a partition of this process. The `first` partition also reclaims the space
        of the topic's delayed messages: by then delayed messages of the key are cancelled, and
        those that the scheduler was moving are in the log."""
        topic = self._registry.find(name)
        log = self._partitions.get(name, topic, partition)
        also = [keys.delayed_map(topic.uid)] if first else []
        with self._working_on(log):
            wanted, now_ms = EraseTarget(key, id), self._clock.now_ms()
            erasing = Erasing(log, self._metadata, self._fate_of, wanted, now_ms, also)
            erased = erasing.run().messages
            self._merge(log)
        self._erased += erased
        return erased

    def counters(self) -> dict[str, int]:
        """Counts since the engine was opened: passes, messages that compaction removed, messages
        that were erased, bytes that were reclaimed."""
        return {
            "compaction_passes": self._passes,
            "compaction_removed": self._removed,
            "compaction_reclaimed_bytes": self._reclaimed_bytes,
            "erased": self._erased,
        }

    def _partition(
        self,
        name: TopicName,
        topic: TopicRecord,
        partition: int,
        compacts: bool,
        pause: Callable[[], None],
    ) -> None:
        self._partitions.confirm()
        log = self._partitions.get(name, topic, partition)
        with self._working_on(log):
            self._passes_over(log, name, topic, compacts, pause)

    def _passes_over(
        self,
        log: PartitionLog,
        name: TopicName,
        topic: TopicRecord,
        compacts: bool,
        pause: Callable[[], None],
    ) -> None:
        partition = log.partition
        while True:
            pass_ = self._pass(log, topic, pause)
            staged_ms = self._clock.now_ms() - TRANSACTION_MS_MAX
            pointer = max(0, staged_ms) * POINTERS_PER_MS
            pass_.reclaim_noted(keys.payload_map(topic.uid, partition, pointer))
            ratio = pass_.dirty_ratio()
            if not compacts or ratio == 0 or ratio < self._limits.dirty_ratio:
                return
            more = pass_.run()
            pass_.reclaim_noted(keys.payload_map(topic.uid, partition, pointer))
            self._count(name, partition, pass_.removed)
            if not more:
                return

    @contextmanager
    def _working_on(self, log: PartitionLog) -> Iterator[None]:
        """Exclude other compactions and erasures, which change the segments of the partition."""
        place = (log.uid, log.partition)
        with self._lock:
            self._working[place] += 1
        try:
            yield
        finally:
            with self._lock:
                self._working[place] -= 1
                if not self._working[place]:
                    del self._working[place]

    def _merge(self, log: PartitionLog) -> None:
        """Merge segments that erasing has sealed, unless another call works on the partition: then
        that one or a later one merges them. The erasure is complete even if this fails."""
        with self._lock:
            if self._working[log.uid, log.partition] > 1:
                return
            try:
                merge_small(log, self._metadata)
            except TMSError as error:
                _log.warning("merging_failed", partition=log.partition, error=error.message)

    def _pass(self, log: PartitionLog, topic: TopicRecord, pause: Callable[[], None]) -> Pass:
        return Pass(
            log,
            self._metadata,
            self._fate_of,
            PassBounds(self._now_ms(), topic.tombstone_retention_ms, self._limits.keys_max),
            pause,
        )

    def _count(self, name: TopicName, partition: int, removed: Removed) -> None:
        self._passes += 1
        self._removed += removed.messages
        self._reclaimed_bytes += removed.bytes
        _log.info(
            "compacted",
            topic=str(name),
            partition=partition,
            messages=removed.messages,
            bytes=removed.bytes,
        )

    def _noted(self) -> set[bytes]:
        """The partitions with space that is still to be reclaimed."""
        names: set[bytes] = set()
        start, stop = keys.COMPACTION_PREFIX, keys.prefix_stop(keys.COMPACTION_PREFIX)
        for page in pages(self._metadata, start, stop, SCAN_BYTES):
            names.update(key for key, raw in page if _says_reclaim(key, raw))
        return names

    def _has_sealed(self, topic: TopicRecord, partition: int) -> bool:
        """True if there may be sealed segments to compact; does not open the partition."""
        key = keys.partition_key(topic.uid, partition)
        raw = self._metadata.get(key)
        record = PartitionRecord(0, ()) if raw is None else decode(raw, PartitionRecord, key)
        return any((segment.last or FIRST_KEY) > FIRST_KEY for segment in record.segments)

    def _run(self) -> None:
        while not self._stop.wait(self._limits.interval_s):
            self._throttle.begin()
            try:
                self.run(self._throttle.pause)
            except TMSError as error:
                _log.warning("compaction_failed", error=error.message)
            except Exception:
                _log.exception("compaction_failed")


def _says_reclaim(key: bytes, raw: bytes) -> bool:
    try:
        return bool(decode(raw, CompactionRecord, key).reclaim)
    except DataCorrupt:
        return True  # opening the partition raises it
