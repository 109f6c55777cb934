"""The description of a partition from its rows in the store, without changing anything."""

from tms.block import EPOCH_BITS, MESSAGE_SEQUENCES
from tms.log.partition_log import PartitionLog
from tms.log.records import BlockKey, RememberedBlock
from tms.log.recovery import header_of
from tms.log.search import place_of
from tms.log.segments import SegmentChain
from tms.model.ids import MessageId
from tms.model.inspection import (
    BlockInspection,
    PartitionInspection,
    ProducerInfo,
    ProducerKind,
    SegmentInspection,
)
from tms.model.message import KEY_BIT


def inspect_partition(chain: SegmentChain, floor: BlockKey, limit: int) -> PartitionInspection:
    """Segments, oldest first, and the newest `limit` blocks, newest first. Raises `DataCorrupt`."""
    segments = []
    for segment in chain.record.segments:
        last, end_offset = segment.last, segment.end_offset
        newest = None if segment.sealed else chain.last_block(segment)
        if newest is not None:
            place = place_of(newest)
            last, end_offset = place.key, place.end_offset
        segments.append(
            SegmentInspection(
                number=segment.number,
                epoch=segment.epoch,
                sealed=segment.sealed,
                created_ms=segment.created_ms,
                base_offset=segment.base_offset,
                end_offset=end_offset,
                last_id=None if last is None else str(MessageId(*last)),
                stored_bytes=chain.segment_stored_bytes(segment),
            )
        )
    blocks = []
    for number, stored in chain.newest(limit):
        header = header_of(stored)
        first = stored.last_sequence - header.count + 1
        blocks.append(
            BlockInspection(
                segment=number,
                first_id=str(MessageId(stored.time_ms, first)),
                last_id=str(MessageId(stored.time_ms, stored.last_sequence)),
                base_offset=header.base_offset,
                count=header.count,
                bytes=len(stored.block),
                flags=int(header.flags),
                write_pointer=header.write_pointer,
                producer_id=header.producer_id,
                producer_sequence=header.producer_sequence,
            )
        )
    return PartitionInspection(
        partition=chain.partition,
        epoch=chain.record.epoch,
        floor_id=str(MessageId(*max(floor, chain.record.floor))),
        segments=tuple(segments),
        blocks=tuple(blocks),
    )


def producers_of(log: PartitionLog, limit: int) -> list[ProducerInfo]:
    """Up to `limit` producers that a partition remembers, the one that published last first."""
    return [
        _producer_info(id, counts, block)
        for id, counts, block in log.newest_producers(limit)[:limit]
    ]


def _producer_info(id: int, counts: bool, block: RememberedBlock) -> ProducerInfo:
    end_offset = block.base_offset + block.count
    if not counts:
        kind = ProducerKind.KEY if id & KEY_BIT else ProducerKind.BLOCKS
        sequence = block.producer_sequence
        return ProducerInfo(id, kind, None, sequence, block.time_ms, end_offset)
    number, epoch = divmod(id, 1 << EPOCH_BITS)
    sequence = (block.producer_sequence + block.count - 1) % MESSAGE_SEQUENCES
    kind = ProducerKind.MESSAGES
    return ProducerInfo(number, kind, epoch, sequence, block.time_ms, end_offset)
