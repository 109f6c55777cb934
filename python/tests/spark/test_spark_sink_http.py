"""The sink's protocol through HTTP, with requests and answers that are lost on the way."""

from collections.abc import Iterator

import pytest

import tms
from tests.http_kit import serving
from tests.proxy import Fault, Proxy
from tests.spark_sink_kit import TOPICS, Driver, some_batches
from tms.client.http.transport import HttpTransport
from tms.client.transport import Transport
from tms.errors import Conflict


class World:
    """A service behind a proxy."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self.bus = tms.connect(url)
        self.proxy = proxy
        self._transport = HttpTransport(proxy.url, timeout_s=20)
        for name, partitions in TOPICS.items():
            self.bus.create_topic(name, partitions=partitions, durability="written")

    @property
    def transport(self) -> Transport:
        return self._transport

    def values(self, start: str) -> list[tuple[str, bytes]]:
        """The visible values that begin so."""
        found = [
            (name, message.value or b"")
            for name in TOPICS
            for message in self.bus.consumer(name, stop_at_end=True)
        ]
        return sorted(one for one in found if one[1].startswith(start.encode()))

    def close(self) -> None:
        self.bus.close()
        self._transport.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with serving() as served:
        url = served.url
        with Proxy(url) as proxy:
            made = World(url, proxy)
            yield made
            made.close()


LOST = (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.HALF_ANSWER, Fault.TWICE)


def run(world: World, name: str, *faults: Fault | None) -> int:
    """Run a query whose POSTs meet these faults; returns the number of used faults."""
    world.proxy.script(*faults)  # type: ignore[arg-type]
    for _ in range(2):  # and again, from an old copy of the checkpoint
        driver = Driver(world, some_batches(name), query=name)
        driver.run()
        assert world.values(name) == driver.expected
    left = len(world.proxy._faults)
    world.proxy._faults.clear()
    return len(faults) - left


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name.lower())
def test_a_batch_is_there_once_whichever_request_is_lost(world: World, fault: Fault) -> None:
    posts = run(world, f"{fault.name}-", *[None] * 100)
    assert 10 < posts < 100
    for at in range(posts):
        assert run(world, f"{fault.name}-{at}-", *[None] * at, fault) == at + 1


def test_of_two_drivers_one_is_told_that_the_other_was_faster(world: World) -> None:
    one, other = (Driver(world, some_batches("two-"), query="two") for _ in range(2))
    jobs = one.begin(), other.begin()
    staged = [
        [driver.task(job, rows) for rows in driver.batches[0]]
        for driver, job in zip((one, other), jobs, strict=True)
    ]
    one.fence(jobs[0]).commit(staged[0])
    one.fence(jobs[0]).commit(staged[0])
    with pytest.raises(Conflict, match="Another driver has committed"):
        other.fence(jobs[1]).commit(staged[1])
    other.fence(jobs[1]).abort(staged[1])
    one.committed = 1
    one.run()
    other.run()
    assert world.values("two-") == one.expected
    assert world.bus._transport.transactions.open() == []


def test_an_attempt_that_was_overtaken_leaves_nothing(world: World) -> None:
    driver = Driver(world, some_batches("twice-"), query="twice", twice=True)
    driver.run()
    assert world.values("twice-") == driver.expected
