"""Merging small sealed segments of a partition, so that repeated erasing does not leave a segment
each time.

    copy the later one's blocks behind the end of the earlier ─▶ sync ─▶ record it ─▶ drop the later

Invariants

* A crash before the record changes leaves rows behind a seal, which are never read, and a note that
  names the map; a crash after it leaves an unnamed map, which the next start sweeps.
* No other thread removes messages from the partition meanwhile, nor changes its sealed segments:
  both locks are held, so the bytes copied at once are few.
* Only in a store of one process. In a shared store a segment is a range of rows and costs nothing,
  and rows behind a seal are dropped at any time.
"""

from itertools import pairwise

from tms.log.partition_log import PartitionLog
from tms.log.records import SegmentRecord
from tms.model import keys
from tms.store.base import Map
from tms.topics.compaction.progress import Progress

MERGED_BYTES_MAX = 16 << 20  # of the later segment of two
MERGES_MAX = 8  # in one call


def merge_small(log: PartitionLog, metadata: Map) -> int:
    """Merge neighbouring small sealed segments; returns by how many their number falls. The caller
    has excluded other work on the partition."""
    merged = 0
    while not log.state.chain.shared and merged < MERGES_MAX and _pair(log) is not None:
        if not log.rewrite(lambda: log.change(lambda: _merge(log, metadata))):
            break
        merged += 1
    return merged


def _merge(log: PartitionLog, metadata: Map) -> bool:
    """Merge two segments, if there still are two. The caller holds the partition."""
    pair = _pair(log)
    if pair is None:
        return False
    names = [keys.segment_map(log.uid, log.partition, segment.number) for segment in pair]
    progress = Progress(metadata, log.uid, log.partition)
    new = [name for name in names if name not in progress.record.reclaim]
    progress.begin(names)
    log.state.chain.merge(*pair)
    for name in new:
        progress.reclaimed(name)
    return True


def _pair(log: PartitionLog) -> tuple[SegmentRecord, SegmentRecord] | None:
    """Two neighbouring segments whose union is within the bounds of one, in size and age."""
    state = log.state
    for pair in pairwise(
        segment for segment in state.chain.record.segments if segment.last is not None
    ):
        first, second = pair
        size = first.stored_bytes + second.stored_bytes
        young = second.created_ms - first.created_ms <= state.segment_ms()
        small = second.stored_bytes <= MERGED_BYTES_MAX and size <= state.segment_bytes_max()
        if small and young:
            return pair
    return None
