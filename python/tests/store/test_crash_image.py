"""A copy of a directory that is written to is one instant of it."""

import shutil
from itertools import count
from pathlib import Path

import pytest

from tests import databases
from tests.contracts.store_contract import rows_of
from tests.databases import crash_image
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two files, of which `b` gets each byte after `a` has got it; two bytes come
    while the first copy is made, in the middle of it."""
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


@pytest.mark.usefixtures("database")
def test_images_of_a_store_that_compacts_hold_what_was_synced(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path / "data", create=True)
    one = store.open("map", create=True)
    written = []
    for number in range(6):
        rows = [(b"%04d" % (number * 100 + n), bytes(20_000)) for n in range(100)]
        one.write(rows, Durability.SYNCED)  # fills a table, which is compacted in the background
        written += rows
        image = LevelDBStore(crash_image(tmp_path / "data", tmp_path / f"{number}"), create=False)
        assert rows_of(image.open("map", create=False)) == written
        image.close()
    store.close()
