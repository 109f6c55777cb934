"""Topics read by Spark 3.5 from a real HBase, through its connector, while no service runs."""

import random
from typing import TYPE_CHECKING

import pytest

import tms
from tms.errors import Invalid, TopicNotFound
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.spark import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)  # a cold JVM and an HBase on a busy machine
TOPIC = "flights"
Row = tuple[int, int, str, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def rows_of(frame: "DataFrame") -> list[Row]:
    """What Spark has."""
    return sorted(
        (
            row.partition,
            row.offset,
            row.id,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((one.key, bytes(one.value)) for one in row.headers or ()),
        )
        for row in frame.collect()
    )


def shown(bus: tms.Bus) -> list[Row]:
    """What consumers have."""
    return sorted(
        (one.partition, one.offset, str(one.id), one.key, one.value, tuple(one.headers.items()))
        for one in bus.consumer(TOPIC, start="earliest", stop_at_end=True)
    )


def fill(bus: tms.Bus, seed: int) -> None:
    """A life that was deleted, and one with everything that may be in a topic."""
    chance = random.Random(seed)
    bus.create_topic(TOPIC, partitions=4)
    bus.publish(TOPIC, b"of an earlier life")
    bus.delete_topic(TOPIC)
    bus.create_topic(TOPIC, partitions=4, durability="written")
    for step in range(40):
        key = b"%d" % chance.randrange(20)
        what = chance.random()
        if what < 0.5:
            values = [b"%d.%d" % (step, i) for i in range(chance.randint(1, 300))]
            bus.publish_many(TOPIC, values, partition=chance.randrange(4))
        elif what < 0.6:
            bus.publish(TOPIC, None, key=key, headers={"step": b"%d" % step})
        elif what < 0.65:
            bus.publish(TOPIC, bytes(200_000), key=key)
        elif what < 0.8:
            with bus.transaction() as tx:
                for i in range(chance.randint(1, 30)):
                    tx.send(TOPIC, b"committed %d.%d" % (step, i), key=b"%d" % i)
        elif what < 0.9:
            gone = bus.transaction()
            gone.send(TOPIC, b"aborted", key=key)
            gone.abort()
        else:
            bus.truncate_topic(TOPIC, f"offset:{step * 3}")
    with bus.transaction() as tx:  # more than a request: it is staged
        for i in range(20):
            tx.send(TOPIC, b"staged %d" % i + bytes(1 << 20), partition=i % 4)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_spark_reads_what_consumers_read(spark: "SparkSession", store: str, seed: int) -> None:
    with tms.open(store) as bus:
        fill(bus, seed)
        open_ = bus.admin.transactions.begin(long=True).transaction_id
        pending = bus._transport.transactions.submit(  # type: ignore[attr-defined]
            TopicName.parse(TOPIC), [NewBlock(1, tms_block(b"open"))], open_
        )
        pending.result(10)
        bus.publish(TOPIC, b"behind what is open", partition=1)
        wanted = shown(bus)
        offsets = {at: bus.offsets(TOPIC, at) for at in ("earliest", "latest")}
    assert not any(row[4] == b"behind what is open" for row in wanted)
    found = rows_of(read(spark, TOPIC, store, headers=True, message_id=True))
    assert found == wanted
    assert {row[0] for row in found} == {0, 1, 2, 3}
    middle = (offsets["earliest"][2] + offsets["latest"][2]) // 2
    some = read(
        spark, TOPIC, store, partitions=[2], start=f"offset:{middle}", headers=True, message_id=True
    )
    assert rows_of(some) == [row for row in wanted if row[0] == 2 and row[1] >= middle]


def test_only_the_regions_are_read_that_have_what_is_wanted(
    spark: "SparkSession", store: str
) -> None:
    with tms.open(store) as bus:
        bus.create_topic(TOPIC, partitions=16, durability="written")
        for partition in range(16):
            bus.publish(TOPIC, b"%d" % partition, partition=partition)
        moment = bus.offsets(TOPIC)
    assert set(moment.values()) == {1}
    everything = read(spark, TOPIC, store)
    one = read(spark, TOPIC, store, partitions=[3])
    assert one.rdd.getNumPartitions() == 1 < everything.rdd.getNumPartitions() <= 8
    assert [bytes(row.value) for row in one.collect()] == [b"3"]


def test_nothing_to_read_is_no_rows_and_never_a_scan_of_everything(
    spark: "SparkSession", store: str
) -> None:
    with tms.open(store) as bus:
        bus.create_topic(TOPIC, partitions=2)
        bus.publish(TOPIC, b"1", partition=0)
    assert read(spark, TOPIC, store, start="latest").collect() == []
    assert read(spark, TOPIC, store, partitions=[1]).collect() == []
    with pytest.raises(Invalid, match="before the start"):
        read(spark, TOPIC, store, start="latest", stop="earliest")
    with pytest.raises(TopicNotFound):
        read(spark, "nowhere", store)


def test_what_users_filter_by_is_applied_to_messages(spark: "SparkSession", store: str) -> None:
    with tms.open(store) as bus:
        bus.create_topic(TOPIC, durability="written")
        bus.publish_many(TOPIC, [b"%d" % i for i in range(100)])
    frame = read(spark, TOPIC, store)
    assert frame.filter("offset >= 90 AND partition = 0").count() == 10
    assert frame.filter("offset IN (3, 5) AND value = X'33'").count() == 1
    assert frame.filter("offset > 5 AND offset < 5").count() == 0


def tms_block(value: bytes) -> bytearray:
    """One message."""
    from tms.block import encode

    return encode([value])
