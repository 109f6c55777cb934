"""Topics read straight from HBase, over its Thrift servers; the service that owns them may be away.

    driver      image, records, newest blocks ─▶ where topics begin and end; splits at blocks
    executor    its range of rows ─▶ committed blocks

Invariants

* A split names the life of the topic and the keys between which its blocks stand, so an executor
  finds them without searching, and never reads another life.
* Everything below `latest` was decided when the split was planned, and stays so: an executor may
  judge by an image that is newer.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from tms.clock import SystemClock
from tms.errors import OffsetOutOfRange, StorageUnavailable, TopicNotFound
from tms.log.records import BlockKey, key_after
from tms.model.block import read_header
from tms.model.log import StoredBlock
from tms.model.position import Position
from tms.spark.topics.base import Split
from tms.spark.topics.splitting import apportioned
from tms.store.base import Store
from tms.store.hbase import HBaseStore
from tms.view import PartitionView, TopicView, View


class _Where(msgspec.Struct, frozen=True, array_like=True):
    """What an executor has to know of a split."""

    uid: int
    start: BlockKey
    stop: BlockKey


class HBaseReader:
    """The topics of the HBase at `url`, `hbase://HOST:PORT[/NAMESPACE]`. Raises `ConfigError` when
    TMS's tables are not there, `StorageUnavailable` when HBase is away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: Store | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def topics(self, pattern: str) -> list[str]:
        """The topics whose `name` or `namespace:name` the pattern matches as a whole."""
        return self._view.topics(pattern)

    def generation(self, topic: str) -> int:
        """Which life of its name the topic is in."""
        return self._view.topic(topic).record.generation

    def offsets(self, topic: str, at: Position) -> Mapping[int, int]:
        """By partition, the offset of the first message at or after a position."""
        return {one.partition: one.offset_at(at) for one in self._view.topic(topic).partitions()}

    def splits(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int
    ) -> list[Split]:
        """The ranges in parts that take about the same time to publish; each part begins with a
        block."""
        view = self._view.topic(topic)
        filled = {p: (start, stop) for p, (start, stop) in sorted(ranges.items()) if start < stop}
        spare = max(0, at_least - len(filled))
        extra = apportioned([stop - start for start, stop in filled.values()], spare)
        return [
            split
            for (partition, (start, stop)), more in zip(filled.items(), extra, strict=True)
            for split in _divided(topic, view, partition, start, stop, 1 + more)
        ]

    def read(self, split: Split) -> Iterator[StoredBlock]:
        """The committed blocks that overlap the split, in order."""
        where = msgspec.msgpack.decode(split.where, type=_Where)
        topic = self._view.topic(split.topic)
        if topic.record.uid != where.uid:
            raise TopicNotFound(
                f"The topic {split.topic} was deleted and created anew while it was read. Start "
                "the query again.",
                topic=split.topic,
            )
        partition = topic.partition(split.partition)
        earliest, end = partition.start(), partition.end().offset
        if split.stop > end:  # it was there, and nothing that was there goes
            raise StorageUnavailable(
                f"Partition {split.partition} of {split.topic} is being taken over by another "
                "service. Try again."
            )
        if split.start < earliest:
            raise OffsetOutOfRange(
                f"Of partition {split.partition} of {split.topic} the offsets {earliest} to "
                f"{end - 1} are kept, not {split.start}.",
                earliest=earliest,
                end=end,
            )
        for stored in partition.blocks(where.start, where.stop):
            header = read_header(stored.block)
            if header.base_offset + header.count > split.start:
                yield stored
            if header.base_offset + header.count >= split.stop:
                return

    def close(self) -> None:
        """Release the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def open_store(self) -> Store:
        """The store, opened anew."""
        return HBaseStore(self._url)

    @property
    def _view(self) -> View:
        if self._opened is None:
            self._opened = self.open_store()
        return View(self._opened, SystemClock())


def _divided(
    topic: str, view: TopicView, partition: int, start: int, stop: int, parts: int
) -> Iterator[Split]:
    """A range cut at blocks, into at most so many parts."""
    one = view.partition(partition)
    begin, behind = one.locate(start), _behind(one, stop)
    cuts = [(start, begin), *_cuts(one, start, stop, begin, behind, parts), (stop, behind)]
    for (at, key), (to, next_key) in pairwise(cuts):
        where = msgspec.msgpack.encode(_Where(view.record.uid, key, next_key))
        yield Split(topic, partition, at, to, where)


def _behind(one: PartitionView, stop: int) -> BlockKey:
    """The smallest key behind the block that has the offset before `stop`."""
    end = one.end()
    if stop >= end.offset:
        return end.key
    found = one.block_at(one.locate(stop - 1))
    return end.key if found is None else key_after((found.time_ms, found.last_sequence))


def _cuts(
    one: PartitionView, start: int, stop: int, begin: BlockKey, behind: BlockKey, parts: int
) -> Iterator[tuple[int, BlockKey]]:
    """Offsets and keys at which to cut: of the blocks that come first after equal shares of the
    time between the ends. One look at the store for each."""
    first_block = one.block_at(begin)
    if first_block is None:
        return
    seen, first_ms = start, first_block.time_ms
    for i in range(1, parts):
        time_ms = first_ms + (behind[0] - first_ms) * i // parts
        found = one.block_at((time_ms, 0)) if time_ms > first_ms else None
        if found is None:
            continue
        header = read_header(found.block)
        if seen < header.base_offset < stop:
            seen = header.base_offset
            first = found.last_sequence - header.count + 1
            yield seen, (found.time_ms, first)
