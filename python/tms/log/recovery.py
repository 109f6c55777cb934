"""Finds the end of a partition when it is opened, and after a failed write.

The blocks themselves are the truth. A snapshot of the producers saves reading all of the open
segment: it names a block that was synced when the snapshot was taken, so only later blocks are
read. Base offsets are dense in the open segment: after a power loss the first gap ends the valid
part, and the blocks behind the gap (never acknowledged as synced, because a sync covers everything
before it) are deleted. In a store that others may write to they are left alone: the segment is
sealed before the gap, and blocks that an earlier owner writes there, however late, stay behind the
seal. In such a store invisible messages are cleaned out of sealed segments, so those may have gaps.

The snapshot of the producers may be older than the open segment, if an owner that had lost the
partition wrote it last; later blocks are read from the position of the snapshot.
"""

from typing import NamedTuple

from tms.block import BlockHeader, read_header
from tms.errors import BadBlock, DataCorrupt
from tms.log.producers import ProducerWindow
from tms.log.records import (
    FIRST_KEY,
    BlockKey,
    ForgottenRecord,
    ProducersRecord,
    RememberedBlock,
    SegmentRecord,
    decode,
    key_after,
    key_before,
)
from tms.log.segments import SegmentChain
from tms.model import keys
from tms.model.message import StoredBlock
from tms.runtime.events import EventLog
from tms.store.base import Map, pages

SCAN_BYTES = 4 << 20
_log = EventLog(__name__)


class LogEnd(NamedTuple):
    """The end of a partition: the offset of the next message, the greatest key so far (also of a
    block that was cut off, and at least the key before the floor), the bytes and blocks after the
    snapshot of the producers, and the bytes of the last segment before it."""

    end_offset: int
    last: BlockKey
    unsaved_bytes: int = 0
    saved_bytes: int = 0
    unsaved_blocks: int = 0


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
    """The entry of the producer window for a stored block."""
    first = last_sequence - header.count + 1
    return RememberedBlock(
        header.producer_sequence, header.crc, time_ms, first, header.count, header.base_offset
    )


def find_end(chain: SegmentChain, metadata: Map, producers: ProducerWindow) -> LogEnd:
    """Read the partition's end from its open segment and fill the producer window. A truncation
    may outlive the messages that it hides, if a power loss takes them; later ids stay above it."""
    end = _stored_end(chain, metadata, producers)
    return end._replace(last=max(end.last, key_before(chain.record.floor)))


def _stored_end(chain: SegmentChain, metadata: Map, producers: ProducerWindow) -> LogEnd:
    producers.load(None, {})
    segments = chain.record.segments
    if not segments:
        return LogEnd(0, chain.record.last)
    segment = segments[-1]
    before = chain.record.last
    end = LogEnd(segment.base_offset, before)
    snapshot = _snapshot(chain, metadata)
    if snapshot is not None and _is_there(chain, snapshot.upto):
        producers.load(snapshot, _pages(chain, metadata))
        saved = snapshot.segment_bytes if snapshot.upto > end.last else 0
        end = LogEnd(snapshot.end_offset, snapshot.upto, saved_bytes=saved)
    elif chain.shared:  # later owners may have taken no snapshot
        end = LogEnd(segments[0].base_offset, FIRST_KEY)
    # else the block of the snapshot was lost: read all of the last segment
    for segment in segments:
        if segment.last is None or segment.last > end.last:
            begin = max(end.end_offset, segment.base_offset)  # blocks before it may be gone
            end = _follow(chain, segment, end._replace(end_offset=begin), producers)
    if segment.end_offset is None or segment.last is None:
        return end._replace(last=max(end.last, before))
    return end._replace(end_offset=segment.end_offset, last=max(segment.last, chain.record.last))


def _is_there(chain: SegmentChain, key: BlockKey) -> bool:
    """True if everything up to a key that was stored once still is, or was truncated. Sealed blocks
    are never lost; before the floor a key may name no block (`find_end`)."""
    record = chain.record
    sealed = segment.last if (segment := record.segments[-1]).sealed else record.last
    if key <= (sealed or FIRST_KEY) or key < record.floor:
        return True
    return bool(chain.scan(key, key_after(key), 1))


def _follow(
    chain: SegmentChain, segment: SegmentRecord, end: LogEnd, producers: ProducerWindow
) -> LogEnd:
    """Read a segment on from its known part."""
    while blocks := chain.scan_segment(segment, key_after(end.last), SCAN_BYTES):
        for stored in blocks:
            header = header_of(stored)
            if not segment.sealed and header.base_offset != end.end_offset:
                last = _gap(chain, segment, stored, header.base_offset, end.end_offset)
                return end._replace(last=last or end.last)
            end = LogEnd(
                header.base_offset + header.count,
                (stored.time_ms, stored.last_sequence),
                end.unsaved_bytes + len(stored.block),
                end.saved_bytes,
                end.unsaved_blocks + 1,
            )
            if header.producer_id:
                producers.replay(header, remembered(header, stored.time_ms, stored.last_sequence))
    return end


def _gap(
    chain: SegmentChain, segment: SegmentRecord, stored: StoredBlock, offset: int, expected: int
) -> BlockKey | None:
    """End the open segment before a block that does not continue it; returns the greatest key that
    was cut off, which must not be assigned again."""
    if offset < expected:
        raise DataCorrupt(
            f"The block at {stored.time_ms}:{stored.last_sequence} of partition "
            f"{chain.partition} has offset {offset}, which an earlier block has, too. Run "
            "`tms fsck`."
        )
    lost, last = 0, None
    if not chain.shared:
        lost, last = chain.cut(segment, (stored.time_ms, stored.last_sequence))
    _log.warning(
        "partition_end_cut",
        partition=chain.partition,
        uid=chain.uid,
        blocks=lost,
        expected_offset=expected,
        found_offset=offset,
    )
    return last


def _pages(chain: SegmentChain, metadata: Map) -> dict[str, bytes]:
    """All pages of forgotten producers by name, also those that an owner wrote that had lost the
    partition."""
    prefix = keys.forgotten_key(chain.uid, chain.partition, "")
    found: dict[str, bytes] = {}
    for rows in pages(metadata, prefix, keys.prefix_stop(prefix), SCAN_BYTES):
        for key, raw in rows:
            name = key[len(prefix) :].decode("ascii")
            found[name] = decode(raw, ForgottenRecord, key).rows
    return found


def _snapshot(chain: SegmentChain, metadata: Map) -> ProducersRecord | None:
    key = keys.producers_key(chain.uid, chain.partition)
    raw = metadata.get(key)
    return None if raw is None else decode(raw, ProducersRecord, key)
