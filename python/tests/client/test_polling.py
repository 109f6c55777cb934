"""Consumers that are polled, sought, paused and asked how far they are behind: alone and in a
group, by threads and asyncio, on an engine and over HTTP."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.errors import Closed, Invalid, Unavailable

VALUES = [b"%d" % number for number in range(6)]


class Side:
    """A bus whose calls are made alike, by a thread or on an event loop."""

    def __init__(self, bus: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.bus = bus
        self._loop = loop

    def do(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            assert self._loop is not None
            return self._loop.run_until_complete(asyncio.wait_for(result, PATIENCE_S))
        return result

    def polled(self, consumer: Any, count: int) -> list[bytes | None]:
        return [self.do(consumer.poll(PATIENCE_S)).value for _ in range(count)]


@pytest.fixture(params=["embedded", "http", "aio-embedded", "aio-http"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    is_async, is_http = request.param.startswith("aio"), request.param.endswith("http")
    package: Any = tms.aio if is_async else tms
    with serving() as served:
        served.service.engine.start()
        url = served.url
        loop = asyncio.new_event_loop() if is_async else None

        bus = package.connect(url) if is_http else package.open(tmp_path / "data")
        side = Side(bus, loop)
        side.do(bus.create_topic("t", partitions=2, durability="written"))
        side.do(bus.publish_many("t", VALUES[:3], partition=0))
        side.do(bus.publish_many("t", VALUES[3:], partition=1))
        yield side
        side.do(bus.close())
        if loop is not None:
            loop.close()


@pytest.fixture(params=[{}, {"group": "g"}], ids=["alone", "member"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_polls_bring_each_message_once_and_none_when_there_is_none(
    side: Side, options: dict[str, Any]
) -> None:
    consumer = side.bus.consumer("t", **options)
    assert sorted(side.polled(consumer, 6)) == VALUES
    assert side.do(consumer.poll(0.05)) is None
    assert side.do(consumer.poll()) is None
    side.do(side.bus.publish("t", b"6", partition=1))
    assert side.polled(consumer, 1) == [b"6"]
    side.do(consumer.close())
    with pytest.raises(Closed, match="make a new one"):
        side.do(consumer.poll())


def test_a_poll_of_what_was_just_published_needs_no_time(side: Side) -> None:
    consumer = side.bus.consumer("t", "latest")
    assert side.do(consumer.poll()) is None
    for number in range(5):
        side.do(side.bus.publish("t", b"%d" % number, partition=0))
        assert side.do(consumer.poll()).value == b"%d" % number


def test_a_poll_acknowledges_like_an_iteration(side: Side) -> None:
    group = tms.Group("g", delivery="at-least-once")
    consumer = side.bus.consumer("t", group=group)
    first = side.polled(consumer, 4)
    side.do(consumer.close())
    rest = side.bus.consumer("t", group=group)
    assert sorted({*first[:3], *side.polled(rest, 3)}) == VALUES
    assert side.do(rest.poll()) is None


def test_polls_and_iterations_go_on_where_the_other_was_left(
    side: Side, options: dict[str, Any]
) -> None:
    consumer = side.bus.consumer("t", stop_at_end=True, **options)
    found = side.polled(consumer, 2)

    async def rest() -> list[bytes | None]:
        return [message.value async for message in consumer]

    found += (
        side.do(rest())
        if isinstance(consumer, tms.aio.AsyncConsumer)
        else [message.value for message in consumer]
    )
    assert sorted(found) == VALUES
    assert side.do(consumer.poll(PATIENCE_S)) is None


def test_seeking_goes_back_and_forth(side: Side, options: dict[str, Any]) -> None:
    consumer = side.bus.consumer("t", **options)
    assert sorted(side.polled(consumer, 6)) == VALUES
    side.do(consumer.seek(0, "offset:1"))
    assert side.polled(consumer, 2) == VALUES[1:3]
    side.do(consumer.seek(1, "earliest"))
    message = side.do(consumer.poll(PATIENCE_S))
    assert message.value == VALUES[3]
    side.do(consumer.seek(1, "latest"))
    assert side.do(consumer.poll(0.05)) is None
    side.do(side.bus.publish("t", b"new", partition=1))
    assert side.polled(consumer, 1) == [b"new"]
    side.do(consumer.seek(1, message.id))
    assert side.polled(consumer, 4) == [*VALUES[3:], b"new"]
    with pytest.raises(Invalid, match=r"does not read the partitions \[2\]"):
        side.do(consumer.seek(2, "earliest"))
    with pytest.raises(Invalid):
        side.do(consumer.seek(0, "nowhere"))


@pytest.mark.parametrize("start", ["offset:1", "earliest", "time:0"])
@pytest.mark.parametrize("kind", [{"partitions": "all"}, {}], ids=["all", "member"])
def test_an_ack_after_a_seek_moves_the_group_there(
    side: Side, kind: dict[str, Any], start: str
) -> None:
    """As the position of a Kafka consumer after a seek is what it commits."""
    consumer = side.bus.consumer("t", "earliest", group="g", **kind)
    side.polled(consumer, 6)
    side.do(consumer.ack())
    side.do(consumer.seek(0, start))
    side.do(consumer.ack())
    side.do(consumer.close())
    later = side.bus.consumer("t", "latest", group="g", **kind)
    expected = VALUES[1:3] if start == "offset:1" else VALUES[:3]
    assert side.polled(later, len(expected)) == expected
    assert side.do(later.poll(0.05)) is None
    side.do(later.close())


def test_an_ack_without_a_seek_leaves_the_group_where_nothing_was_handed_out(side: Side) -> None:
    consumer = side.bus.consumer("t", group="g", start="earliest", partitions="all")
    side.do(consumer.ack())
    side.do(consumer.seek(0, "latest"))
    side.do(side.bus.publish("t", b"new", partition=0))
    side.do(consumer.ack())
    side.do(consumer.close())
    later = side.bus.consumer("t", group="g", start="earliest", partitions="all")
    assert sorted(side.polled(later, 4)) == [*VALUES[3:], b"new"]


def test_an_iteration_that_seeks_leaves_the_batch_in_hand(side: Side) -> None:
    consumer = side.bus.consumer("t", partitions=[0], stop_at_end=True)
    found: list[bytes | None] = []

    async def over() -> None:
        async for message in consumer:
            found.append(message.value)
            if len(found) == 2:
                await consumer.seek(0, "earliest")

    if isinstance(consumer, tms.aio.AsyncConsumer):
        side.do(over())
    else:
        for message in consumer:
            found.append(message.value)
            if len(found) == 2:
                consumer.seek(0, "earliest")
    assert found == [*VALUES[:2], *VALUES[:3]]


def test_paused_partitions_are_not_read_until_they_are_resumed(
    side: Side, options: dict[str, Any]
) -> None:
    consumer = side.bus.consumer("t", **options)
    first = side.do(consumer.poll(PATIENCE_S))
    side.do(consumer.pause([first.partition]))
    other = VALUES[3:] if first.partition == 0 else VALUES[:3]
    assert side.polled(consumer, 3) == other
    assert side.do(consumer.poll(0.05)) is None
    side.do(consumer.pause([0, 1]))
    side.do(side.bus.publish("t", b"new", partition=1 - first.partition))
    assert side.do(consumer.poll(0.05)) is None
    side.do(consumer.resume([1 - first.partition]))
    assert side.polled(consumer, 1) == [b"new"]
    side.do(consumer.resume([0, 1]))
    own = VALUES[:3] if first.partition == 0 else VALUES[3:]
    assert side.polled(consumer, 2) == own[1:]
    with pytest.raises(Invalid, match="does not read"):
        side.do(consumer.pause([5]))


def test_a_paused_partition_may_be_sought(side: Side) -> None:
    consumer = side.bus.consumer("t", partitions=[0])
    assert side.polled(consumer, 3) == VALUES[:3]
    side.do(consumer.pause([0]))
    side.do(consumer.seek(0, "earliest"))
    assert side.do(consumer.poll(0.05)) is None
    side.do(consumer.resume([0]))
    assert side.polled(consumer, 3) == VALUES[:3]


def test_lag_and_assignment_follow_the_consumer(side: Side, options: dict[str, Any]) -> None:
    consumer = side.bus.consumer("t", **options)
    first = side.do(consumer.poll(PATIENCE_S))
    assert consumer.assignment() == [0, 1]
    assert side.do(consumer.lag()) == {first.partition: 2, 1 - first.partition: 3}
    side.polled(consumer, 5)
    assert side.do(consumer.lag()) == {0: 0, 1: 0}
    side.do(side.bus.publish("t", b"new", partition=1))
    assert side.do(consumer.lag()) == {0: 0, 1: 1}
    side.do(consumer.seek(0, "earliest"))
    assert side.do(consumer.lag()) == {0: 3, 1: 1}


def test_a_poll_of_a_service_that_is_away_raises() -> None:
    with serving() as served:
        served.create("t")
        with tms.connect(served.url, timeout_s=0.2) as bus:
            consumer = bus.consumer("t")
            assert consumer.poll() is None
            served.stop()
            with pytest.raises((Unavailable, TimeoutError)):
                for _ in range(100):
                    consumer.poll(0.1)
