"""Images of a data directory: everything at one moment, whatever else is running."""

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from tests.contracts.store_contract import rows_of
from tests.databases import kill
from tms.errors import NotFound, StorageUnavailable
from tms.model.backup import ImageFile
from tms.model.topic import Durability
from tms.store.base import Map, MapRow, StoreImage
from tms.store.leveldb import LevelDBLimits, LevelDBStore
from tms.store.leveldb import store as stores
from tms.store.leveldb.map import LevelDBMap
from tms.store.leveldb.values import ValueFile

pytestmark = pytest.mark.usefixtures("database")

PIECE = 10_000
WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED


def write_out(image: StoreImage, place: Path) -> LevelDBStore:
    """The store restored from an image."""
    for file in image.files:
        target = place / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        parts = [image.read(file, at, PIECE) for at in range(0, file.bytes, PIECE)]
        target.write_bytes(b"".join(parts))
    return LevelDBStore(place, create=False)


def content(store: LevelDBStore) -> dict[str, list[MapRow]]:
    return {name: list(rows_of(store.open(name, create=False))) for name in store.names("")}


def rows(seed: int, count: int = 50) -> list[MapRow]:
    """Small and large values."""
    random = Random(seed)
    return [(b"%d-%03d" % (seed, n), random.randbytes(20 + n % 2 * 9_000)) for n in range(count)]


def numbers(one: Map) -> list[int]:
    return [int.from_bytes(key, "big") for key, _ in rows_of(one)]


def test_an_image_has_everything_and_nothing_that_came_later(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    for seed, name in enumerate(["metadata", "t00000001/p00000/s00000000", "t00000001/delayed"]):
        store.open(name, create=True).write(rows(seed), WRITTEN)
    before = content(store)
    image = store.image()
    store.open("metadata", create=False).write(rows(7), SYNCED)
    store.open("metadata", create=False).delete([b"0-000"])
    store.open("later", create=True).write(rows(8), SYNCED)
    store.drop("t00000001/delayed")
    store.open("metadata", create=False).reclaim()
    assert content(write_out(image, tmp_path / "copy")) == before
    store.close()


def test_maps_that_are_closed_are_in_it(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True, limits=LevelDBLimits(maps_open_max=2))
    for seed in range(8):
        store.open(f"map{seed}", create=True).write(rows(seed), SYNCED)
    before = content(store)
    image = store.image()
    for seed in range(8):
        store.open(f"map{seed}", create=False).write(rows(seed + 10), SYNCED)
    assert content(write_out(image, tmp_path / "copy")) == before
    store.close()


@pytest.mark.parametrize("maps_open_max", [1, 256])
def test_what_was_written_one_after_the_other_is_in_it_in_this_order(
    tmp_path: Path, maps_open_max: int
) -> None:
    """A thread writes each number to one map, then to the next: so no map of an image may be ahead
    of the one before, nor more than one behind."""
    limits = LevelDBLimits(maps_open_max=maps_open_max)
    store = LevelDBStore(tmp_path / "data", create=True, limits=limits)
    maps = [store.open(f"map{number}", create=True) for number in range(4)]
    done, ended = 0, threading.Event()

    def write() -> None:
        nonlocal done
        number = 0
        while not ended.is_set():
            number += 1
            for one in maps:
                one.write([(number.to_bytes(4, "big"), bytes(number % 9 * 1_000))], WRITTEN)
            done = number
            ended.wait(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(8):
            acknowledged = done
            image = store.image()
            copy = write_out(image, tmp_path / f"copy{turn}")
            found = [numbers(copy.open(f"map{number}", create=False)) for number in range(4)]
            copy.close()
            image.release()
            ends = [len(one) for one in found]
            assert found == [list(range(1, end + 1)) for end in ends]
            assert acknowledged <= ends[-1]
            assert ends == sorted(ends, reverse=True)
            assert ends[0] <= ends[-1] + 1
    finally:
        ended.set()
        writer.join()
        store.close()


def test_of_two_images_what_did_not_change_has_the_same_version(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    store.open("sealed", create=True).write(rows(1), SYNCED)
    one = store.open("open", create=True)
    one.write(rows(2), SYNCED)
    first = store.image()
    one.write(rows(3), SYNCED)
    second = store.image()
    same, changed = set(first.files) & set(second.files), set(second.files) - set(first.files)
    assert {file.path for file in changed} <= {f"maps/open/{name}" for name in _names(second)}
    assert any(file.path == "maps/sealed/values" for file in same)
    assert any(file.path == "maps/open/values" for file in changed)
    for file in same:
        assert first.read(file, 0, file.bytes) == second.read(file, 0, file.bytes)
    store.close()


def test_a_file_of_values_that_only_grew_says_so_until_its_map_is_opened_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    store = LevelDBStore(path, create=True)
    store.open("map", create=True).write(rows(1), WRITTEN)
    images = [store.image()]
    store.open("map", create=False).write(rows(2), WRITTEN)
    images.append(store.image())
    first, second = map(_values, images)
    assert first.origin == second.origin != ""
    assert 0 < first.bytes < second.bytes
    start = [
        image.read(file, 0, first.bytes)
        for image, file in zip(images, (first, second), strict=True)
    ]
    assert start[0] == start[1]
    assert {file.origin for file in images[1].files if file.path != second.path} == {""}
    one = store.open("map", create=False)
    assert isinstance(one, LevelDBMap)
    assert one.rest()
    closed = _values(store.image())
    assert (closed.bytes, closed.origin) == (second.bytes, first.origin)
    store.open("map", create=False).write(rows(4), WRITTEN)
    assert _values(store.image()).origin == first.origin
    kill(store, path)
    store = LevelDBStore(path, create=False)
    assert _values(store.image()).origin == ""  # no process has opened it yet
    store.open("map", create=False).write(rows(3), WRITTEN)
    third = _values(store.image())
    assert third.origin not in ("", first.origin)
    assert third.version not in (first.version, second.version)
    store.close()


def test_a_map_that_was_recovered_or_copied_does_not_say_that_it_only_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    one = store.open("map", create=True)
    one.write(rows(1), SYNCED)
    before = _values(store.image()).origin

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(ValueFile, "sync", fails)
        with pytest.raises(StorageUnavailable):
            one.write(rows(2), SYNCED)
    one.recover()
    recovered = _values(store.image()).origin
    one.reclaim()
    copied = _values(store.image()).origin
    assert copied == ""
    one.write(rows(3), SYNCED)
    assert len({before, recovered, copied, _values(store.image()).origin}) == 4
    store.close()


def _values(image: StoreImage) -> ImageFile:
    return next(file for file in image.files if file.path.endswith("/values"))


def _names(image: StoreImage) -> set[str]:
    return {file.path.rpartition("/")[2] for file in image.files}


def test_a_torn_end_that_is_cut_off_stays_as_it_was_in_the_image(tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = LevelDBStore(path, create=True)
    store.open("map", create=True).write(rows(1, 4), WRITTEN)
    before = content(store)
    kill(store, path)
    with (path / "maps" / "map" / "values").open("ab") as file:
        file.write(b"TMSV" + bytes(100_000))
    store = LevelDBStore(path, create=False)
    image = store.image()
    store.open("map", create=False).write(rows(2, 4), SYNCED)
    after = content(store)
    assert content(write_out(image, tmp_path / "copy")) == before
    store.close()
    assert content(LevelDBStore(path, create=False)) == after


def test_a_map_that_is_held_for_long_is_waited_for_while_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "HOLD_S", 0.01)
    store = LevelDBStore(tmp_path / "data", create=True)
    one, other = store.open("one", create=True), store.open("other", create=True)
    one.write(rows(1), SYNCED)

    def pause() -> None:
        taking.start()
        for number in range(20):
            other.write([(b"%d" % number, b"")], SYNCED)

    images: list[StoreImage] = []
    taking = threading.Thread(target=lambda: images.append(store.image()))
    one.reclaim(_once(pause))
    taking.join()
    assert content(write_out(images[0], tmp_path / "copy")) == content(store)
    store.close()


def _once(do):  # type: ignore[no-untyped-def]
    left = [do]
    return lambda: left.pop()() if left else None


def test_when_there_is_no_moment_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "HOLD_S", 0.01)
    monkeypatch.setattr(stores, "FREEZE_S", 0.05)
    store = LevelDBStore(tmp_path / "data", create=True)
    one, other = store.open("one", create=True), store.open("other", create=True)
    one.write(rows(1), SYNCED)

    def pause() -> None:
        with pytest.raises(StorageUnavailable, match="Try again"):
            store.image()

    one.reclaim(_once(pause))
    other.write(rows(2), SYNCED)
    assert list((tmp_path / "data" / "temporary").iterdir()) == []
    store.close()


def test_a_released_image_is_gone_and_so_are_those_of_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = LevelDBStore(path, create=True)
    store.open("map", create=True).write(rows(1), SYNCED)
    image = store.image()
    image.release()
    image.release()
    with pytest.raises(NotFound):
        image.read(image.files[0], 0, 10)
    assert list((path / "temporary").iterdir()) == []
    store.image()
    kill(store, path)
    LevelDBStore(path, create=False).close()
    assert list((path / "temporary").iterdir()) == []
