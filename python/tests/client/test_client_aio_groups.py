"""Groups with the asyncio client, over an engine in this process and through HTTP."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

import pytest

import tms
import tms.aio
from tests.contracts import buses
from tests.contracts.buses import AsyncTest, EmbeddedAsyncBus, HttpAsyncBus, Open
from tests.grouping import grouped
from tests.waiting import PATIENCE_S
from tms.aio import AsyncBus
from tms.errors import Fenced, Invalid

pytestmark = pytest.mark.usefixtures("event_loop")
PARTITIONS = 4


def in_loop(test: AsyncTest) -> Callable[[Any, Open], None]:
    """As `buses.in_loop`, with the topics `in` and `out`."""

    @wraps(test)
    async def prepared(self: Any, bus: AsyncBus) -> None:
        await bus.create_topic("in", partitions=PARTITIONS, durability="written")
        await bus.create_topic("out", durability="written")
        await test(self, bus)

    return buses.in_loop(prepared)


async def rest(bus: AsyncBus) -> list[bytes | None]:
    """The values that a group which reads at most once has not handed out."""
    group = tms.Group("g", delivery="at-most-once")
    return [message.value async for message in bus.consumer("in", group=group, stop_at_end=True)]


class Worker:
    """A member in a task of its own."""

    def __init__(self, bus: AsyncBus, **more: Any) -> None:
        more = {"group": "g", "delivery": "at-least-once", **more}
        self.consumer = bus.consumer("in", **grouped(**more))
        self.values: list[bytes | None] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for message in self.consumer:
            self.values.append(message.value)

    async def stop(self) -> None:
        await self.consumer.close()
        async with asyncio.timeout(PATIENCE_S):
            await self.task


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is true."""
    for _ in range(int(PATIENCE_S / 0.02)):
        if await true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never was")


async def publish(bus: AsyncBus, first: int, count: int) -> list[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(values, first):
        await bus.publish("in", value, partition=number % PARTITIONS)
    return values


def sizes(bus: AsyncBus, *wanted: int) -> Callable[[], Awaitable[bool]]:
    """A condition: the members have so many partitions each."""

    async def look() -> bool:
        try:
            found = await bus.describe_group("in", group="g")
        except tms.TMSError:
            return False
        return sorted(len(one.partitions) for one in found.members) == sorted(wanted)

    return look


class AsyncGroupContract:
    @in_loop
    async def test_members_share_the_partitions_and_each_message_goes_to_one(
        self, bus: AsyncBus
    ) -> None:
        workers = [Worker(bus) for _ in range(3)]
        await until(sizes(bus, 1, 1, 2))
        values = await publish(bus, 0, 40)

        async def all_there() -> bool:
            return Counter(v for one in workers for v in one.values) == Counter(values)

        await until(all_there)
        for worker in workers:
            await worker.stop()
        assert (await bus.describe_group("in", group="g")).summary().lag <= 3
        [summary] = [summary async for summary in bus.list_groups("in")]
        assert summary.members == 0

    @in_loop
    async def test_who_leaves_is_replaced_at_once(self, bus: AsyncBus) -> None:
        stays, leaves = Worker(bus, session_s=600), Worker(bus, session_s=600)
        await until(sizes(bus, 2, 2))
        await leaves.stop()
        await until(sizes(bus, 4))
        await stays.stop()

    @in_loop
    async def test_callbacks_run_on_the_loop_and_may_be_coroutines(self, bus: AsyncBus) -> None:
        told: list[tuple[str, list[int]]] = []
        loop = asyncio.get_running_loop()

        async def assigned(partitions: Sequence[int]) -> None:
            assert asyncio.get_running_loop() is loop
            told.append(("got", sorted(partitions)))

        def revoked(partitions: Sequence[int]) -> None:
            assert asyncio.get_running_loop() is loop
            told.append(("lost", sorted(partitions)))

        first = Worker(bus, on_assigned=assigned, on_revoked=revoked)
        await until(sizes(bus, 4))
        second = Worker(bus)
        await until(sizes(bus, 2, 2))
        await second.stop()
        await until(sizes(bus, 4))

        async def told_all() -> bool:
            return told == [("got", [0, 1, 2, 3]), ("lost", [2, 3]), ("got", [2, 3])]

        await until(told_all)
        await first.stop()

    @in_loop
    async def test_exactly_once_moves_with_the_transaction_only(self, bus: AsyncBus) -> None:
        values = await publish(bus, 0, 12)
        for _ in range(2):
            async with bus.consumer(
                "in", group=tms.Group("g", delivery="exactly-once"), stop_at_end=True
            ) as consumer:
                async for batch in consumer.batches():
                    async with bus.transaction() as tx:
                        await tx.send_many("out", batch.values())
                        tx.ack(consumer)
                with pytest.raises(Invalid):
                    await consumer.ack()
        found = [m.value async for m in bus.consumer("out", stop_at_end=True)]
        assert sorted(found) == sorted(values)  # type: ignore[type-var]

    @in_loop
    async def test_a_late_commit_of_a_member_that_was_replaced_is_refused(
        self, bus: AsyncBus
    ) -> None:
        values = await publish(bus, 0, 8)
        late = bus.consumer("in", group=tms.Group("g", session_s=1))
        async for _ in late:
            break
        worker = Worker(bus, session_s=1)

        async def all_there() -> bool:
            return len(worker.values) == 8

        await until(all_there)
        with pytest.raises(Fenced):
            await late.ack()
        assert sorted(worker.values) == sorted(values)  # type: ignore[type-var]
        await worker.stop()
        await late.close()

    @in_loop
    async def test_at_most_once_leaves_to_others_what_it_has_not_handed_out(
        self, bus: AsyncBus
    ) -> None:
        values = await publish(bus, 0, 16)
        seen: list[bytes | None] = []
        async with bus.consumer("in", group=tms.Group("g", delivery="at-most-once")) as consumer:
            async for message in consumer:
                seen.append(message.value)
                if len(seen) == 3:
                    break
        seen += await rest(bus)
        assert sorted(seen) == sorted(values)  # type: ignore[type-var]

    @in_loop
    async def test_a_consumer_that_is_closed_hands_nothing_more_out(self, bus: AsyncBus) -> None:
        values = await publish(bus, 0, 16)
        consumer = bus.consumer("in", group=tms.Group("g", delivery="at-most-once"))
        messages = aiter(consumer)
        seen = [(await anext(messages)).value for _ in range(3)]
        await consumer.close()
        assert [message.value async for message in messages] == []
        seen += await rest(bus)
        assert sorted(seen) == sorted(values)  # type: ignore[type-var]

    @in_loop
    async def test_an_iteration_up_to_the_end_that_is_given_up_makes_room(
        self, bus: AsyncBus
    ) -> None:
        values = await publish(bus, 0, 8)
        given_up = bus.consumer("in", group=tms.Group("g", session_s=600), stop_at_end=True)
        async for _ in given_up:
            break
        async with asyncio.timeout(PATIENCE_S):
            again = bus.consumer("in", group="g", stop_at_end=True)
            found = [message.value async for message in again]
        assert sorted(found) == sorted(values)  # type: ignore[type-var]

    @in_loop
    async def test_positions_have_metadata_and_are_forgotten_one_by_one(
        self, bus: AsyncBus
    ) -> None:
        at = tms.CommittedPosition(tms.Position.offset(3), "x", 7)
        await bus.set_positions("in", {0: at, 1: "latest"}, group="g")
        one, *_ = (await bus.describe_group("in", group="g")).partitions
        assert (one.position, one.metadata, one.leader_epoch) == ("offset:3", "x", 7)
        await bus.forget_positions("in", group="g", partitions=[0])
        assert set(await bus.positions("in", group="g")) == {1}


class TestEmbedded(EmbeddedAsyncBus, AsyncGroupContract): ...


class TestHttp(HttpAsyncBus, AsyncGroupContract): ...
