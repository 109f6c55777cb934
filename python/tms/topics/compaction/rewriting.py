"""Removing messages from the sealed segments of a partition.

    note maps to reclaim ─▶ note gaps ─▶ rewrite, page by page ─▶ reclaim ─▶ remove the note

Invariants

* A crash anywhere leaves each block as it was, thinned, or removed; the note names the maps that
  still hold bytes of removed messages.
* A staged block is removed before the reference to it, or it could not be found after a crash in
  between; until both are removed, the reference is marked as rolled back, so that no reader follows
  it.
* Nothing else rewrites the partition meanwhile: a page is read and written under its lock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from msgspec import structs

from tms.block import Flags, decode, place, thin
from tms.block.columns import Columns
from tms.errors import Closed, NotFound
from tms.log.partition_log import PartitionLog
from tms.log.records import FIRST_KEY, BlockKey, SegmentRecord, key_after
from tms.log.recovery import header_of
from tms.log.segments import KEY_END
from tms.log.staging import is_reference, named_by
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import Durability
from tms.topics.compaction.progress import Progress

PAGE_BYTES = 1 << 20


class Verdict(NamedTuple):
    """The messages of a block that stay, by index; None: all of them. Without its columns none can
    stay."""

    keep: list[int] | None
    columns: Columns | None = None


KEEP_ALL, DROP_ALL = Verdict(None), Verdict([])
Decide = Callable[[StoredBlock, Callable[[], Columns]], Verdict]


@dataclass(slots=True)
class Removed:
    """Counts of what was removed."""

    messages: int = 0
    blocks: int = 0  # removed as a whole
    bytes: int = 0  # reclaimed


@dataclass(slots=True)
class _Page:
    """The outcomes of the blocks of a page."""

    thinned: list[StoredBlock] = field(default_factory=list)
    gone: list[BlockKey] = field(default_factory=list)
    staged_thinned: list[StoredBlock] = field(default_factory=list)
    staged_gone: list[StoredBlock] = field(default_factory=list)
    messages: int = 0

    @property
    def changes(self) -> bool:
        return bool(self.thinned or self.gone or self.staged_thinned)


class Rewriter:
    """Rewrites one partition; `decide` gives the verdict on each block. Up to the key `forgotten`
    the newest messages of keys may be removed. `exclusive`: blocks that may change meanwhile are
    rewritten as well, e.g. when a transaction is rolled back; then nothing is appended while a page
    is written."""

    def __init__(
        self,
        log: PartitionLog,
        progress: Progress,
        decide: Decide,
        forgotten: BlockKey,
        pause: Callable[[], None],
        exclusive: bool = False,
    ) -> None:
        self._log = log
        self._chain = log.state.chain
        self._progress = progress
        self._decide = decide
        self._forgotten = forgotten
        self._pause = pause
        self._exclusive = exclusive
        self.removed = Removed()

    def segment(
        self, segment: SegmentRecord, start: BlockKey = FIRST_KEY, stop: BlockKey = KEY_END
    ) -> None:
        """Rewrite a sealed segment between two keys, and reclaim its space. A segment that
        retention drops meanwhile is skipped."""
        try:
            if self._pages(segment, start, stop):
                self.reclaim(segment)
        except (NotFound, Closed):
            if any(known.number == segment.number for known in self._chain.record.segments):
                raise

    def reclaim_noted(self, staged_before: str) -> None:
        """Reclaim the space of noted maps: of segments, and of staged blocks in maps whose names
        sort before `staged_before`, which are no longer written to."""
        segments = {self.name_of(segment): segment for segment in self._chain.record.segments}
        for name in self._progress.record.reclaim:
            segment = segments.get(name)
            if segment is not None and segment.sealed:
                self.reclaim(segment)
            elif keys.is_delayed_map(name):  # the scheduler writes to it: without pauses
                self._log.staged.reclaim(name, lambda: None)
                self._progress.reclaimed(name)
            elif not keys.is_payload_map(name):
                if not self._chain.shared:  # merged, and not dropped yet; or retention was first
                    self._chain.drop_unnamed(name)
                self._progress.reclaimed(name)
            elif name < staged_before:
                self._log.staged.reclaim(name, self._pause)
                self._progress.reclaimed(name)

    def reclaim(self, segment: SegmentRecord) -> None:
        """Reclaim the space that a rewritten segment took before."""
        self._chain.reclaim(segment, self._pause)
        self.removed.bytes += self._log.resize(segment)
        self._progress.reclaimed(self.name_of(segment))

    def name_of(self, segment: SegmentRecord) -> str:
        """The name of a segment's map."""
        return keys.segment_map(self._chain.uid, self._chain.partition, segment.number)

    def _pages(self, segment: SegmentRecord, start: BlockKey, stop: BlockKey) -> bool:
        """Rewrite the segment page by page; True if a block changed."""
        changed = False
        while True:
            blocks, page = self._log.rewrite(partial(self._page, segment, start, stop))
            if not blocks:
                return changed
            changed |= page.changes
            start = key_after((blocks[-1].time_ms, blocks[-1].last_sequence))
            self._pause()

    def _page(
        self, segment: SegmentRecord, start: BlockKey, stop: BlockKey
    ) -> tuple[list[StoredBlock], _Page]:
        """Rewrite a page; returns its blocks, and their outcomes."""
        blocks = self._chain.scan_segment(segment, start, PAGE_BYTES, stop)
        page = self._decided(blocks)
        if page.changes:
            self._note(segment, page)
            if self._exclusive:
                self._log.change(partial(self._decide_again, segment, start, stop))
            else:
                self._write(segment, page)
        return blocks, page

    def _decide_again(self, segment: SegmentRecord, start: BlockKey, stop: BlockKey) -> None:
        blocks = self._chain.scan_segment(segment, start, PAGE_BYTES, stop)
        self._write(segment, self._decided(blocks))

    def _note(self, segment: SegmentRecord, page: _Page) -> None:
        staged = self._log.staged
        names = {self.name_of(segment)}
        names.update(map(staged.map_of, [*page.staged_thinned, *page.staged_gone]))
        self._progress.begin(sorted(names))
        self._log.note_gaps(self._forgotten)

    def _write(self, segment: SegmentRecord, page: _Page) -> None:
        # Before the write: if it fails, it may have taken effect or not.
        self._log.state.drop_cached(key_after(segment.last or self._log.state.last))
        try:
            if page.staged_gone:
                hidden = [_hidden(block) for block in page.staged_gone]
                self._chain.rewrite(segment, hidden, [], Durability.SYNCED)
            if page.staged_thinned or page.staged_gone:
                self._log.staged.rewrite(page.staged_thinned, page.staged_gone)
            self._chain.rewrite(segment, page.thinned, page.gone)
        finally:
            self._log.state.rewrites += 1
        self.removed.messages += page.messages
        self.removed.blocks += len(page.gone)

    def _decided(self, blocks: list[StoredBlock]) -> _Page:
        page = _Page()
        for stored, body, verdict in self._verdicts(blocks):
            if verdict.keep is None:
                continue
            named = is_reference(stored)
            if verdict.keep and verdict.columns is not None:
                thinned = thin(body.block, verdict.keep, verdict.columns)
                (page.staged_thinned if named else page.thinned).append(
                    structs.replace(body, block=thinned)
                )
                page.messages += verdict.columns.count - len(verdict.keep)
            else:
                page.gone.append((stored.time_ms, stored.last_sequence))
                if named:
                    page.staged_gone.append(named_by(stored))
                page.messages += 0 if verdict.columns is None else verdict.columns.count
        return page

    def _verdicts(
        self, blocks: list[StoredBlock]
    ) -> Iterator[tuple[StoredBlock, StoredBlock, Verdict]]:
        """For each block: itself, the block that holds its messages, and the verdict."""
        for stored in blocks:
            bodies: list[StoredBlock] = []

            def unpack(stored: StoredBlock = stored, bodies: list[StoredBlock] = bodies) -> Columns:
                resolve = self._log.staged.resolve
                bodies.append(resolve(stored))
                return decode(bodies[0].block)

            verdict = self._decide(stored, unpack)
            yield stored, bodies[0] if bodies else stored, verdict


def _hidden(reference: StoredBlock) -> StoredBlock:
    """The reference, marked as rolled back."""
    header, block = header_of(reference), bytearray(reference.block)
    place(block, header.base_offset, header.flags | Flags.ROLLED_BACK, header.write_pointer)
    return structs.replace(reference, block=block)
