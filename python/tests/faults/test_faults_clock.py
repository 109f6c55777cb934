"""Faults 10 and 11: wall clocks that jump under a running service, and clients that claim times."""

import json
from pathlib import Path

import pytest

import tms
from tests.faults.faketime import WallClock
from tests.faults.history import SYNCED, History, read_all, value_of
from tests.faults.service import Service, metric, within
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms import block
from tms.api import bodies, routes
from tms.client.client import Bus
from tms.errors import OffsetOutOfRange
from tms.model.ids import TIME_MS_MAX, MessageId
from tms.model.message import StoredBlock

HOUR_S, DAY_S = 3_600, 86_400
SHORT, LONG = "short", "long"  # topics, by their retention
CLEAN = ("--cleaner-interval-s", "0.1")


def test_fault_10_ids_ascend_and_nothing_expires_early_while_the_clock_jumps(
    fast_path: Path,
) -> None:
    clock = WallClock(fast_path / "clock")
    histories = {SHORT: History(partitions=2), LONG: History(partitions=2)}
    with Service(fast_path / "data", *CLEAN, env=clock.env) as service:
        with tms.connect(service.url) as bus:
            bus.create_topic(SHORT, partitions=2, retention="2h")
            bus.create_topic(LONG, partitions=2, retention="8d")
            for ahead_s, speed in (
                (0, 1),
                (-2 * HOUR_S, 1),
                (10 * DAY_S, 1),
                (0, 5),
                (-2 * HOUR_S, 5),
                (10 * DAY_S, 1),
            ):
                clock.set(ahead_s, speed)
                for topic, history in histories.items():
                    publish(bus, topic, history)
                let_clean(fast_path / "data")
                for topic, history in histories.items():
                    history.check(read_all(bus, topic))
                assert bus.fetch(SHORT, start="latest", wait_s=0.05).batches == []
            assert metric(service, "tms_retention_held_back_ms") > 8 * DAY_S * 1_000
            clock.set(0)
            assert metric(service, "tms_clock_ahead_ms") > 9 * DAY_S * 1_000
            clock.set(10 * DAY_S)
        assert service.events("retention_clock_held_back")
        assert service.stop() == 0

    with (
        Service(fast_path / "data", *CLEAN, env=clock.env) as service,
        tms.connect(service.url) as bus,
    ):
        publish(bus, LONG, histories[LONG])
        let_clean(fast_path / "data")
        histories[LONG].check(read_all(bus, LONG))
        assert service.stop() == 0


def test_fault_10_a_confirmed_clock_is_believed(fast_path: Path) -> None:
    clock = WallClock(fast_path / "clock")
    with (
        Service(fast_path / "data", *CLEAN, env=clock.env) as service,
        tms.connect(service.url) as bus,
    ):
        bus.create_topic(LONG, retention="8d")
        publish(bus, LONG, History())
        clock.set(20 * DAY_S)
        let_clean(fast_path / "data")
        assert len(read_all(bus, LONG)) > 0
        assert service.stop() == 0
    with (
        Service(fast_path / "data", *CLEAN, "--confirm-clock", env=clock.env) as service,
        tms.connect(service.url) as bus,
    ):
        assert read_all(bus, LONG) == []
        within(PATIENCE_S, lambda: bool(service.events("segments_dropped")))
        assert metric(service, "tms_retention_held_back_ms") == 0
        history = History()
        publish(bus, LONG, history)
        assert len(read_all(bus, LONG)) == len(history.tried)
        assert service.stop() == 0


def publish(bus: Bus, topic: str, history: History, count: int = 20) -> None:
    """Publish messages one by one and note them."""
    for number in range(len(history.tried), len(history.tried) + count):
        history.tried.append(number)
        partition = number % history.partitions
        id = bus.publish(topic, value_of(0, number), partition=partition, durability=SYNCED)
        history.acknowledged[number] = str(id)
        history.synced.add(number)


def let_clean(data: Path) -> None:
    """Wait for a whole pass of the cleaner: each begins with a write to the metadata."""
    for _ in range(2):
        before = metadata_bytes(data)
        within(PATIENCE_S, lambda before=before: metadata_bytes(data) != before)  # type: ignore[misc]


def metadata_bytes(data: Path) -> int:
    return sum(log.stat().st_size for log in (data / "maps/metadata").glob("*.log"))


def test_fault_11_a_client_cannot_claim_a_time(fast_path: Path) -> None:
    """Blocks have a field for the time, which the service fills in; JSON has none."""
    with serving() as served:
        path = served.create("orders")
        with tms.connect(served.url) as bus:
            ours = bus.publish("orders", b"ours")
            assert ours is not None
            client = served.connect()
            for field in ("timestamp", "timestamp_ms", "time_ms", "id"):
                said = json.dumps({"messages": [{"value": "x", field: TIME_MS_MAX}]})
                answer = client.request("POST", f"{path}/messages", said.encode())
                assert answer.status in (400, 422), answer
                assert field in answer.json["detail"]
            made = block.encode([b"claimed"])
            far = b"".join(bodies.frames([StoredBlock(0, TIME_MS_MAX, 0, made)]))
            answer = client.request("POST", f"{path}/messages", far, media=routes.BLOCKS)
            assert answer.status in (routes.OK, 400, 422)
            last = bus.publish("orders", b"last")
            assert last is not None and 0 <= last.time_ms - ours.time_ms < 60_000
            values = [message.value for message in bus.consumer("orders", stop_at_end=True)]
            assert values in ([b"ours", b"last"], [b"ours", b"claimed", b"last"])


@pytest.mark.parametrize(
    "start",
    [
        f"time:{TIME_MS_MAX}",
        f"id:{MessageId(TIME_MS_MAX, 65_535)}",
    ],
)
def test_fault_11_a_position_in_the_future_finds_nothing_and_hurts_nobody(start: str) -> None:
    with serving() as served, tms.connect(served.url) as bus:
        served.create("orders")
        first = bus.publish("orders", b"first")
        assert bus.fetch("orders", start=start).batches == []
        assert bus.fetch("orders", start=start, wait_s=0.1).batches == []
        second = bus.publish("orders", b"second")
        assert first is not None and second is not None
        assert 0 <= second.time_ms - first.time_ms < 60_000
        assert [m.value for m in bus.consumer("orders", stop_at_end=True)] == [b"first", b"second"]


def test_fault_11_an_offset_in_the_future_is_refused_with_the_end() -> None:
    with serving() as served, tms.connect(served.url) as bus:
        served.create("orders")
        bus.publish("orders", b"first")
        for wait_s in (0.0, 0.1):
            with pytest.raises(OffsetOutOfRange) as caught:
                bus.fetch("orders", start="offset:9223372036854775807", wait_s=wait_s)
            assert caught.value.details["end"] == 1
        bus.publish("orders", b"second")
        assert [m.value for m in bus.consumer("orders", stop_at_end=True)] == [b"first", b"second"]
