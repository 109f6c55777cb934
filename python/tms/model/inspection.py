"""The results of `tms inspect`: a partition as it is stored."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentInspection:
    """One segment. `last_id` and `end_offset` are None while it is empty."""

    number: int
    epoch: int
    sealed: bool
    created_ms: int
    base_offset: int
    end_offset: int | None
    last_id: str | None
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class BlockInspection:
    """One stored block, read from its key and header."""

    segment: int
    first_id: str
    last_id: str
    base_offset: int
    count: int
    bytes: int
    flags: int
    write_pointer: int
    producer_id: int
    producer_sequence: int


@dataclass(frozen=True, slots=True)
class PartitionInspection:
    """A partition's segments, oldest first, and its newest blocks, newest first."""

    partition: int
    epoch: int
    floor_id: str
    segments: tuple[SegmentInspection, ...]
    blocks: tuple[BlockInspection, ...]
