"""Topics in HBase for the benchmarks to read, written by an engine whose clock is set by hand:
their messages are older than the moment of writing."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import cycle

import pyarrow as pa

from bench.targets import values
from tms.block import encode
from tms.engine.engine import Engine
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.runtime.clock import SystemClock
from tms.spark.rows import WantedColumns, arrow_schema
from tms.store.hbase import HBaseStore

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PAST_MS = 31 * DAY_MS  # the age of a topic
MESSAGE_BYTES = 1 << 10
_APPEND_BYTES = 4 << 20
_APPEND_MS = 50  # between two appends, by the clock
_DIFFERENT = 16  # blocks

Append = tuple[int, list[NewBlock]]  # time, blocks


class HandClock:
    """A `Clock` whose wall time is set by hand; its monotonic clock advances with it."""

    def __init__(self, time_ms: int) -> None:
        self.time_ms = self._begun_ms = time_ms
        self._real = SystemClock()

    def now_ms(self) -> int:
        """The time that was set."""
        return self.time_ms

    def monotonic_s(self) -> float:
        """Real time, and the skipped time."""
        return self._real.monotonic_s() + (self.time_ms - self._begun_ms) / 1000


def fill(url: str, topic: str, partitions: int, appends: Iterable[Append]) -> None:
    """Fill a new topic with these appends. The image of transactions is left as of now, as by a
    running service."""
    clock = HandClock(now_ms() - PAST_MS)
    with closing(Engine(HBaseStore(url), clock)) as engine:
        name = TopicName.parse(topic)
        engine.create_topic(
            name, TopicSettings(partitions, 2 * PAST_MS, durability=Durability.WRITTEN)
        )
        looked_ms = clock.time_ms
        for time_ms, blocks in appends:
            clock.time_ms = time_ms
            if time_ms - looked_ms >= HOUR_MS:  # a service does this by itself: old segments end
                engine.maintenance.clean()
                looked_ms = time_ms
            engine.append(name, blocks)
        clock.time_ms = now_ms()


def bulk(partitions: int, blocks: int, block_bytes: int) -> Iterator[Append]:
    """Appends of so many blocks for each partition, of messages of `MESSAGE_BYTES`, an hour old."""
    made = different(block_bytes)
    at_once = _APPEND_BYTES // block_bytes
    time_ms = now_ms() - HOUR_MS
    for first in range(0, blocks, at_once):
        count = min(at_once, blocks - first)
        yield time_ms, [NewBlock(p, next(made)) for p in range(partitions) for _ in range(count)]
        time_ms += _APPEND_MS


def different(block_bytes: int) -> Iterator[bytearray]:
    """Different blocks without end; each belongs to its caller."""
    messages = block_bytes // MESSAGE_BYTES
    texts = values(MESSAGE_BYTES, _DIFFERENT * messages)
    made = [encode(texts[at : at + messages]) for at in range(0, len(texts), messages)]
    return map(bytearray, cycle(made))


def ready(block_bytes: int) -> pa.RecordBatch:
    """The rows of such a block, made without one."""
    messages = values(MESSAGE_BYTES, block_bytes // MESSAGE_BYTES)
    rows = [(None, value, "t", 0, at, 0, 1) for at, value in enumerate(messages)]
    schema = arrow_schema(WantedColumns())
    columns = zip(schema, zip(*rows, strict=True), strict=True)
    arrays = [pa.array(cells, field.type) for field, cells in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def now_ms() -> int:
    """The current time."""
    return SystemClock().now_ms()
