"""Records that a supervisor serves: the contract of a map; no reader gets an outdated value."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.contracts.store_contract import StoreContract, WholeWritesContract
from tms.cluster.workers.frames import Frames
from tms.cluster.workers.records import ChangeCount, RecordServer, ServedRecords
from tms.errors import Closed, StorageUnavailable
from tms.model.topic import Durability
from tms.store.base import Map, Store
from tms.store.leveldb import LevelDBStore
from tms.store.memory import MemoryStore


def served(records: Map) -> Callable[[], ServedRecords]:
    """Makes a worker's view of a map, of one server."""
    changes = ChangeCount()
    server = RecordServer(records, changes)

    def connect() -> socket.socket:
        mine, theirs = socket.socketpair()
        threading.Thread(target=server.serve, args=(Frames(theirs),), daemon=True).start()
        return mine

    return lambda: ServedRecords(connect, changes)


class ServedStore(MemoryStore):
    """A store whose maps are all served over a socket."""

    def __init__(self) -> None:
        super().__init__()
        self._served: dict[str, tuple[Map, ServedRecords]] = {}

    def open(self, name: str, create: bool) -> Map:  # type: ignore[override]
        inner = super().open(name, create)
        known = self._served.get(name)
        if known is None or known[0] is not inner:
            known = self._served[name] = inner, served(inner)()
        return known[1]


class TestServed(WholeWritesContract, StoreContract):
    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        return ServedStore


def test_a_value_is_remembered_until_any_record_changes() -> None:
    make = served(MemoryStore().open("m", create=True))
    one, other = make(), make()
    assert one.get(b"k") is None and one.remembers(b"k") and not one.remembers(b"other")
    other.write([(b"other", b"1")], Durability.SYNCED)
    assert not one.remembers(b"k")
    assert one.get(b"other") == b"1" and one.get(b"k") is None
    assert not other.compare_and_set(b"k", b"x", b"y")
    assert other.compare_and_set(b"k", None, b"y") and one.get(b"k") == b"y"
    other.delete([b"k"])
    assert one.get(b"k") is None


@pytest.mark.parametrize("seed", range(5))
def test_who_reads_after_somebody_saw_a_change_sees_it(seed: int) -> None:
    """Values only grow, and each reader begins with the newest value that any reader has seen."""
    make = served(MemoryStore().open("m", create=True))
    writer, readers = make(), [make() for _ in range(3)]
    seen, wrong, stop = [0], list[tuple[int, int]](), threading.Event()
    writer.write([(b"n", b"0")], Durability.WRITTEN)

    def read(records: ServedRecords) -> None:
        while not stop.is_set():
            least = seen[0]
            value = int(records.get(b"n") or b"-1")
            if value < least:
                wrong.append((value, least))
            seen[0] = max(seen[0], value)

    threads = [threading.Thread(target=read, args=(records,)) for records in readers]
    for thread in threads:
        thread.start()
    random = Random(seed)
    for number in range(1, 300):
        if random.random() < 0.5:
            assert writer.compare_and_set(b"n", b"%d" % (number - 1), b"%d" % number)
        else:
            writer.write([(b"n", b"%d" % number)], Durability.WRITTEN)
        seen[0] = max(seen[0], number)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_of_the_map_is_that_of_the_caller(tmp_path: Path) -> None:
    with contextlib.closing(LevelDBStore(tmp_path / "data", create=True)) as store:
        records = served(store.open("metadata", create=True))()
        store.close()
        with pytest.raises(Closed):
            records.write([(b"k", b"v")], Durability.SYNCED)


def test_what_was_asked_of_a_supervisor_that_is_gone_may_have_been_done() -> None:
    def connect() -> socket.socket:
        mine, theirs = socket.socketpair()
        theirs.close()
        return mine

    records = ServedRecords(connect, ChangeCount())
    with pytest.raises(StorageUnavailable, match="gone") as caught:
        records.write([(b"k", b"v")], Durability.SYNCED)
    assert caught.value.details["outcome"] == "unknown"
