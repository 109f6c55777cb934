"""A plain model of topics and their clock: the view that every user of TMS must have, written as
simply as possible and without any of its code but its values."""

from bisect import bisect_left
from dataclasses import dataclass, field

from tms.model.ids import MessageId
from tms.model.message import Appended
from tms.model.position import Position, PositionKind
from tms.model.topic import TopicSettings

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
        """Note a block; raises if its place is wrong."""
        ids = appended.ids()
        assert appended.base_offset == self.end, "offsets are not dense"
        assert appended.count == len(values) == len(ids)
        last = self.ids[-1] if self.ids else FIRST
        assert ids[0] > last, "ids do not grow"
        assert ids[0].time_ms >= now_ms, "a message is older than its publishing"
        assert len({one.time_ms for one in ids}) == 1, "a block crosses a millisecond"
        self.ids += ids
        self.values += values

    def append(self, values: list[bytes | None], now_ms: int) -> list[MessageId]:
        """Publish values at this time; returns the ids that they must get."""
        last = self.ids[-1] if self.ids else FIRST
        time_ms = max(now_ms, last.time_ms)
        first = last.sequence + 1 if time_ms == last.time_ms else 0
        ids = [MessageId(time_ms, first + i) for i in range(len(values))]
        self.ids += ids
        self.values += values
        return ids

    def index_of_time(self, time_ms: int) -> int:
        """The offset of the first message published at or after this time."""
        return self._at(MessageId(max(0, time_ms), 0))

    def truncate(self, before: Position) -> None:
        """Make messages before this position unreadable."""
        if before.kind is PositionKind.OFFSET:
            self.start = max(self.start, min(before.number, self.end))
        else:
            self.start = max(self.start, self.resolve(before))

    def resolve(self, position: Position) -> int:
        """The offset of the first message that a fetch from this position may answer with."""
        if position.kind is PositionKind.LATEST:
            return self.end
        if position.kind is PositionKind.EARLIEST:
            return self.start
        if position.kind is PositionKind.OFFSET:
            return position.number
        if position.kind is PositionKind.TIME:
            return max(self.start, self._at(MessageId(position.number, 0)))
        assert position.id is not None
        index = self._at(MessageId(position.id.time_ms, position.id.sequence))
        if (
            position.kind is PositionKind.AFTER
            and index < self.end
            and self.ids[index] == position.id
        ):
            index += 1
        return max(self.start, index)

    def readable(self, position: Position) -> list[tuple[int, MessageId, bytes | None]]:
        """Everything from a position on. The caller checks offsets out of range."""
        return [
            (offset, self.ids[offset], self.values[offset])
            for offset in range(self.resolve(position), self.end)
        ]

    def _at(self, id: MessageId) -> int:
        return bisect_left(self.ids, id)


@dataclass(slots=True)
class ModelTopic:
    """A topic. `cleaned` is how far the cleaner may have gone in each partition: expired messages
    that were not freed yet come back when retention grows or the clock goes back, the others do
    not."""

    settings: TopicSettings
    generation: int
    partitions: list[ModelPartition] = field(default_factory=list)
    cleaned: list[int] = field(default_factory=list)

    def grow(self) -> None:
        """Add partitions, up to the number in the settings."""
        while len(self.partitions) < self.settings.partitions:
            self.partitions.append(ModelPartition())
            self.cleaned.append(0)

    def expired(self, partition: int, now_ms: int) -> int:
        """The offset of the first message of a partition that is not expired at this time."""
        retention_ms = self.settings.retention_ms
        if retention_ms is None:
            return 0
        return self.partitions[partition].index_of_time(now_ms - retention_ms)

    def clean(self, now_ms: int) -> None:
        """Clean at this time."""
        for partition in range(len(self.partitions)):
            expired = self.expired(partition, now_ms)
            self.cleaned[partition] = max(self.cleaned[partition], expired)

    def starts(self, partition: int, now_ms: int) -> range:
        """The offsets at which the partition may begin now."""
        low = max(self.partitions[partition].start, self.expired(partition, now_ms))
        return range(low, max(low, self.cleaned[partition]) + 1)


@dataclass(slots=True)
class ModelClock:
    """The clock of retention: the wall clock, but after a start never more than an hour ahead of
    the time that really passed, nor more than a week ahead of the last judged time."""

    base_ms: int
    base_s: float
    judged_ms: int | None = None

    def started(self, wall_ms: int, monotonic_s: float) -> None:
        """Note a start of the engine."""
        absent = wall_ms if self.judged_ms is None else self.judged_ms + 7 * 86_400_000
        self.base_ms, self.base_s = min(wall_ms, absent), monotonic_s

    def now_ms(self, wall_ms: int, monotonic_s: float) -> int:
        """The current time of the clock of retention."""
        passed_ms = int((monotonic_s - self.base_s) * 1000)
        return min(wall_ms, self.base_ms + passed_ms + 3_600_000)
