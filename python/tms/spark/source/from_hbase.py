"""Topics read straight from HBase, over its Thrift servers; the service that owns them may be away.

    driver      image, records, newest blocks ─▶ where topics begin and end; splits of like size
    executor    its offsets ─▶ a range of rows ─▶ committed blocks, the next page read ahead

Invariants

* A split names the generation of the topic, up to where the partition was decided when it was
  planned, and the keys at its own ends as far as planning met them. All that stays so: an executor
  need not look for them, and judges by an image that is as new or newer.
* Only the rows of a split are read, and a few probes to find them.
* A task closes all that it opens; nothing of it is pickled.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tms.block import read_header
from tms.engine.observer import End, ObservedPartition, StoreObserver
from tms.errors import OffsetOutOfRange
from tms.log.records import BlockKey
from tms.model.message import StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.runtime.clock import SystemClock
from tms.runtime.decoding import from_msgpack
from tms.runtime.tls import ClientTls
from tms.spark.source.losses import created_anew, ends_early
from tms.spark.source.splitting import weighted_splits
from tms.spark.source.topics import Split
from tms.store.base import Store
from tms.store.hbase import HBaseStore

LOOKS_AT_ONCE = 8  # at partitions, by the driver


class _Where(msgspec.Struct, frozen=True, array_like=True):
    """The data of a split that its executor needs."""

    uid: int
    end: End
    places: dict[int, BlockKey]  # of offsets


class HBaseReader:
    """The topics of the HBase at `url`, `hbase://HOST:PORT[/NAMESPACE]`. Raises `ConfigError` when
    TMS's tables are not there, `StorageUnavailable` when HBase is away."""

    def __init__(self, url: str, tls: ClientTls | None = None) -> None:
        self._url = url
        self._tls = tls
        self._opened: tuple[Store, StoreObserver] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def names(self, namespace: str) -> Iterator[TopicName]:
        """The topics of a namespace."""
        return self._view.names(namespace)

    def generation(self, topic: str) -> int:
        """The topic's generation."""
        return self._view.topic(topic).record.generation

    def offsets(self, topic: str, at: Position) -> Mapping[int, int]:
        """By partition, the offset of the first message at or after a position."""
        view = self._view.topic(topic)
        with ThreadPoolExecutor(LOOKS_AT_ONCE, "tms-look") as threads:
            numbers = range(view.record.partitions)
            found = threads.map(lambda number: view.partition(number).offset_at(at), numbers)
            return dict(enumerate(found))

    def splits(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int
    ) -> list[Split]:
        """The ranges in parts that take about the same bytes. Raises `OffsetOutOfRange` for what is
        not decided yet."""
        view = self._view.topic(topic)
        pieces = {}
        for number, (start, stop) in sorted(ranges.items()):
            if start < stop:
                one = view.partition(number)
                _check_end(topic, one, stop)
                pieces[number] = one.pieces(start, stop)
        found = weighted_splits(topic, pieces, at_least)
        return [split._replace(where=self._where(view.record.uid, split)) for split in found]

    def read(self, split: Split) -> Iterator[StoredBlock]:
        """The committed blocks that overlap the split, in order."""
        where = from_msgpack(split.where, _Where)
        topic = self._view.topic(split.topic)
        if topic.record.uid != where.uid:
            raise created_anew(split.topic)
        self._remember(where, split.partition)
        one = topic.partition(split.partition)
        if split.stop > where.end.offset:
            _check_end(split.topic, one, split.stop)
        earliest = one.start()
        if split.start < earliest:
            raise OffsetOutOfRange(
                f"Offset {split.start} of partition {split.partition} of {split.topic} is no "
                f"longer kept; the earliest is {earliest}. Go on there.",
                earliest=earliest,
            )
        for page in _ahead(one.pages(*one.span(split.start, split.stop))):
            for stored in page:
                header = read_header(stored.block)
                if split.start - header.count < header.base_offset < split.stop:
                    yield stored

    def close(self) -> None:
        """Release the connections."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def open_store(self) -> Store:
        """A new connection to the store."""
        return HBaseStore(self._url, watched=False, tls=self._tls)

    def _where(self, uid: int, split: Split) -> bytes:
        known = self._view.known(uid, split.partition)
        places = {at: key for at, key in known.places.items() if at in (split.start, split.stop)}
        return msgspec.msgpack.encode(_Where(uid, known.end, places))

    def _remember(self, where: _Where, partition: int) -> None:
        """Know what the driver knew."""
        known = self._view.known(where.uid, partition)
        known.end = max(known.end, where.end)
        for offset, key in where.places.items():
            known.note(offset, key)

    @property
    def _view(self) -> StoreObserver:
        if self._opened is None:
            store = self.open_store()
            self._opened = store, StoreObserver(store, SystemClock())
        return self._opened[1]


def _check_end(topic: str, one: ObservedPartition, stop: int) -> None:
    """Raises `OffsetOutOfRange` unless everything is decided up to `stop`."""
    end = one.decided(stop).offset
    if end < stop:
        raise ends_early(topic, one.partition, end, stop, one.start())


def _ahead(pages: Iterator[list[StoredBlock]]) -> Iterator[list[StoredBlock]]:
    """The items of an iterator, with the next one under way while one is worked on."""
    with ThreadPoolExecutor(1, "tms-read") as thread:
        pending = thread.submit(next, pages, None)
        while (page := pending.result()) is not None:
            pending = thread.submit(next, pages, None)
            yield page
