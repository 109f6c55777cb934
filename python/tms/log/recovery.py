"""Finding out where a partition ends when it is opened, or looked at again after a failed write.

The blocks themselves are the truth. A snapshot of the producers saves reading all of the open
segment: it names a block that was synced when the snapshot was taken, so only what follows is
read. Base offsets are dense: after a power loss the first gap in what follows ends the valid part,
and what lies behind the gap (never acknowledged as synced, because a sync covers everything before
it) is deleted.
"""

from typing import NamedTuple

from tms.errors import BadBlock, DataCorrupt
from tms.events import EventLog
from tms.log.producers import ProducerWindow
from tms.log.records import (
    FIRST_KEY,
    BlockKey,
    ProducersRecord,
    RememberedBlock,
    SegmentRecord,
    decode,
    key_after,
)
from tms.log.segments import SegmentChain
from tms.model import keys
from tms.model.block import BlockHeader, read_header
from tms.model.log import StoredBlock
from tms.store.base import Map

SCAN_BYTES = 4 << 20
KEY_END: BlockKey = (2**63, 0)
_log = EventLog(__name__)


class LogEnd(NamedTuple):
    """Where a partition ends: the offset of the next message, the greatest key so far (also of a
    block that was cut off), and how many bytes came after the snapshot of the producers."""

    end_offset: int
    last: BlockKey
    unsaved_bytes: int = 0


def header_of(stored: StoredBlock) -> BlockHeader:
    """The header of a stored block. Raises `DataCorrupt`."""
    try:
        return read_header(stored.block)
    except BadBlock as exc:
        raise DataCorrupt(
            f"The block at {stored.time_ms}:{stored.last_sequence} of partition {stored.partition} "
            f"is damaged: {exc.message} Run `tms fsck`."
        ) from exc


def remembered(header: BlockHeader, time_ms: int, last_sequence: int) -> RememberedBlock:
    """What the producer window keeps of a stored block."""
    first = last_sequence - header.count + 1
    return RememberedBlock(
        header.producer_sequence, header.crc, time_ms, first, header.count, header.base_offset
    )


def find_end(chain: SegmentChain, metadata: Map, producers: ProducerWindow) -> LogEnd:
    """Read the partition's end from its open segment and fill the producer window."""
    producers.load({})
    segments = chain.record.segments
    if not segments:
        return LogEnd(0, chain.record.last)
    segment = segments[-1]
    snapshot = _snapshot(chain, metadata)
    if snapshot is not None:
        producers.load(snapshot.producers)
    if segment.last is not None and segment.end_offset is not None:
        return LogEnd(segment.end_offset, segment.last)
    start = LogEnd(segment.base_offset, chain.record.last)
    if snapshot is not None and snapshot.upto > chain.record.last:
        known = chain.scan(snapshot.upto, key_after(snapshot.upto), 1)
        if known:
            start = LogEnd(snapshot.end_offset, snapshot.upto)
        else:  # the block that it names was lost: read everything
            producers.load({})
    return _follow(chain, segment, start, producers)


def _follow(
    chain: SegmentChain, segment: SegmentRecord, end: LogEnd, producers: ProducerWindow
) -> LogEnd:
    while True:
        blocks = chain.scan(max(key_after(end.last), FIRST_KEY), KEY_END, SCAN_BYTES)
        if not blocks:
            return end
        for stored in blocks:
            header = header_of(stored)
            if header.base_offset < end.end_offset:
                raise DataCorrupt(
                    f"The block at {stored.time_ms}:{stored.last_sequence} of partition "
                    f"{chain.partition} has offset {header.base_offset}, which an earlier block "
                    "has too. Run `tms fsck`."
                )
            if header.base_offset > end.end_offset:
                lost, last = chain.cut(segment, (stored.time_ms, stored.last_sequence))
                _log.warning(
                    "partition_end_cut",
                    partition=chain.partition,
                    uid=chain.uid,
                    blocks=lost,
                    expected_offset=end.end_offset,
                    found_offset=header.base_offset,
                )
                return end._replace(last=last)
            end = LogEnd(
                header.base_offset + header.count,
                (stored.time_ms, stored.last_sequence),
                end.unsaved_bytes + len(stored.block),
            )
            if header.producer_id:
                producers.remember(
                    header.producer_id,
                    remembered(header, stored.time_ms, stored.last_sequence),
                )


def _snapshot(chain: SegmentChain, metadata: Map) -> ProducersRecord | None:
    key = keys.producers_key(chain.uid, chain.partition)
    raw = metadata.get(key)
    return None if raw is None else decode(raw, ProducersRecord, key)
