"""The store contract on every engine, and what the engines promise beyond it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store_contract import DurableStoreContract, StoreContract
from tms.store.base import Store
from tms.store.faulty import FaultyStore
from tms.store.leveldb import LevelDBStore
from tms.store.memory import MemoryStore


class TestMemory(StoreContract):
    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        return MemoryStore


class TestFaulty(StoreContract):
    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        return lambda: FaultyStore(MemoryStore())


class TestLevelDB(DurableStoreContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: LevelDBStore(tmp_path / "data", create=True)


class TestLevelDBWithFewOpen(DurableStoreContract):
    """Databases are closed and opened again all the time, and nobody notices."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: LevelDBStore(tmp_path / "data", create=True, maps_open_max=1)
