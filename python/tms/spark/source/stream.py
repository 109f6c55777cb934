"""The reader of a stream: the ends of batches, and their repetition.

Invariants

* The rows of a batch follow from the two offsets that Spark hands back, and from nothing else: a
  repeated batch, also of another process, has the same rows.
* The begin of a new query is looked up once, and is part of the offsets that end its first batch.
* Nothing is moved at the service: positions of groups stay as they are.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tms.runtime.clock import Clock
from tms.spark.source.losses import GONE, RENEWED, SHORTER, LossRule
from tms.spark.source.offsets import (
    Offsets,
    StreamOffsets,
    batch_end,
    from_json,
    joined,
    limited,
    ranges,
    readable,
    to_json,
    waiting,
)
from tms.spark.source.options import ReadOptions
from tms.spark.source.planning import earliest, latest, planned, resolved
from tms.spark.source.reader import SplitPartition, open_topics, read_split

if TYPE_CHECKING:
    import pyarrow as pa

OffsetsJson = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver for as long as the query runs; its copies read in the tasks."""

    def __init__(self, options: ReadOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._topics = open_topics(options.place)
        self._rule = LossRule(options.fail_on_data_loss)
        self._initial: OffsetsJson | None = None
        self._logged = False  # whether the checkpoint knows where the query began
        self._target: Offsets | None = None  # with `Trigger.AvailableNow`: the end
        self._reported: Offsets | None = None
        self._triggered_s: float | None = None

    def initialOffset(self) -> OffsetsJson:
        """The begin of a new query. Spark asks for it more than once."""
        if self._initial is None:
            ends = latest(self._topics, self._options.subscription)
            starts = resolved(self._topics, self._options.starting, ends, self._options)
            self._initial = to_json(StreamOffsets(starts))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """The largest batch that the options allow."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the messages that are stored now."""
        self._target = self._available(None)

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        """The end of the batch that begins at `start`; `start` itself if there is nothing, or not
        enough."""
        begun = from_json(start)
        available = self._available(begun) if self._target is None else self._target
        lost = self._tell_lost(begun, available)
        grown = [
            topic for topic, ends in available.items() if set(ends) - set(begun.ends.get(topic, ()))
        ]
        starts, stops = joined(begun, earliest(self._topics, grown, available), available)
        if not isinstance(limit, ReadAllAvailable):
            left = readable(starts, earliest(self._topics, starts, available))
            if not lost and self._holds_back(waiting(left, stops)):
                return start
            if isinstance(limit, ReadMaxRows):
                stops = limited(left, stops, limit.max_rows)
        fresh = start == self._initial and not self._logged
        end = batch_end(begun, fresh, starts, stops)
        return start if end.ends == begun.ends else to_json(end)

    def reportLatestOffset(self) -> OffsetsJson | None:
        """The ends of the topics at the last look, for the query's progress."""
        return None if self._reported is None else to_json(StreamOffsets(self._reported))

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        """A partition for each split of the batch."""
        self._logged = self._logged or end == self._initial  # Spark logs an end before it plans
        wanted = ranges(from_json(start), from_json(end))
        return [SplitPartition(split) for split in planned(self._topics, wanted, self._options)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of one split."""
        assert isinstance(partition, SplitPartition), "a stream has no other partitions"
        return read_split(self._options, partition.split)

    def commit(self, end: OffsetsJson) -> None:
        """Does nothing: only the query's checkpoint notes the progress."""

    def stop(self) -> None:
        """Release the connections."""
        self._topics.close()

    def _available(self, begun: StreamOffsets | None) -> Offsets:
        """The present ends of the topics."""
        known: Any = () if begun is None else begun.ends
        must = self._rule.fails  # a new query has asked for them where it begins
        self._reported = latest(self._topics, self._options.subscription, known, must)
        return self._reported

    def _tell_lost(self, begun: StreamOffsets, available: Offsets) -> bool:
        """True if messages that the checkpoint names are gone; reports them."""
        lost = False
        names = {topic.name for topic in available}
        for topic, ends in begun.ends.items():
            for partition, at in sorted(ends.items()):
                if topic not in available:
                    why = RENEWED if topic.name in names else GONE
                    self._rule.lost(topic.name, partition, at, None, why)
                    lost = True
                elif partition in available[topic] and available[topic][partition] < at:
                    end = available[topic][partition]
                    self._rule.lost(topic.name, partition, end, at, SHORTER)
                    lost = True
        return lost

    def _holds_back(self, offsets: int) -> bool:
        """True if the batch waits for more: minOffsetsPerTrigger, but not for ever."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now_s = self._clock.monotonic_s()
        since_s = None if self._triggered_s is None else now_s - self._triggered_s
        waited = since_s is None or since_s * 1_000 >= self._options.max_trigger_delay_ms
        if offsets < least and not waited:
            return True
        self._triggered_s = now_s
        return False
