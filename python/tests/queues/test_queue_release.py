"""Releases: a delivery that reached no handler does not count."""

import asyncio
from unittest.mock import patch

import msgspec
import pytest

import tms.aio
from sim.world import shorten
from tests.http_kit import serving
from tests.queues.test_queues import JOBS, OUT, World
from tests.waiting import until
from tms import Delivered
from tms.client.client import Bus
from tms.client.queue import tokens_of
from tms.errors import Fenced
from tms.model.queue import TokenResult
from tms.queues.entries import PartitionSnapshot, decode_edit, encode


@pytest.fixture
def world() -> World:
    world = World(deliveries_max=2)
    world.publish(b"1", b"2", b"3")
    return world


def release(world: World, *messages: Delivered) -> TokenResult:
    return world.queues.release(JOBS, "g", [one.token for one in messages])


def test_a_release_takes_its_delivery_back(world: World) -> None:
    tokens = set()
    for _ in range(20):
        messages = world.receive()
        assert [(one.value, one.deliveries) for one in messages] == [
            (b"1", 1),
            (b"2", 1),
            (b"3", 1),
        ]
        tokens.update(one.token for one in messages)
        assert release(world, *messages) == TokenResult(3)
    assert len(tokens) == 60  # no token repeats
    assert world.queues.tidy() == 0
    info = world.info()
    assert (info.ready, info.dying, info.died, info.redelivered) == (3, 0, 0, 0)


def test_the_last_delivery_is_taken_back_too(world: World) -> None:
    world.nack(*world.receive(), delay_s=0)
    last = world.receive()
    assert [one.deliveries for one in last] == [2, 2, 2]
    release(world, *last)
    again = world.receive()
    assert [one.deliveries for one in again] == [2, 2, 2]
    world.nack(*again)
    assert world.queues.tidy() == 3
    assert {one.headers["tms-dead-deliveries"] for one in world.read(world.info().dead_letter)} == {
        b"2"
    }


def test_a_released_token_is_late_for_everything_but_the_same_release(world: World) -> None:
    first, *_ = world.receive()
    assert release(world, first) == TokenResult(1)
    assert release(world, first) == TokenResult(1)  # its answer was lost
    late = TokenResult(0, (first.token,))
    assert world.ack(first) == world.nack(first) == world.reject(first) == late
    assert world.queues.extend(JOBS, "g", [first.token]) == late
    [again] = world.receive(1)
    assert (again.value, again.deliveries) == (b"1", 1)
    assert release(world, first) == late  # another worker has it
    assert world.ack(again) == TokenResult(1)


def test_a_release_that_comes_late_saves_a_message_from_the_dead_letters(world: World) -> None:
    world.nack(*world.receive(), delay_s=0)
    messages = world.receive()
    world.clock.pass_ms(10_200)
    assert world.info().dying == 3
    assert release(world, *messages[:2]) == TokenResult(2)
    assert world.queues.tidy() == 1
    assert world.values() == [b"1", b"2"]


@pytest.mark.parametrize("snapshot", [False, True])
def test_releases_are_remembered_after_a_restart(world: World, snapshot: bool) -> None:
    first, second, third = world.receive()
    release(world, first, third)
    release(world, *world.receive())
    world.nack(second, delay_s=0)
    if snapshot:
        shorten(world.queues)
    world.reopen()
    assert release(world, first).fenced == (first.token,)
    assert [(one.value, one.deliveries) for one in world.receive()] == [
        (b"1", 1),
        (b"2", 2),
        (b"3", 1),
    ]


def test_a_transaction_does_not_settle_what_was_released(world: World) -> None:
    [first, *_] = world.receive()
    release(world, first)
    with pytest.raises(Fenced):
        world.engine.transactions.commit(world.settle(first, out=b"late"))
    assert world.read(OUT) == []


def test_a_snapshot_of_an_earlier_version_has_no_releases() -> None:
    written = msgspec.msgpack.decode(encode(PartitionSnapshot(0, 1, 9, 5, 6, [1, 2], [1 << 40])))
    assert decode_edit(b"", encode(written[:-1])) == PartitionSnapshot(
        0, 1, 9, 5, 6, [1, 2], [1 << 40]
    )


def test_a_message_released_without_end_is_counted_at_last(world: World) -> None:
    with patch("tms.model.queue.RELEASES_MAX", 3):
        counts = []
        for _ in range(6):
            [message] = world.receive(1)
            counts.append(message.deliveries)
            release(world, message)
    assert counts == [1, 1, 1, 1, 2, 3]


def test_neighbours_are_named_by_one_token_for_each_number_of_a_delivery(world: World) -> None:
    release(world, *world.receive(1))
    parts = [token.split(".") for token in tokens_of(world.receive())]
    assert [(offset, number, count) for _, offset, number, _, *count in parts] == [
        ("0", "100001", []),
        ("1", "1", ["2"]),
    ]


def test_an_answer_on_its_way_to_a_cancelled_receive_is_released() -> None:
    with serving() as served:
        engine, metrics = served.service.engine, served.service.metrics
        bus = Bus(engine)
        bus.create_topic("jobs")
        info = bus.queue("jobs", group="g", deliveries_max=1).describe

        async def receive() -> None:
            async with tms.aio.connect(served.url) as there:
                queue = await there.queue("jobs", group="g")
                receiving = asyncio.create_task(queue.receive(1, 60))
                await asyncio.to_thread(until, lambda: metrics.long_polls)
                bus.publish("jobs", b"a")
                until(lambda: info().leased == 1)  # now this event loop reads nothing
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                assert (info().leased, info().ready) == (0, 1)
                [message] = await queue.receive()
                assert message.deliveries == 1

        asyncio.run(receive())
