"""The maps of a partition are opened while this process owns it, and not by readers that read
on."""

import threading

import pytest

from tests.gate_kit import in_thread
from tests.log_kit import NAME, Bench
from tests.waiting import PATIENCE_S
from tms.errors import NotOwner
from tms.log.maps import PartitionMaps
from tms.model.position import Position
from tms.store.base import Map

GONE = NotOwner("Another one owns it.", owner="b")


def test_who_reads_on_after_a_release_opens_no_map() -> None:
    with Bench() as bench:
        bench.publish(b"1")
        bench.restart()
        log = bench.engine.topics.log(NAME, 0)
        bench.engine.topics.partitions.release(log, 1.0, GONE)
        opened: list[str] = []
        right = bench.store.open

        def spying(name: str, create: bool) -> Map:
            opened.append(name)
            return right(name, create)

        bench.store.open = spying  # type: ignore[method-assign]
        with pytest.raises(NotOwner, match="Another one"):
            log.reader.read(Position.earliest(), (0, 0), 1)
        assert opened == []
        again = bench.engine.topics.log(NAME, 0)
        assert again is not log and len(again.reader.read(Position.earliest(), (0, 0), 1).blocks)
        assert opened


def test_a_release_waits_for_who_is_opening() -> None:
    reached, may_go = threading.Event(), threading.Event()

    class Slow:
        shared = True
        open_ones = 0

        def open(self, name: str, create: bool) -> Map:
            reached.set()
            assert may_go.wait(PATIENCE_S)
            self.open_ones += 1
            raise NotOwner("whatever")

        def drop(self, name: str) -> None: ...

        def names(self, prefix: str) -> list[str]:
            return []

    store = Slow()
    maps = PartitionMaps(store)
    opening = in_thread(lambda: maps.open("a", False))
    assert reached.wait(PATIENCE_S)
    releasing = in_thread(lambda: maps.release(GONE))
    assert not releasing.done()
    may_go.set()
    releasing.result(PATIENCE_S)
    assert store.open_ones == 1
    with pytest.raises(NotOwner, match="whatever"):
        opening.result(PATIENCE_S)
    with pytest.raises(NotOwner, match="Another one"):
        maps.open("a", False)
    assert store.open_ones == 1
