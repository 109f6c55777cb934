"""The state of one partition that writer and reader share.

Two locks: `owner` is held by the thread that changes the partition (committing, rolling, dropping,
opening), also during store writes; `lock` guards the few published fields and is held for
microseconds only, so that a read at the tail never waits for the disk.

Invariants

* `end_offset` and `last` are published only after the store has everything before them. Once
  `known` they are right for reading, whatever fails.
* While `loaded` is false they are not trusted for writing, and neither is the record: the next
  owner of the lock reads both from the store first. Any failure during a change sets it to false.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import structs

from tms.block import BlockHeader, Flags, place
from tms.errors import StorageUnavailable, TMSError, again
from tms.log import recovery
from tms.log.cache import BlockCache, Tail
from tms.log.producers import ProducerWindow
from tms.log.records import FIRST_KEY, BlockKey, ForgottenRecord, ProducersRecord, encode, key_after
from tms.log.segments import SegmentChain
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import Durability
from tms.runtime.events import EventLog
from tms.runtime.options import named_fields
from tms.store.base import Map, MapRow

REST_BYTES = 1 << 20
ROLL_BACK_BYTES = 8 << 20  # read at once
LOOK_BYTES = 1 << 20  # how soon a changed retention is noticed
SNAPSHOT_BLOCKS = 16_384  # since the last snapshot: a small block takes as long to read
_Callbacks = dict[int, Callable[[], None]]
_log = EventLog(__name__)


@named_fields
@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of a partition log. Bytes and milliseconds."""

    segment_bytes: int = 256 << 20
    segment_ms: int = 24 * 3_600_000
    snapshot_bytes: int = 64 << 20
    queue_bytes: int = 32 << 20
    producers: int = 2_000


@dataclass(slots=True)
class PartitionCounters:
    """Counts of events since the partition was opened."""

    messages: int = 0
    blocks: int = 0
    bytes: int = 0
    writes: int = 0
    syncs: int = 0


class PartitionState:
    """One partition of one generation of a topic."""

    def __init__(
        self,
        chain: SegmentChain,
        metadata: Map,
        cache: BlockCache,
        limits: LogLimits,
        retention: Callable[[], tuple[int | None, int | None]],
        monotonic_s: Callable[[], float],
    ) -> None:
        self.chain = chain
        self.limits = limits
        self.owner = threading.Lock()
        self.lock = threading.Lock()
        self.rewriting = threading.Lock()  # held while blocks are thinned; taken before `owner`
        self.known = False
        self.loaded = False
        self.failed = False  # `loaded` went because of a failure; recovering may help
        self.end_offset = 0
        self.last: BlockKey = FIRST_KEY
        self.unsynced = False
        self.maintenance_due = False  # `maintain` should be called soon
        self.producers = ProducerWindow(limits.producers, monotonic_s)
        self.counters = PartitionCounters()
        self.tail = Tail(FIRST_KEY)
        self._metadata = metadata
        self._cache = cache
        self._retention = retention
        self._watchers: _Callbacks = {}
        self._held_back: _Callbacks = {}  # until a transaction is rolled back
        self._segment_bytes = 0
        self._since_snapshot = self._blocks_since_snapshot = 0
        self._until_look = 0
        self._watcher_ids = 0
        self.retired: TMSError | None = None  # the reason, once the partition is closed
        self._term: object = None  # of the last reader that decides by its reads what is appended
        self.roll_backs = 0
        self.rewrites = 0  # each may have removed messages that were readable before

    # -- the owner's ---------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the partition for a change. If the change fails, the next one first reads from the
        store what took effect. Raises the reason once the partition is retired."""
        with self.owner:
            if self.retired is not None:
                raise again(self.retired)
            try:
                yield
            except BaseException:
                self.invalidate()
                raise

    def load(self) -> None:
        """Read the end from the store if it is not known. The caller holds `owner`."""
        if self.loaded:
            return
        try:
            if self.failed:
                self.chain.recover()
            else:
                self.chain.refresh()
            if not self.chain.take_over():
                self._term = None
            end = recovery.find_end(self.chain, self._metadata, self.producers)
            if self.chain.shared and end.unsaved_bytes:  # sealed blocks may be compacted
                self._save(end.last, end.end_offset, end.saved_bytes + end.unsaved_bytes)
            self.chain.seal(end.end_offset, end.last, end.saved_bytes + end.unsaved_bytes)
        except TMSError as error:
            self.failed = error.retriable
            raise
        active = self.chain.active
        self._segment_bytes = 0 if active is None else self.chain.segment_stored_bytes(active)
        self._since_snapshot = end.unsaved_bytes
        self._blocks_since_snapshot = end.unsaved_blocks
        # Another process or a failed write may have written these bytes without a sync.
        self.unsynced = active is not None and end.last > self.chain.record.last
        with self.lock:
            if end.last != self.last or not self.known:
                self._cache.drop(self.tail)
                self.tail = Tail(end.last)
            self.end_offset = end.end_offset
            self.last = end.last
            self.known = True
            self.loaded = True
            self.failed = False
            watchers = _taken(self._watchers)
        _call(watchers)

    def begin_term(self, term: object) -> None:
        """Begin a term of a reader. Appends that depend on reads are accepted only from the reader
        of the current term. The caller holds `owner`."""
        self.load()
        self._term = term

    def is_in(self, term: object) -> bool:
        """True if the partition has changed neither its owner nor its term since this term began.
        The caller holds `owner`."""
        return self._term is term

    def find_end(self) -> int:
        """The end offset. If another process has taken over, its appends count."""
        with self.owner:
            if self.loaded:
                try:
                    self.chain.require_owned()
                except StorageUnavailable:
                    self.loaded = False
            self.load()
            return self.end_offset

    def prepare(self, now_ms: int) -> None:
        """Make the partition ready to append: the end is known and a segment is open. The caller
        holds `owner`."""
        self.load()
        if self.chain.active is None:
            self.chain.roll(now_ms, self.end_offset, self.last)

    def invalidate(self) -> None:
        """A change failed: the end and the record have to be read again. The caller holds
        `owner`."""
        self.loaded = False
        self.failed = True

    def publish(
        self,
        rows: list[MapRow],
        stored: list[StoredBlock],
        end_offset: int,
        last: BlockKey,
        durability: Durability,
    ) -> None:
        """Make written blocks readable, if this process still owns the partition. Raises
        `StorageUnavailable`. The caller holds `owner`, or acts for the thread that holds it."""
        if rows and self.chain.shared:
            self.chain.require_owned()
        counters = self.counters
        counters.writes += 1
        counters.syncs += durability is Durability.SYNCED
        counters.messages += end_offset - self.end_offset
        counters.blocks += len(rows)
        size = 0
        with self.lock:
            for block in stored:
                self._cache.add(self.tail, self.lock, (block.time_ms, block.last_sequence), block)
                size += len(block.block)
            self.end_offset = end_offset
            self.last = last
            watchers = _taken(self._watchers) if self._watchers else ()
        counters.bytes += size
        self._segment_bytes += size
        self._since_snapshot += size
        self._blocks_since_snapshot += len(rows)
        self._until_look -= size
        if self._until_look <= 0 or self._blocks_since_snapshot >= SNAPSHOT_BLOCKS:
            self._look()
        if watchers:
            _call(watchers)

    def published_after(self, key: BlockKey) -> Iterator[list[StoredBlock]]:
        """Pages of the blocks after a key, in order. The caller holds `owner`."""
        while key < self.last:
            with self.lock:
                blocks = self.tail.read(key_after(key), LOOK_BYTES)
            if blocks is None:
                blocks = self.chain.scan(key_after(key), key_after(self.last), LOOK_BYTES)
            if not blocks:
                return
            yield blocks
            key = (blocks[-1].time_ms, blocks[-1].last_sequence)

    def roll_back(
        self,
        first: BlockKey,
        last: BlockKey,
        write_pointer: int,
        check: Callable[[BlockHeader], None],
    ) -> int:
        """Mark the blocks of a transaction in [first, last] as rolled back, synced; returns their
        number. `check` raises if a block must not be marked; then none is. The caller holds
        `owner`."""
        marked: list[StoredBlock] = []
        while blocks := self.chain.scan(first, key_after(last), ROLL_BACK_BYTES):
            for stored in blocks:
                header = recovery.header_of(stored)
                if header.flags & Flags.TRANSACTIONAL and header.write_pointer == write_pointer:
                    check(header)
                    copy = bytearray(stored.block)
                    place(copy, header.base_offset, header.flags | Flags.ROLLED_BACK, write_pointer)
                    marked.append(structs.replace(stored, block=copy))
            first = key_after((blocks[-1].time_ms, blocks[-1].last_sequence))
        if marked:
            try:
                self.chain.replace(marked, Durability.SYNCED)
                with self.lock:
                    self.tail.replace({(one.time_ms, one.last_sequence): one for one in marked})
            except BaseException:  # some blocks may be marked: only the store knows which
                self.drop_cached(first)
                raise
            finally:
                with self.lock:
                    self.roll_backs += 1
                    held_back = _taken(self._held_back)
                _call(held_back)
        return len(marked)

    def drop_cached(self, before: BlockKey) -> None:
        """Drop cached blocks before a key, so that they are read from the store."""
        with self.lock:
            if self.tail.covered_after < before:
                self._cache.drop_before(self.tail, before)

    def _look(self) -> None:
        """Check if maintenance is due, and set after how many bytes to check again."""
        room = min(
            self.limits.snapshot_bytes - self._since_snapshot,
            self.segment_bytes_max() - self._segment_bytes,
        )
        self.maintenance_due = room <= 0 or self._blocks_since_snapshot >= SNAPSHOT_BLOCKS
        self._until_look = min(room, LOOK_BYTES)

    def maintain(self, now_ms: int) -> None:
        """Take a snapshot of the producers and roll the segment if either is due. The caller holds
        `owner`."""
        active = self.chain.active
        if not self.loaded or active is None:
            return
        aged = (
            now_ms - active.created_ms >= self.segment_ms() and self.last > self.chain.record.last
        )
        self._look()
        if not (self.maintenance_due or aged):
            return
        if aged or self._segment_bytes >= self.segment_bytes_max():
            self.roll(now_ms)
        else:
            self.snapshot()
        self._look()

    def roll(self, now_ms: int) -> None:
        """Seal the open segment and open the next. The caller holds `owner`."""
        self.snapshot()
        self.chain.roll(now_ms, self.end_offset, self.last)
        self._segment_bytes = 0

    def raise_floor(self, floor: BlockKey) -> None:
        """Make every block before `floor` that is stored now unreadable for good, and drop the
        sealed segments before it. Later blocks stay readable, also those with smaller ids (after a
        clock went back). The caller holds `owner`."""
        self.chain.raise_floor(min(floor, key_after(self.last)))

    def snapshot(self) -> None:
        """Sync the segment and store the producers, so that opening reads little. The caller holds
        `owner`."""
        if not self.loaded or self.chain.active is None or self.last == FIRST_KEY:
            return
        self.sync()
        self._save(self.last, self.end_offset, self._segment_bytes)
        self._since_snapshot = self._blocks_since_snapshot = 0

    def _save(self, last: BlockKey, end_offset: int, segment_bytes: int) -> None:
        """Store the producers. In a shared store never over the snapshot of a later owner, because
        only that one knows of blocks that were erased since."""
        uid, partition = self.chain.uid, self.chain.partition
        window = self.producers
        pages, *counting = (kind.to_store(self.chain.record.epoch) for kind in window.forgotten)
        rows: list[MapRow] = [
            (keys.forgotten_key(uid, partition, name), encode(ForgottenRecord(page)))
            for kind in (pages, *counting)
            for name, page in kind.new
        ]
        record = ProducersRecord(
            upto=last,
            end_offset=end_offset,
            producers=window.dump(),
            segment_bytes=segment_bytes,
            pages=pages.names,
            counting=window.dump_counting(),
            counting_pages=counting[0].names if counting else (),
        )
        self._write_note(keys.producers_key(uid, partition), encode(record), rows)
        if gone := [name for kind in (pages, *counting) for name in kind.gone]:
            self._metadata.delete(keys.forgotten_key(uid, partition, name) for name in gone)
        for forgotten in window.forgotten:
            forgotten.stored()

    def _write_note(self, key: bytes, record: bytes, rows: list[MapRow]) -> None:
        if not self.chain.shared:
            self._metadata.write([*rows, (key, record)], Durability.WRITTEN)
            return
        if rows:
            self._metadata.write(rows, Durability.SYNCED)
        before = self._metadata.get(key)
        self.chain.require_owned()  # so there was no later owner when the snapshot was read
        if not self._metadata.compare_and_set(key, before, record):
            raise StorageUnavailable(
                f"Partition {self.chain.partition} was taken over while its producers were noted. "
                "Try again."
            )

    def sync(self) -> None:
        """Sync what was written without a sync. The caller holds `owner`."""
        if self.unsynced and self.chain.active is not None:
            self.chain.write([], Durability.SYNCED)
            self.counters.syncs += 1
            self.unsynced = False

    def make_durable(self) -> None:
        """Sync all readable blocks. Any thread may call it: it needs no ownership, because sealed
        segments were synced before they were sealed."""
        if self.chain.record.segments:
            self.chain.write([], Durability.SYNCED)

    def rest(self) -> None:
        """Prepare to close: take a snapshot if the next opening would have much to read. The caller
        holds `owner`."""
        if self._since_snapshot >= REST_BYTES:
            try:
                self.snapshot()
            except TMSError as error:
                _log.warning("snapshot_failed", partition=self.chain.partition, error=error.message)

    def segment_bytes_max(self) -> int:
        """Size in bytes at which a segment is rolled."""
        retention_bytes = self._retention()[1]
        if retention_bytes is None:
            return self.limits.segment_bytes
        return min(self.limits.segment_bytes, max(1 << 20, retention_bytes // 4))

    def segment_ms(self) -> int:
        """Age in milliseconds at which a segment is rolled."""
        retention_ms = self._retention()[0]
        if retention_ms is None:
            return self.limits.segment_ms
        return min(self.limits.segment_ms, max(1_000, retention_ms // 8))

    # -- watching ------------------------------------------------------------------------------

    def watch(self, seen: BlockKey, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when there is a message after `seen`, at once if there is one now.
        Returns a function that cancels it."""
        with self.lock:
            if self.known and self.retired is None and self.last <= seen:
                return self._await(self._watchers, callback)
        callback()
        return _nothing

    def watch_roll_backs(self, seen: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when more than `seen` transactions were rolled back, at once if they
        were. Returns a function that cancels it."""
        with self.lock:
            if self.known and self.retired is None and self.roll_backs == seen:
                return self._await(self._held_back, callback)
        callback()
        return _nothing

    def retire(self, reason: TMSError) -> None:
        """Close the partition for `reason`, because the topic is deleted or the engine is closing:
        call every watcher, present and future ones, and leave the cache."""
        with self.lock:
            self.retired = reason
            self._cache.drop(self.tail)
            watchers = _taken(self._watchers) + _taken(self._held_back)
        _call(watchers)

    def _await(self, watchers: _Callbacks, callback: Callable[[], None]) -> Callable[[], None]:
        """The caller holds the lock."""
        self._watcher_ids += 1
        token = self._watcher_ids
        watchers[token] = callback

        def cancel() -> None:
            with self.lock:
                watchers.pop(token, None)

        return cancel


def _taken(watchers: _Callbacks) -> list[Callable[[], None]]:
    taken = list(watchers.values())
    watchers.clear()
    return taken


def _call(watchers: list[Callable[[], None]]) -> None:
    for watcher in watchers:
        try:
            watcher()
        except Exception:
            _log.exception("watcher_failed")


def _nothing() -> None:
    return None
