"""Bugs to plant in compaction and erasing."""

from collections.abc import Callable
from typing import Any

from sim.replacing import Replacement
from tms.log.partition import PartitionState
from tms.log.preconditions import Precondition
from tms.log.segments import KEY_END
from tms.log.staging import StagedBlocks
from tms.topics.compaction.cleaning import Pass
from tms.topics.compaction.erasing import Erasing
from tms.topics.compaction.newest import Newest
from tms.topics.compaction.progress import Progress
from tms.topics.compaction.rewriting import Rewriter


def _compact_too_much() -> list[Replacement]:
    """Compaction removes the newest message of a key in place of an older one."""
    right = Newest.has_newer
    return [(Newest, "has_newer", lambda self, key, offset: right(self, key, offset - 1))]


def _tombstones_at_once() -> list[Replacement]:
    """A tombstone is removed by the first pass that covers it."""
    return [(Progress, "horizon", lambda self, *args: KEY_END)]


def _tombstones_before_values() -> list[Replacement]:
    """Passes remove nothing but tombstones from segments that were compacted before."""
    right = Pass._decide

    def decide(self: Pass, stored: Any, unpack: Any) -> Any:
        if (stored.time_ms, stored.last_sequence) > self.progress.record.clean:
            return right(self, stored, unpack)
        newest, self._newest = self._newest, Newest(1)
        try:
            return right(self, stored, unpack)
        finally:
            self._newest = newest

    return [(Pass, "_decide", decide)]


def _erase_what_is_sealed() -> list[Replacement]:
    """Messages in the open segment are not erased."""
    return [(Erasing, "_in_open_segment", lambda self: False)]


def _erase_beside_the_cache() -> list[Replacement]:
    """Readers at the tail still see what was erased."""
    return [(PartitionState, "drop_cached", lambda self, before: None)]


def _erase_whole_blocks() -> list[Replacement]:
    """Erasing a message removes its neighbours."""
    right = Erasing._decide

    def decide(self: Erasing, stored: Any, unpack: Any) -> Any:
        verdict = right(self, stored, unpack)
        return verdict if verdict.keep is None else verdict._replace(keep=[])

    return [(Erasing, "_decide", decide)]


def _erase_references_only() -> list[Replacement]:
    """Staged blocks stay, although nothing refers to them any more."""
    return [(StagedBlocks, "rewrite", lambda self, thinned, gone: None)]


def _rewrite_without_a_note() -> list[Replacement]:
    """The list of maps to reclaim exists only in memory."""
    return [(Progress, "begin", lambda self, names: None)]


def _erase_without_the_rest() -> list[Replacement]:
    """Maps that a crash left to be reclaimed are forgotten."""
    return [(Rewriter, "reclaim_noted", lambda self, staged_before="": None)]


def _expect_what_is_gone() -> list[Replacement]:
    """For a publish that expects nothing, expired and truncated messages count as present."""
    return [(Precondition, "pass_over", lambda self, start: None)]


GONE: dict[str, Callable[[], list[Replacement]]] = {
    "compact-too-much": _compact_too_much,
    "erase-beside-the-cache": _erase_beside_the_cache,
    "erase-references-only": _erase_references_only,
    "erase-what-is-sealed": _erase_what_is_sealed,
    "erase-whole-blocks": _erase_whole_blocks,
    "erase-without-the-rest": _erase_without_the_rest,
    "expect-what-is-gone": _expect_what_is_gone,
    "rewrite-without-a-note": _rewrite_without_a_note,
    "tombstones-at-once": _tombstones_at_once,
    "tombstones-before-values": _tombstones_before_values,
}
