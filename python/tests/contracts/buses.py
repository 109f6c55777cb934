"""The buses of contracts: one over an engine in this process and one through HTTP, also for
asyncio. A test class inherits one of these and a contract."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tms
import tms.aio
from tests.http_kit import serving
from tests.waiting import PATIENCE_S

Open = Callable[[], tms.aio.AsyncBus]
AsyncTest = Callable[[Any, tms.aio.AsyncBus], Awaitable[None]]
T = TypeVar("T")


def run(open_bus: Open, work: Callable[[tms.aio.AsyncBus], Awaitable[T]]) -> T:
    """Do `work` with a bus, in an event loop of its own, in bounded time."""

    async def inside() -> T:
        async with asyncio.timeout(PATIENCE_S), open_bus() as bus:
            return await work(bus)

    return asyncio.run(inside())


def in_loop(test: AsyncTest) -> Callable[[Any, Open], None]:
    """A method that tests with a bus for asyncio, as a test that opens it."""

    def opened(self: Any, open_bus: Open) -> None:
        run(open_bus, partial(test, self))

    opened.__name__, opened.__doc__ = test.__name__, test.__doc__
    return opened


BOTH = ("embedded", "http")


@contextmanager
def bus_by(way: str, data: Path) -> Iterator[tms.Bus]:
    """A bus in one of `BOTH` ways: over an engine on the directory `data`, or over a service."""
    with ExitStack() as stack:
        if way == "embedded":
            yield stack.enter_context(tms.open(data))
        else:
            served = stack.enter_context(serving())
            yield stack.enter_context(tms.connect(served.url))


class EmbeddedBus:
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[tms.Bus]:
        with bus_by("embedded", tmp_path / "data") as bus:
            yield bus


class HttpBus:
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[tms.Bus]:
        with bus_by("http", tmp_path / "data") as bus:
            yield bus


class EmbeddedAsyncBus:
    @pytest.fixture
    def open_bus(self, tmp_path: Path) -> Open:
        return lambda: tms.aio.open(tmp_path / "data")


class HttpAsyncBus:
    @pytest.fixture
    def open_bus(self) -> Iterator[Open]:
        with serving() as served:
            yield lambda: tms.aio.connect(served.url)
