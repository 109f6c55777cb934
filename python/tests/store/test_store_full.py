"""A full disk under the LevelDB store: it refuses writes, not reads, and heals by itself."""

from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.faults import writer
from tests.faults.full_disk import SmallDisk, SmallFileSystem, small_disk
from tms.errors import StorageFull
from tms.model.topic import Durability
from tms.store.base import Map
from tms.store.leveldb import LevelDBLimits, LevelDBStore

pytestmark = pytest.mark.usefixtures("database")

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED


@pytest.mark.parametrize("mount", [True, False], ids=["tmpfs", "file-size limit"])
def test_a_full_disk_refuses_writes_not_reads_and_heals_by_itself(
    mount: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    with small_disk(tmp_path / "disk", mount) as disk:
        path = disk.path / "data"
        store = LevelDBStore(
            path, create=True, clock=clock, limits=LevelDBLimits(write_buffer_bytes=64 << 10)
        )
        one, other = (store.open(name, create=True) for name in ("map/one", "map/other"))
        written = _write_until_full(one, disk)
        assert written > 5

        assert writer.check_rows("map/one", one) >= set(range(written)), "reads do not go on"
        for refused in (
            lambda: one.write(writer.pair("map/one", 0), WRITTEN),
            lambda: one.delete([b"a000000"]),
            lambda: one.compare_and_set(b"a", None, b""),
            one.recover,
        ):
            with pytest.raises(StorageFull):
                refused()
        if isinstance(disk, SmallFileSystem):
            with pytest.raises(StorageFull):
                store.open("map/new", create=True)
        assert "full" in (store.healthy() or "")
        _write_until_full(other, disk)
        store.drop("map/other")  # frees space even now
        assert store.names("") == ["map/one"]

        disk.free()
        with pytest.raises(StorageFull):  # LevelDB loses writes behind a half-written record
            one.write(writer.pair("map/one", 99), SYNCED)
        clock.pass_ms(600)
        one.recover()
        assert store.healthy() is None
        for number in range(100, 140):
            one.write(writer.pair("map/one", number), SYNCED)
        store.close()
        store = LevelDBStore(path, create=False)
        numbers = writer.check_rows("map/one", store.open("map/one", create=False))
        assert numbers >= {*range(written), *range(100, 140)}
        store.close()


def test_a_disk_that_stays_full_is_probed_twice_a_second_at_most(tmp_path: Path) -> None:
    clock = ManualClock()
    with small_disk(tmp_path / "disk", mount=True) as disk:
        store = LevelDBStore(
            disk.path / "data",
            create=True,
            clock=clock,
            limits=LevelDBLimits(write_buffer_bytes=64 << 10),
        )
        maps = [store.open(f"map/{n}", create=True) for n in range(3)]
        for one in maps:
            _write_until_full(one, disk)
        probes = 0
        for _ in range(40):  # ten seconds
            before = (disk.path / "data/temporary").stat().st_mtime_ns
            for one in maps:
                with pytest.raises(StorageFull):
                    one.recover()
            assert store.healthy()
            probes += (disk.path / "data/temporary").stat().st_mtime_ns != before
            clock.pass_ms(250)
        assert probes == 20
        store.close()


def _write_until_full(one: Map, disk: SmallDisk) -> int:
    """Write until the disk is full; the number of acknowledged writes."""
    disk.free()
    for number in range(1_000):
        if number == 6:
            disk.fill(left_bytes=48 << 10)
        try:
            one.write(writer.pair("map/one", number), SYNCED if number % 3 == 0 else WRITTEN)
        except StorageFull:
            return number
    raise AssertionError("the disk does not get full")
