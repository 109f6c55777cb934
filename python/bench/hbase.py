"""The cost of TMS on top of HBase's Thrift calls: the same blocks, written and read.

    raw      cells that are made ahead, one connection; 8 MiB per call at most, or, beside TMS, as
             many blocks per call as TMS wrote at once
    raw max  the same blocks, 8 MiB per call
    store    a map of blocks, from keys and blocks
    TMS      a bus on HBase, one producer or consumer, from messages to messages
    a row    each message is a row of its own, as programs without blocks do it

HBase is a standalone server for this benchmark only, from `integration.cluster`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import tms
from bench.report import Goal, Report, Sample, interleaved, measured, ratio
from bench.targets import Setup, values
from integration.cluster import Standalone
from integration.install import install
from tms.client.client import Bus
from tms.model import keys
from tms.model.topic import Durability
from tms.runtime.clock import SystemClock
from tms.store.base import MapRow
from tms.store.hbase import HBasePlace, HBaseStore
from tms.store.hbase.connection import ThriftConnection, types
from tms.store.hbase.rows import BLOCK, FAMILY, rows_of
from tms.store.hbase.scanning import PAGE_BYTES

RAW, STORE, TMS, ROW_EACH, RAW_MAX = "raw", "store", "TMS", "a row each", "raw max"
GOAL = Goal(at_least=0.8)
GOAL_OF_TMS = Goal(at_least=0.7)
GOAL_OF_BLOCKS = Goal(at_least=3)
MESSAGE_BYTES = 1 << 10
ROWS_PER_CALL = 500
REGIONS = 4
_CALL_S = 60.0
_FIRST_MS = 1_700_000_000_000

# Bytes of a block, blocks of a write, writes.
_SHAPES = ((64 << 10, 8, 60), (1 << 10, 500, 20))
_SHAPES_QUICK = ((64 << 10, 8, 20), (1 << 10, 500, 6))


class Raw:
    """HBase's Thrift calls, on one connection."""

    def __init__(self, place: HBasePlace) -> None:
        clock = SystemClock()
        self._clock = clock
        self._place = place
        [(host, port)] = place.servers
        self._connection = ThriftConnection(
            host, port, clock, _CALL_S, clock.monotonic_s() + _CALL_S
        )

    def puts(self, name: str, rows: list[MapRow]) -> list[Any]:
        """The rows in the form in which they are sent."""
        cell, where = types().TColumnValue, rows_of(self._place.namespace, name)
        return [
            types().TPut(
                row=where.row(key),
                columnValues=[cell(family=FAMILY, qualifier=BLOCK, value=bytes(value))],
                durability=types().TDurability.SYNC_WAL,
            )
            for key, value in rows
        ]

    def write(self, name: str, puts: list[Any]) -> None:
        """Write with one call."""
        self._call("putMultiple", rows_of(self._place.namespace, name).table, puts)

    def read(self, name: str, size: int) -> int:
        """Read the whole map, in pages of as many rows as make 8 MiB; the number of rows."""
        where = rows_of(self._place.namespace, name)
        start, stop = where.range(None, None)
        page, total = PAGE_BYTES // size, 0
        while True:
            scan = types().TScan(startRow=start, stopRow=stop, caching=page, limit=page)
            found = self._call("getScannerResults", where.table, scan, page)
            total += len(found)
            if len(found) < page:
                return total
            start = found[-1].row + b"\0"

    def close(self) -> None:
        self._connection.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._connection.call(method, arguments, self._clock.monotonic_s() + _CALL_S)


def run(setup: Setup, report: Report) -> None:
    """Measure the engine beside the calls that it makes."""
    report.title("The HBase engine beside raw Thrift calls, in blocks")
    with setup.directory() as directory, Standalone(directory) as hbase:
        url, whole = hbase.url("bench"), hbase.url("whole")
        for one in (url, whole):
            install(one, regions=REGIONS)
        with (
            contextlib.closing(HBaseStore(url)) as store,
            contextlib.closing(Raw(HBasePlace.parse(url))) as raw,
        ):
            segments = (keys.segment_map(1, 0, number) for number in count())
            for size, blocks, writes in _SHAPES_QUICK if setup.quick else _SHAPES:
                _compare(setup, report, store, raw, segments, (size, blocks, writes))
            _Whole(setup, whole, raw, segments).compare(report)


def _compare(
    setup: Setup,
    report: Report,
    store: HBaseStore,
    raw: Raw,
    segments: Iterator[str],
    shape: tuple[int, int, int],
) -> None:
    size, blocks, writes = shape
    groups = _groups(size, blocks, writes)
    written: dict[str, str] = {}

    def publish(variant: str) -> Sample:
        name = written[variant] = next(segments)
        one = store.open(name, create=True)
        if variant == STORE:
            return measured(
                partial(_each, lambda rows: one.write(rows, Durability.WRITTEN), groups)
            )
        puts = [raw.puts(name, rows) for rows in groups]
        return measured(partial(_each, partial(raw.write, name), puts))

    def replay(variant: str) -> Sample:
        if variant == RAW:
            return measured(partial(raw.read, written[RAW], size))
        fresh = store.open(written[STORE], create=False)
        return measured(lambda: len(fresh.scan(None, None, 1 << 40)))

    for what, work in (("publish", publish), ("replay", replay)):
        variants = {name: partial(work, name) for name in (RAW, STORE)}
        samples = interleaved(variants, setup.runs)
        label = f"{what}, {size >> 10} KiB × {blocks}"
        report.rates("hbase", label, samples)
        share = ratio(samples, STORE, RAW)
        report.line("hbase", f"{label}, store ÷ raw", share, "×", GOAL, samples)


class _Whole:
    """Messages through all of TMS, beside the blocks into which it packed them."""

    def __init__(self, setup: Setup, url: str, raw: Raw, segments: Iterator[str]) -> None:
        self._setup = setup
        self._url = url
        self._raw = raw
        self._segments = segments
        self._messages = values(MESSAGE_BYTES) * (5 if setup.quick else 25)
        self._topic = ""
        self._rows: list[MapRow] = []
        self._blocks_per_write = 1
        self._copy = ""
        self._runs = count()

    def compare(self, report: Report) -> None:
        """Publish, then replay, each in turns."""
        publish: dict[str, Callable[[], Sample]] = {
            TMS: self._publish,
            RAW: self._publish_raw,
            RAW_MAX: self._publish_largest,
            ROW_EACH: self._publish_rows,
        }
        replay = {TMS: self._replay, RAW: self._replay_raw}
        for what, variants in (("publish", publish), ("replay", replay)):
            samples = interleaved(variants, self._setup.runs)
            label = f"{what}, {MESSAGE_BYTES >> 10} KiB messages"
            report.rates("hbase", label, samples)
            share = ratio(samples, TMS, RAW)
            report.line("hbase", f"{label}, TMS ÷ raw", share, "×", GOAL_OF_TMS, samples)
            if ROW_EACH in samples:
                share = ratio(samples, TMS, ROW_EACH)
                name = f"{label}, TMS ÷ a row each"
                report.line("hbase", name, share, "×", GOAL_OF_BLOCKS, samples)

    def _publish(self) -> Sample:
        self._topic = f"messages{next(self._runs)}"
        engine = tms.open_engine(self._url)
        with Bus(engine) as bus:
            bus.create_topic(self._topic, durability="written")
            with bus.producer(self._topic) as producer:
                producer.send(b"the partition has an owner and a segment now")

            def work() -> int:
                with bus.producer(self._topic) as producer:
                    for message in self._messages:
                        producer.send(message)
                return len(self._messages)

            before = engine.stats()
            sample = measured(work)
            after = engine.stats()
            blocks, writes = after.blocks - before.blocks, after.writes - before.writes
            self._blocks_per_write = max(1, round(blocks / writes))
            info = bus.describe_topic(self._topic)
            assert info.partition_infos[0].end_offset == len(self._messages) + 1
            return sample

    def _publish_raw(self) -> Sample:
        """Write the newest blocks directly."""
        with contextlib.closing(HBaseStore(self._url)) as store:
            newest = max(store.names("t"))  # topics get ascending numbers
            self._rows = [*store.open(newest, create=False).scan(None, None, 1 << 40)]
        return self._write(self._blocks_per_write)

    def _publish_largest(self) -> Sample:
        return self._write(PAGE_BYTES // max(len(block) for _, block in self._rows))

    def _write(self, blocks_per_call: int) -> Sample:
        self._copy = next(self._segments)
        puts = self._raw.puts(self._copy, self._rows)
        calls = [puts[at : at + blocks_per_call] for at in range(0, len(puts), blocks_per_call)]
        sample = measured(partial(_each, partial(self._raw.write, self._copy), calls))
        return replace(sample, messages=len(self._messages))

    def _publish_rows(self) -> Sample:
        name = next(self._segments)
        keyed: list[MapRow] = [
            (keys.block_key(_FIRST_MS + number, 0), message)
            for number, message in enumerate(self._messages)
        ]
        puts = self._raw.puts(name, keyed)
        calls = [puts[at : at + ROWS_PER_CALL] for at in range(0, len(puts), ROWS_PER_CALL)]
        return measured(partial(_each, partial(self._raw.write, name), calls))

    def _replay(self) -> Sample:
        with tms.open(self._url) as bus:
            consumer = bus.consumer(self._topic, stop_at_end=True)
            return measured(lambda: sum(len(batch) for batch in consumer.batches()))

    def _replay_raw(self) -> Sample:
        largest = max(len(block) for _, block in self._rows)
        sample = measured(partial(self._raw.read, self._copy, largest))
        return replace(sample, messages=len(self._messages))


def _groups(size: int, blocks: int, writes: int) -> list[list[MapRow]]:
    """The rows of so many writes, all different, in the order of their keys."""
    times = count(_FIRST_MS)
    return [
        [(keys.block_key(next(times), 0), os.urandom(size)) for _ in range(blocks)]
        for _ in range(writes)
    ]


def _each(work: Callable[[Any], object], groups: list[Any]) -> int:
    for group in groups:
        work(group)
    return sum(map(len, groups))
