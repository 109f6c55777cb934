"""The databases that a store on disk can have here, and which one new directories get."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tms.extras import installed
from tms.store.leveldb import LevelDBStore, drivers

VARIABLE = "TMSTEST_DATABASE"  # tells processes that tests start
NAMES = [name for name in drivers.PREFERENCE if installed(drivers.LIBRARIES[name])]


def prefer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new data directories made with this one."""
    monkeypatch.setattr(drivers, "PREFERENCE", (name,))
    monkeypatch.setenv(VARIABLE, name)


def make_directory(path: Path) -> Path:
    """Make an empty data directory with the database that new ones get, for processes that know
    nothing of what is preferred here: opening it changes none."""
    LevelDBStore(path, create=True).close()
    return path


def disturb(monkeypatch: pytest.MonkeyPatch, method: str, disturbed: Callable[..., Any]) -> None:
    """Have a method of the drivers replaced by one that gets the real one first."""
    for name in NAMES:
        driver = type(drivers._driver(name))
        real = getattr(driver, method)
        monkeypatch.setattr(
            driver, method, lambda *args, real=real: disturbed(real, *args), raising=True
        )


def kill(store: LevelDBStore, path: Path) -> None:
    """Close the store at `path`, and leave its files as if the process had been killed: RocksDB
    makes a table of its log when it is closed."""
    copied = path.with_name("killed")
    for _ in range(20):
        shutil.rmtree(copied, ignore_errors=True)
        try:
            shutil.copytree(path, copied)
            break
        except shutil.Error:  # a table has gone meanwhile
            continue
    else:
        raise AssertionError("the directory does not come to rest")
    store.close()
    shutil.rmtree(path)
    copied.rename(path)


def passed_on() -> dict[str, str]:
    """What `obey` needs of the environment."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def obey() -> None:
    """In a process that a test started: the same."""
    if VARIABLE in os.environ:
        drivers.PREFERENCE = (os.environ[VARIABLE],)
