"""Answers, with numbers, to the questions that the design left open.

* Does a block beyond 512 KiB ever pay?
* Should the service join small publishes into one block, or store them side by side?
* Does group commit need a thread of its own, or does the first waiting caller write?
* How many open LevelDB databases can one process have, and what do idle ones cost?
"""

import contextlib
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from bench import machine
from bench.group_commit import PUBLISHERS
from bench.latency import timed
from bench.report import Report, Sample, Samples, interleaved, measured, median, more, ratio
from bench.targets import TOPIC, Embedded, Service, Setup, values
from bench.threads import in_threads
from bench.throughput import AT_ONCE, replay
from tms.block import encode
from tms.client.client import Bus
from tms.engine.engine import Engine
from tms.model.message import NewBlock
from tms.model.topic import Durability, TopicName
from tms.store.leveldb.databases import LevelDBLimits
from tms.store.leveldb.store import LevelDBStore

NAME = TopicName("default", TOPIC)


def run(setup: Setup, report: Report) -> None:
    """Benchmark 7."""
    _block_sizes(setup, report)
    _joined(setup, report)
    _who_writes(setup, report)
    _open_databases(setup, report)


# --- block sizes ----------------------------------------------------------------------------------


def _block_sizes(setup: Setup, report: Report) -> None:
    report.title("Block sizes, through HTTP")
    for size, count in ((100, 1_000_000), (1024, 200_000)):
        count //= 4 if setup.quick else 1
        publishing: Samples = {}
        replaying: Samples = {}
        for _ in range(min(3, setup.runs)):
            for kib in (64, 128, 256, 512, 1024, 2048):
                published, replayed = _with_blocks(setup, kib << 10, size, count)
                publishing.setdefault(f"{kib} KiB", []).append(published)
                replaying.setdefault(f"{kib} KiB", []).append(replayed)
        report.rates("7", f"publish {size} B, blocks of", publishing)
        report.rates("7", f"replay {size} B, blocks of", replaying)


def _with_blocks(setup: Setup, block_bytes: int, size: int, count: int) -> tuple[Sample, Sample]:
    cells = values(size)[:AT_ONCE]

    def publish(bus: Bus) -> int:
        with bus.producer(TOPIC, batch_bytes=block_bytes) as producer:
            for _ in range(count // AT_ONCE):
                producer.send_many(cells)
        return count

    with setup.directory() as path, Service.start(path) as target:
        target.bus.create_topic(TOPIC, durability="written")
        published = measured(lambda: publish(target.bus), target.pid)
        return published, measured(lambda: replay(target.bus, count), target.pid)


# --- joined or side by side -----------------------------------------------------------------------


def _joined(setup: Setup, report: Report) -> None:
    count = 20_000 if setup.quick else 100_000
    report.title(f"{count:,} messages of 100 B, each its own block or joined by hundreds")
    samples = interleaved(
        {
            "side by side": lambda: _replay_blocks_of(setup, 1, count),
            "joined by 100": lambda: _replay_blocks_of(setup, 100, count),
        },
        setup.runs,
    )
    report.rates("7", "replay embedded, blocks", samples)
    for name, its in samples.items():
        stored = median(its, lambda s: s.more["stored_bytes"] / s.messages)
        report.line("7", f"stored, blocks {name}", stored, "bytes/message")
    gained = ratio(samples, "side by side", "joined by 100", lambda s: s.cpu_s)
    report.line("7", "replay CPU, side by side ÷ joined", gained, "×", None, samples)


def _replay_blocks_of(setup: Setup, per_block: int, count: int) -> Sample:
    cells = values(100)
    with setup.directory() as path, Embedded.open(path) as target:
        target.bus.create_topic(TOPIC, durability="written")
        for at in range(0, count, 100):
            part = [cells[(at + number) % len(cells)] for number in range(100)]
            blocks = [
                NewBlock(0, encode(part[begin : begin + per_block]))
                for begin in range(0, 100, per_block)
            ]
            target.engine.append(NAME, blocks)
        sample = measured(lambda: replay(target.bus, count))
        info = target.bus.describe_topic(TOPIC)
        sample.more["stored_bytes"] = sum(each.stored_bytes for each in info.partition_infos)
        return sample


# --- who writes -----------------------------------------------------------------------------------


class _WriterThread:
    """The alternative design: callers queue their blocks and one thread appends all queued
    blocks."""

    def __init__(self, engine: Engine, durability: Durability) -> None:
        self._engine = engine
        self._durability = durability
        self._queue: queue.SimpleQueue[tuple[NewBlock, threading.Event] | None]
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def append(self, block: NewBlock) -> None:
        done = threading.Event()
        self._queue.put((block, done))
        done.wait()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            with contextlib.suppress(queue.Empty):
                while (more := self._queue.get_nowait()) is not None:
                    batch.append(more)
            self._engine.append(NAME, [block for block, _ in batch], self._durability)
            for _, done in batch:
                done.set()


def _who_writes(setup: Setup, report: Report) -> None:
    report.title("Flat combining (the first waiting caller writes) beside a writer thread")
    for durability in (Durability.WRITTEN, Durability.SYNCED):
        for publishers in (1, PUBLISHERS):
            samples = interleaved(
                {
                    name: partial(_appending, setup, way, durability, publishers)
                    for name, way in (("combining", _combining), ("writer thread", _queueing))
                },
                setup.runs,
            )
            what = f"{durability.value}, {publishers} publishers"
            report.rates("7", what, samples)
            for name, its in samples.items():
                p50_ms = median(its, more("p50_ms"))
                report.line("7", f"{what}, {name}, p50", p50_ms, "ms", None, {name: its})


Append = Callable[[NewBlock], None]


@contextlib.contextmanager
def _combining(engine: Engine, durability: Durability) -> Iterator[Append]:
    def append(block: NewBlock) -> None:
        engine.append(NAME, [block], durability)

    yield append


@contextlib.contextmanager
def _queueing(engine: Engine, durability: Durability) -> Iterator[Append]:
    writer = _WriterThread(engine, durability)
    try:
        yield writer.append
    finally:
        writer.close()


def _appending(
    setup: Setup,
    way: Callable[[Engine, Durability], contextlib.AbstractContextManager[Append]],
    durability: Durability,
    publishers: int,
) -> Sample:
    cell = values(1024)[0]
    count = (1_000 if setup.quick else 4_000) // publishers
    with setup.directory() as path, Embedded.open(path) as target:
        target.bus.create_topic(TOPIC)
        with way(target.engine, durability) as append:
            if publishers == 1:
                return timed(lambda _: append(NewBlock(0, encode([cell]))), count)
            took_ms: list[float] = []

            def publish() -> None:
                for _ in range(count):
                    begun = time.perf_counter()
                    append(NewBlock(0, encode([cell])))
                    took_ms.append((time.perf_counter() - begun) * 1e3)

            def work() -> int:
                in_threads([publish] * publishers)
                return count * publishers

            sample = measured(work)
            sample.more["p50_ms"] = sorted(took_ms)[len(took_ms) // 2]
            return sample


# --- open databases -------------------------------------------------------------------------------


def _do_nothing() -> int:
    time.sleep(2)
    return 1


def _open_databases(setup: Setup, report: Report) -> None:
    count = 200 if setup.quick else 1_000
    report.title(f"{count:,} open LevelDB databases in one process")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        for what, value, unit in fresh.submit(_with_databases, setup, count).result():
            report.line("7", what, value, unit)


def _with_databases(setup: Setup, count: int) -> list[tuple[str, float, str]]:
    """Measure in a process of its own, so that its memory starts small."""
    pid = os.getpid()
    with setup.directory() as path:
        store = LevelDBStore(path / "many", create=True, limits=LevelDBLimits(maps_open_max=count))
        before, files = machine.memory_mib(pid)["RssAnon"], machine.descriptors(pid)
        begun = time.perf_counter()
        for number in range(count):
            made = store.open(f"map-{number}", create=True)
            made.write([(b"key", b"value")], Durability.WRITTEN)
        each_ms = (time.perf_counter() - begun) / count * 1e3
        grown = machine.memory_mib(pid)["RssAnon"] - before
        idle = measured(_do_nothing)
        opened = machine.descriptors(pid) - files
        store.close()
    return [
        ("creating and opening one", each_ms, "ms"),
        ("memory of each", grown / count * 1024, "KiB"),
        ("descriptors of each", opened / count, ""),
        ("CPU of all while idle", idle.cpu_s / idle.wall_s * 100, "%"),
    ]
