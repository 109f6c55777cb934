"""The asyncio bus over an engine in this process and through HTTP: its promises."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import tms
import tms.aio
from tests.client.test_client_faults import TOPIC, pretending
from tests.contracts.bus_contract import in_turn_of
from tests.contracts.buses import EmbeddedAsyncBus, HttpAsyncBus, Open, in_loop, run
from tests.grouping import grouped
from tests.http_kit import Served, serving
from tests.proxy import Fault, Proxy
from tests.waiting import PATIENCE_S
from tms.aio import AsyncBus
from tms.errors import Closed, Invalid, PartitionNotFound, TimedOut, TooLarge, TopicNotFound
from tms.model.keys import Partitioner
from tms.model.topic import TopicName, TopicSettings

pytestmark = pytest.mark.usefixtures("event_loop")


async def all_messages(bus: AsyncBus, topic: str, start: Any = "earliest") -> list[tms.Message]:
    return [message async for message in bus.consumer(topic, start=start, stop_at_end=True)]


async def all_values(bus: AsyncBus, topic: str) -> list[bytes | None]:
    return [message.value for message in await all_messages(bus, topic)]


def made_anew_by_somebody_else(bus: AsyncBus) -> None:
    transport, name = bus._sync._transport, TopicName.parse("orders")
    transport.delete_topic(name)
    transport.create_topic(name, TopicSettings(1))


class AsyncBusContract:
    """A subclass gives `open_bus`."""

    @in_loop
    async def test_topics_are_made_described_listed_changed_and_deleted(
        self, bus: AsyncBus
    ) -> None:
        await bus.create_topic("orders", partitions=2, durability="written")
        await bus.update_topic("orders", partitions=3)
        found = await bus.describe_topic("orders")
        assert (found.settings.partitions, str(found.settings.durability)) == (3, "written")
        assert [info.topic async for info in bus.list_topics()] == ["orders"]
        await bus.publish("orders", b"x")
        await bus.truncate_topic("orders")
        assert await all_values(bus, "orders") == []
        assert (await bus.inspect("orders", 2)).partition == 2
        await bus.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await bus.describe_topic("orders")

    @in_loop
    async def test_what_is_published_can_be_read_at_once_with_everything_it_had(
        self, bus: AsyncBus
    ) -> None:
        await bus.create_topic("orders", partitions=2)
        id = await bus.publish("orders", b"v", key=b"k", headers={"h": b"1"})
        ids = await bus.publish_many("orders", [b"a", None], keys=[b"k", b"k"])
        found = await all_messages(bus, "orders")
        assert [message.id for message in found] == [id, *ids]
        assert [message.value for message in found] == [b"v", b"a", None]
        assert (found[0].key, found[0].headers) == (b"k", {"h": b"1"})

    @in_loop
    async def test_a_fetch_asks_for_a_topic_again_only_when_what_it_remembers_is_wrong(
        self, bus: AsyncBus
    ) -> None:
        await bus.create_topic("orders", partitions=3)
        asked: list[str] = []
        ask = bus._refresh_topic

        async def refresh(topic: str) -> Any:
            asked.append(topic)
            return await ask(topic)

        bus._refresh_topic = refresh  # type: ignore[method-assign]
        for _ in range(3):
            assert set((await bus.fetch("orders")).next) == {0, 1, 2}
        assert asked == ["orders"]
        await asyncio.to_thread(made_anew_by_somebody_else, bus)
        assert set((await bus.fetch("orders")).next) == {0}
        assert asked == ["orders"] * 2

    @in_loop
    async def test_many_tasks_may_publish_at_once(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        ids = await asyncio.gather(*(bus.publish("orders", b"%d" % n) for n in range(200)))
        stored = {m.id: m.value for m in await all_messages(bus, "orders")}
        assert [stored[id] for id in ids if id] == [b"%d" % n for n in range(200)]

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_a_producer_s_messages_arrive_once_and_in_order(
        self, open_bus: Open, compression: str
    ) -> None:
        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("orders", partitions=2)
            async with bus.producer("orders", batch_bytes=2_000, compression=compression) as to:
                for n in range(1_000):
                    await to.send(b"%d" % n, key=b"%d" % (n % 5))
                await to.send_many([b"%d" % n for n in range(1_000, 3_000)], partition=0)
            by_key = defaultdict(list)
            for message in await all_messages(bus, "orders"):
                by_key[message.key].append(int(message.value or b""))
            assert sum(map(len, by_key.values())) == 3_000
            assert all(found == sorted(found) for found in by_key.values())

        run(open_bus, work)

    @in_loop
    async def test_a_lone_message_goes_out_although_nothing_follows(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        to = bus.producer("orders")
        consumer = bus.consumer("orders")
        await to.send(b"alone")
        async for message in consumer:
            assert message.value == b"alone"
            break
        await to.send(b"a")
        await to.send(b"b")
        await to.flush()
        assert await all_values(bus, "orders") == [b"alone", b"a", b"b"]

    @in_loop
    async def test_lingering_messages_go_out_together(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        async with bus.producer("orders", linger_ms=30) as to, bus.consumer("orders") as found:
            for n in range(10):
                await to.send(b"%d" % n)
            async for message in found:
                assert message.value == b"0"
                break
        assert [block.count for block in (await bus.inspect("orders")).blocks] == [10]

    @in_loop
    async def test_errors_are_those_of_the_synchronous_bus(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders", message_bytes_max=10)
        for call, kind in (
            (bus.publish("orders", b"x" * 11), TooLarge),
            (bus.publish("orders", "text"), Invalid),  # type: ignore[arg-type]
            (bus.publish("orders", b"", partition=5), PartitionNotFound),
            (bus.publish("nowhere", b""), TopicNotFound),
            (bus.publish_many("nowhere", [b""]), TopicNotFound),
            (bus.fetch("nowhere"), TopicNotFound),
            (all_values(bus, "nowhere"), TopicNotFound),
            (bus.producer("nowhere").send(b""), TopicNotFound),
        ):
            with pytest.raises(kind):
                await call
        to = bus.producer("orders")
        await to.send(b"")
        await to.flush()
        await bus.delete_topic("orders")
        with pytest.raises(TopicNotFound) as caught:
            await to.send(b"lost")
            await to.flush()
        assert caught.value.details["unacknowledged"] == 1
        with pytest.raises(TopicNotFound):
            await to.send(b"")

    @in_loop
    async def test_a_consumer_resumes_where_the_caller_was(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        await bus.publish_many("orders", [b"%d" % n for n in range(5)])
        await bus.publish("orders", b"5")
        consumer = bus.consumer("orders", stop_at_end=True)
        assert consumer.positions() == {}
        async for message in consumer:
            if message.value == b"2":
                break
        rest = await all_messages(bus, "orders", consumer.positions())
        assert [m.value for m in rest] == [b"3", b"4", b"5"]
        assert [m.value async for m in consumer] == [b"3", b"4", b"5"]
        batches = [b async for b in bus.consumer("orders", stop_at_end=True).batches()]
        assert [value for b in batches for value in b.values()][:2] == [b"0", b"1"]

    @in_loop
    async def test_a_waiting_consumer_gets_what_is_published_and_ends_when_closed(
        self, bus: AsyncBus
    ) -> None:
        await bus.create_topic("orders", partitions=2)
        found: list[bytes | None] = []
        consumer = bus.consumer("orders", start="latest", wait_s=60)
        arrived = asyncio.Event()

        async def read() -> None:
            async for message in consumer:
                found.append(message.value)
                arrived.set()

        async with consumer:
            reading = asyncio.create_task(read())
            await bus.publish("orders", b"new")
            await arrived.wait()
        await reading
        assert found == [b"new"]

    @pytest.mark.parametrize("delivery", [None, "at-least-once", "explicit"])
    @pytest.mark.parametrize("batches", [False, True])
    def test_an_iteration_goes_on_after_a_wait_that_was_cancelled(
        self, delivery: Any, batches: bool, open_bus: Open
    ) -> None:
        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("orders")
            member: dict[str, Any] = grouped(group="g", delivery=delivery) if delivery else {}
            async with bus.consumer("orders", wait_s=60, **member) as consumer:
                found: Any = consumer.batches() if batches else aiter(consumer)
                for number in range(4):
                    waiting = asyncio.create_task(anext(found))
                    for _ in range(number * 3):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
                    await bus.publish("orders", b"%d" % number)
                    message = await anext(found)
                    value = message.values()[0] if batches else message.value
                    assert value == b"%d" % number
                await found.aclose()
                with pytest.raises(StopAsyncIteration):
                    await anext(found)

        run(open_bus, work)

    @in_loop
    async def test_an_iteration_that_has_come_to_its_end_stays_there(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        await bus.publish("orders", b"a")
        async with bus.consumer("orders", stop_at_end=True) as consumer:
            found = aiter(consumer)
            assert (await anext(found)).value == b"a"
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await anext(found)

    @pytest.mark.parametrize("delivery", [None, "at-least-once"])
    def test_partitions_are_read_in_turn(self, delivery: Any, open_bus: Open) -> None:
        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("orders", partitions=3)
            for n in range(36):
                await bus.publish("orders", b"x", partition=n // 12)
            member: dict[str, Any] = grouped(group="g", delivery=delivery) if delivery else {}
            consumer = bus.consumer("orders", stop_at_end=True, bytes_max=1, **member)
            order = [message.partition async for message in consumer]
            assert len(order) == 36 and in_turn_of(order)

        run(open_bus, work)

    @in_loop
    async def test_a_fetch_may_wait_and_says_where_to_go_on(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        waiting = asyncio.create_task(bus.fetch("orders", wait_s=PATIENCE_S))
        await asyncio.sleep(0)
        await bus.publish("orders", b"here")
        page = await waiting
        assert [m.value for m in page.messages()] == [b"here"]
        assert (await bus.fetch("orders", page.next)).batches == []

    @in_loop
    async def test_a_cancelled_publish_disturbs_no_other(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        for n in range(20):
            task = asyncio.create_task(bus.publish("orders", b"cancelled"))
            for _ in range(n % 7):
                await asyncio.sleep(0)
            task.cancel()
            assert await bus.publish("orders", b"%d" % n) is not None
        kept = [value for value in await all_values(bus, "orders") if value != b"cancelled"]
        assert kept == [b"%d" % n for n in range(20)]

    @in_loop
    async def test_a_closed_bus_is_an_error_and_closes_what_it_made(self, bus: AsyncBus) -> None:
        await bus.create_topic("orders")
        to, consumer = bus.producer("orders"), bus.consumer("orders")
        await to.send(b"x")
        await bus.close()
        with pytest.raises(Closed):
            await to.send(b"y")
        with pytest.raises(Closed):
            await bus.publish("orders", b"z")
        await consumer.close()

    def test_a_transaction_moves_messages_and_positions_together(self, open_bus: Open) -> None:
        async def consume(bus: AsyncBus, fail_at: bytes) -> None:
            consumer = bus.consumer("in", group="g", stop_at_end=True)
            async for message in consumer:
                async with bus.transaction() as tx:
                    await tx.send("out", message.value)
                    tx.ack(consumer)
                    if message.value == fail_at:
                        raise RuntimeError("crash")

        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("in")
            await bus.create_topic("out")
            for number in range(4):
                await bus.publish("in", b"%d" % number)
            with pytest.raises(RuntimeError):
                await consume(bus, b"2")
            await consume(bus, b"")
            assert await all_values(bus, "out") == [b"0", b"1", b"2", b"3"]
            await bus.set_positions("in", {0: "offset:3"}, group="g")
            consumer = bus.consumer("in", group="g", stop_at_end=True)
            assert [message.value async for message in consumer] == [b"3"]
            await consumer.ack()
            (last,) = [one async for one in bus.consumer("in", "offset:3", stop_at_end=True)]
            assert (await bus.positions("in", group="g"))[0] == tms.Position.after(last.id)

        run(open_bus, work)

    @pytest.mark.parametrize("partitioner", Partitioner)
    def test_every_way_to_publish_obeys_the_partitioner(
        self, open_bus: Open, partitioner: Partitioner
    ) -> None:
        keys = [b"key %d" % number for number in range(40)]

        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("orders", partitions=7, partitioner=partitioner)
            await bus.publish_many("orders", [b"v"] * 40, keys)
            async with bus.producer("orders") as producer, bus.transaction() as tx:
                await producer.send_many([b"v"] * 40, keys)
                for key in keys:
                    await bus.publish("orders", b"v", key)
                    await producer.send(b"v", key)
                    await tx.send("orders", b"v", key)
            found = Counter((m.key, m.partition) for m in await all_messages(bus, "orders"))
            assert found == {(key, partitioner.partition_of(key, 7)): 5 for key in keys}

        run(open_bus, work)

    def test_a_producer_sees_before_long_that_its_topic_has_another_partitioner(
        self, open_bus: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("batching", "topic_cache"):
            monkeypatch.setattr(f"tms.client.{module}.REFRESH_S", -1.0)
        crc32c, murmur2 = Partitioner
        keys = (b"%d" % number for number in range(100))
        key = next(k for k in keys if crc32c.partition_of(k, 4) != murmur2.partition_of(k, 4) == 3)

        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("orders", partitions=4)
            async with bus.producer("orders") as producer:
                await producer.send(b"before", key=key)
                await producer.flush()
                await bus.delete_topic("orders")
                await bus.create_topic("orders", partitions=4, partitioner="murmur2")
                while not [m for m in await all_messages(bus, "orders") if m.partition == 3]:
                    await producer.send(b"after", key=key)
                    await producer.flush()

        run(open_bus, work)

    def test_a_producer_sees_before_long_that_its_topic_has_more_partitions(
        self, open_bus: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("batching", "topic_cache"):
            monkeypatch.setattr(f"tms.client.{module}.REFRESH_S", -1.0)
        key = next(b"%d" % n for n in range(100) if Partitioner.CRC32C.hash_of(b"%d" % n) % 4 == 3)

        async def work(bus: AsyncBus) -> None:
            await bus.create_topic("orders", partitions=1)
            async with bus.producer("orders") as producer:
                await producer.send(b"before", key=key)
                await producer.flush()
                await bus.update_topic("orders", partitions=4)
                while not [m for m in await all_messages(bus, "orders") if m.partition == 3]:
                    await producer.send(b"after", key=key)
                    await producer.flush()

        run(open_bus, work)


class TestEmbedded(EmbeddedAsyncBus, AsyncBusContract): ...


class TestHttp(HttpAsyncBus, AsyncBusContract): ...


# --- faults --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("fault", list(Fault))
def test_whatever_happens_to_a_request_its_messages_are_stored_once_and_in_order(
    fault: Fault, served: Served, request: pytest.FixtureRequest
) -> None:
    url = served.url
    topic = f"faults-{fault.name}-{request.node.callspec.params['event_loop']}"

    async def work(bus: AsyncBus) -> None:
        await bus.create_topic(topic, durability="written")
        await bus.publish(topic, b"0")
        proxy.script(fault)
        await bus.publish(topic, b"1")
        async with bus.producer(topic, batch_bytes=50) as to:
            await to.send_many([b"%d" % n for n in range(2, 50)])
            proxy.script(fault)
            await to.send_many([b"%d" % n for n in range(50, 100)])
        assert await all_values(bus, topic) == [b"%d" % n for n in range(100)]

    with Proxy(url) as proxy:
        run(lambda: tms.aio.connect(proxy.url, timeout_s=3), work)
        assert proxy.done


def test_a_service_that_never_answers_is_an_error_in_time() -> None:
    def answer(request: bytes) -> bytes | None:
        return TOPIC if request.startswith(b"GET /v2/namespaces/default/topics/t ") else None

    async def work(bus: AsyncBus) -> None:
        loop = asyncio.get_running_loop()
        to = bus.producer("t")
        await to.send(b"x")
        for call in (bus.publish("t", b""), bus.fetch("t"), all_values(bus, "t"), to.flush()):
            began = loop.time()
            with pytest.raises(TimedOut):
                await call
            assert loop.time() - began < 5  # on a loaded machine
        with pytest.raises(TimedOut):
            await to.close()

    with pretending(answer) as url:
        run(lambda: tms.aio.connect(url, timeout_s=0.5, outage_s=0), work)
