"""Erasing: the messages of a key, or one message, are removed from a partition for good.

    is it in the open segment? ─▶ seal that ─▶ rewrite sealed segments without it ─▶ reclaim space

Invariants

* When it returns, no bytes of the erased messages are in this process's cache nor in the store,
  except where a store reclaims space in its own time (`Map.reclaim`).
* Rolled back, truncated and undecided messages are erased as well. Blocks that a transaction has
  only staged are no messages yet.
* It may be repeated after any failure: erased messages are not found again, the remaining work is
  recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tms.block import Flags, decode
from tms.block.columns import Columns
from tms.errors import DataCorrupt
from tms.log.partition_log import PartitionLog
from tms.log.records import FIRST_KEY, BlockKey, key_after
from tms.log.recovery import header_of
from tms.log.segments import KEY_END
from tms.log.staging import is_reference
from tms.log.visibility import FateOf, fate_of_block
from tms.model.ids import MessageId
from tms.model.message import StoredBlock
from tms.model.snapshot import Fate
from tms.store.base import Map
from tms.topics.compaction.progress import Progress
from tms.topics.compaction.rewriting import (
    DROP_ALL,
    KEEP_ALL,
    PAGE_BYTES,
    Removed,
    Rewriter,
    Verdict,
)

ALL_STAGED = "~"  # sorts behind all names of maps


@dataclass(frozen=True, slots=True)
class EraseTarget:
    """The messages to erase: those with a key, or the one with an id."""

    key: bytes | None
    id: MessageId | None

    def places(self, stored: StoredBlock, columns: Columns) -> set[int]:
        """The indexes of the block's messages to erase."""
        if self.id is None:
            return {at for at, key in enumerate(columns.keys()) if key == self.key}
        first = stored.last_sequence - header_of(stored).count + 1
        distance = self.id.sequence - first
        same = stored.time_ms == self.id.time_ms
        return {at for at, offset in enumerate(columns.index) if same and offset == distance}

    @property
    def start(self) -> BlockKey:
        """The first key of the search."""
        return FIRST_KEY if self.id is None else self.id[:2]

    @property
    def stop(self) -> BlockKey:
        """The last key of the search: the messages of a block have one time."""
        return KEY_END if self.id is None else (self.id.time_ms + 1, 0)


class Erasing:
    """One erasing from one partition; the space of the maps `also` is reclaimed, too."""

    def __init__(
        self,
        log: PartitionLog,
        metadata: Map,
        fate_of: FateOf,
        wanted: EraseTarget,
        now_ms: int,
        also: Sequence[str] = (),
    ) -> None:
        self._log = log
        self._fate_of = fate_of
        self._wanted = wanted
        self._now_ms = now_ms
        log.load()
        self._last = log.state.last
        progress = Progress(metadata, log.uid, log.partition)
        progress.begin([*also])
        self._rewriter = Rewriter(
            log, progress, self._decide, self._last, lambda: None, exclusive=True
        )

    def run(self) -> Removed:
        """Erase every matching message that is stored now."""
        if self._in_open_segment():
            self._log.seal(self._now_ms)
        for segment in self._log.state.chain.record.segments:
            if segment.last is None or segment.last < self._wanted.start:
                continue
            self._rewriter.segment(segment, self._wanted.start, self._wanted.stop)
            if self._wanted.id is not None:
                break
        self._rewriter.reclaim_noted(ALL_STAGED)
        return self._rewriter.removed

    def _in_open_segment(self) -> bool:
        chain = self._log.state.chain
        active = chain.active
        start = max(self._wanted.start, chain.record.last)
        while active is not None and start <= self._last:
            blocks = chain.scan_segment(active, start, PAGE_BYTES, key_after(self._last))
            if not blocks:
                return False
            if any(
                self._decide(block, partial(self._unpacked, block)).keep is not None
                for block in blocks
            ):
                return True
            start = key_after((blocks[-1].time_ms, blocks[-1].last_sequence))
            if chain.active is not active:  # sealed meanwhile
                return False
        return False

    def _unpacked(self, stored: StoredBlock) -> Columns:
        return decode(self._log.staged.resolve(stored).block)

    def _decide(self, stored: StoredBlock, unpack: Callable[[], Columns]) -> Verdict:
        try:
            columns = unpack()
        except DataCorrupt:
            if not is_reference(stored):
                raise
            if header_of(stored).flags & Flags.ROLLED_BACK:
                return DROP_ALL  # its staged block is gone: an erasing was interrupted
            if fate_of_block(header_of(stored), self._fate_of) is Fate.SKIPPED:
                return KEEP_ALL
            raise
        gone = self._wanted.places(stored, columns)
        if not gone:
            return KEEP_ALL
        return Verdict([at for at in range(columns.count) if at not in gone], columns)
