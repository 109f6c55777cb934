"""A consumer or a bus that is no longer used, closed or not, leaves no socket open."""

import asyncio
import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
import tms.aio
from tests.http_kit import serving

MANY = 20


@pytest.fixture
def url() -> Iterator[str]:
    with serving() as served:
        url = served.url
        with tms.connect(url) as bus:
            bus.create_topic("t", durability="written")
            bus.publish_many("t", [b"%d" % number for number in range(10)])
        yield url


def sockets() -> int:
    """The number of sockets of this process, with the service's."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except FileNotFoundError:
            continue  # of the listing itself
    return found


def test_a_consumer_that_is_dropped_takes_its_socket_along(url: str) -> None:
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        bus = tms.connect(url)
        for _ in range(3):
            assert len(list(bus.consumer("t", stop_at_end=True))) == 10
            assert next(iter(bus.consumer("t"))).offset == 0
            assert next(iter(bus.consumer("t", group="g"))).offset == 0
        del bus
        gc.collect()
    assert [str(one.message) for one in told if "socket" in str(one.message)] == []


@pytest.mark.usefixtures("event_loop")
def test_an_asyncio_consumer_that_is_dropped_takes_its_socket_along(url: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), tms.aio.connect(url) as bus:
            await bus.publish("t", b"10")
            before = sockets()
            for _ in range(MANY):
                assert len([m async for m in bus.consumer("t", stop_at_end=True)]) == 11
                async for message in bus.consumer("t"):
                    assert message.offset == 0
                    break
            while sockets() > before + 2:  # a frame may hold the last one; a fetch ends by itself
                gc.collect()
                await asyncio.sleep(0.02)

    asyncio.run(run())
