"""Threads take the locks of the engine in one order, which docs/locks.md lists."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import sim.instances
import tms
from sim.corpus.seeds import collect_rarely
from sim.instances import ClusterWorld, Instance
from sim.simulation import Simulation, run
from sim.world import World
from tests.house import counting
from tests.house.locks import COMMAND, PAGE, forbidden, listed, page
from tests.house.source import sources
from tests.locks_kit import (
    PACKAGE,
    Edge,
    ObservedLock,
    Observer,
    lock_name,
    making,
    observed,
)

ROOMS = tuple(
    f"{room}/"
    for room in (
        *("engine", "cluster", "transactions", "groups", "queues", "delayed"),
        *("topics", "access", "log", "store"),
    )
)
SEEDS = 8
SEEDS_OF_INSTANCES = 4
ENOUGH = 150  # acquisitions of different kinds; fewer say that the runs do too little


def _made() -> set[str]:
    """The locks that the engine's rooms make, also those of conditions."""
    made: set[str] = set()
    for place in counting.locks_of_threads(sources()):
        file, line, kind = place.replace(" ", ":").split(":")
        if file.startswith(ROOMS) and not kind.endswith("Event"):
            made.add(lock_name(str(PACKAGE / file), int(line)))
    return made - {""}


def test_every_lock_of_the_engine_has_its_place_in_the_order() -> None:
    locks = listed()
    assert _made() == locks.ranks.keys() | locks.signals


def test_the_page_is_what_the_list_says() -> None:
    assert PAGE.read_text() == page(), f"write it again: {COMMAND}"


@pytest.mark.parametrize(
    "edge",
    [
        Edge("log/cache._lock", "log/partition.owner"),  # the wrong way round
        Edge("log/partition.owner", "log/partition.owner"),  # of two partitions
        Edge("log/partition.owner", "log/nowhere._lock"),  # not in the list
    ],
)
def test_an_acquisition_that_the_list_does_not_allow_is_found(edge: Edge) -> None:
    right = Edge("log/partition.owner", "log/cache._lock")
    assert forbidden([right, edge], listed()) == [edge]


def test_an_acquisition_is_observed_with_the_locks_that_are_held() -> None:
    with observed() as observer:
        outer, inner = (ObservedLock(_lock(), name, observer) for name in ("outer", "inner"))
        with outer, inner:
            pass
        with inner:
            assert outer.acquire(blocking=False)  # which cannot wait, so it may be out of order
            outer.release()
        with inner, observer.apart(), outer:  # of another process
            pass
    assert set(observer.edges) == {Edge("outer", "inner")}


def _lock() -> Any:
    return sim.instances.SingleLock()


@pytest.mark.usefixtures("no_logs")
def test_threads_take_locks_in_the_order_of_the_list(tmp_path: Path) -> None:
    collect_rarely()
    gc.collect()
    gc.disable()  # a generator that is collected releases its locks anywhere
    try:
        with observed() as observer:
            _use(tmp_path / "data")
            with _simulation(observer):
                for seed in range(1, SEEDS + 1):
                    run(seed, of=World)
                for seed in range(1, SEEDS_OF_INSTANCES + 1):
                    run(seed, of=ClusterWorld)
    finally:
        gc.enable()
    engine = {edge: stack for edge, stack in observer.edges.items() if _is_of_engine(edge)}
    wrong = forbidden(engine, listed())
    assert not wrong, f"{wrong}; the first of them:\n{engine[wrong[0]]}"
    assert len(engine) >= ENOUGH


def _is_of_engine(edge: Edge) -> bool:
    return all(name.startswith(ROOMS) for name in edge)


@contextmanager
def _simulation(observer: Observer) -> Iterator[None]:
    """Within, the simulation's locks are observed; another process, or another thread, that acts in
    the middle of an operation holds nothing."""
    inside, glance = ClusterWorld.inside, Simulation._glance

    @contextmanager
    def inside_apart(self: ClusterWorld, instance: Instance) -> Iterator[None]:
        with inside(self, instance), observer.apart():
            yield

    def glance_apart(self: Simulation) -> None:
        with observer.apart():
            glance(self)

    single = making(sim.instances.SingleLock, ObservedLock, observer)
    with ExitStack() as patches:
        patches.enter_context(patch.object(ClusterWorld, "inside", inside_apart))
        patches.enter_context(patch.object(Simulation, "_glance", glance_apart))
        patches.enter_context(patch.object(sim.instances, "SingleLock", single))
        yield


def _use(directory: Path) -> None:
    """Use an engine on a data directory, with threads of its own."""
    with tms.open(directory) as bus:
        bus.create_topic("t", partitions=2)
        bus.create_topic("compacted", cleanup="compact")
        queue = bus.queue("t", group="workers", start="earliest")
        with bus.transaction() as tx:
            for partition in range(2):
                tx.send("t", b"x" * 5_000, partition=partition)
        bus.publish_later("t", b"later", delay="1ms")
        for _ in range(3):
            messages = queue.receive(limit=1, wait_s=5)
            queue.ack(messages)
        consumer = bus.consumer("t", group="readers", start="earliest", stop_at_end=True)
        for _ in consumer:
            consumer.ack()
        for number in range(20):
            bus.publish("compacted", b"%d" % number, key=b"k")
        assert bus.erase("compacted", key=b"k") > 0
        bus.delete_topic("compacted")
