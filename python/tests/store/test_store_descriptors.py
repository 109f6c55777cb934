"""A process that may have few open files: idle maps close in time, and no error names damage."""

import errno
import os
from pathlib import Path

import pytest

from tests.faults.forker import Child
from tests.waiting import PATIENCE_S
from tms.errors import DataCorrupt, StorageFull, StorageUnavailable
from tms.store.leveldb.databases import is_out_of_files, maps_within, translate

UNLIMITED = -1


def run(data: Path, *arguments: str) -> bytes:
    """The standard error of the program, which ended well."""
    with data.with_name("said").open("w+b") as said:
        child = Child(
            "tests.faults.few_files", [str(data), *arguments], os.environ, (1, said.fileno())
        )
        code = child.wait(PATIENCE_S)
        said.seek(0)
        errors = said.read()
    assert code == 0, errors.decode()
    return errors


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("limit", [256, 1_024])
def test_an_engine_uses_more_partitions_than_files(fast_path: Path, limit: int) -> None:
    assert b"fsck" not in run(fast_path / "data", str(limit), str(limit // 5))


@pytest.mark.usefixtures("database")
def test_maps_make_room_in_a_program_that_has_all_files_open(fast_path: Path) -> None:
    assert b"fsck" not in run(fast_path / "data", "128", "27", "hoard")


def test_open_maps_fit_the_limit_of_descriptors() -> None:
    assert [maps_within(descriptors, 256) for descriptors in (8, 256, 1_024)] == [1, 21, 85]
    assert maps_within(1 << 20, 256) == maps_within(UNLIMITED, 256) == 256


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "ulimit -n"),
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "disk is full"),
        (errno.EACCES, "chown"),
        (errno.EROFS, "mounted"),
        (errno.EIO, "disk refuses"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "IO error: /data/m/000005.ldb: {}"])
def test_errors_of_the_machine_are_sorted(number: int, says: str, form: str) -> None:
    words = os.strerror(number)
    raised = OSError(number, words) if form == "{}" else OSError(form.format(words).encode())
    error = translate(raised, Path("map"))
    assert isinstance(error, StorageFull | StorageUnavailable) and error.retriable
    assert says in error.message and words in error.message
    assert is_out_of_files(error) is (says == "ulimit -n")


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        ("Corruption: block checksum mismatch: stored = 1, computed = 2", True),
        ("IO error: No such file or directory: While open a file for random read: 4.sst", True),
        ("Invalid argument: m: does not exist (create_if_missing is false)", True),
        ("IO error: While open a file for appending: 6.dbtmp: Too many open files", False),
        (
            "Invalid argument: Found options incompatible with filesystem: IO error: While open a "
            "file for random read: m/CURRENT: Too many open files",
            False,
        ),
        ("Corruption: Can't access 4.sst: IO error: While open: 4.sst: Permission denied", False),
        ("Resource busy: ", False),
    ],
)
def test_only_damage_is_called_damage(text: str, damaged: bool) -> None:
    rocksdb = pytest.importorskip("tms.store.leveldb.rocksdb", reason="needs rocksdict")
    error = translate(rocksdb._failure(Exception(text)), Path("map"))
    assert isinstance(error, DataCorrupt) is damaged
