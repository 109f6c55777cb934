"""The contract of a bus for the partitioners of topics, whatever is below it; a part of
`BusContract`."""

from collections import Counter

import pytest

from tms.client import batching, topic_cache
from tms.client.client import Bus
from tms.errors import Conflict, Invalid, TopicExists, TopicNotFound, WrongLastId
from tms.model.keys import Partitioner
from tms.model.topic import TopicName, TopicSettings

NAME = TopicName.parse("t")
PARTITIONS = 7
KEYS = [b"key %d" % number for number in range(40)]
CRC32C, MURMUR2 = Partitioner
# One that the two send to different partitions.
KEY = next(k for k in KEYS if CRC32C.partition_of(k, 7) != MURMUR2.partition_of(k, 7))


def places(bus: Bus) -> Counter[tuple[bytes | None, int]]:
    """The number of messages by key and partition."""
    return Counter((one.key, one.partition) for one in bus.consumer("t", stop_at_end=True))


def expected(partitioner: Partitioner, each: int) -> dict[tuple[bytes | None, int], int]:
    """The places of all keys, with so many messages each."""
    return {(key, partitioner.partition_of(key, PARTITIONS)): each for key in KEYS}


def create_anew(bus: Bus, partitioner: Partitioner) -> None:
    """Delete and create the topic as another client does, as far as this bus knows."""
    bus._transport.delete_topic(NAME)
    bus._transport.create_topic(NAME, TopicSettings(PARTITIONS, partitioner=partitioner))


class PartitionerContract:
    """Contract of partitioners."""

    @pytest.mark.parametrize("partitioner", Partitioner)
    def test_every_way_to_publish_obeys_the_partitioner(
        self, bus: Bus, partitioner: Partitioner
    ) -> None:
        bus.create_topic("t", PARTITIONS, partitioner=partitioner)
        values = [b"v"] * len(KEYS)
        ids = bus.publish_many("t", values, KEYS)
        found = {(one.partition, one.id): one.key for one in bus.consumer("t", stop_at_end=True)}
        homes = [partitioner.partition_of(key, PARTITIONS) for key in KEYS]
        assert [found[place] for place in zip(homes, ids, strict=True)] == KEYS
        with bus.producer("t") as producer, bus.transaction() as tx:
            for key in KEYS:
                bus.publish("t", b"v", key)
                producer.send(b"v", key)
                tx.send("t", b"v", key)
            producer.send_many(values, KEYS)
        assert places(bus) == expected(partitioner, 5)

    @pytest.mark.parametrize("partitioner", Partitioner)
    def test_a_view_finds_the_partition_of_a_key_by_the_partitioner(
        self, bus: Bus, partitioner: Partitioner
    ) -> None:
        bus.create_topic("t", PARTITIONS, partitioner=partitioner)
        bus.publish_many("t", [b"v"] * len(KEYS), KEYS)
        last = {one.partition: one.id for one in bus.consumer("t", stop_at_end=True)}
        with bus.view("t") as view, bus.view("t", at="latest") as past:
            for key in KEYS:
                home = partitioner.partition_of(key, PARTITIONS)
                assert view.expect(key) == past.expect(key) == last[home]
            expect = view.expect(KEY)
            bus.publish("t", b"w", KEY, expect=expect)
            with pytest.raises(WrongLastId):
                bus.publish("t", b"x", KEY, expect=expect)

    def test_the_partitioner_is_described_and_cannot_be_changed(self, bus: Bus) -> None:
        assert bus.create_topic("usual").settings.partitioner is CRC32C
        made = bus.create_topic("t", PARTITIONS, partitioner="murmur2")
        assert made.settings.partitioner is MURMUR2
        assert bus.describe_topic("t").settings == made.settings
        assert [one.settings for one in bus.list_topics() if one.topic == "t"] == [made.settings]
        assert bus.create_topic("t", PARTITIONS, partitioner=MURMUR2).generation == made.generation
        with pytest.raises(TopicExists):
            bus.create_topic("t", PARTITIONS)
        with pytest.raises(Conflict, match="murmur2 and cannot become crc32c"):
            bus._transport.update_topic(NAME, {"partitioner": "crc32c", "partitions": 9})
        with pytest.raises(Invalid, match="crc32c or murmur2"):
            bus.create_topic("other", partitioner="crc32")  # type: ignore[arg-type]
        bus._transport.update_topic(NAME, {"partitioner": "murmur2", "partitions": 9})
        found = bus.update_topic("t", durability="written").settings
        assert (found.partitioner, found.partitions) == (MURMUR2, 9)

    def test_partitions_that_are_added_keep_the_partitioner(self, bus: Bus) -> None:
        bus.create_topic("t", 2, partitioner="murmur2")
        bus.publish_many("t", [b"v"] * len(KEYS), KEYS)
        bus.update_topic("t", partitions=PARTITIONS)
        bus.publish_many("t", [b"w"] * len(KEYS), KEYS)
        found = {m.key: m.partition for m in bus.consumer("t", stop_at_end=True) if m.value == b"w"}
        assert found == {key: MURMUR2.partition_of(key, PARTITIONS) for key in KEYS}

    def test_a_bus_that_was_told_that_a_topic_is_gone_learns_its_next_partitioner(
        self, bus: Bus
    ) -> None:
        bus.create_topic("t", PARTITIONS)
        bus.publish("t", b"v", KEY)
        bus._transport.delete_topic(NAME)
        with pytest.raises(TopicNotFound):
            bus.publish("t", b"v", KEY)
        bus._transport.create_topic(NAME, TopicSettings(PARTITIONS, partitioner=MURMUR2))
        bus.publish("t", b"v", KEY)
        assert places(bus) == {(KEY, MURMUR2.partition_of(KEY, PARTITIONS)): 1}

    def test_a_bus_learns_the_next_partitioner_with_a_partition_that_is_gone(
        self, bus: Bus
    ) -> None:
        bus.create_topic("t", 1_000)
        key = next(k for k in KEYS if CRC32C.partition_of(k, 1_000) >= PARTITIONS)
        bus.publish("t", b"v", key)
        create_anew(bus, MURMUR2)
        bus.publish("t", b"v", key)
        assert places(bus) == {(key, MURMUR2.partition_of(key, PARTITIONS)): 1}

    def test_once_its_memory_is_too_old_a_bus_learns_the_next_partitioner(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (batching, topic_cache):
            monkeypatch.setattr(module, "REFRESH_S", -1.0)
        bus.create_topic("t", PARTITIONS)
        bus.publish_many("t", [b"v"] * len(KEYS), KEYS)
        with bus.producer("t") as producer:
            producer.send(b"v", KEY)
            producer.flush()
            create_anew(bus, MURMUR2)
            producer.send(b"asks", partition=0)
            producer.flush()
            for key in KEYS:
                producer.send(b"v", key)
        bus.publish_many("t", [b"v"] * len(KEYS), KEYS)
        for key in KEYS:
            bus.publish("t", b"v", key)
        with bus.transaction() as tx:
            for key in KEYS:
                tx.send("t", b"v", key)
        assert places(bus) - Counter({(None, 0): 1}) == expected(MURMUR2, 4)

    def test_a_view_of_a_topic_that_was_created_anew_knows_its_partitioner(self, bus: Bus) -> None:
        bus.create_topic("t", PARTITIONS)
        bus.publish("t", b"v", KEY)
        create_anew(bus, MURMUR2)
        with bus.view("t") as view:
            id = bus.publish("t", b"v", KEY)
            view.refresh()
            assert view.expect(KEY) == view.last_id(KEY) == id
        assert places(bus) == {(KEY, MURMUR2.partition_of(KEY, PARTITIONS)): 1}
