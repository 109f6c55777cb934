"""Times, and headers without a value, between Kafka's clients and TMS's own."""

import asyncio
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest

import tms
from tests.kafka_kit import Broker, kafka_serving
from tests.waiting import PATIENCE_S
from tms.model.message import Headers
from tms.store.leveldb.store import LevelDBStore

TIMES_MS = [1_000_000_000_000, 999_999_999_999, 1, 1_000_000_000_000]
TMS_HEADERS: Headers = {"set": b"1", "null": None, "empty": b""}
HEADERS = [*TMS_HEADERS.items()]
SET_HEADERS = [one for one in HEADERS if one[1] is not None]  # kafka-python sends no others
CREATE_TIME, APPEND_TIME = confluent_kafka.TIMESTAMP_CREATE_TIME, 2

Read = list[tuple[int, int, list[tuple[str, bytes | None]]]]

BROKERS = ("alone", "three")


def confluent_publish(broker: Broker, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.servers})
    for time_ms in TIMES_MS:
        producer.produce(topic, b"v", partition=0, timestamp=time_ms, headers=HEADERS)
    assert producer.flush(PATIENCE_S) == 0


def kafka_python_publish(broker: Broker, topic: str) -> None:
    producer = kafka_python.KafkaProducer(bootstrap_servers=broker.servers)
    sent = [
        producer.send(topic, b"v", partition=0, timestamp_ms=time_ms, headers=SET_HEADERS)
        for time_ms in TIMES_MS
    ]
    assert [one.get(PATIENCE_S).timestamp for one in sent] == TIMES_MS
    producer.close()


def aiokafka_publish(broker: Broker, topic: str) -> None:
    async def publish() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.servers) as producer:
            for time_ms in TIMES_MS:
                await producer.send(topic, b"v", partition=0, timestamp_ms=time_ms, headers=HEADERS)

    asyncio.run(publish())


def tms_publish(broker: Broker, topic: str) -> None:
    with tms.connect(broker.url) as bus, bus.producer(topic) as producer:
        for time_ms in TIMES_MS:
            producer.send(b"v", headers=TMS_HEADERS, partition=0, event_time_ms=time_ms)


def confluent_read(broker: Broker, topic: str) -> Read:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.servers, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: Read = []
    while len(found) < len(TIMES_MS):
        (one,) = consumer.consume(1, PATIENCE_S)
        assert one.error() is None
        kind, time_ms = one.timestamp()
        found.append((time_ms, kind - CREATE_TIME, one.headers() or []))
    consumer.close()
    return found


def kafka_python_read(broker: Broker, topic: str) -> Read:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=broker.servers, consumer_timeout_ms=int(PATIENCE_S * 1_000)
    )
    place = kafka_python.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning()
    found = [next(consumer) for _ in TIMES_MS]
    consumer.close()
    return [(one.timestamp, one.timestamp_type, list(one.headers)) for one in found]


def aiokafka_read(broker: Broker, topic: str) -> Read:
    async def read() -> Read:
        async with (
            aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.servers) as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            found = [await consumer.getone() for _ in TIMES_MS]
            return [(one.timestamp, one.timestamp_type, list(one.headers)) for one in found]

    return asyncio.run(read())


def tms_read(broker: Broker, topic: str) -> Read:
    with tms.connect(broker.url) as bus:
        found = [*bus.fetch(topic, {0: "earliest"}).messages()]
    return [(one.event_time_ms or -1, 0, [*one.headers.items()]) for one in found]


PUBLISHERS = {
    "confluent": confluent_publish,
    "kafka-python": kafka_python_publish,
    "aiokafka": aiokafka_publish,
    "tms": tms_publish,
}
READERS = {
    "confluent": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
    "tms": tms_read,
}


@pytest.mark.slow
@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_times_and_headers_without_a_value_reach_every_reader(
    broker: Broker, publisher: str
) -> None:
    with tms.connect(broker.url) as bus:
        bus.create_topic(publisher, partitions=1)
    PUBLISHERS[publisher](broker, publisher)
    headers = SET_HEADERS if publisher == "kafka-python" else HEADERS
    for reader, read in READERS.items():
        assert read(broker, publisher) == [(time, 0, headers) for time in TIMES_MS], reader


def test_messages_without_a_time_show_when_they_were_stored(broker: Broker) -> None:
    with tms.connect(broker.url) as bus:
        bus.create_topic("plain", partitions=1)
        ids = [bus.publish("plain", b"v") for _ in TIMES_MS]
    times = [id.time_ms for id in ids if id is not None]
    for read in (confluent_read, kafka_python_read, aiokafka_read):
        assert read(broker, "plain") == [(time, 1, []) for time in times]


def test_times_and_headers_survive_a_restart(tmp_path: Path) -> None:
    for restarted in (False, True):
        with kafka_serving(LevelDBStore(tmp_path / "data", create=True)) as broker:
            if not restarted:
                confluent_publish(broker, "kept")
            expected = [(time, 0, HEADERS) for time in TIMES_MS]
            assert confluent_read(broker, "kept") == tms_read(broker, "kept") == expected
