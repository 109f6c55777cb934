"""The buses of contracts: one over an engine in this process and one through HTTP, also for
asyncio. A test class inherits one of these and a contract."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tms
import tms.aio
from tests.http_kit import serving

Open = Callable[[], tms.aio.AsyncBus]


class EmbeddedBus:
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[tms.Bus]:
        with tms.open(tmp_path / "data") as bus:
            yield bus


class HttpBus:
    @pytest.fixture
    def bus(self) -> Iterator[tms.Bus]:
        with serving() as served, tms.connect(f"http://127.0.0.1:{served.address[1]}") as bus:
            yield bus


class EmbeddedAsyncBus:
    @pytest.fixture
    def open_bus(self, tmp_path: Path) -> Open:
        return lambda: tms.aio.open(tmp_path / "data")


class HttpAsyncBus:
    @pytest.fixture
    def open_bus(self) -> Iterator[Open]:
        with serving() as served:
            yield lambda: tms.aio.connect(f"http://127.0.0.1:{served.address[1]}")
