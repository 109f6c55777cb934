"""The results of `tms inspect` and `tms topic producers`: a partition as it is stored."""

from dataclasses import dataclass
from enum import StrEnum


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


class ProducerKind(StrEnum):
    """The sequence of a producer: it counts blocks or messages, or is that of a single block with
    an idempotency key."""

    BLOCKS = "blocks"
    MESSAGES = "messages"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer that a partition remembers, so that nothing of it is stored twice.
    `last_sequence`: of its newest block, or of the newest message if it counts messages; `time_ms`:
    at which that was stored; `end_offset`: behind it. Only a producer that counts messages has an
    `epoch`; its id is then its number."""

    producer_id: int
    kind: ProducerKind
    epoch: int | None
    last_sequence: int
    time_ms: int
    end_offset: int
