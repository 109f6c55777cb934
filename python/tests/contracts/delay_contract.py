"""The contract of a bus for delayed messages, whatever is below it. A subclass gives the fixture
`world`."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.clocks import START_MS, ManualClock
from tests.contracts.bus_contract import KAFKA_NAMES
from tests.worlds import World
from tms.errors import Forbidden, Invalid, PartitionNotFound, TooLarge, TopicNotFound
from tms.model.delayed import DelayedId, DelayedInfo
from tms.model.ids import TIME_MS_MAX
from tms.model.keys import Partitioner

START = datetime.fromtimestamp(START_MS / 1000, UTC)


def values(world: World, topic: str = "orders") -> list[bytes | None]:
    """The values of the delivered messages."""
    return [message.value for message in world.bus.consumer(topic, stop_at_end=True)]


class DelayContract:
    """Contract of delayed messages."""

    @pytest.fixture(autouse=True)
    def topics(self, world: World) -> None:
        world.bus.create_topic("orders", partitions=3)

    def test_it_is_delivered_when_it_is_due_and_gets_its_id_then(
        self, world: World, clock: ManualClock
    ) -> None:
        id = world.bus.publish_later("orders", b"1", b"k", {"h": b"x"}, delay=1.5)
        assert id.due_ms == START_MS + 1_500 and id.due == START + timedelta(seconds=1.5)
        clock.pass_ms(1_499)
        assert world.engine.delayed.move() == 0 and values(world) == []
        clock.pass_ms(1)
        assert world.engine.delayed.move() == 1
        (message,) = world.bus.consumer("orders", stop_at_end=True)
        assert (message.key, message.value, message.headers) == (b"k", b"1", {"h": b"x"})
        assert message.partition == Partitioner.CRC32C.partition_of(b"k", 3)
        assert message.timestamp_ms == START_MS + 1_500

    @pytest.mark.parametrize("name", KAFKA_NAMES, ids=lambda name: name[:20])
    def test_a_topic_with_a_name_of_kafka_gets_its_messages(
        self, world: World, clock: ManualClock, name: str
    ) -> None:
        world.bus.create_topic(name)
        id = world.bus.publish_later(name, b"1", delay=1)
        world.bus.publish_later(name, b"2", delay=2)
        world.restart()
        assert next(world.bus.list_delayed(name)).id == id
        clock.pass_ms(1_000)
        assert world.engine.delayed.move() == 1
        assert values(world, name) == [b"1"]

    @pytest.mark.parametrize("partitioner", Partitioner)
    def test_keys_go_where_the_partitioner_of_the_topic_sends_them(
        self, world: World, clock: ManualClock, partitioner: Partitioner
    ) -> None:
        world.bus.create_topic("kafka", 7, partitioner=partitioner)
        keys = [b"key %d" % number for number in range(20)]
        world.bus.publish_later_many("kafka", [b"v"] * 20, keys, delay=1)
        clock.pass_ms(1_000)
        world.engine.delayed.move()
        found = {one.key: one.partition for one in world.bus.consumer("kafka", stop_at_end=True)}
        assert found == {key: partitioner.partition_of(key, 7) for key in keys}

    @pytest.mark.parametrize(
        "when",
        [
            {"delay": 60},
            {"delay": timedelta(minutes=1)},
            {"at": START_MS + 60_000},
            {"at": START + timedelta(minutes=1)},
        ],
        ids=["seconds", "timedelta", "ms", "datetime"],
    )
    def test_a_time_can_be_said_in_four_ways(self, world: World, when: dict[str, Any]) -> None:
        assert world.bus.publish_later("orders", b"1", **when).due_ms == START_MS + 60_000

    def test_what_lies_between_two_milliseconds_is_not_early(self, world: World) -> None:
        assert world.bus.publish_later("orders", b"1", delay=0.0101).due_ms == START_MS + 11
        late = START + timedelta(microseconds=1)
        assert world.bus.publish_later("orders", b"1", at=late).due_ms == START_MS + 1

    def test_many_go_together_and_keep_their_order(self, world: World, clock: ManualClock) -> None:
        numbers = [b"%d" % number for number in range(500)]
        keys = [b"%d" % (number % 7) for number in range(500)]
        ids = world.bus.publish_later_many("orders", numbers, keys, delay=1, compression="lz4")
        assert len(set(ids)) == 500
        waiting = {one.id: one.value for one in world.bus.list_delayed("orders")}
        assert [waiting[id] for id in ids] == numbers
        clock.pass_ms(1_000)
        world.engine.delayed.move()
        found = list(world.bus.consumer("orders", stop_at_end=True))
        for key in set(keys):
            expected = [n for n, k in zip(numbers, keys, strict=True) if k == key]
            assert [one.value for one in found if one.key == key] == expected

    def test_what_is_cancelled_is_not_delivered(self, world: World, clock: ManualClock) -> None:
        one, two = world.bus.publish_later_many("orders", [b"1", b"2"], partition=0, delay=1)
        assert world.bus.cancel_delayed("orders", one) is True
        assert world.bus.cancel_delayed("orders", str(one)) is True
        assert world.bus.cancel_delayed("orders", DelayedId(one.due_ms + 1, one.sequence)) is False
        clock.pass_ms(1_000)
        world.engine.delayed.move()
        assert values(world) == [b"2"]
        assert world.bus.cancel_delayed("orders", two) is False

    def test_what_waits_can_be_counted_and_looked_at(self, world: World) -> None:
        assert world.bus.describe_delayed("orders") == DelayedInfo(0, None)
        assert list(world.bus.list_delayed("orders")) == []
        late = world.bus.publish_later("orders", None, partition=1, delay=9)
        soon = world.bus.publish_later(
            "orders", b"\xff", b"k", {"h": b"\0"}, 2, delay=5, event_time_ms=7
        )
        assert world.bus.describe_delayed("orders") == DelayedInfo(2, START_MS + 5_000)
        first, second = world.bus.list_delayed("orders")
        assert first == (soon, 2, b"k", b"\xff", {"h": b"\0"}, 7)
        assert second == (late, 1, None, None, {}, None)
        assert list(world.bus.list_delayed("orders", after=str(soon))) == [second]

    def test_it_survives_restarts_and_kills(self, world: World, clock: ManualClock) -> None:
        world.bus.publish_later_many("orders", [b"1", b"2"], partition=0, delay=10)
        gone = world.bus.publish_later("orders", b"x", partition=0, delay=10)
        assert world.bus.cancel_delayed("orders", gone)
        world.kill()
        clock.pass_ms(9_999)
        assert world.engine.delayed.move() == 0
        world.restart()
        clock.pass_ms(1)
        world.engine.delayed.move()
        assert values(world) == [b"1", b"2"]
        world.kill()
        assert world.engine.delayed.move() == 0
        assert values(world) == [b"1", b"2"]
        assert world.bus.describe_delayed("orders") == DelayedInfo(0, None)

    def test_large_messages_wait_too(self, world: World, clock: ManualClock) -> None:
        large = [bytes([number]) * (1 << 20) for number in range(7)]
        world.bus.publish_later_many("orders", large, partition=0, delay=1)
        assert [one.value for one in world.bus.list_delayed("orders")] == large
        world.kill()
        clock.pass_ms(1_000)
        world.engine.delayed.move()
        assert values(world) == large

    def test_bad_input_is_refused_and_nothing_is_stored(self, world: World) -> None:
        bus = world.bus
        wrong: list[dict[str, Any]] = [
            {},
            {"at": START_MS, "delay": 1},
            {"delay": -1},
            {"delay": timedelta(seconds=-1)},
            {"delay": float("nan")},
            {"delay": float("inf")},
            {"delay": "1 fortnight"},
            {"delay": True},
            {"delay": 1e12},
            {"at": -1},
            {"at": 1.5},
            {"at": "2026"},
            {"at": TIME_MS_MAX + 1},
            {"at": datetime(2030, 1, 1)},  # noqa: DTZ001
        ]
        for when in wrong:
            with pytest.raises(Invalid):
                bus.publish_later("orders", b"1", **when)
        with pytest.raises(Invalid):
            bus.publish_later_many("orders", [b"1", "2"], delay=1)  # type: ignore[list-item]
        with pytest.raises(Invalid):
            bus.cancel_delayed("orders", "nonsense")
        with pytest.raises(TopicNotFound):
            bus.publish_later("none", b"1", delay=1)
        with pytest.raises(TopicNotFound):
            bus.cancel_delayed("none", DelayedId(1, 1))
        with pytest.raises(TopicNotFound):
            bus.describe_delayed("none")
        with pytest.raises(PartitionNotFound):
            bus.publish_later("orders", b"1", partition=3, delay=1)
        with pytest.raises((Forbidden, TopicNotFound)):
            bus.publish_later("system:_transactions", b"1", delay=1)
        bus.update_topic("orders", message_bytes_max=3)
        with pytest.raises(TooLarge):
            bus.publish_later("orders", b"1234", delay=1)
        assert bus.describe_delayed("orders") == DelayedInfo(0, None)

    def test_a_deleted_topic_forgets_what_waited(self, world: World, clock: ManualClock) -> None:
        world.bus.publish_later("orders", b"1", delay=1)
        world.bus.delete_topic("orders")
        world.bus.create_topic("orders", partitions=3)
        assert world.bus.describe_delayed("orders") == DelayedInfo(0, None)
        clock.pass_ms(1_000)
        assert world.engine.delayed.move() == 0 and values(world) == []
