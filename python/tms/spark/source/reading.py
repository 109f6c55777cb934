"""The work of an executor: read the blocks of one split, and detect losses.

Invariants

* A split reads the same messages every time, or reports the missing ones as a loss.
* A gap between offsets alone is no loss: messages of rolled-back transactions are hidden. It is a
  loss if the earliest stored message lies behind the gap's beginning.
"""

from collections.abc import Iterator

from tms.block import read_header
from tms.errors import OffsetOutOfRange
from tms.model.message import StoredBlock
from tms.model.position import Position
from tms.runtime.clock import Clock
from tms.spark.source.losses import EXPIRED, SHORTER, LossRule
from tms.spark.source.topics import Split, TopicReader

LOOK_S = 1.0  # gaps are looked into at most so often


class SplitBlocks:
    """The blocks of a split, and what of it is lost."""

    def __init__(self, topics: TopicReader, split: Split, rule: LossRule, clock: Clock) -> None:
        self._topics = topics
        self._split = split
        self._rule = rule
        self._clock = clock
        self._gaps: list[tuple[int, int]] = []
        self._lost: list[tuple[int, int, str]] = []

    def __iter__(self) -> Iterator[StoredBlock]:
        """The blocks in order. Raises `OffsetOutOfRange` when some are lost and that is an
        error."""
        at, looked_s = self._split.start, self._clock.monotonic_s()
        while at < self._split.stop:
            try:
                for block in self._topics.read(self._split._replace(start=at)):
                    header = read_header(block.block)
                    if header.base_offset > at:
                        self._gaps.append((at, min(header.base_offset, self._split.stop)))
                    at = header.base_offset + header.count
                    if self._gaps and self._clock.monotonic_s() - looked_s > LOOK_S:
                        self._look()
                        looked_s = self._clock.monotonic_s()
                    yield block
                if at < self._split.stop:
                    self._gaps.append((at, self._split.stop))
                break
            except OffsetOutOfRange as error:
                at = self._gone(at, error)
        self._look()
        self._lost.sort()
        self._tell()

    def _gone(self, at: int, error: OffsetOutOfRange) -> int:
        """The offset to continue at when nothing is stored at `at`."""
        earliest = int(error.details.get("earliest", self._split.stop))
        to = min(earliest, self._split.stop) if earliest > at else self._split.stop
        self._loss(at, to, EXPIRED if earliest > at else SHORTER)
        return to

    def _look(self) -> None:
        """Report losses: gaps that once held messages."""
        if not self._gaps:
            return
        kept = self._topics.offsets(self._split.topic, Position.earliest())
        earliest = kept.get(self._split.partition, 0)
        for start, stop in self._gaps:
            if start < earliest:
                self._loss(start, min(stop, earliest), EXPIRED)
        self._gaps.clear()

    def _loss(self, start: int, stop: int, why: str) -> None:
        if self._rule.fails:
            self._rule.lost(self._split.topic, self._split.partition, start, stop, why)
        self._lost.append((start, stop, why))

    def _tell(self) -> None:
        """All losses of this split as one, from the first to the last offset."""
        if self._lost:
            start, _, why = self._lost[0]
            _, stop, _ = self._lost[-1]
            count = sum(to - at for at, to, _ in self._lost)
            self._rule.lost(self._split.topic, self._split.partition, start, stop, why, count)
