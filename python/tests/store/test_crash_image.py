"""A copy of a directory in use shows it at one instant."""

import errno
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests import databases
from tests.contracts.store_contract import rows_of
from tests.databases import crash_image
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBLimits, LevelDBStore

IMAGES = 50


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two files, of which `b` gets each byte after `a` has got it; two bytes come
    in the middle of the first copy."""
    path, copies = tmp_path / "data", count()
    path.mkdir()
    (path / "a").write_bytes(b"x")
    (path / "b").write_bytes(b"x")
    copy = shutil.copy2

    def slowly(source: str, target: str, **options: bool) -> str:
        made = copy(source, target, **options)
        if next(copies) == 0:  # one of the two is copied, the other one is not
            for name in "ab":
                with (path / name).open("ab") as file:
                    file.write(b"y")
        return str(made)

    def copytree(source: Path, target: Path) -> Path:
        return Path(real(source, target, copy_function=slowly))

    real = shutil.copytree
    monkeypatch.setattr(databases.shutil, "copytree", copytree)
    return path


def test_an_image_has_no_file_from_another_instant(writing: Path, tmp_path: Path) -> None:
    image = crash_image(writing, tmp_path / "image")
    assert (image / "a").read_bytes() == (image / "b").read_bytes() == b"xy"


def test_a_file_that_goes_while_it_is_copied_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "old").write_bytes(b"1")
    real = shutil.copytree

    def copytree(source: Path, target: Path) -> Path:
        if (path / "old").exists():
            (path / "old").rename(path / "new")
            target.mkdir()
            raise shutil.Error([("old", "copy", "No such file")])
        return Path(real(source, target))

    monkeypatch.setattr(databases.shutil, "copytree", copytree)
    image = crash_image(path, tmp_path / "image")
    assert [file.name for file in image.iterdir()] == ["new"]


def test_a_directory_that_never_rests_has_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, numbers = tmp_path / "data", count()
    path.mkdir()

    def copytree(source: Path, target: Path) -> Path:
        target.mkdir()
        (path / f"{next(numbers)}").touch()
        return target

    monkeypatch.setattr(databases.shutil, "copytree", copytree)
    with pytest.raises(AssertionError, match="written to all the time"):
        crash_image(path, tmp_path / "image", wait_s=0.1)
    assert not (tmp_path / "image").exists()


def test_a_directory_removed_during_the_walk_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    dropped = path / "dropped"
    dropped.mkdir(parents=True)
    (path / "kept").touch()
    real: Callable[[object], object] = os.scandir

    def scandir(place: object) -> object:
        if str(place) == str(dropped) and dropped.exists():
            dropped.rmdir()
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    image = crash_image(path, tmp_path / "image")
    assert [file.name for file in image.iterdir()] == ["kept"]


def test_a_copy_that_cannot_be_written_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "file").touch()

    def full(source: str, target: str, **options: bool) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = shutil.copytree
    monkeypatch.setattr(
        databases.shutil, "copytree", lambda *paths: real(*paths, copy_function=full)
    )
    with pytest.raises(shutil.Error, match="No space left"):
        crash_image(path, tmp_path / "image")


@pytest.mark.usefixtures("database")
def test_images_of_a_store_that_compacts_hold_what_was_written(fast_path: Path) -> None:
    """Compaction is busy with small tables: on two processors a third of plain copies were measured
    to be damaged. Opening checks every checksum."""
    random = Random(3)
    limits = LevelDBLimits(write_buffer_bytes=64 << 10)
    store = LevelDBStore(fast_path / "data", create=True, limits=limits)
    one = store.open("map", create=True)
    written: dict[bytes, bytes] = {}
    for _ in range(IMAGES):
        for _ in range(4):
            batch = {b"%04d" % random.randrange(1_000): random.randbytes(700) for _ in range(60)}
            one.write(list(batch.items()), Durability.WRITTEN)
            written |= batch
        image = crash_image(fast_path / "data", fast_path / "image")
        opened = LevelDBStore(image, create=False)
        assert rows_of(opened.open("map", create=False)) == sorted(written.items())
        opened.close()
        shutil.rmtree(image)
    store.close()
