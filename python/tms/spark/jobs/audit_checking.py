"""The rules for the blocks of a partition, checked range by range, without Spark.

    block    its header is one; its CRC is that of its body; its body decodes
    offsets  each block begins where the one before has ended, or behind it: a gap
    ids      greater than all before, so that each is there once; their time is the rows' timestamp

Invariants

* A block is checked in the range in which it begins, so each is checked once.
* A fault is noted with its place, and the audit goes on with the next block. The number of notes is
  bounded, the number of counted faults is not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tms.block import BlockHeader, Flags, index_of, read_header
from tms.block.placing import offsets
from tms.errors import BadBlock, DataCorrupt
from tms.model.message import StoredBlock
from tms.spark.rows import WantedColumns, batches

NOTES_MAX = 100
_COLUMNS = WantedColumns(headers=True, message_id=True)
_TIME_DIGITS = 16  # of an id
_US_PER_MS = 1_000


class AuditFinding(msgspec.Struct, frozen=True):
    """A fault at the offsets from `start` to before `stop`."""

    topic: str
    partition: int
    start: int
    stop: int
    what: str


class PartitionAudit(msgspec.Struct):
    """The audit of a partition from offset `start` to before `stop`: its messages, and the number
    of its faults."""

    topic: str
    partition: int
    start: int
    stop: int
    messages: int = 0
    blocks: int = 0
    bytes: int = 0
    rolled_back: int = 0
    gaps: int = 0  # offsets at which there is nothing
    unreadable: int = 0
    wrong: int = 0


class RangeAudit(PartitionAudit):
    """The audit of a range of a partition, with its first and last ids and offsets. Ids are publish
    time and sequence."""

    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    findings: list[AuditFinding] = []


COUNTS = PartitionAudit.__struct_fields__[4:]


class _Placed(NamedTuple):
    stored: StoredBlock
    header: BlockHeader


class Checker:
    """Looks at the blocks of a range, in order."""

    def __init__(self, topic: str, partition: int, start: int, stop: int, dense: bool) -> None:
        self.part = RangeAudit(topic, partition, start, stop)
        self.at = start  # what lies before it is done
        self._dense = dense
        self._headless = ""  # a block that does not say where it ends: the next one does

    def add(self, blocks: Sequence[StoredBlock]) -> None:
        """The next blocks."""
        placed = []
        for stored in blocks:
            try:
                header = read_header(stored.block)
            except BadBlock as error:
                self._headless = self._headless or f"{_place(stored)}: {error.message}"
                continue
            if self._begins_here(header) and self._is_in_order(stored, header):
                placed.append(_Placed(stored, header))
        if placed and not self._are_rows(placed):
            for block in placed:
                self._check_alone(block)

    def unreadable(self, start: int, stop: int, what: str) -> None:
        """Nothing can be had from these offsets."""
        if start > self.at:
            self._gap(self.at, start)
        stop = min(stop, self.part.stop)
        self._note(start, stop, what)
        self.part.unreadable += stop - start
        self.at = max(self.at, stop)

    def ended(self) -> RangeAudit:
        """The audit of the range, after its last block."""
        if self.at < self.part.stop:
            self._gap(self.at, self.part.stop)
        return self.part

    def _begins_here(self, header: BlockHeader) -> bool:
        if header.base_offset >= self.part.start:
            return header.base_offset < self.part.stop
        self.at = max(self.at, header.base_offset + header.count)
        return False

    def _is_in_order(self, stored: StoredBlock, header: BlockHeader) -> bool:
        """Counts the block; whether its rows can be made."""
        part, base, end = self.part, header.base_offset, header.base_offset + header.count
        part.blocks += 1
        part.bytes += len(stored.block)
        left = _left(stored, header)
        part.messages += left
        part.gaps += header.count - left
        part.rolled_back += left if header.flags & Flags.ROLLED_BACK else 0
        if base > self.at:
            self._gap(self.at, base)
        elif base < self.at:
            self._note(base, end, f"offsets go back: the block before ends at {self.at}")
        self.at = max(self.at, end)
        first = (stored.time_ms, stored.last_sequence - header.count + 1)
        last = (stored.time_ms, stored.last_sequence)
        if first[1] < 0:
            self._note(base, end, f"{header.count} messages cannot end at {_place(stored)}")
            return False
        if part.last is not None and first <= part.last:
            before = f"{part.last[0]}:{part.last[1]}"
            self._note(base, end, f"ids go back: {_place(stored)} follows {before}")
        part.first = part.first or first
        part.last = max(part.last or last, last)
        return True

    def _are_rows(self, placed: Sequence[_Placed]) -> bool:
        """True if the rows of all these blocks agree with their headers and ids."""
        try:
            rows = self._rows(placed)
        except DataCorrupt:
            return False
        offsets = [n for block in placed for n in _offsets(block)]
        if rows.column("offset").to_pylist() != offsets:
            return False
        ids = rows.column("id").combine_chunks()
        if not pc.all(pc.less(ids[:-1], ids[1:]), min_count=0).as_py():
            return False
        return _times_agree(rows)

    def _check_alone(self, block: _Placed) -> None:
        """Notes what is wrong with the rows of a block."""
        base, count = block.header.base_offset, block.header.count
        try:
            rows = self._rows([block])
        except DataCorrupt as error:
            what = error.message.partition(": ")[2]
            self._note(base, base + count, f"{_place(block.stored)}: {what}")
            self.part.unreadable += count
            return
        if rows.column("offset").to_pylist() != [*_offsets(block)]:
            self._note(base, base + count, "the rows have other offsets than the block")
        if not _times_agree(rows):
            self._note(base, base + count, "the time of ids is not that of the rows")

    def _rows(self, placed: Sequence[_Placed]) -> pa.Table:
        low = min(block.header.base_offset for block in placed)
        high = max(block.header.base_offset + block.header.count for block in placed)
        blocks = [block.stored for block in placed]
        return pa.Table.from_batches(batches(blocks, self.part.topic, low, high, _COLUMNS))

    def _gap(self, start: int, stop: int) -> None:
        if self._headless:
            self._note(start, stop, self._headless)
            self.part.unreadable += stop - start
            self._headless = ""
            return
        self.part.gaps += stop - start
        if self._dense:
            self._note(start, stop, "nothing is stored here")

    def _note(self, start: int, stop: int, what: str) -> None:
        self.part.wrong += 1
        if len(self.part.findings) < NOTES_MAX:
            finding = AuditFinding(self.part.topic, self.part.partition, start, stop, what)
            self.part.findings.append(finding)


def _offsets(block: _Placed) -> Sequence[int]:
    return offsets(block.header.base_offset, index_of(block.stored.block, block.header))


def _left(stored: StoredBlock, header: BlockHeader) -> int:
    """The number of messages left in a block; for one whose index is damaged, its original
    number."""
    try:
        return len(index_of(stored.block, header))
    except BadBlock:
        return header.count


def _times_agree(rows: pa.Table) -> bool:
    """True if the time that begins each id is the timestamp of its row."""
    times = pa.table(
        {
            "id": pc.utf8_slice_codeunits(rows.column("id"), 0, _TIME_DIGITS),
            "us": rows.column("timestamp").cast(pa.int64()),
        }
    )
    pairs = times.group_by(["id", "us"]).aggregate([]).to_pylist()
    return all(int(pair["id"], 16) * _US_PER_MS == pair["us"] for pair in pairs)


def _place(stored: StoredBlock) -> str:
    return f"{stored.time_ms}:{stored.last_sequence}"
