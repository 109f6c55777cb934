"""The small records of the map `metadata`: partitions, segments, producer snapshots. Those of
topics are in `topics.registry`. They are JSON, so that people and Java can read them, and change by
compare-and-set, except where there is certainly one writer.

    compaction/UID/PARTITION       CompactionRecord; absent until the first compaction
    partition/UID/PARTITION        PartitionRecord; absent until the first publish
    producers/UID/PARTITION        ProducersRecord; a head start for recovery, never the truth
    forgotten/UID/PARTITION/NAME   ForgottenRecord; a page that a ProducersRecord names
"""

import struct
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tms.errors import DataCorrupt
from tms.model.ids import SEQUENCES_PER_MS
from tms.runtime.decoding import json_decoder

T = TypeVar("T", bound=msgspec.Struct)
BlockKey = tuple[int, int]  # publish time ms, sequence
FIRST_KEY: BlockKey = (0, 0)
# Of a block: producer id, time ms, base offset, producer sequence, CRC, count, first sequence.
FORGOTTEN_ROW = struct.Struct(">QQQIIIH")


def key_after(key: BlockKey) -> BlockKey:
    """The smallest key greater than this one."""
    if key[1] + 1 < SEQUENCES_PER_MS:
        return (key[0], key[1] + 1)
    return (key[0] + 1, 0)


def key_before(key: BlockKey) -> BlockKey:
    """The greatest key smaller than this one."""
    return key_at(max(0, key_number(key) - 1))


def key_number(key: BlockKey) -> int:
    """The number of a key; it grows by one from each key to the next."""
    return key[0] * SEQUENCES_PER_MS + key[1]


def key_at(number: int) -> BlockKey:
    """The key with a number."""
    return divmod(number, SEQUENCES_PER_MS)


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment; the fields after `base_offset` are set when it is sealed."""

    number: int
    epoch: int
    created_ms: int
    base_offset: int
    end_offset: int | None = None
    last: BlockKey | None = None
    stored_bytes: int = 0

    @property
    def sealed(self) -> bool:
        """True if nothing will be appended any more."""
        return self.end_offset is not None


class PartitionRecord(msgspec.Struct, frozen=True):
    """A partition's segments, oldest first; all but the last are sealed.

    Nothing before `floor` is readable. `last` is the greatest key assigned before the last segment
    began: ids stay above it even when every segment is gone. `gaps`: messages were removed from
    sealed segments, so offsets may be missing there. Up to the key `forgotten` the removed messages
    may be the newest ones of their keys. `owner` is the cluster's instance that took over the
    partition last, `previous` are earlier owners that may not have been fenced yet.
    """

    epoch: int
    segments: tuple[SegmentRecord, ...]
    floor: BlockKey = FIRST_KEY
    last: BlockKey = FIRST_KEY
    gaps: bool = False
    forgotten: BlockKey = FIRST_KEY
    owner: str | UnsetType = UNSET
    previous: tuple[str, ...] | UnsetType = UNSET


class CompactionRecord(msgspec.Struct, frozen=True):
    """The progress of compaction: up to `clean` each key has at most one message, its newest.
    `passes` has the end of each pass and the time in ms when it was done, oldest first. `reclaim`
    names the maps whose space is to be reclaimed."""

    clean: BlockKey = FIRST_KEY
    passes: tuple[tuple[BlockKey, int], ...] = ()
    reclaim: tuple[str, ...] = ()


class RememberedBlock(msgspec.Struct, frozen=True, array_like=True):
    """The ids and offsets of a producer's stored block."""

    producer_sequence: int
    crc: int
    time_ms: int
    sequence: int
    count: int
    base_offset: int


class ProducersRecord(msgspec.Struct, frozen=True):
    """The producers' newest blocks when the block `upto` had been appended and its segment had
    `segment_bytes` bytes. `pages` are the names of the pages of forgotten producers. `counting` and
    `counting_pages` have the producers whose sequences count messages; an earlier release ignores
    them."""

    upto: BlockKey
    end_offset: int
    producers: dict[str, tuple[RememberedBlock, ...]]
    segment_bytes: int
    pages: tuple[str, ...] = ()
    counting: dict[str, tuple[RememberedBlock, ...]] = {}
    counting_pages: tuple[str, ...] = ()


class ForgottenRecord(msgspec.Struct, frozen=True):
    """A page of forgotten producers: `FORGOTTEN_ROW`s in the order of their bytes."""

    rows: bytes

    def __post_init__(self) -> None:
        if len(self.rows) % FORGOTTEN_ROW.size:
            raise ValueError(f"rows take {len(self.rows)} bytes, no multiple of a row's")


def encode(record: msgspec.Struct) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def decode(raw: bytes, kind: type[T], key: bytes) -> T:
    """The record in `raw`. Raises `DataCorrupt` naming its key."""
    try:
        return json_decoder(kind).decode(raw)
    except msgspec.MsgspecError as exc:
        raise DataCorrupt(
            f"The metadata record {key.decode(errors='replace')} is damaged ({exc}). "
            "Run `tms fsck`."
        ) from exc
