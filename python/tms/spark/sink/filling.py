"""Slices of rows to numbered blocks, a partition's one after another.

    slices ─▶ cut where a block is full ─▶ a filling for each partition ─▶ block

Invariants

* A block has less than `BLOCK_BYTES` and one more message; only when memory is short, or at the
  end, it has less than it could.
* The blocks of a partition are numbered 0, 1, 2 …, under the producer's id, in the order of rows.
* Slices keep the rows they were cut from alive, so what waits is measured by those: at most
  `HELD_BYTES`, and the rows that came last.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tms.block import encode_batch, schema
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.model.transaction import TopicBlock
from tms.spark.sink.routing import EVENT_TIME, RowSlice, runs

BLOCK_BYTES = 256 << 10  # what readers like best; see docs/formats.md
HELD_BYTES = 32 << 20


class _RowFilling:
    """The rows that wait for one partition."""

    __slots__ = ("bytes", "parts")

    def __init__(self) -> None:
        self.parts: list[pa.RecordBatch] = []
        self.bytes = 0


class Filler:
    """The blocks of one producer."""

    def __init__(
        self, producer_id: int, block_bytes: int = BLOCK_BYTES, held_bytes: int = HELD_BYTES
    ) -> None:
        self._producer_id = producer_id
        self._block_bytes = block_bytes
        self._held_bytes = held_bytes
        self._fillings: dict[tuple[TopicName, int], _RowFilling] = {}
        self._held = 0
        self.blocks: dict[tuple[TopicName, int], int] = {}  # made so far, by partition

    def add(self, slices: Iterable[RowSlice], bytes_held: int) -> Iterator[TopicBlock]:
        """Take slices of rows that have so many bytes together; the blocks that are full."""
        for slice_ in slices:
            yield from self._add(slice_)
        self._held += bytes_held
        if self._held >= self._held_bytes:
            yield from self.finish()

    def finish(self) -> Iterator[TopicBlock]:
        """Blocks of all that waits."""
        for place, filling in self._fillings.items():
            if filling.parts:
                yield self._block(place, filling)
        self._held = 0

    def _add(self, slice_: RowSlice) -> Iterator[TopicBlock]:
        place = (slice_.topic, slice_.partition)
        filling = self._fillings.setdefault(place, _RowFilling())
        ends = pc.add(pc.cumulative_sum(slice_.sizes), filling.bytes)
        numbers = pc.divide(pc.subtract(ends, 1), self._block_bytes)  # in which block a row ends
        begun = 0
        for number, start, stop in runs(numbers):
            if number != begun and filling.parts:
                yield self._block(place, filling)
            begun = number
            filling.parts.append(slice_.rows.slice(start, stop - start))
            filling.bytes += pc.sum(slice_.sizes.slice(start, stop - start)).as_py()

    def _block(self, place: tuple[TopicName, int], filling: _RowFilling) -> TopicBlock:
        parts, filling.parts, filling.bytes = filling.parts, [], 0
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        sequence = self.blocks.get(place, 0)
        self.blocks[place] = sequence + 1
        times = rows.column(EVENT_TIME)
        block = encode_batch(
            rows.select(schema().names),
            None if times.null_count == len(times) else times.to_pylist(),
            producer_id=self._producer_id,
            producer_sequence=sequence,
        )
        return TopicBlock(place[0], NewBlock(place[1], block))
