"""The contract of a bus, whatever is below it: a class of tests that every kind of bus runs.

`test_client.py` runs it on an engine in this process and through HTTP; `AsyncBusContract` is the
contract of the asyncio bus. A subclass gives the fixture `bus`.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

import tms
from tests.contracts.partitioner_contract import PartitionerContract
from tests.grouping import grouped
from tests.waiting import PATIENCE_S
from tms import Bus, MessageId, Position
from tms.client import batching, topic_cache
from tms.errors import (
    BadMessageId,
    Closed,
    FewerPartitions,
    Forbidden,
    Invalid,
    OffsetOutOfRange,
    PartitionNotFound,
    TooLarge,
    TopicExists,
    TopicNotFound,
)
from tms.model.keys import Partitioner
from tms.model.topic import RETENTION_MS_DEFAULT, Durability, TopicName, TopicSettings

KAFKA_NAMES = ("a.b-c_d", "__consumer", "t" * 249, "shop:server.schema.table.")  # names of topics


def all_messages(bus: Bus, topic: str, start: object = "earliest") -> list[tms.Message]:
    return list(bus.consumer(topic, start=start, stop_at_end=True))  # type: ignore[arg-type]


def all_values(bus: Bus, topic: str) -> list[bytes | None]:
    return [message.value for message in all_messages(bus, topic)]


def in_turn_of(order: Sequence[int]) -> bool:
    """True if no partition is two messages ahead of another one, when all have as many."""
    seen = dict.fromkeys(order, 0)
    for partition in order:
        seen[partition] += 1
        if max(seen.values()) - min(seen.values()) > 1:
            return False
    return True


class TopicContract:
    """Contract of topics."""

    def test_a_created_topic_has_the_settings_that_were_asked_for(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=3, retention="2h", durability="written")
        found = bus.describe_topic("orders")
        assert (found.settings.partitions, found.settings.retention_ms) == (3, 7_200_000)
        assert found.settings.durability is Durability.WRITTEN
        assert [one.partition for one in found.partition_infos] == [0, 1, 2]

    def test_creating_the_same_topic_again_changes_nothing(self, bus: Bus) -> None:
        first = bus.create_topic("orders", partitions=2)
        again = bus.create_topic("orders", partitions=2)
        assert (first.generation, first.created_ms) == (again.generation, again.created_ms)

    def test_creating_it_with_other_settings_is_refused(self, bus: Bus) -> None:
        bus.create_topic("orders")
        with pytest.raises(TopicExists):
            bus.create_topic("orders", partitions=2)

    def test_topics_are_listed_by_name_and_namespace(self, bus: Bus) -> None:
        for name in ("b", "a", "other:c"):
            bus.create_topic(name)
        assert [info.topic for info in bus.list_topics()] == ["a", "b"]
        assert [str(info.name) for info in bus.list_topics("other")] == ["other:c"]

    def test_settings_can_be_changed_one_by_one(self, bus: Bus) -> None:
        bus.create_topic("orders", retention_bytes=1 << 21)
        bus.update_topic("orders", partitions=2, retention="forever")
        settings = bus.describe_topic("orders").settings
        assert (settings.partitions, settings.retention_ms) == (2, None)
        assert settings.retention_bytes == 1 << 21
        bus.update_topic("orders", retention_bytes="unlimited")
        assert bus.describe_topic("orders").settings.retention_bytes is None

    def test_a_topic_has_the_retention_of_its_store_unless_it_has_its_own(self, bus: Bus) -> None:
        settings = bus.create_topic("orders").settings
        assert (settings.retention_is_default, settings.retention_ms) == (
            True,
            RETENTION_MS_DEFAULT,
        )
        assert not bus.update_topic("orders", retention="1d").settings.retention_is_default
        settings = bus.update_topic("orders", retention="default").settings
        assert (settings.retention_is_default, settings.retention_ms) == (
            True,
            RETENTION_MS_DEFAULT,
        )
        assert bus.create_topic("orders").settings == settings

    def test_partitions_cannot_be_taken_away(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=2)
        with pytest.raises(FewerPartitions):
            bus.update_topic("orders", partitions=1)

    def test_a_deleted_topic_is_gone_and_its_messages_never_come_back(self, bus: Bus) -> None:
        bus.create_topic("orders")
        bus.publish("orders", b"old")
        bus.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            bus.describe_topic("orders")
        bus.create_topic("orders")
        bus.publish("orders", b"new")
        assert all_values(bus, "orders") == [b"new"]

    def test_truncating_removes_what_is_before(self, bus: Bus) -> None:
        bus.create_topic("orders")
        ids = [bus.publish("orders", b"%d" % n) for n in range(4)]
        assert ids[2] is not None
        bus.truncate_topic("orders", ids[2])
        assert all_values(bus, "orders") == [b"2", b"3"]
        bus.truncate_topic("orders")
        assert all_values(bus, "orders") == []

    def test_truncating_a_partition_leaves_the_others(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=2)
        for number in range(6):
            bus.publish("orders", b"%d" % number, partition=number % 2)
        for _ in range(2):
            [cut] = bus.truncate_topic("orders", "offset:2", partition=1).partition_infos
            assert (cut.partition, cut.start_offset, cut.end_offset) == (1, 2, 3)
        assert sorted(all_values(bus, "orders")) == [b"0", b"2", b"4", b"5"]
        [cut] = bus.truncate_topic("orders", "offset:100", partition=0).partition_infos
        assert (cut.partition, cut.start_offset, cut.end_offset) == (0, 3, 3)
        assert all_values(bus, "orders") == [b"5"]
        with pytest.raises(PartitionNotFound):
            bus.truncate_topic("orders", partition=2)
        for wrong in (-1, 1_024, 0.5, "0", True):
            with pytest.raises(Invalid):
                bus.truncate_topic("orders", partition=wrong)  # type: ignore[arg-type]
        assert all_values(bus, "orders") == [b"5"]

    def test_truncating_may_cut_through_messages_published_together(self, bus: Bus) -> None:
        bus.create_topic("orders")
        ids = bus.publish_many("orders", [b"%d" % n for n in range(6)])
        bus.truncate_topic("orders", ids[3])
        assert all_values(bus, "orders") == [b"3", b"4", b"5"]
        assert bus.describe_topic("orders").partition_infos[0].start_offset == 3

    def test_a_topic_that_is_not_there_is_an_error_everywhere(self, bus: Bus) -> None:
        for call in (
            lambda: bus.describe_topic("nowhere"),
            lambda: bus.delete_topic("nowhere"),
            lambda: bus.update_topic("nowhere", partitions=2),
            lambda: bus.truncate_topic("nowhere"),
            lambda: bus.publish("nowhere", b""),
            lambda: bus.publish_many("nowhere", [b""]),
            lambda: bus.producer("nowhere"),
            lambda: bus.consumer("nowhere"),
            lambda: bus.fetch("nowhere"),
            lambda: bus.inspect("nowhere"),
        ):
            with pytest.raises(TopicNotFound):
                call()

    @pytest.mark.parametrize("name", KAFKA_NAMES, ids=lambda name: name[:20])
    def test_a_name_of_kafka_is_good_for_everything(self, bus: Bus, name: str) -> None:
        for near in ("default:a", "default:a-b", name[:-1] + "x"):
            bus.create_topic(near)
        bus.create_topic(name, durability="written")
        with bus.producer(name) as producer:
            producer.send(b"1", key=b"k")
        first, last = bus.publish(name, b"2", key=b"l"), bus.publish(name, b"3", key=b"k")
        assert all_values(bus, name) == [b"1", b"2", b"3"]
        namespace = TopicName.parse(name).namespace
        assert [str(info.name) for info in bus.list_topics(namespace)].count(name) == 1
        fetched = bus.fetch(name, first).batches
        assert [value for batch in fetched for value in batch.values()] == [b"2", b"3"]
        with bus.view(name) as view:
            assert dict(view.items()) == {b"k": b"3", b"l": b"2"}
        with bus.consumer(name, group="g.h", partitions="all", stop_at_end=True) as consumer:
            assert [message.topic for message in consumer] == [name] * 3
            consumer.ack()
        assert [(one.topic, one.group) for one in bus.list_groups(namespace=namespace)] == [
            (name, "g.h")
        ]
        assert bus.positions(name, group="g.h") == {0: Position.after(last)}
        assert not any(bus.positions(near, group="g.h") for near in ("a", name[:-1] + "x"))
        with bus.transaction() as tx:
            tx.send(name, b"4")
        assert all_values(bus, name)[3:] == [b"4"]
        waiting = bus.publish_later(name, b"later", delay=3_600)
        assert [waits.id for waits in bus.list_delayed(name)] == [waiting]
        assert bus.cancel_delayed(name, waiting)
        bus.truncate_topic(name, last)
        assert all_values(bus, name) == [b"3", b"4"]
        bus.delete_topic(name)
        with pytest.raises(TopicNotFound):
            bus.describe_topic(name)
        bus.create_topic(name)
        assert all_values(bus, name) == []

    def test_bad_names_and_settings_are_refused(self, bus: Bus) -> None:
        for name in ("", "a/b", "-a", "a b", "ä", "x" * 250, "../etc", ".", "..", ".a"):
            with pytest.raises(Invalid):
                bus.create_topic(name)
        wrong: list[dict[str, Any]] = [
            {"partitions": 0},
            {"retention": "1 fortnight"},
            {"durability": "often"},
        ]
        for settings in wrong:
            with pytest.raises(Invalid):
                bus.create_topic("orders", **settings)

    def test_the_namespace_system_cannot_be_written(self, bus: Bus) -> None:
        with pytest.raises(Forbidden):
            bus.create_topic("system:mine")

    def test_offsets_tell_where_a_position_is_in_each_partition(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=2)
        assert bus.offsets("orders") == bus.offsets("orders", "earliest") == {0: 0, 1: 0}
        ids = bus.publish_many("orders", [b"%d" % i for i in range(5)], partition=1)
        last = bus.publish("orders", b"5", partition=1)
        assert last is not None
        assert bus.offsets("orders") == {0: 0, 1: 6}
        assert bus.offsets("orders", "earliest") == {0: 0, 1: 0}
        assert bus.offsets("orders", ids[3]) == {0: 0, 1: 3}
        assert bus.offsets("orders", f"after:{ids[4]}") == {0: 0, 1: 5}
        assert bus.offsets("orders", f"time:{last.time_ms + 1}") == {0: 0, 1: 6}
        assert bus.offsets("orders", "offset:4") == {0: 0, 1: 4}
        bus.truncate_topic("orders", ids[2])
        assert bus.offsets("orders", "earliest") == bus.offsets("orders", "offset:1")
        assert bus.offsets("orders", "earliest", isolation="uncommitted") == {0: 0, 1: 2}
        with pytest.raises(TopicNotFound):
            bus.offsets("nowhere")
        with pytest.raises(Invalid):
            bus.offsets("orders", isolation="read")

    def test_inspect_shows_segments_and_the_newest_blocks(self, bus: Bus) -> None:
        bus.create_topic("orders")
        bus.publish_many("orders", [b"a", b"b"])
        bus.publish("orders", b"c")
        found = bus.inspect("orders")
        assert [(block.base_offset, block.count) for block in found.blocks] == [(2, 1), (0, 2)]
        assert found.segments[-1].end_offset == 3


class PublishContract:
    """Contract of publishing one message, or many at once."""

    def test_a_published_message_can_be_read_at_once_with_everything_it_had(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=2)
        id = bus.publish("orders", b"value", key=b"k", headers={"a": b"1", "ä": b""})
        (message,) = all_messages(bus, "orders")
        assert (message.value, message.key) == (b"value", b"k")
        assert message.headers == {"a": b"1", "ä": b""}
        assert (message.topic, message.offset, message.id) == ("orders", 0, id)
        assert message.timestamp.tzinfo is UTC
        assert round(message.timestamp.timestamp() * 1_000) == message.timestamp_ms

    def test_a_tombstone_is_not_an_empty_value(self, bus: Bus) -> None:
        bus.create_topic("orders")
        bus.publish("orders", None, key=b"")
        bus.publish("orders", b"")
        first, second = all_messages(bus, "orders")
        assert (first.value, first.key) == (None, b"")
        assert (second.value, second.key) == (b"", None)

    def test_ids_grow_and_offsets_are_dense(self, bus: Bus) -> None:
        bus.create_topic("orders")
        ids = [bus.publish("orders", b"") for _ in range(20)]
        assert ids == sorted(ids) and len(set(ids)) == 20  # type: ignore[type-var]
        assert [message.offset for message in all_messages(bus, "orders")] == list(range(20))

    def test_a_key_always_goes_to_the_same_partition(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=4)
        keys = [b"k%d" % (n % 10) for n in range(50)]
        for key in keys[:25]:
            bus.publish("orders", b"", key=key)
        bus.publish_many("orders", [b""] * 25, keys=keys[25:])
        places = defaultdict(set)
        for message in all_messages(bus, "orders"):
            places[message.key].add(message.partition)
        assert all(len(partitions) == 1 for partitions in places.values())
        assert len(set().union(*places.values())) > 1

    def test_messages_without_a_key_take_turns(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=3)
        for _ in range(6):
            bus.publish("orders", b"")
        assert sorted(m.partition for m in all_messages(bus, "orders")) == [0, 0, 1, 1, 2, 2]

    def test_the_partition_can_be_chosen(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=3)
        bus.publish("orders", b"", key=b"k", partition=1)
        bus.publish_many("orders", [b"", b""], partition=2)
        # The order in which partitions are read depends on the page; no order is promised.
        assert sorted(m.partition for m in all_messages(bus, "orders")) == [1, 2, 2]
        with pytest.raises(PartitionNotFound):
            bus.publish("orders", b"", partition=3)

    def test_many_messages_get_their_ids_in_order(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=4)
        values = [b"%d" % n for n in range(100)]
        keys = [None if n % 3 == 0 else b"k%d" % (n % 7) for n in range(100)]
        ids = bus.publish_many("orders", values, keys=keys)
        stored = {(m.partition, m.id): m.value for m in all_messages(bus, "orders")}
        assert len(ids) == 100
        assert sorted(stored.values()) == sorted(values)  # type: ignore[type-var]
        by_value = {value: id for (_, id), value in stored.items()}
        assert [by_value[value] for value in values] == ids

    def test_many_messages_of_one_partition_are_one_block(self, bus: Bus) -> None:
        bus.create_topic("orders")
        bus.publish_many("orders", [b"x" * 100] * 5_000)
        assert [block.count for block in bus.inspect("orders").blocks] == [5_000]

    def test_an_error_names_the_message_by_its_index(self, bus: Bus) -> None:
        bus.create_topic("orders", message_bytes_max=10)
        for bad, kind in ((b"x" * 11, TooLarge), ("text", Invalid)):
            with pytest.raises(kind) as caught:
                bus.publish_many("orders", [b"ok", b"ok", bad])  # type: ignore[list-item]
            assert caught.value.details["index"] == 2
        assert all_values(bus, "orders") == []

    def test_the_largest_message_is_accepted_and_one_byte_more_is_not(self, bus: Bus) -> None:
        bus.create_topic("orders", message_bytes_max=1_000)
        bus.publish("orders", b"v" * 900, key=b"k" * 90, headers={"h": b"x" * 9})
        with pytest.raises(TooLarge):
            bus.publish("orders", b"v" * 900, key=b"k" * 90, headers={"h": b"x" * 10})
        with bus.producer("orders") as producer, pytest.raises(TooLarge):
            producer.send(b"v" * 1_001)

    def test_wrong_types_are_refused_before_anything_is_sent(self, bus: Bus) -> None:
        bus.create_topic("orders")
        with pytest.raises(Invalid, match="encode"):
            bus.publish("orders", "text")  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            bus.publish("orders", b"", key=5)  # type: ignore[arg-type]
        for headers in ({"": b""}, {"a": "text"}, {5: b""}, {"\ud800": b""}):
            with pytest.raises(Invalid):
                bus.publish("orders", b"", headers=headers)  # type: ignore[arg-type]
        assert all_values(bus, "orders") == []

    def test_durability_none_answers_without_an_id(self, bus: Bus) -> None:
        bus.create_topic("orders")
        assert bus.publish("orders", b"a", durability="none") in (None, *_ids(bus, "orders"))
        with pytest.raises(Invalid):
            bus.publish("orders", b"", durability="often")

    def test_a_topic_made_anew_with_fewer_partitions_is_noticed(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=8)
        for _ in range(8):
            bus.publish("orders", b"")
        bus.delete_topic("orders")
        bus.create_topic("orders", partitions=1)
        for _ in range(8):
            bus.publish("orders", b"")
        assert [m.offset for m in all_messages(bus, "orders")] == list(range(8))

    def test_many_threads_may_publish_at_once(self, bus: Bus) -> None:
        bus.create_topic("orders")

        def publish(name: int) -> None:
            for n in range(20):
                bus.publish("orders", b"%d:%d" % (name, n))

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        values = all_values(bus, "orders")
        assert len(values) == len(set(values)) == 160
        mine = [value for value in values if value and value.startswith(b"3:")]
        assert mine == [b"3:%d" % n for n in range(20)]


def _ids(bus: Bus, topic: str) -> Iterator[MessageId]:
    return (message.id for message in all_messages(bus, topic))


class ProducerContract:
    """Contract of producers."""

    @pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
    def test_messages_arrive_once_and_in_order(self, bus: Bus, compression: str) -> None:
        bus.create_topic("orders")
        values = [b"%d" % n for n in range(3_000)]
        with bus.producer("orders", compression=compression, batch_bytes=4_096) as producer:
            for value in values[:1_000]:
                producer.send(value)
            producer.send_many(values[1_000:])
        assert all_values(bus, "orders") == values

    def test_order_holds_for_each_key(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=4)
        with bus.producer("orders", batch_bytes=1_024) as producer:
            for n in range(2_000):
                producer.send(b"%d" % n, key=b"k%d" % (n % 9), headers={"n": b"%d" % n})
        by_key = defaultdict(list)
        for message in all_messages(bus, "orders"):
            assert message.headers == {"n": message.value}
            by_key[message.key].append(int(message.value or b""))
        assert {key: sorted(found) for key, found in by_key.items()} == by_key
        assert sum(map(len, by_key.values())) == 2_000

    def test_after_a_flush_everything_can_be_read(self, bus: Bus) -> None:
        bus.create_topic("orders")
        with bus.producer("orders") as producer:
            for n in range(5):
                producer.send(b"%d" % n)
                producer.flush()
                assert len(all_values(bus, "orders")) == n + 1

    def test_a_lone_message_goes_out_although_nothing_follows(self, bus: Bus) -> None:
        bus.create_topic("orders")
        with bus.producer("orders") as producer, bus.consumer("orders") as consumer:
            producer.send(b"alone")
            assert next(iter(consumer)).value == b"alone"
            for n in range(3):  # messages from the time of a request in flight are sent as well
                producer.send(b"%d" % n)
            assert [m.value for m in islice(consumer, 3)] == [b"0", b"1", b"2"]

    def test_lingering_messages_go_out_together_after_their_time(self, bus: Bus) -> None:
        bus.create_topic("orders")
        consumer = bus.consumer("orders")
        with bus.producer("orders", linger_ms=50) as producer:
            for n in range(10):
                producer.send(b"%d" % n)
            assert next(iter(consumer)).value == b"0"
        assert [block.count for block in bus.inspect("orders").blocks] == [10]
        consumer.close()

    def test_messages_without_a_key_are_spread_over_partitions_in_blocks(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=3)
        with bus.producer("orders", batch_bytes=1_000) as producer:
            producer.send_many([b"x" * 100] * 300)
        counts = [one.end_offset for one in bus.describe_topic("orders").partition_infos]
        assert sum(counts) == 300 and min(counts) > 50

    def test_threads_may_share_a_producer_and_each_keeps_its_order(self, bus: Bus) -> None:
        bus.create_topic("orders", durability="written")
        with bus.producer("orders", batch_bytes=500) as producer:

            def send(name: int) -> None:
                for n in range(0, 400, 4):
                    producer.send(b"%d:%d" % (name, n))
                    producer.send_many([b"%d:%d" % (name, n + i) for i in range(1, 4)])
                    if n % 100 == 0:
                        producer.flush()

            threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        found = [tuple(map(int, (value or b"").split(b":"))) for value in all_values(bus, "orders")]
        for name in range(4):
            assert [n for who, n in found if who == name] == list(range(400))

    def test_a_refused_message_leaves_the_others_alone(self, bus: Bus) -> None:
        bus.create_topic("orders", message_bytes_max=100)
        with bus.producer("orders") as producer:
            producer.send(b"a")
            with pytest.raises(TooLarge):
                producer.send(b"x" * 101)
            with pytest.raises(PartitionNotFound):
                producer.send(b"", partition=1)
            with pytest.raises(TooLarge) as caught:
                producer.send_many([b"b", b"x" * 101, b"never"])
            assert caught.value.details["index"] == 1
            producer.send(b"c")
        assert all_values(bus, "orders") == [b"a", b"b", b"c"]

    def test_what_can_never_be_stored_is_an_error_of_flush_and_nothing_later_is_taken(
        self, bus: Bus
    ) -> None:
        bus.create_topic("orders")
        producer = bus.producer("orders")
        bus.delete_topic("orders")
        with pytest.raises(TopicNotFound) as caught:
            producer.send(b"lost")
            producer.flush()
        assert caught.value.details["unacknowledged"] == 1
        with pytest.raises(TopicNotFound):
            producer.send(b"later")
        producer.close()

    def test_an_error_that_nobody_has_met_yet_is_raised_by_close(self, bus: Bus) -> None:
        bus.create_topic("orders")
        with pytest.raises(TopicNotFound), bus.producer("orders") as producer:
            bus.delete_topic("orders")
            producer.send(b"lost")

    def test_a_closed_producer_takes_nothing(self, bus: Bus) -> None:
        bus.create_topic("orders")
        producer = bus.producer("orders")
        producer.close()
        producer.close()
        with pytest.raises(Closed):
            producer.send(b"")
        with pytest.raises(Closed):
            producer.send_many([b""])
        with pytest.raises(Closed):
            producer.flush()

    def test_options_out_of_range_are_refused(self, bus: Bus) -> None:
        bus.create_topic("orders")
        wrong: list[dict[str, Any]] = [
            {"linger_ms": -1},
            {"batch_bytes": 0},
            {"in_flight_max": 9},
            {"compression": "gzip"},
            {"durability": "often"},
        ]
        for options in wrong:
            with pytest.raises(Invalid):
                bus.producer("orders", **options)


class ConsumerContract:
    """Contract of consumers and single fetches."""

    @pytest.fixture
    def ids(self, bus: Bus) -> list[MessageId]:
        """Ten messages, the first six in one block."""
        bus.create_topic("orders")
        ids = bus.publish_many("orders", [b"%d" % n for n in range(6)])
        for n in range(6, 10):
            id = bus.publish("orders", b"%d" % n)
            assert id is not None
            ids.append(id)
        return ids

    def test_every_way_to_name_a_start(self, bus: Bus, ids: list[MessageId]) -> None:
        at = datetime.fromtimestamp(ids[7].time_ms / 1_000, UTC)
        first_at_that_time = next(i for i, id in enumerate(ids) if id.time_ms == ids[7].time_ms)
        for start, first in (
            ("earliest", 0),
            ("offset:3", 3),
            (ids[4], 4),
            (str(ids[8]), 8),
            (f"after:{ids[4]}", 5),
            (Position.offset(9), 9),
            (at, first_at_that_time),
            ({0: ids[2]}, 2),
            ("latest", 10),
            ("offset:10", 10),
        ):
            values = [m.value for m in all_messages(bus, "orders", start)]
            assert values == [b"%d" % n for n in range(first, 10)], start

    def test_a_start_that_makes_no_sense_is_refused(self, bus: Bus, ids: list[MessageId]) -> None:
        for start in ("soon", datetime(2026, 1, 1), 5, {0: None}):  # noqa: DTZ001
            with pytest.raises((Invalid, BadMessageId)):
                bus.consumer("orders", start=start)  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            bus.consumer("orders", start={0: "earliest"}, partitions=[0, 1])

    def test_an_offset_that_is_gone_is_an_error_with_what_is_there(
        self, bus: Bus, ids: list[MessageId]
    ) -> None:
        bus.truncate_topic("orders", ids[7])
        with pytest.raises(OffsetOutOfRange) as caught:
            all_messages(bus, "orders", "offset:2")
        assert caught.value.details["earliest"] == 7

    def test_positions_resume_exactly_where_the_caller_was(
        self, bus: Bus, ids: list[MessageId]
    ) -> None:
        for taken in range(11):
            with bus.consumer("orders", stop_at_end=True) as consumer:
                seen = [m.value for m in islice(consumer, taken)]
                rest = [m.value for m in all_messages(bus, "orders", consumer.positions())]
            assert (len(seen), seen + rest) == (taken, [b"%d" % n for n in range(10)])

    def test_a_new_iteration_goes_on_behind_the_last_one(
        self, bus: Bus, ids: list[MessageId]
    ) -> None:
        with bus.consumer("orders", stop_at_end=True) as consumer:
            for message in consumer:
                if message.value == b"3":
                    break
            assert [m.value for m in consumer] == [b"%d" % n for n in range(4, 10)]

    def test_stop_at_end_ends_at_the_end_of_its_beginning(
        self, bus: Bus, ids: list[MessageId]
    ) -> None:
        values = []
        for message in bus.consumer("orders", stop_at_end=True, bytes_max=1):
            values.append(message.value)
            bus.publish("orders", b"later")
        assert values == [b"%d" % n for n in range(10)]

    def test_stop_at_end_of_an_empty_topic_ends_at_once(self, bus: Bus) -> None:
        bus.create_topic("empty", partitions=3)
        assert all_messages(bus, "empty") == []
        assert all_messages(bus, "empty", "latest") == []

    def test_a_consumer_from_latest_gets_what_is_published_after_it_was_made(
        self, bus: Bus, ids: list[MessageId]
    ) -> None:
        with bus.consumer("orders", start="latest") as consumer:
            bus.publish("orders", b"new")
            assert next(iter(consumer)).value == b"new"

    def test_a_consumer_from_latest_of_an_empty_topic_misses_nothing(self, bus: Bus) -> None:
        bus.create_topic("empty", partitions=2)
        with bus.consumer("empty", start="latest") as consumer:
            bus.publish("empty", b"first")
            assert next(iter(consumer)).value == b"first"

    def test_only_the_partitions_asked_for_are_read(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=4)
        for partition in range(4):
            bus.publish_many("orders", [b"%d" % partition] * 2, partition=partition)
        found = list(bus.consumer("orders", partitions=[1, 3], stop_at_end=True))
        assert {m.value for m in found} == {b"1", b"3"} and len(found) == 4
        with pytest.raises(PartitionNotFound):
            list(bus.consumer("orders", partitions=[4], stop_at_end=True))

    def test_batches_have_columns_of_equal_length(self, bus: Bus, ids: list[MessageId]) -> None:
        columns: list[tuple[object, ...]] = []
        for batch in bus.consumer("orders", start="offset:2", stop_at_end=True).batches():
            assert batch.to_arrow().num_rows == len(batch)
            assert batch.to_arrow().column("value").to_pylist() == batch.values()
            columns += zip(
                batch.offsets(), batch.ids(), batch.keys(), batch.values(), batch.headers(),
                strict=True,
            )  # fmt: skip
        assert columns == [(n, ids[n], None, b"%d" % n, {}) for n in range(2, 10)]

    def test_small_fetches_bring_the_same_messages(self, bus: Bus) -> None:
        bus.create_topic("orders", partitions=3)
        for n in range(60):
            bus.publish("orders", b"%d" % n)
        found = bus.consumer("orders", stop_at_end=True, bytes_max=1)
        assert sorted(int(m.value or b"") for m in found) == list(range(60))

    @pytest.mark.parametrize("how", ["alone", "at-least-once", "explicit", "pages"])
    def test_partitions_are_read_in_turn(self, how: str, bus: Bus) -> None:
        bus.create_topic("orders", partitions=3)
        for n in range(36):
            bus.publish("orders", b"x", partition=n // 12)
        if how == "pages":
            order, page = list[int](), bus.fetch("orders", bytes_max=1)
            while page.batches:
                order += [message.partition for message in page.messages()]
                page = bus.fetch("orders", page.next, bytes_max=1)
        else:
            member: dict[str, Any] = {} if how == "alone" else grouped(group="g", delivery=how)
            consumer = bus.consumer("orders", stop_at_end=True, bytes_max=1, **member)
            order = [message.partition for message in consumer]
        assert len(order) == 36 and in_turn_of(order)

    def test_more_partitions_than_one_fetch_takes(self, bus: Bus) -> None:
        bus.create_topic("wide", partitions=300, durability="written")
        for partition in (0, 150, 299):
            bus.publish("wide", b"%d" % partition, partition=partition)
        assert sorted(all_values(bus, "wide")) == [b"0", b"150", b"299"]  # type: ignore[type-var]
        assert len(bus.fetch("wide").next) == 300
        with bus.consumer("wide", start="latest") as consumer:
            bus.publish("wide", b"new", partition=200)
            assert next(iter(consumer)).value == b"new"

    def test_close_ends_an_iteration_that_waits_in_another_thread(self, bus: Bus) -> None:
        bus.create_topic("quiet")
        consumer = bus.consumer("quiet", wait_s=60)
        began, ended = threading.Event(), threading.Event()

        def read() -> None:
            began.set()
            assert list(consumer) == []
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert began.wait(PATIENCE_S)
        consumer.close()
        assert ended.wait(PATIENCE_S)
        thread.join(PATIENCE_S)

    def test_one_fetch_says_where_to_go_on(self, bus: Bus, ids: list[MessageId]) -> None:
        page = bus.fetch("orders", bytes_max=1)
        values = [m.value for m in page.messages()]
        while page.batches:
            assert page.ends == {0: 10}
            page = bus.fetch("orders", page.next, bytes_max=1)
            values += [m.value for m in page.messages()]
        assert values == [b"%d" % n for n in range(10)]

    def test_a_fetch_may_wait_for_a_message(self, bus: Bus) -> None:
        bus.create_topic("quiet")
        later = threading.Timer(0.05, lambda: bus.publish("quiet", b"here"))
        later.start()
        page = bus.fetch("quiet", wait_s=PATIENCE_S)
        assert [m.value for m in page.messages()] == [b"here"]
        later.join()


class BusContract(
    TopicContract, PublishContract, ProducerContract, ConsumerContract, PartitionerContract
):
    """The whole contract of a bus."""

    def test_a_closed_bus_is_an_error_and_closes_what_it_made(self, bus: Bus) -> None:
        bus.create_topic("orders")
        producer, consumer = bus.producer("orders"), bus.consumer("orders")
        producer.send(b"x")
        bus.close()
        bus.close()
        with pytest.raises(Closed):
            producer.send(b"y")
        assert list(consumer) == []
        with pytest.raises(Closed):
            bus.publish("orders", b"z")

    def test_a_fetch_notices_that_a_topic_it_remembers_has_fewer_partitions(self, bus: Bus) -> None:
        bus.create_topic("t", partitions=3)
        assert set(bus.fetch("t").next) == {0, 1, 2}
        name = TopicName.parse("t")
        bus._transport.delete_topic(name)  # by another client, as far as this bus knows
        bus._transport.create_topic(name, TopicSettings(1))
        assert set(bus.fetch("t").next) == {0}

    def test_a_fetch_reads_partitions_that_were_added_once_its_memory_is_too_old(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topic_cache, "REFRESH_S", -1.0)
        bus.create_topic("t")
        assert set(bus.fetch("t").next) == {0}
        bus._transport.update_topic(TopicName.parse("t"), {"partitions": 2})
        assert set(bus.fetch("t").next) == {0, 1}

    def test_a_producer_sees_that_its_topic_has_more_partitions(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (batching, topic_cache):
            monkeypatch.setattr(module, "REFRESH_S", -1.0)
        key = next(b"%d" % n for n in range(100) if Partitioner.CRC32C.hash_of(b"%d" % n) % 4 == 3)
        bus.create_topic("t")
        with bus.producer("t") as producer:
            producer.send(b"before", key=key)
            producer.flush()
            bus.update_topic("t", partitions=4)
            for _ in range(2):  # it asks with the first of them
                producer.send(b"after", key=key)
                producer.flush()
        partitions = [message.partition for message in bus.consumer("t", stop_at_end=True)]
        assert sorted(partitions) == [0, 0, 3]

    def test_a_producer_sees_that_its_topic_takes_larger_messages(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (batching, topic_cache):
            monkeypatch.setattr(module, "REFRESH_S", -1.0)
        bus.create_topic("t", message_bytes_max=10)
        with bus.producer("t") as producer:
            bus.update_topic("t", message_bytes_max=100)
            producer.send(b"small")  # it asks with this one
            producer.flush()
            producer.send(bytes(100))
            with pytest.raises(TooLarge):
                producer.send(bytes(101))

    def test_a_fetch_of_a_topic_that_was_deleted_says_so(self, bus: Bus) -> None:
        bus.create_topic("t")
        bus.fetch("t")
        bus._transport.delete_topic(TopicName.parse("t"))
        with pytest.raises(TopicNotFound):
            bus.fetch("t")
