"""The databases of a store on disk, and the one for new directories."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tms.runtime.extras import installed
from tms.store.leveldb import LevelDBStore, drivers

VARIABLE = "TMSTEST_DATABASE"  # passes the choice to processes that tests start
NAMES = [name for name in drivers.PREFERENCE if installed(drivers.LIBRARIES[name])]


def prefer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new data directories be made with this database."""
    monkeypatch.setattr(drivers, "PREFERENCE", (name,))
    monkeypatch.setenv(VARIABLE, name)


def make_directory(path: Path) -> Path:
    """Make an empty data directory with the database for new ones, for processes that do not know
    the test's choice: opening a directory does not change its database."""
    LevelDBStore(path, create=True).close()
    return path


def disturb(monkeypatch: pytest.MonkeyPatch, method: str, disturbed: Callable[..., Any]) -> None:
    """Replace a method of the drivers by one that gets the real method first."""
    for name in NAMES:
        driver = type(drivers._driver(name))
        real = getattr(driver, method)
        monkeypatch.setattr(
            driver, method, lambda *args, real=real: disturbed(real, *args), raising=True
        )


def kill(store: LevelDBStore, path: Path) -> None:
    """Close the store at `path`, and leave its files as if the process had been killed: RocksDB
    makes a table of its log when it is closed."""
    image = crash_image(path, path.with_name("killed"))
    store.close()
    shutil.rmtree(path)
    image.rename(path)


def crash_image(path: Path, target: Path, wait_s: float = 120.0) -> Path:
    """Copy an open data directory as it is at one instant: a process killed at that instant leaves
    exactly these files.

    A database compacts in a thread of its own. A plain copy may have half of a table that was being
    written, or a log that the copied manifest no longer names. So a copy counts only if no file was
    created, removed or written while it was made: databases append, so sizes and times of change
    show every write. Stopping this process would give images of busy directories, too, but a shell
    takes a stopped child for suspended and takes its terminal back.
    """
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        before = _files(path)
        try:
            shutil.copytree(path, target)
        except shutil.Error:
            if before == _files(path):
                raise  # the copy cannot be written
        else:
            if before == _files(path):
                return target
        shutil.rmtree(target, ignore_errors=True)
    raise AssertionError(f"{path} is written to all the time; stop what writes there first")


def _files(path: Path) -> dict[str, tuple[int, int, int]]:
    """The properties of all directories and files that a write changes. Files and directories that
    are removed during the walk are left out."""
    found = {}
    for directory, _, names in os.walk(path):
        for name in (directory, *(os.path.join(directory, name) for name in names)):
            with contextlib.suppress(FileNotFoundError):
                state = os.stat(name)
                found[name] = state.st_ino, state.st_size, state.st_mtime_ns
    return found


def passed_on() -> dict[str, str]:
    """The environment that `obey` needs."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def obey() -> None:
    """Prefer the test's database, in a process that the test started."""
    if VARIABLE in os.environ:
        drivers.PREFERENCE = (os.environ[VARIABLE],)
