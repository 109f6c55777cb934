"""A plain model of one partition: what every reader of TMS must see, written as simply as possible.

It is given what the log answered to a publish (ids and offsets are the log's to choose, within
rules that `published` checks), and says what a fetch must answer.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from tms.model.ids import MessageId
from tms.model.log import Appended
from tms.model.position import Kind, Position

FIRST = MessageId(0, 0)


@dataclass(slots=True)
class ModelPartition:
    """Messages with dense offsets and increasing ids; nothing before `start` is readable."""

    ids: list[MessageId] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return len(self.ids)

    def published(self, appended: Appended, values: list[bytes | None], now_ms: int) -> None:
        """Take note of a block; raises when it has a place that it must not have."""
        ids = appended.ids()
        assert appended.base_offset == self.end, "offsets are not dense"
        assert appended.count == len(values) == len(ids)
        last = self.ids[-1] if self.ids else FIRST
        assert ids[0] > last, "ids do not grow"
        assert ids[0].time_ms >= now_ms, "a message is older than its publishing"
        assert len({one.time_ms for one in ids}) == 1, "a block crosses a millisecond"
        self.ids += ids
        self.values += values

    def expire(self, before_ms: int) -> None:
        """Messages published before this time are unreadable."""
        self.start = max(self.start, self._at(MessageId(max(0, before_ms), 0)))

    def truncate(self, before: Position) -> None:
        """Messages before this position are unreadable."""
        if before.kind is Kind.OFFSET:
            self.start = max(self.start, min(before.number, self.end))
        else:
            self.start = max(self.start, self.resolve(before))

    def resolve(self, position: Position) -> int:
        """The offset of the first message that a fetch from this position may answer with."""
        if position.kind is Kind.LATEST:
            return self.end
        if position.kind is Kind.EARLIEST:
            return self.start
        if position.kind is Kind.OFFSET:
            return position.number
        if position.kind is Kind.TIME:
            return max(self.start, self._at(MessageId(position.number, 0)))
        assert position.id is not None
        index = self._at(MessageId(position.id.time_ms, position.id.sequence))
        if position.kind is Kind.AFTER and index < self.end and self.ids[index] == position.id:
            index += 1
        return max(self.start, index)

    def readable(self, position: Position) -> list[tuple[int, MessageId, bytes | None]]:
        """Everything from a position on. Offsets out of range are the caller's to look at."""
        return [
            (offset, self.ids[offset], self.values[offset])
            for offset in range(self.resolve(position), self.end)
        ]

    def _at(self, id: MessageId) -> int:
        return bisect_left(self.ids, id)
