"""Event times and headers without a value, from every publisher to every reader, embedded and over
HTTP."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

import tms
import tms.aio
from tests.contracts.buses import BOTH, bus_by
from tests.delay_kit import A, World
from tests.grouping import grouped
from tests.http_kit import serving
from tests.waiting import until
from tms.block import decode, encode
from tms.client import transaction
from tms.client.client import Bus
from tms.errors import Invalid
from tms.model.delayed import Due
from tms.model.ids import TIME_MS_MAX, utc
from tms.model.message import Headers, NewBlock, PartitionPosition
from tms.model.position import Position

HEADERS: Headers = {"set": b"1", "null": None, "empty": b""}


@pytest.fixture(params=BOTH)
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    with bus_by(request.param, tmp_path / "data") as bus:
        bus.create_topic("t", durability="written")
        yield bus


def read(bus: Bus, topic: str = "t") -> list[tuple[bytes | None, int | None, dict[str, Any]]]:
    found = bus.consumer(topic, stop_at_end=True)
    return [(one.value, one.event_time_ms, dict(one.headers)) for one in found]


def test_each_way_to_publish_gives_them(bus: Bus) -> None:
    bus.publish("t", b"1", headers=HEADERS, event_time_ms=1)
    bus.publish("t", b"2", event_time_ms=TIME_MS_MAX, partition=0, expect=last(bus))
    bus.publish_many("t", [b"3", b"4", b"5"], event_times_ms=[3, None, 0])
    with bus.producer("t") as producer:
        producer.send(b"6")
        producer.send(b"7", headers={"null": None}, event_time_ms=7)
        producer.send_many([b"8", b"9"], event_times_ms=[8, None])
        producer.send_many([b"10"])
    with bus.transaction() as tx:
        tx.send("t", b"11")
        tx.send("t", b"12", event_time_ms=12)
        tx.send_many("t", [b"13"])
    times = [1, TIME_MS_MAX, 3, None, 0, None, 7, 8, None, None, None, 12, None]
    assert read(bus) == [
        (b"%d" % number, time, expected_headers(number)) for number, time in enumerate(times, 1)
    ]


def last(bus: Bus) -> tms.MessageId:
    *_, newest = bus.consumer("t", stop_at_end=True)
    return newest.id


def expected_headers(number: int) -> dict[str, bytes | None]:
    return {1: dict(HEADERS), 7: {"null": None}}.get(number, {})


def test_they_are_there_with_asyncio() -> None:
    async def publish(url: str) -> list[tuple[int | None, Headers]]:
        async with tms.aio.connect(url) as bus:
            await bus.create_topic("t")
            await asyncio.gather(
                *(bus.publish("t", b"v", headers=HEADERS, event_time_ms=n) for n in range(5))
            )
            await bus.publish_many("t", [b"v"], event_times_ms=[5])
            async with bus.producer("t") as producer:
                await producer.send(b"v", event_time_ms=6)
                await producer.send_many([b"v", b"v"], event_times_ms=[7, None])
            consumer = bus.consumer("t", stop_at_end=True)
            return [(one.event_time_ms, one.headers) async for one in consumer]

    with serving() as served:
        found = asyncio.run(publish(served.url))
    assert sorted(time for time, _ in found if time is not None) == [*range(8)]
    assert [headers for _, headers in found] == [HEADERS] * 5 + [{}] * 4


def test_what_is_no_time_is_refused_where_it_is_given(bus: Bus) -> None:
    wrong: Any
    for wrong in (-1, TIME_MS_MAX + 1, 1.5, "1", True, 2**70):
        with pytest.raises(Invalid, match="An event time is None or whole milliseconds"):
            bus.publish("t", b"v", event_time_ms=wrong)
        with pytest.raises(Invalid, match="An event time is") as caught:
            bus.publish_many("t", [b"v", b"v"], event_times_ms=[1, wrong])
        assert caught.value.details["index"] == 1
        with bus.producer("t") as producer, pytest.raises(Invalid, match="An event time is"):
            producer.send(b"v", event_time_ms=wrong)
        with bus.transaction() as tx, pytest.raises(Invalid, match="An event time is"):
            tx.send("t", b"v", event_time_ms=wrong)
        with pytest.raises(Invalid, match="An event time is"):
            bus.publish_later("t", b"v", delay=60, event_time_ms=wrong)
    with pytest.raises(Invalid, match="2 values but 1 event_times_ms"):
        bus.publish_many("t", [b"v", b"v"], event_times_ms=[1])
    assert read(bus) == []


def test_a_staged_transaction_keeps_them(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "WAITING_BYTES", 100)
    with bus.transaction() as tx:
        for number in range(5):
            tx.send("t", b"%d" % number * 60, headers=HEADERS, event_time_ms=number)
    assert [row[1:] for row in read(bus)] == [(number, dict(HEADERS)) for number in range(5)]


def test_delayed_messages_keep_them(bus: Bus) -> None:
    bus.publish_later("t", b"later", headers=HEADERS, delay=600, event_time_ms=9)
    (waiting,) = bus.list_delayed("t")
    assert (waiting.event_time_ms, waiting.headers) == (9, HEADERS)


def test_delivered_delayed_messages_keep_them() -> None:
    world = World()
    key = b"gone"
    for times in ([1, None], [None], [3], [4, 5]):
        count = len(times)
        block = encode([b"v"] * count, [key] * count, [HEADERS] * count, times)
        world.delayed.publish(A, [NewBlock(0, block)], Due(delay_ms=600_000), None, "")
        key = b"kept"
    assert world.engine.erase(A, key=b"gone") == 2
    world.clock.pass_ms(600_000)
    world.delayed.move()
    fetched = world.engine.fetch(A, [PartitionPosition(0, Position.earliest())], 1 << 20)
    columns = [decode(stored.block) for stored in fetched.blocks]
    assert [time for one in columns for time in one.event_times()] == [None, 3, 4, 5]
    assert [row for one in columns for row in one.headers()] == [HEADERS] * 4


@pytest.mark.parametrize("bus", ["embedded"], indirect=True)
def test_dead_letters_of_queues_keep_them(bus: Bus) -> None:
    bus.publish("t", b"v", headers=HEADERS, event_time_ms=5)
    bus.publish("t", b"w")
    queue = bus.queue("t", group="g", deliveries_max=1)
    queue.reject(queue.receive(limit=2), cause="no")
    until(lambda: len([*bus.list_dead_letters("t", group="g")]) == 2)
    letters = {one.message.value: one.message for one in bus.list_dead_letters("t", group="g")}
    assert (letters[b"v"].event_time_ms, letters[b"w"].event_time_ms) == (5, None)
    assert {*HEADERS.items()} <= {*letters[b"v"].headers.items()}
    assert queue.redrive() == 2
    again = {one.value: one for one in queue.receive(limit=2)}
    assert (again[b"v"].event_time_ms, again[b"v"].headers) == (5, HEADERS)
    assert again[b"w"].event_time_ms is None


def test_queues_show_them(bus: Bus) -> None:
    bus.publish("t", b"v", headers=HEADERS, event_time_ms=5)
    bus.publish("t", b"w")
    queue = bus.queue("t", group="g", deliveries_max=1)
    assert [one.event_time_ms for one in queue.peek()] == [5, None]
    assert queue.peek()[0].headers == HEADERS
    first, second = queue.receive(limit=2)
    assert (first.event_time_ms, second.event_time_ms) == (5, None)
    assert first.headers == HEADERS


def test_dead_letters_of_groups_keep_them(bus: Bus) -> None:
    def failing(message: tms.Message) -> None:
        raise ValueError("no")

    bus.publish("t", b"v", headers=HEADERS, event_time_ms=5)
    options = {"stop_at_end": True, "dead_letter": "dead", "deliveries_max": 1}
    with bus.consumer(**grouped(topic="t", group="g", **options)) as consumer:
        consumer.handle(failing)
    (found,) = read(bus, "dead")
    assert found[:2] == (b"v", 5)
    assert {*HEADERS.items()} <= {*found[2].items()}


def test_what_is_left_of_a_block_keeps_them(bus: Bus) -> None:
    keys = [b"a", b"b", b"a", b"c"]
    bus.publish_many(
        "t", [b"1", b"2", b"3", b"4"], keys, [HEADERS] * 4, event_times_ms=[1, 2, 3, 4]
    )
    assert bus.erase("t", key=b"a") == 2
    assert read(bus) == [(b"2", 2, dict(HEADERS)), (b"4", 4, dict(HEADERS))]
    matching = bus.consumer("t", stop_at_end=True, where="key = c and header.null")
    assert [one.event_time_ms for one in matching] == [4]


def test_a_filter_tells_a_null_value_from_an_absent_header(bus: Bus) -> None:
    rows: list[Headers] = [{"h": None}, {"h": b""}, {"h": b"x"}, {}]
    bus.publish_many("t", [b"null", b"empty", b"x", b"none"], headers=rows)
    for where, found in [
        ("header.h", [b"null", b"empty", b"x"]),
        ('header.h = ""', [b"empty"]),
        ('header.h ^= ""', [b"empty", b"x"]),
        ("header.h = x", [b"x"]),
    ]:
        assert [one.value for one in bus.consumer("t", stop_at_end=True, where=where)] == found


def test_tables_have_them(bus: Bus) -> None:
    bus.publish_many("t", [b"1", b"2"], event_times_ms=[1_000, None])
    bus.publish("t", b"3", headers=HEADERS)
    table = bus.consumer("t", stop_at_end=True).to_arrow()
    assert table.schema.field("event_time").type == pa.timestamp("ms", tz="UTC")
    assert table["event_time"].to_pylist() == [utc(1_000), None, None]
    assert table["headers"].to_pylist()[2] == [*HEADERS.items()]
    frame = bus.consumer("t", stop_at_end=True).to_pandas()
    assert [*frame["event_time"].isna()] == [False, True, True]


def test_json_has_them_if_they_were_given() -> None:
    with serving() as served:
        place = "http://{}:{}/v2/namespaces/default/topics/t".format(*served.address)

        def call(url: str, body: object = None, accept: str = "application/json") -> bytes:
            head = {"Content-Type": "application/json", "Accept": accept}
            data = None if body is None else json.dumps(body).encode()
            with urlopen(Request(url, data, head, method="POST" if data else "GET")) as answer:
                return bytes(answer.read())

        urlopen(Request(place, b"{}", {"Content-Type": "application/json"}, method="PUT")).close()
        timed = {"value": "1", "event_time_ms": 5, "headers": {"null": None, "set": "x"}}
        raw = {"value": "/w==", "encoding": "base64", "headers": {"null": None, "set": "eA=="}}
        call(f"{place}/messages", {"messages": [timed, {"value": "2"}, raw]})
        found = json.loads(call(f"{place}/messages?start=earliest"))["messages"]
        assert [one.get("event_time_ms") for one in found] == [5, None, None]
        assert "event_time_ms" not in found[1]
        assert [one["headers"] for one in found] == [timed["headers"], {}, raw["headers"]]
        arrow = call(
            f"{place}/messages?start=earliest", None, "application/vnd.apache.arrow.stream"
        )
        table = pa.ipc.open_stream(arrow).read_all()
        assert table["event_time"].to_pylist() == [utc(5), None, None]
