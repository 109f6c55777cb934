"""When which partition is compacted, and what is erased on request.

One thread wakes at an interval and makes a pass over each partition of a compacted topic that is
dirty enough; everything that it does can also be called directly, which is what tests do.

Invariants

* It works for a share of the time only, so publishers keep the rest.
* A topic to which transactions of others have written is not compacted: nobody here knows which of
  their messages count.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tms.compaction.cleaning import Pass, PassBounds
from tms.compaction.erasing import EraseTarget, Erasing
from tms.compaction.merging import merge_small
from tms.compaction.progress import Progress
from tms.compaction.rewriting import Removed
from tms.compaction.throttle import Throttle
from tms.errors import Closed, DataCorrupt, Invalid, TMSError, TopicNotFound
from tms.events import EventLog
from tms.log.partition_log import PartitionLog
from tms.log.records import FIRST_KEY, CompactionRecord, PartitionRecord, decode
from tms.log.visibility import FateOf
from tms.model import keys
from tms.model.ids import MessageId
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.topic import TopicName
from tms.options import named_fields
from tms.store.base import pages
from tms.topics.registry import TopicRecord
from tms.topics.topics import Topics
from tms.topics.upkeep import TRANSACTION_MS_MAX

SCAN_BYTES = 4 << 20
_log = EventLog(__name__)

# Erases the messages of a key that wait and are in no log yet, of a partition or all; how many.
EraseWaiting = Callable[[TopicName, bytes, int | None], int]


@named_fields
@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """Bounds of compaction. `share` of the time is spent on it; a partition is due once
    `dirty_ratio` of its sealed bytes were never compacted; a pass knows `keys_max` keys, about 150
    bytes each."""

    interval_s: float = 30.0
    share: float = 0.1
    dirty_ratio: float = 0.5
    keys_max: int = 500_000


class Compaction:
    """Compacts and erases. `start` runs it in a thread, `run` makes one round."""

    def __init__(
        self, topics: Topics, limits: CompactionLimits, erase_waiting: EraseWaiting
    ) -> None:
        self._passes = self._removed = self._reclaimed_bytes = self._erased = 0
        self._metadata = topics.metadata
        self._clock = topics.clock
        self._registry = topics.registry
        self._partitions = topics.partitions
        self._fate_of: FateOf = lambda pointer, issued: topics.fate(pointer, issued)
        self._now_ms = topics.retention.now_ms  # which never runs ahead
        self._limits = limits
        self._erase_waiting = erase_waiting
        self._working: Counter[tuple[int, int]] = Counter()  # by topic uid and partition
        self._lock = threading.Lock()  # guards it; nobody begins to work while it is held
        self._stop = threading.Event()
        self._throttle = Throttle(topics.clock, limits.share, self._stop)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin working in the background."""
        self._thread = threading.Thread(target=self._run, name="tms-compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for the piece of work that it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def run(self, pause: Callable[[], None] = lambda: None) -> None:
        """One round over every partition of a compacted topic, with `pause` between pieces of the
        work; also finishes what was interrupted in others."""
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
        """Take the messages of a key, also those that wait, or the one with an id, out of a topic
        for good; how many there were. Raises `Invalid`, `TopicNotFound`, `PartitionNotFound`."""
        name.require_writable()
        topic = self._registry.find(name)
        if (key is None) is (id is None):
            raise Invalid("Erasing takes a key or an id, one of them.", field="key")
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
        self,
        name: TopicName,
        partition: int,
        key: bytes | None,
        id: MessageId | None,
        first: bool,
    ) -> int:
        """The same in a partition of this process. The `first` one gives back the space of the
        topic's delayed messages, too, through which some may have come: those that waited are
        cancelled by then, and what was being moved meanwhile is in the log."""
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
        """What happened since the engine was opened: passes, messages that compaction removed and
        that were erased, bytes that were given back."""
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
        """While a compaction or an erasure works on a partition, no other changes its segments."""
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
        """Merge what erasing has sealed, unless others are at work: then they do, or the next one.
        What was erased is erased whether this fails or not."""
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
        """The partitions in which space is still to be given back."""
        names: set[bytes] = set()
        start, stop = keys.COMPACTION_PREFIX, keys.prefix_stop(keys.COMPACTION_PREFIX)
        for page in pages(self._metadata, start, stop, SCAN_BYTES):
            names.update(key for key, raw in page if _says_reclaim(key, raw))
        return names

    def _has_sealed(self, topic: TopicRecord, partition: int) -> bool:
        """Whether there is anything to compact, without opening the partition."""
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
        return True  # whoever opens the partition says so
