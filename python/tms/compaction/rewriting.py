"""Taking messages out of the sealed segments of a partition.

    note what is to be reclaimed ─▶ note gaps ─▶ rewrite, page by page ─▶ reclaim ─▶ forget the note

Invariants

* A crash anywhere leaves each block as it was, thinned, or gone; the note says which maps still
  hold bytes of what is gone.
* What a transaction staged is gone before the reference to it, or nobody would find it after a
  crash in between; until both are, the reference is rolled back, so that nobody follows it.
* Nobody else rewrites the same partition meanwhile: a page is read and written under its lock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from msgspec import structs

from tms.block import Flags, decode, place, thin
from tms.block.columns import Columns
from tms.compaction.progress import Progress
from tms.errors import Closed, NotFound
from tms.log.partition_log import PartitionLog
from tms.log.records import FIRST_KEY, BlockKey, SegmentRecord, key_after
from tms.log.recovery import header_of
from tms.log.segments import KEY_END
from tms.log.staging import is_reference, named_by
from tms.model import keys
from tms.model.message import StoredBlock
from tms.model.topic import Durability

PAGE_BYTES = 1 << 20


class Verdict(NamedTuple):
    """Which messages of a block stay, by place; None: all of them. Without its columns nothing can
    stay."""

    keep: list[int] | None
    columns: Columns | None = None


KEEP_ALL, DROP_ALL = Verdict(None), Verdict([])
Decide = Callable[[StoredBlock, Callable[[], Columns]], Verdict]


@dataclass(slots=True)
class Removed:
    """What went."""

    messages: int = 0
    blocks: int = 0  # that were left out as a whole
    bytes: int = 0  # that were given back


@dataclass(slots=True)
class _Page:
    """What becomes of the blocks of a page."""

    thinned: list[StoredBlock] = field(default_factory=list)
    gone: list[BlockKey] = field(default_factory=list)
    staged_thinned: list[StoredBlock] = field(default_factory=list)
    staged_gone: list[StoredBlock] = field(default_factory=list)
    messages: int = 0

    @property
    def changes(self) -> bool:
        return bool(self.thinned or self.gone or self.staged_thinned)


class Rewriter:
    """Rewrites one partition, as `decide` says of each block. `forgotten`: up to which key newest
    messages may go. `exclusive`: also what may change meanwhile, as when a transaction is rolled
    back; then nobody appends while a page is written."""

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
        """Rewrite a sealed segment between two keys, and give its space back. One that retention
        drops meanwhile is left to it."""
        try:
            if self._pages(segment, start, stop):
                self.reclaim(segment)
        except (NotFound, Closed):
            if any(known.number == segment.number for known in self._chain.record.segments):
                raise

    def reclaim_noted(self, staged_before: str) -> None:
        """Give back what is noted: of segments, and of maps of staged blocks whose names sort
        before `staged_before`, into which nobody writes any more."""
        segments = {self.name_of(segment): segment for segment in self._chain.record.segments}
        for name in self._progress.record.reclaim:
            segment = segments.get(name)
            if segment is not None and segment.sealed:
                self.reclaim(segment)
            elif keys.is_delayed_map(name):  # others write to it: they do not wait for pauses
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
        """Give back what a segment took that was rewritten."""
        self._chain.reclaim(segment, self._pause)
        self.removed.bytes += self._log.resize(segment)
        self._progress.reclaimed(self.name_of(segment))

    def name_of(self, segment: SegmentRecord) -> str:
        """The name of a segment's map."""
        return keys.segment_map(self._chain.uid, self._chain.partition, segment.number)

    def _pages(self, segment: SegmentRecord, start: BlockKey, stop: BlockKey) -> bool:
        """Rewrite what is to be; whether anything was."""
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
        """Rewrite the blocks of a page; the blocks, and the outcome of each."""
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
        # Before: whether a write that fails took effect, nobody knows.
        self._log.state.forget_cached(key_after(segment.last or self._log.state.last))
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
        """Of each block: itself, where its messages stand, and what is to become of it."""
        for stored in blocks:
            bodies: list[StoredBlock] = []

            def unpack(stored: StoredBlock = stored, bodies: list[StoredBlock] = bodies) -> Columns:
                resolve = self._log.staged.resolve
                bodies.append(resolve(stored))
                return decode(bodies[0].block)

            verdict = self._decide(stored, unpack)
            yield stored, bodies[0] if bodies else stored, verdict


def _hidden(reference: StoredBlock) -> StoredBlock:
    """The reference as one that was rolled back."""
    header, block = header_of(reference), bytearray(reference.block)
    place(block, header.base_offset, header.flags | Flags.ROLLED_BACK, header.write_pointer)
    return structs.replace(reference, block=block)
