"""Tables: versions, the versions that transactions see, conflicts, compaction, and a plain
model."""

import threading
from pathlib import Path
from random import Random

import pytest

import tms
from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tms.client.client import Bus
from tms.engine.engine import Engine
from tms.errors import Invalid, TooLarge, TransactionConflict
from tms.model.snapshot import Fate
from tms.model.transaction import Commit
from tms.store.memory import MemoryStore
from tms.transactions.versions import Version, decode, encode, row_key, unneeded


class Kept:
    """A bus over a store that outlives it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(KeptStore())
        self.bus = self.open()
        self.bus.create_topic("sold")

    def open(self) -> Bus:
        self.engine = Engine(self.store, self.clock)
        return Bus(self.engine)

    def kill(self) -> None:
        """Kill the process; its writes stay."""
        self.engine._threads.shutdown(wait=True)
        self.bus = self.open()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def bus(kept: Kept) -> Bus:
    return kept.bus


def put(bus: Bus, **values: bytes | None) -> None:
    with bus.transaction() as tx:
        mine = bus.table("t").within(tx)
        for key, value in values.items():
            if value is None:
                mine.delete(key.encode())
            else:
                mine.put(key.encode(), value)


def rows(bus: Bus) -> dict[bytes, bytes]:
    return dict(bus.table("t").scan())


def test_values_and_messages_appear_together(bus: Bus) -> None:
    table = bus.table("t")
    with bus.transaction() as tx:
        mine = table.within(tx)
        mine.put(b"a", b"1")
        tx.send("sold", b"a")
        assert mine.get(b"a") == b"1"
        assert table.within(tx) is mine
        assert table.get(b"a") is None
    assert table.get(b"a") == b"1"
    assert [m.value for m in bus.consumer("sold", stop_at_end=True)] == [b"a"]


def test_an_exception_leaves_nothing(bus: Bus) -> None:
    with pytest.raises(ZeroDivisionError), bus.transaction() as tx:
        bus.table("t").within(tx).put(b"a", b"1")
        _ = 1 / 0
    assert rows(bus) == {}


def test_a_transaction_sees_the_table_as_it_was_and_its_own_writes(bus: Bus) -> None:
    put(bus, a=b"1", b=b"1", c=b"1")
    tx = bus.transaction()
    mine = bus.table("t").within(tx)
    put(bus, a=b"2", d=b"2", c=None)
    assert dict(mine.scan()) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    mine.put(b"bb", b"own")
    mine.delete(b"b")
    mine.put(b"z", b"own")
    assert dict(mine.scan()) == {b"a": b"1", b"bb": b"own", b"c": b"1", b"z": b"own"}
    assert dict(mine.scan(b"b", b"c")) == {b"bb": b"own"}
    assert mine.get(b"b") is None
    tx.commit()
    assert rows(bus) == {b"a": b"2", b"bb": b"own", b"d": b"2", b"z": b"own"}


def test_of_two_that_wrote_the_same_key_only_one_commits(bus: Bus) -> None:
    first, second = bus.transaction(), bus.transaction()
    bus.table("t").within(first).put(b"a", b"1")
    other = bus.table("t").within(second)
    other.put(b"a", b"2")
    other.put(b"b", b"2")
    first.commit()
    with pytest.raises(TransactionConflict):
        second.commit()
    assert rows(bus) == {b"a": b"1"}
    assert bus.table("t").compact() == 0  # its stored versions were rolled back


def test_keys_with_zeros_sort_as_they_are(bus: Bus) -> None:
    keys = [
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"a",
        b"a\x00",
        b"a\x00\x00b",
        b"a\x01",
        b"\xff" * 500,
    ]
    with bus.transaction() as tx:
        mine = bus.table("t").within(tx)
        for key in reversed(keys):
            mine.put(key, key)
    assert list(bus.table("t").scan()) == [(key, key) for key in keys]
    assert [key for key, _ in bus.table("t").scan(b"a", b"a\x01")] == keys[3:6]
    for key in keys:
        assert decode(encode(Version(key, 7, None))) == Version(key, 7, None)
        assert row_key(key, 8) < row_key(key, 7)


def test_what_cannot_be_stored_is_refused_at_once(bus: Bus) -> None:
    with bus.transaction() as tx:
        mine = bus.table("t").within(tx)
        for wrong in (b"", b"k" * 501, "k"):
            with pytest.raises(Invalid):
                mine.put(wrong, b"v")  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            mine.put(b"k", None)  # type: ignore[arg-type]
        with pytest.raises(TooLarge):
            mine.put(b"k", bytes((8 << 20) + 1))
    for name in ("", "A", "a/b", "a" * 65, "-a"):
        with pytest.raises(Invalid):
            bus.table(name).get(b"k")
    with pytest.raises(Invalid, match="engine in this process"):
        tms.connect("http://127.0.0.1:9").table("t")


def test_a_process_that_dies_before_the_commit_leaves_nothing_to_see(kept: Kept) -> None:
    put(kept.bus, a=b"1")
    tx = kept.bus.transaction()
    mine = kept.bus.table("t").within(tx)
    mine.put(b"a", b"2")
    mine.put(b"b", b"2")
    mine.persist(None)  # type: ignore[arg-type]
    kept.kill()
    assert rows(kept.bus) == {b"a": b"1"}
    kept.clock.pass_ms(60_000)
    kept.engine.transactions.manager.expire()
    assert rows(kept.bus) == {b"a": b"1"}
    assert kept.bus.table("t").compact() == 2
    assert rows(kept.bus) == {b"a": b"1"}


def test_what_was_lost_with_the_power_is_never_seen() -> None:
    """The values were synced; the begin of their transaction was not."""
    clock, faulty = ManualClock(), FaultyStore(MemoryStore())
    bus = Bus(Engine(faulty, clock))
    put(bus, a=b"1")
    tx = bus.transaction()
    mine = bus.table("t").within(tx)
    mine.put(b"a", b"2")
    mine.persist(None)  # type: ignore[arg-type]
    store = faulty.crash()
    clock.pass_ms(60_000)
    bus = Bus(Engine(store, clock))
    put(bus, b=b"3")
    with bus.transaction() as tx:
        assert dict(bus.table("t").within(tx).scan()) == rows(bus) == {b"a": b"1", b"b": b"3"}


def test_a_commit_that_takes_long_is_not_torn(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first attempt times out, the next one finds it in progress; its values stay there."""
    bus.create_topic("out")
    commits = bus._transport.transactions.manager.commits  # type: ignore[attr-defined]
    right, go = commits.submit, threading.Event()
    late: list[threading.Thread] = []

    def commit(*args: object) -> None:
        late.append(threading.Thread(target=lambda: (go.wait(20), right(*args))))
        late[0].start()

    monkeypatch.setattr(commits, "submit", commit)
    real = bus._transport.transactions.commit
    attempts: list[object] = []

    def attempt(request: Commit, timeout_s: float = 30) -> object:
        attempts.append(request)
        if len(attempts) == 2:
            go.set()
        return real(request, 0.05)

    monkeypatch.setattr(bus._transport.transactions, "commit", attempt)
    with bus.transaction(timeout_s=20) as tx:
        bus.table("t").within(tx).put(b"a", b"1")
        tx.send("out", b"1")
    late[0].join(20)
    assert len(attempts) > 1
    assert rows(bus) == {b"a": b"1"}
    assert [message.value for message in bus.consumer("out", stop_at_end=True)] == [b"1"]


def test_a_scan_of_several_pages_shows_one_moment(bus: Bus) -> None:
    keys = [f"k{number}" for number in range(8)]
    put(bus, **{key: b"1" + bytes(200_000) for key in keys})
    scan = bus.table("t").scan()
    seen = [next(scan)]
    put(bus, k1=None, new=b"2", **{key: b"2" for key in keys if key != "k1"})
    assert bus.table("t").compact() == 0, "the scan may need the old versions"
    seen += scan
    assert [(key.decode(), value[:1]) for key, value in seen] == [(key, b"1") for key in keys]
    assert set(rows(bus).values()) == {b"2"}
    assert bus.table("t").compact() == len(keys) + 1


def test_a_scan_does_not_show_what_commits_meanwhile(bus: Bus) -> None:
    """Its versions were stored before."""
    put(bus, a=bytes(300_000), z=b"1")
    tx = bus.transaction()
    mine = bus.table("t").within(tx)
    mine.put(b"a", b"2")
    mine.put(b"z", b"2")
    tables, request = bus.table("t")._tables, Commit(tx.id)
    mine.persist(request)
    scan = tables.scan("t", b"", None)
    first = next(scan)
    bus._transport.transactions.commit(request)
    assert [first[1][:1], next(scan)[1]] == [b"\0", b"1"]
    assert bus.table("t").compact() == 0
    scan.close()  # type: ignore[attr-defined]
    assert rows(bus) == {b"a": b"2", b"z": b"2"} and bus.table("t").compact() == 2


def test_a_scan_that_is_dropped_keeps_nothing(bus: Bus) -> None:
    put(bus, a=b"1")
    scan = bus.table("t").scan()
    next(scan)
    del scan
    put(bus, a=b"2")
    assert bus.table("t").compact() == 1


def test_a_value_is_found_though_others_are_written_and_removed_while_it_is_read(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that hides the newer value was undecided when the read began; then it ends,
    and the value is removed."""
    monkeypatch.setattr("tms.transactions.tables.SCAN_BYTES", 1)
    bus, done = kept.bus, False
    put(bus, a=b"1")
    tx = bus.transaction()
    mine = bus.table("t").within(tx)
    mine.put(b"a", b"2")
    request = mine.persist(Commit(tx.id))
    scans = 0

    def meanwhile(operation: str, name: str) -> None:
        nonlocal scans, done
        scans += operation == "scan" and name.startswith("k/")
        if scans == 2 and not done:
            done = True
            bus._transport.transactions.commit(request)
            bus.table("t").compact()

    kept.store.before = meanwhile
    assert bus.table("t").get(b"a") == b"1"
    assert done and bus.table("t").get(b"a") == b"2"


def test_a_deletion_is_removed_after_what_it_hides() -> None:
    versions = [Version(b"k", 3, None), Version(b"k", 2, b"v"), Version(b"k", 1, b"v")]
    gone = [version.pointer for version in unneeded(versions, lambda _: Fate.VISIBLE, 3)]
    assert gone == [2, 1, 3]


def test_compaction_keeps_what_a_transaction_in_progress_may_see(bus: Bus) -> None:
    put(bus, a=b"1", b=b"1")
    put(bus, a=b"2", b=None)
    tx = bus.transaction()
    mine = bus.table("t").within(tx)
    put(bus, a=b"3")
    put(bus, a=b"4", c=b"4")
    assert bus.table("t").compact() == 3  # a=1, and all of b
    assert dict(mine.scan()) == {b"a": b"2"}
    tx.abort()
    assert bus.table("t").compact() == 2
    assert rows(bus) == {b"a": b"4", b"c": b"4"}


def test_what_is_decided_late_is_kept_until_nobody_looks_back() -> None:
    fates = {1: Fate.VISIBLE, 2: Fate.SKIPPED, 3: Fate.VISIBLE, 4: Fate.OPEN, 5: Fate.VISIBLE}
    versions = [Version(b"k", pointer, b"v") for pointer in (5, 4, 3, 2, 1)]
    gone = [version.pointer for version in unneeded(versions, fates.__getitem__, 3)]
    assert gone == [2, 1]
    assert [v.pointer for v in unneeded(versions, fates.__getitem__, 0)] == [2]


@pytest.mark.parametrize("seed", range(12))
def test_tables_are_like_a_dictionary_with_snapshots(kept: Kept, seed: int) -> None:
    random, model = Random(seed), dict[bytes, bytes]()
    keys = [b"%d" % number for number in range(8)]
    for step in range(60):
        tx = kept.bus.transaction()
        mine, view = kept.bus.table("t").within(tx), dict(model)
        for _ in range(random.randint(0, 4)):
            key = random.choice(keys)
            if random.random() < 0.3:
                mine.delete(key)
                view.pop(key, None)
            else:
                mine.put(key, b"%d" % step)
                view[key] = b"%d" % step
        assert dict(mine.scan()) == view
        if random.random() < 0.3:
            tx.abort()
        else:
            tx.commit()
            model = view
        if random.random() < 0.2:
            kept.bus.table("t").compact()
        if random.random() < 0.1:
            kept.kill()
        assert rows(kept.bus) == model
        start = random.choice(keys)
        found = dict(kept.bus.table("t").scan(start))
        assert found == {key: value for key, value in model.items() if key >= start}


def test_a_table_is_there_after_the_directory_was_opened_again(tmp_path: Path) -> None:
    with tms.open(tmp_path) as bus:
        put(bus, a=b"1")
    with tms.open(tmp_path) as bus:
        assert rows(bus) == {b"a": b"1"}
