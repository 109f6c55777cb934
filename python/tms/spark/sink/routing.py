"""Rows by topic and partition, with Arrow, not row by row.

    rows ─▶ key, value, headers, time as a block has them ─▶ partition of each row ─▶ sorted, sliced

* A row goes where its column `partition` says, else where its key belongs, like every client's;
  rows without either go to one partition of each topic together, to the next one with the next
  rows.
* Rows of one partition stay in their order.
* A row that its topic would refuse is refused here, with the names of the column and the topic.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tms.block import schema
from tms.errors import Invalid, PartitionNotFound, TooLarge
from tms.model.ids import TIME_MS_MAX
from tms.model.keys import Partitioner
from tms.model.topic import TopicName
from tms.spark.options import topic_name
from tms.spark.rows import HEADERS, TIMESTAMP
from tms.spark.sink.columns import Shape
from tms.spark.sink.headers import headers_of

MESSAGE_OVERHEAD_BYTES = 8  # of a message in a block, about
_SIZE, _PARTITION, EVENT_TIME = "size", "partition", "event_time"
_MESSAGES = pa.schema([*schema(), (EVENT_TIME, pa.int64())])
_ROUTED = pa.schema([*_MESSAGES, (_SIZE, pa.int64()), (_PARTITION, pa.int32())])
_US_PER_MS = 1_000


class SinkTopic(NamedTuple):
    """The facts about a topic that writing needs."""

    name: TopicName
    partitions: int
    message_bytes_max: int
    partitioner: Partitioner


class RowSlice(NamedTuple):
    """Rows for one partition: columns of the schema of blocks and event times in ms, and about how
    many bytes each row takes in a block."""

    topic: TopicName
    partition: int
    rows: pa.RecordBatch
    sizes: pa.Array


class Router:
    """Sends rows to partitions. `look_up` tells of a topic, or raises why it cannot be written to;
    `turn` is the first partition of rows that name none."""

    def __init__(
        self, shape: Shape, look_up: Callable[[TopicName], SinkTopic], turn: int = 0
    ) -> None:
        self._shape = shape
        self._look_up = look_up
        self._turn = turn
        self._targets: dict[str, SinkTopic] = {}

    def route(self, batch: pa.RecordBatch) -> Iterator[RowSlice]:
        """The rows by partition. Raises `Invalid`, `TooLarge`, `PartitionNotFound`, and what
        `look_up` raises."""
        if not batch.num_rows:
            return
        shape, rows = self._shape, _rows(self._shape, batch)
        if shape.topic:
            yield from self._partitioned(self._target(shape.topic), rows)
        else:
            for name, rows_of_topic in _by_topic(batch.column(shape.places["topic"]), rows):
                yield from self._partitioned(self._target(name), rows_of_topic)
        self._turn += 1

    def _target(self, name: str) -> SinkTopic:
        found = self._targets.get(name)
        if found is None:
            topic = topic_name("topic", name, place="column", written=True)
            found = self._targets[name] = self._look_up(TopicName.parse(topic))
        return found

    def _partitioned(self, target: SinkTopic, rows: pa.RecordBatch) -> Iterator[RowSlice]:
        _check_sizes(target, rows.column(_SIZE))
        partitions = self._partitions(target, rows)
        if target.partitions > 1:
            order = pc.array_sort_indices(partitions)  # stable
            rows, partitions = rows.take(order), partitions.take(order)
        sizes = pc.add(rows.column(_SIZE), MESSAGE_OVERHEAD_BYTES)
        messages = rows.select(_MESSAGES.names)
        for partition, start, stop in runs(partitions):
            count = stop - start
            part = messages.slice(start, count)
            yield RowSlice(target.name, partition, part, sizes.slice(start, count))

    def _partitions(self, target: SinkTopic, rows: pa.RecordBatch) -> pa.Array:
        """The partition of each row."""
        named = rows.column(_PARTITION)
        _check_partitions(target, named)
        if not named.null_count:
            return named
        return pc.coalesce(named, self._by_key(target, rows.column("key")))

    def _by_key(self, target: SinkTopic, keys: pa.Array) -> pa.Array:
        partitions = target.partitions
        turn = pa.repeat(pa.scalar(self._turn % partitions, pa.int32()), len(keys))
        if partitions == 1 or keys.null_count == len(keys):
            return turn
        there = keys.drop_null().to_pylist()
        found = pa.array(target.partitioner.partitions_of(there, partitions), pa.int32())
        return pc.replace_with_mask(turn, keys.is_valid(), found) if keys.null_count else found


def runs(numbers: pa.Array) -> Iterator[tuple[int, int, int]]:
    """The runs of equal numbers: number, start, stop."""
    encoded = pc.run_end_encode(numbers)
    start = 0
    for number, stop in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield number, start, stop
        start = stop


def _rows(shape: Shape, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as a block has them, the bytes of each, and the partition that it names."""

    def column(name: str, kind: pa.DataType) -> pa.Array:
        place = shape.places.get(name)
        return pa.nulls(batch.num_rows, kind) if place is None else batch.column(place)

    key, value = (_binary(column(name, pa.binary())) for name in ("key", "value"))
    headers, header_bytes = headers_of(column("headers", HEADERS))
    sizes = pc.add(pc.add(_lengths(key), _lengths(value)), header_bytes)
    named = column(_PARTITION, pa.int32())
    times = _event_times(column(EVENT_TIME, TIMESTAMP))
    return pa.RecordBatch.from_arrays([key, value, headers, times, sizes, named], schema=_ROUTED)


def _event_times(column: pa.Array) -> pa.Array:
    """Event times in ms, which are rounded down. Raises `Invalid`."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.int64())
    times = column.cast(pa.int64())  # a number needs no database of time zones
    ends = pc.min_max(times).as_py()
    if ends["min"] < 0 or ends["max"] >= (TIME_MS_MAX + 1) * _US_PER_MS:
        raise Invalid(
            "The column event_time is from 1970 up to the year 9999, in UTC, or null.",
            field=EVENT_TIME,
        )
    return pc.divide(times, _US_PER_MS)


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _by_topic(names: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if names.null_count:
        raise Invalid(
            "The column topic is null in a row, and there is no option `topic`: nothing says where "
            "to write it. Filter such rows, or give them a topic with coalesce().",
            field="topic",
        )
    encoded = names.dictionary_encode()
    topics = encoded.dictionary.to_pylist()
    if len(topics) == 1:
        yield topics[0], rows
        return
    order = pc.array_sort_indices(encoded.indices)
    rows = rows.take(order)
    for number, start, stop in runs(encoded.indices.take(order)):
        yield topics[number], rows.slice(start, stop - start)


def _check_sizes(target: SinkTopic, sizes: pa.Array) -> None:
    largest = pc.max(sizes).as_py()
    if largest > target.message_bytes_max:
        raise TooLarge(
            f"A row for the topic {target.name} has {largest} bytes in its columns key, value and "
            f"headers; a message of this topic has at most {target.message_bytes_max}. Raise the "
            "topic's message_bytes_max, or publish an address of the content.",
            topic=str(target.name),
        )


def _check_partitions(target: SinkTopic, named: pa.Array) -> None:
    ends = pc.min_max(named).as_py()
    for partition in (ends["min"], ends["max"]):
        if partition is not None and not 0 <= partition < target.partitions:
            raise PartitionNotFound(
                f"The column partition is {partition} in a row for the topic {target.name}, which "
                f"has the partitions 0 to {target.partitions - 1}. Drop the column to let keys "
                "decide.",
                partition=partition,
                topic=str(target.name),
            )
