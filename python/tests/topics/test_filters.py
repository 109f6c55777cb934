"""Consumers with a filter, over an engine in this process and through HTTP."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import tms
import tms.aio
from tests.http_kit import Served, serving
from tms.engine.engine import Engine
from tms.errors import Invalid
from tms.model.filter import Filter
from tms.model.message import PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.runtime.clock import SystemClock
from tms.store.memory import MemoryStore
from tms.topics.filtering import FetchBounds

KINDS = [b"order", b"order.paid", b"return", None]


def fill(bus: tms.Bus, count: int = 200, partitions: int = 1) -> list[tms.Message]:
    """Publish messages with keys u-0 … u-4 and a header, in blocks of various sizes; returns all of
    the topic."""
    bus.create_topic("t", partitions=partitions)
    done = 0
    while done < count:
        some = range(done, min(count, done + 1 + done % 37))
        kinds = [KINDS[n % 4] for n in some]
        bus.publish_many(
            "t",
            [b"%d" % n for n in some],
            [b"u-%d" % (n % 5) for n in some],
            [None if kind is None else {"kind": kind} for kind in kinds],
            compression=["none", "lz4"][done % 2],
        )
        done = some.stop
    return list(bus.consumer("t", stop_at_end=True))


class FilterContract:
    """Tests that hold for every bus."""

    @pytest.fixture
    def bus(self) -> Iterator[tms.Bus]:
        raise NotImplementedError

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_a_reader_gets_what_matches_with_the_ids_and_offsets_of_the_topic(
        self, bus: tms.Bus, partitions: int
    ) -> None:
        everything = fill(bus, partitions=partitions)
        found = list(bus.consumer("t", where="key = u-3 and header.kind ^= ord", stop_at_end=True))
        assert sorted(found) == sorted(
            m
            for m in everything
            if m.key == b"u-3" and m.headers.get("kind", b"").startswith(b"ord")
        )
        assert found

    def test_reading_begins_at_any_position(self, bus: tms.Bus) -> None:
        everything = fill(bus)
        for start in range(0, 200, 7):
            found = list(bus.consumer("t", f"offset:{start}", where="key=u-2", stop_at_end=True))
            assert [m.offset for m in found] == [n for n in range(start, 200) if n % 5 == 2]
        id = everything[101].id
        assert next(iter(bus.consumer("t", id, where="key=u-2", stop_at_end=True))).offset == 102

    def test_positions_go_on_over_what_does_not_match(self, bus: tms.Bus) -> None:
        fill(bus)
        consumer = bus.consumer("t", where="key=nobody", stop_at_end=True, group="g")
        assert list(consumer) == []
        consumer.ack()
        bus.publish("t", b"late", b"nobody")
        plain = bus.consumer("t", group="g", stop_at_end=True)
        assert [message.value for message in plain] == [b"late"]

    def test_positions_are_never_behind_what_was_not_handed_out(self, bus: tms.Bus) -> None:
        fill(bus)
        consumer = bus.consumer("t", where="key=u-1", stop_at_end=True)
        seen = [m.offset for m in islice(consumer, 5)]
        rest = bus.consumer("t", consumer.positions(), where="key=u-1", stop_at_end=True)
        assert seen + [m.offset for m in rest] == [n for n in range(200) if n % 5 == 1]

    def test_a_look_is_bounded_and_goes_on_until_the_end(
        self, bus: tms.Bus, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(bus, 2_000)
        monkeypatch.setattr("tms.topics.filtering.PAGE_BYTES", 4_000)
        engine.topics.fetcher.bounds = FetchBounds(0, 0.0)
        one = PartitionPosition(0, Position.earliest())
        where = Filter.parse('header.kind = return and key = "u-0"')
        fetched = engine.fetch(TopicName("default", "t"), [one], 1 << 20, where=where)
        assert 0 < fetched.reached[0] < 200
        found = list(bus.consumer("t", where=where, stop_at_end=True))
        assert [m.offset for m in found] == [n for n in range(2_000) if n % 20 == 10]
        assert list(bus.consumer("t", where="key=nobody", stop_at_end=True)) == []

    def test_a_waiting_reader_is_woken_by_what_matches_only(self, bus: tms.Bus) -> None:
        bus.create_topic("t")
        consumer = bus.consumer("t", where="key=wanted", wait_s=5)
        found: list[bytes | None] = []
        thread = threading.Thread(target=lambda: found.append(next(iter(consumer)).value))
        thread.start()
        for n in range(20):
            bus.publish("t", b"%d" % n, b"other")
        assert not found
        bus.publish("t", b"this", b"wanted")
        thread.join(20)
        consumer.close()
        assert found == [b"this"]

    def test_open_transactions_are_waited_for_and_staged_messages_are_filtered(
        self, bus: tms.Bus
    ) -> None:
        bus.create_topic("t")
        with bus.transaction() as tx:
            for n in range(40):
                tx.send("t", b"%d" % n, b"u-%d" % (n % 2))
            assert list(bus.consumer("t", where="key=u-1", stop_at_end=True)) == []
        found = [m.value for m in bus.consumer("t", where="key=u-1", stop_at_end=True)]
        assert found == [b"%d" % n for n in range(1, 40, 2)]

    def test_a_wrong_filter_is_refused_at_once_with_its_place(self, bus: tms.Bus) -> None:
        bus.create_topic("t")
        with pytest.raises(Invalid) as caught:
            bus.consumer("t", where="key = a or b")
        assert caught.value.details["character"] == 9


class TestEmbedded(FilterContract):
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[tms.Bus]:
        with tms.open(tmp_path / "data") as bus:
            yield bus

    @pytest.fixture
    def engine(self, bus: tms.Bus) -> Engine:
        engine = bus._transport
        assert isinstance(engine, Engine)
        return engine


class TestHttp(FilterContract):
    @pytest.fixture
    def served(self) -> Iterator[Served]:
        with serving() as served:
            yield served

    @pytest.fixture
    def bus(self, served: Served) -> Iterator[tms.Bus]:
        with tms.connect(served.url) as bus:
            yield bus

    @pytest.fixture
    def engine(self, served: Served) -> Engine:
        return served.service.engine

    def test_json_and_arrow_answers_are_filtered_and_a_wrong_filter_is_a_problem(
        self, bus: tms.Bus, served: Served
    ) -> None:
        fill(bus, 60)
        client = served.connect()
        path = "/v2/namespaces/default/topics/t/messages?start=earliest&where="
        answer = client.request("GET", path + "key%3Du-4%20and%20header.kind")
        assert [m["offset"] for m in answer.json["messages"]] == [
            n for n in range(60) if n % 5 == 4 and n % 4 != 3
        ]
        assert client.request("GET", path + "keys").problem == "invalid"


@pytest.mark.usefixtures("event_loop")
def test_the_asyncio_consumer_filters_as_well(tmp_path: Path) -> None:
    with tms.open(tmp_path / "data") as bus:
        fill(bus)

    async def read() -> list[int]:
        async with tms.aio.open(tmp_path / "data") as bus:
            consumer = bus.consumer("t", where="key = u-3", stop_at_end=True)
            found = [message.offset async for message in consumer]
            assert consumer.positions()[0] == Position.after((await last(bus)).id)
            return found

    async def last(bus: tms.aio.AsyncBus) -> tms.Message:
        return [message async for message in bus.consumer("t", stop_at_end=True)][-1]

    assert asyncio.run(read()) == [n for n in range(200) if n % 5 == 3]


def test_without_a_filter_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from tms.topics import fetching

    monkeypatch.setattr(fetching, "Selection", None)
    engine = Engine(MemoryStore(), SystemClock())
    from tms.client.client import Bus

    with Bus(engine) as bus:
        assert len(fill(bus)) == 200
