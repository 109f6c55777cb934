"""One pass of compaction over a partition.

    segment 0        segment 1        segment 2        segment 3 (open)
    └──── clean ────┘└──── dirty ────┘                 untouched
                     1. index the newest offset of each key here
    2. rewrite all of it up to there: messages with a newer one of their key are removed

Invariants

* Of each key at least the newest committed message stays, except a tombstone whose time is over.
  Rolled back and invalid messages are removed.
* Messages without a key stay.
* A pass ends before the first segment with an undecided message.
"""

from collections.abc import Callable
from typing import NamedTuple

from tms.block import decode
from tms.block.columns import Columns
from tms.block.placing import offsets
from tms.log.partition_log import PartitionLog
from tms.log.records import BlockKey, SegmentRecord, key_after
from tms.log.recovery import header_of
from tms.log.visibility import FateOf, fate_of_block
from tms.model.message import StoredBlock
from tms.model.snapshot import Fate
from tms.store.base import Map
from tms.topics.compaction.newest import Newest
from tms.topics.compaction.progress import Progress
from tms.topics.compaction.rewriting import (
    DROP_ALL,
    KEEP_ALL,
    PAGE_BYTES,
    Removed,
    Rewriter,
    Verdict,
)


class PassBounds(NamedTuple):
    """The ratio at which a pass is made, how long tombstones stay at least (None: for ever), and
    the number of keys that a pass holds in memory."""

    now_ms: int
    tombstone_retention_ms: int | None
    keys_max: int


class Pass:
    """A pass over one partition, from its beginning."""

    def __init__(
        self,
        log: PartitionLog,
        metadata: Map,
        fate_of: FateOf,
        bounds: PassBounds,
        pause: Callable[[], None],
    ) -> None:
        log.load()
        self.progress = Progress(metadata, log.uid, log.partition)
        self._log = log
        self._fate_of = fate_of
        self._now_ms = bounds.now_ms
        self._pause = pause
        self._newest = Newest(bounds.keys_max)
        self._horizon = self.progress.horizon(bounds.now_ms, bounds.tombstone_retention_ms)
        self._sealed = [
            segment for segment in log.state.chain.record.segments if segment.last is not None
        ]
        self._rewriter = Rewriter(log, self.progress, self._decide, self._horizon, pause)

    def dirty_ratio(self) -> float:
        """The share, 0 … 1, of the compactable bytes that no pass has covered."""
        clean = self.progress.record.clean
        total = sum(segment.stored_bytes for segment in self._sealed)
        dirty = [
            segment for segment in self._sealed if segment.last is not None and segment.last > clean
        ]
        return sum(segment.stored_bytes for segment in dirty) / total if dirty and total else 0.0

    def run(self) -> bool:
        """Compact. True if another pass is needed at once, because there were too many keys."""
        end = self._index()
        if end <= self.progress.record.clean:
            return False
        for segment in self._sealed:
            self._rewriter.segment(segment, stop=key_after(end))
            if segment.last is not None and segment.last >= end:
                break
        self.progress.done(end, self._now_ms, self._horizon)
        return self._newest.full

    def reclaim_noted(self, staged_before: str) -> None:
        """As `Rewriter.reclaim_noted`."""
        self._rewriter.reclaim_noted(staged_before)

    @property
    def removed(self) -> Removed:
        """The messages removed so far."""
        return self._rewriter.removed

    def _index(self) -> BlockKey:
        """Index the newest offset of each key; returns the key up to which that was done."""
        end = self.progress.record.clean
        for segment in self._sealed:
            if segment.last is None or segment.last <= end:
                continue
            reached, decided = self._index_segment(segment, key_after(end))
            if self._newest.full:
                return reached
            if not decided:
                return end
            end = segment.last
        return end

    def _index_segment(self, segment: SegmentRecord, start: BlockKey) -> tuple[BlockKey, bool]:
        """Index a segment; returns the key up to which it was read, and False if the next message
        is undecided."""
        chain, resolve = self._log.state.chain, self._log.staged.resolve
        reached = start
        while blocks := chain.scan_segment(segment, start, PAGE_BYTES):
            for stored in blocks:
                header = header_of(stored)
                fate = fate_of_block(header, self._fate_of)
                if fate is Fate.OPEN:
                    return reached, False
                reached = (stored.time_ms, stored.last_sequence)
                if fate is Fate.VISIBLE:
                    columns = decode(resolve(stored).block)
                    self._newest.add(columns.keys(), offsets(header.base_offset, columns.index))
                if self._newest.full:
                    return reached, True
            start = key_after(reached)
            self._pause()
        return reached, True

    def _decide(self, stored: StoredBlock, unpack: Callable[[], Columns]) -> Verdict:
        header = header_of(stored)
        fate = fate_of_block(header, self._fate_of)
        if fate is Fate.OPEN:
            return KEEP_ALL
        if fate is Fate.SKIPPED:
            return DROP_ALL
        columns = unpack()
        keys, newest = columns.keys(), self._newest
        numbers = offsets(header.base_offset, columns.index)
        keep = [
            at
            for at, (key, offset) in enumerate(zip(keys, numbers, strict=True))
            if key is None or not newest.has_newer(key, offset)
        ]
        if columns.has_tombstones and (stored.time_ms, stored.last_sequence) <= self._horizon:
            values = columns.values()
            keep = [at for at in keep if values[at] is not None or keys[at] is None]
        return KEEP_ALL if len(keep) == columns.count else Verdict(keep, columns)
