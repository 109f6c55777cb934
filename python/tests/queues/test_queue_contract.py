"""Queues over an engine in this process and through HTTP: one contract for both, and asyncio."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

import tms
import tms.aio
from tests.contracts.buses import EmbeddedAsyncBus, EmbeddedBus, Open, in_loop, run
from tests.contracts.queue_contract import QueueContract, extensions
from tests.http_kit import Served, serving
from tests.waiting import until
from tms import Delivered
from tms.aio import AsyncBus, AsyncQueue
from tms.client.http.aio import _AsyncLine
from tms.client.http.exchange import Response
from tms.errors import Closed, Fenced, QueueNotFound


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        served.service.engine.queues.start()
        yield served


class TestEmbedded(EmbeddedBus, QueueContract): ...


class TestHttp(QueueContract):
    @pytest.fixture
    def bus(self, served: Served) -> Iterator[tms.Bus]:
        with tms.connect(served.url) as bus:
            yield bus


async def prepared(bus: AsyncBus, *values: bytes, **settings: Any) -> AsyncQueue:
    await bus.create_topic("jobs", durability="written")
    for value in values:
        await bus.publish("jobs", value)
    return await bus.queue("jobs", group="workers", **settings)


@pytest.mark.usefixtures("event_loop")
class AsyncQueueContract:
    """A subclass gives `open_bus`."""

    @in_loop
    async def test_messages_are_received_and_settled(self, bus: AsyncBus) -> None:
        queue = await prepared(bus, b"a", b"b", b"c", lease_s=60, backoff_first_s=0)
        found: list[Delivered] = []
        while len(found) < 3:  # one receive may return fewer than are ready
            found += await queue.receive(3 - len(found))
        a, b, c = found
        assert (await queue.ack(a)).done == 1
        assert (await queue.extend([b, c])).done == 2
        assert (await queue.nack(b, delay_s=0)).done == 1
        assert (await queue.reject(c, "no good")).done == 1
        [again] = await queue.receive(5, 5)
        assert (again.value, again.deliveries) == (b"b", 2)
        async with queue.settling(again):
            pass
        await asyncio.to_thread(until, lambda: queue.queue.describe().dead == 1)
        assert await queue.redrive() == 1
        assert len(await queue.receive_slices(5, 5)) == 1
        assert (await queue.update(lease_s=5)).settings.lease_s == 5
        assert [info.group for info in await bus.describe_queues("jobs")] == ["workers"]
        await queue.delete()
        with pytest.raises(QueueNotFound):
            await queue.receive()

    @in_loop
    async def test_leases_are_extended_although_their_handler_keeps_the_event_loop(
        self, bus: AsyncBus
    ) -> None:
        queue = await prepared(bus, b"a", lease_s=60)
        results = extensions(queue.queue)
        async for message in queue:
            until(lambda: len(results) >= 3)
            assert (await queue.ack(message)).done == 1
            break
        assert {*results} == {(1, ())}

    @in_loop
    async def test_a_handler_that_lost_its_lease_is_told(self, bus: AsyncBus) -> None:
        queue = await prepared(bus, b"a", backoff_first_s=0)
        other = await bus.queue("jobs", group="workers")
        [message] = await queue.receive()
        with pytest.raises(Fenced):
            async with queue.settling(message):
                await other.nack(message, delay_s=0)
                [again] = await other.receive(1, 5)
        assert (await other.ack(again)).done == 1

    @in_loop
    async def test_many_tasks_wait_at_once_while_others_settle(self, bus: AsyncBus) -> None:
        queue = await prepared(bus)
        workers = [asyncio.create_task(queue.receive(1, 15)) for _ in range(30)]
        await asyncio.sleep(0)
        for n in range(30):
            await bus.publish("jobs", b"%d" % n)
        found = [one for each in await asyncio.gather(*workers) for one in each]
        assert sorted(int(one.value or b"") for one in found) == list(range(30))
        assert (await queue.ack(found)).done == 30

    @in_loop
    async def test_loops_and_receives_that_end_count_no_delivery(self, bus: AsyncBus) -> None:
        queue = await prepared(bus, *(b"%d" % n for n in range(30)), deliveries_max=2)
        seen: list[tuple[bytes | None, int]] = []
        for round in range(15):
            receiving = asyncio.create_task(queue.receive(5))
            for _ in range(round):
                await asyncio.sleep(0)
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await queue.release(await receiving)
            async with aclosing(aiter(queue)) as messages:
                async for message in messages:
                    seen.append((message.value, message.deliveries))
                    await queue.ack(message)
                    if len(seen) % 2 == 0:
                        break
        assert sorted(seen) == sorted((b"%d" % n, 1) for n in range(30))

    @in_loop
    async def test_a_loop_goes_on_after_a_wait_that_was_cancelled(self, bus: AsyncBus) -> None:
        queue = await prepared(bus, deliveries_max=1)
        async with aclosing(aiter(queue)) as messages:
            for number in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await anext(messages)
                await bus.publish("jobs", b"%d" % number)
                message = await anext(messages)
                assert (message.value, message.deliveries) == (b"%d" % number, 1)
                await queue.ack(message)

    @in_loop
    async def test_a_receive_that_is_cancelled_takes_nothing_with_it(self, bus: AsyncBus) -> None:
        queue = await prepared(bus)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await queue.receive(1, 15)
        await bus.publish("jobs", b"a")
        [message] = await queue.receive(1, 15)
        assert (message.value, message.deliveries) == (b"a", 1)

    @in_loop
    async def test_an_acknowledgement_joins_a_transaction(self, bus: AsyncBus) -> None:
        queue = await prepared(bus, b"a")
        await bus.create_topic("out", durability="written")
        async for message in queue:
            async with bus.transaction() as tx:
                await tx.send("out", b"A")
                tx.ack(queue, message)
            break
        assert (await queue.describe()).partitions[0].cursor == 1

    @in_loop
    async def test_closing_the_bus_ends_a_receive_that_waits(self, bus: AsyncBus) -> None:
        queue = await prepared(bus)
        waiting = asyncio.create_task(queue.receive(1, 15))
        await queue.receive(1, 0.1)  # by now the other one waits
        await bus.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await queue.receive()


class TestAsyncEmbedded(EmbeddedAsyncBus, AsyncQueueContract): ...


class TestAsyncHttp(AsyncQueueContract):
    @pytest.fixture
    def open_bus(self, served: Served) -> Open:
        return lambda: tms.aio.connect(served.url)

    def test_a_receive_that_is_cancelled_leaves_no_place_in_the_line(
        self, open_bus: Open, served: Served
    ) -> None:
        async def work(bus: AsyncBus) -> None:
            queue = await prepared(bus)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await queue.receive(1, 15)

        run(open_bus, work)
        until(lambda: served.service.metrics.long_polls == 0)

    def test_a_receive_that_is_cancelled_when_its_answer_is_here_releases_it(
        self, open_bus: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its call has ended, and the caller has not yet taken the answer."""
        receiving: list[asyncio.Task[list[Delivered]]] = []
        settle = _AsyncLine._settle

        def settled(line: _AsyncLine, answer: Response) -> None:
            while receiving:
                receiving.pop().cancel()
            settle(line, answer)

        async def work(bus: AsyncBus) -> None:
            queue = await prepared(bus, b"a", b"b", deliveries_max=1)
            receiving.append(given_up := asyncio.create_task(queue.receive(2)))
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert (await queue.describe()).leased == 0
            found: list[Delivered] = []
            while len(found) < 2:  # one receive may return fewer than are ready
                found += await queue.receive(2)
            assert [one.deliveries for one in found] == [1, 1]

        monkeypatch.setattr(_AsyncLine, "_settle", settled)
        run(open_bus, work)
