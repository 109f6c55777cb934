"""Backups of a log in use: publishers, transactions, groups, queues and delayed messages go on, and
the restored log is as the original was at one moment."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

import tms
import tms.aio
from tests.cli.test_cli import Run, data, run  # noqa: F401
from tests.faults.service import within
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.cli.checks.verify import Verifier
from tms.client.client import Bus
from tms.client.http.transport import HttpTransport
from tms.cluster.workers.store import WorkerStore
from tms.errors import Closed, ConfigError, Conflict, Forbidden, Invalid, NotFound, Overloaded
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.backup.images import IDLE_S, IMAGES_MAX, Images
from tms.store.backup.restoring import restore
from tms.store.backup.writer import back_up
from tms.store.base import Store
from tms.store.hbase.store import HBaseStore
from tms.store.leveldb import LevelDBStore

# ruff: noqa: F811


class Acknowledged(NamedTuple):
    """Acknowledged work: the number of each loop, and the messages that a worker settled."""

    done: dict[str, int]
    settled: set[int]


class Work:
    """The load on a log, and its acknowledged work: numbers by name."""

    def __init__(self, bus: Bus, tables: bool = True) -> None:
        self.bus = bus
        self._tables = tables  # a service has none
        self.done: dict[str, int] = {}
        self._settled: list[int] = []
        self.errors: list[BaseException] = []
        self._ended = threading.Event()
        for topic in ("first", "second", "left", "right", "jobs", "later", "soon"):
            bus.create_topic(topic, partitions=2 if topic == "jobs" else 1)
        self._loops: dict[str, Callable[[int], None]] = {
            "ordered": self._ordered,
            "together": self._together,
            "read": self._read,
            "worked": self._worked,
            "delayed": self._delayed,
        }
        self._consumer = bus.consumer("first", group="readers", partitions=[0])
        self._messages = iter(self._consumer)
        self._queue = bus.queue("jobs", group="workers")

    def _ordered(self, number: int) -> None:
        for topic in ("first", "second"):
            self.bus.publish(topic, b"%d" % number, durability="written")

    def _together(self, number: int) -> None:
        with self.bus.transaction() as tx:
            for topic in ("left", "right"):
                tx.send(topic, b"%d" % number)
            if self._tables:
                self.bus.table("sums").within(tx).put(b"last", b"%d" % number)

    def _read(self, number: int) -> None:
        message = next(self._messages, None)
        if message is None:  # all loops have ended
            raise Closed("The consumer is closed.")
        assert message.value == b"%d" % number
        self._consumer.ack()

    def _worked(self, number: int) -> None:
        self.bus.publish("jobs", b"%d" % number, key=b"%d" % number)
        messages = self._queue.receive(wait_s=1)
        self._queue.ack(messages)
        self._settled += [int(message.value or b"") for message in messages]

    def _delayed(self, number: int) -> None:
        self.bus.publish_later("later", b"%d" % number, delay="1h")
        self.bus.publish_later("soon", b"%d" % number, delay=0.02)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Run all loops, each in a thread."""

        def go(name: str, do: Callable[[int], None]) -> None:
            try:
                for number in count():
                    if self._ended.is_set():
                        return
                    do(number)
                    self.done[name] = number + 1
                    self._ended.wait(0.005)
            except BaseException as error:
                if not self._ended.is_set():
                    self.errors.append(error)

        threads = [threading.Thread(target=go, args=item) for item in self._loops.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._consumer.close()
            for thread in threads:
                thread.join()
        assert not self.errors

    def acknowledged(self) -> Acknowledged:
        """The operations acknowledged so far."""
        return Acknowledged(dict(self.done), set(self._settled))

    def end(self) -> None:
        """Begin nothing more; from now on failures are no errors."""
        self._ended.set()

    def reach(self, least: int) -> None:
        """Wait until every loop has done so much."""
        while min(self.done.get(name, 0) for name in self._loops) < least:
            assert not self.errors
            self._ended.wait(0.01)


def values(bus: Bus, topic: str) -> list[int]:
    return [int(one.value or b"") for one in bus.consumer(topic, stop_at_end=True)]


def check(bus: Bus, known: Acknowledged, ever: Acknowledged, tables: bool = True) -> None:
    """Work acknowledged before is there once, in its order, and whole commits are whole; nothing is
    settled that never was."""
    acknowledged = known.done
    first, second = values(bus, "first"), values(bus, "second")
    assert first == list(range(len(first)))
    assert second == list(range(len(second)))
    assert acknowledged["ordered"] <= len(second) <= len(first) <= len(second) + 1
    left = values(bus, "left")
    assert left == values(bus, "right") == list(range(len(left)))
    assert acknowledged["together"] <= len(left)
    if tables:
        last = bus.table("sums").get(b"last")
        assert last == (b"%d" % (len(left) - 1) if left else None)
    with bus.consumer("first", group="readers", partitions=[0], stop_at_end=True) as consumer:
        rest = [int(one.value or b"") for one in consumer]
    assert acknowledged["read"] <= len(first) - len(rest)
    jobs = sorted(values(bus, "jobs"))
    assert jobs == list(range(len(jobs)))
    assert acknowledged["worked"] <= len(jobs)
    unsettled = {int(one.value or b"") for one in bus.queue("jobs", group="workers").peek(1_000)}
    assert not unsettled & known.settled
    assert set(jobs) - unsettled <= ever.settled
    waiting = sorted(int(one.value or b"") for one in bus.list_delayed("later"))
    assert waiting == list(range(len(waiting)))
    within(PATIENCE_S, lambda: bus.describe_delayed("soon").waiting == 0)
    soon = sorted(values(bus, "soon"))
    assert soon == list(range(len(soon)))
    assert acknowledged["delayed"] <= len(soon) <= len(waiting) <= len(soon) + 1


def verified(path: Path) -> None:
    store = LevelDBStore(path, create=False)
    assert list(Verifier(store, frozenset()).run()) == []
    store.close()


def test_a_backup_of_what_is_in_use_is_of_one_moment(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data", create=True) as bus:
        work = Work(bus)
        images: Images = bus._transport.backups  # type: ignore[union-attr]
        with work.going_on():
            for turn in range(4):
                work.reach(10 * turn + 5)
                known = work.acknowledged()
                kept = back_up(images, tmp_path / "backup", "1.0")
                assert kept.copied_files <= kept.manifest.files
                restore(tmp_path / "backup", tmp_path / f"data{turn}")
                verified(tmp_path / f"data{turn}")
                with tms.open(tmp_path / f"data{turn}") as other:
                    check(other, known, work.acknowledged())
    assert not list((tmp_path / "data" / "temporary").iterdir())


def test_a_service_is_backed_up_over_http_and_restored_elsewhere(run: Run, tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "served", create=True)
    with serving(store) as served:
        with tms.connect(served.url) as bus:
            bus.create_topic("orders", partitions=3)
            bus.publish_many("orders", [b"%d" % number for number in range(20_000)])
            bus.publish("orders", bytes(9 << 20 >> 1))
            served.service.engine.access.add_grant("ann", "publish", "topic:orders")
            first = run("backup", "--to", "copy", "--url", served.url, "--json")
            assert first.code == 0, first.err
            bus.publish("orders", b"later")
            bus.publish_many("orders", [bytes(1_000)] * 300)
        again = run("backup", "--to", "copy", "--url", served.url, "--json")
        assert 0 < again.json["copied_bytes"] < again.json["bytes"] // 10
        streamed = run("backup", "--to", "-", "--url", served.url)
        assert streamed.code == 0
        assert len(streamed.out) > first.json["bytes"]
        assert served.service.engine.backups._images == {}
    ended = run("restore", "--from", "copy", "--data", "new", "--json", TMS_DATA="")
    assert ended.json["id"] == again.json["id"]
    assert run("fsck", "--data", "new", TMS_DATA="").code == 0
    with tms.open(tmp_path / "new") as bus:
        assert len(list(bus.consumer("orders", stop_at_end=True))) == 20_302
        assert [grant.principal for grant in bus.admin.access.list_grants()] == ["ann"]


def test_a_directory_in_use_is_not_backed_up_but_its_service_is(
    run: Run, data: Path, tmp_path: Path
) -> None:
    with tms.open(data, create=True):
        assert run("backup", "--to", "copy").code == 75
        assert not (tmp_path / "copy").exists()
    assert run("backup", "--to", "copy").code == 0
    assert run("restore", "--from", "copy", "--dry-run").code == 0
    assert run("restore", "--from", "copy", "--dry-run", TMS_DATA="").code == 0
    assert run("restore", "--from", "copy", TMS_DATA="").code == 2
    refused = run("restore", "--from", "copy")
    assert (refused.code, "not empty" in refused.err) == (4, True)
    assert run("restore", "--from", "nowhere", "--data", "new").code == 3


def test_what_has_no_files_says_how_it_is_backed_up(run: Run) -> None:
    with serving() as served:
        ended = run("backup", "--to", "copy", "--url", served.url)
    assert ended.code == 4
    assert "memory" in ended.err


class HandClock:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_ms(self) -> int:
        return int(self.s * 1_000)

    def monotonic_s(self) -> float:
        return self.s


def test_images_that_nobody_reads_end_and_there_are_only_so_many(tmp_path: Path) -> None:
    clock, store = HandClock(), LevelDBStore(tmp_path, create=True)
    store.open("metadata", create=True)
    images = Images(store, clock)
    begun = [images.begin() for _ in range(IMAGES_MAX)]
    with pytest.raises(Overloaded):
        images.begin()
    clock.s = IDLE_S
    assert images.files(begun[0].id)[-1].path == "FORMAT"
    clock.s += 1
    images.begin()
    assert images.read(begun[0].id, 0, 0, 3) == images.read(begun[0].id, 0)[:3]
    for id in (begun[1].id, "0" * 32):
        for ask in (images.files, images.end, lambda id: images.read(id, 0)):
            with pytest.raises(NotFound, match="no backup"):
                ask(id)
    with pytest.raises(Invalid, match="files 0 to"):
        images.read(begun[0].id, 10_000)
    images.end(begun[0].id)
    images.close()
    with pytest.raises(Closed):
        images.begin()
    assert not list((tmp_path / "temporary").iterdir())
    store.close()


def test_who_may_not_manage_the_service_gets_no_backup() -> None:
    with serving(network=NetworkOptions(AccessLimits())) as served:
        access = served.service.engine.access
        for verb in ("operate", "observe", "consume"):
            access.add_grant("ann", verb, "*")
        access.add_grant("bob", "manage", "service")
        ann, bob = (
            HttpTransport(served.url, token=access.create_token(name).token)
            for name in ("ann", "bob")
        )
        for ask in (ann.backups.begin, lambda: ann.backups.read("0" * 32, 0)):
            with pytest.raises(Forbidden):
                ask()
        with pytest.raises(Conflict, match="memory"):
            bob.backups.begin()
        ann.close()
        bob.close()


def test_a_program_backs_up_what_it_has_open(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t")
        bus.publish_many("t", [b"%d" % number for number in range(1_000)])
        first = bus.backup(tmp_path / "copy")
        assert first.copied_files == first.files
        assert first.copied_bytes == first.bytes > 1_000
        bus.publish("t", b"1000")
        again = bus.backup(str(tmp_path / "copy"))
        assert (again.id != first.id, again.copied_files < again.files) == (True, True)
        with pytest.raises(ConfigError, match="not a directory of backups"):
            bus.backup(tmp_path)
        for wrong in ("", None, 3):
            with pytest.raises(Invalid, match="directory"):
                bus.backup(wrong)  # type: ignore[arg-type]
        images: Images = bus._transport.backups  # type: ignore[assignment]
        assert images._images == {}
    with pytest.raises(Closed):
        bus.backup(tmp_path / "other")
    assert restore(tmp_path / "copy", tmp_path / "new").id == again.id
    with tms.open(tmp_path / "new") as bus:
        assert values(bus, "t") == list(range(1_001))


def test_the_next_backup_costs_what_is_new_also_of_open_segments(tmp_path: Path) -> None:
    pool = Random(1).randbytes(9 << 20)
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("t", partitions=2)
        for new in (8 << 20, 1 << 20, 2 << 20):
            bus.publish_many("t", [pool[at : at + 1_000] for at in range(0, new, 1_000)])
            made = bus.backup(tmp_path / "copy")
            assert new <= made.copied_bytes < 1.2 * new
    restore(tmp_path / "copy", tmp_path / "new")
    verified(tmp_path / "new")
    with tms.open(tmp_path / "new") as bus:
        assert sum(len(one.value or b"") for one in bus.consumer("t", stop_at_end=True)) >= 11 << 20


def test_a_program_backs_up_its_service_also_with_asyncio(tmp_path: Path) -> None:
    async def back_up_there(url: str) -> tms.BackupInfo:
        async with tms.aio.connect(url) as bus:
            return await bus.backup(tmp_path / "copy")

    with serving(LevelDBStore(tmp_path / "data", create=True)) as served:
        with tms.connect(served.url) as bus:
            bus.create_topic("t")
            bus.publish("t", b"0")
        made = asyncio.run(back_up_there(served.url))
    assert restore(tmp_path / "copy", tmp_path / "new").id == made.id


@pytest.mark.parametrize("kind", [HBaseStore, WorkerStore])
def test_where_a_store_is_not_backed_up_so_it_says_how(kind: type[Store]) -> None:
    store = kind.__new__(kind)  # its kind alone decides what it refuses
    with pytest.raises(Conflict) as refused:
        store.image()
    following = str(refused.value.details["next"])
    assert "under Backup" in following or "tms backup --data" in following
