"""Kafka's clients for Python, as they come, on a running service: confluent-kafka (librdkafka),
kafka-python and aiokafka."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from confluent_kafka import admin as confluent_admin

import tms
from tests.kafka_kit import Broker, assert_same, messages_in
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
Row = tuple[bytes | None, bytes | None]
ROWS: list[Row] = [
    *((b"k%d" % (number % 7), b"value %d" % number) for number in range(200)),
    (None, b"without a key"),
    (b"", b""),
    (b"k1", None),
]
names = (f"topic-{number}" for number in itertools.count())


class ClientSettings(NamedTuple):
    """The settings by which clients connect: those of librdkafka, and of clients that are written
    in Python."""

    librdkafka: dict[str, Any]
    python: dict[str, Any]


def plain(servers: str) -> ClientSettings:
    """Settings for a service that takes everybody."""
    return ClientSettings({"bootstrap.servers": servers}, {"bootstrap_servers": servers})


@pytest.fixture
def settings(broker: Broker) -> ClientSettings:
    return plain(broker.servers)


@pytest.fixture
def topic(settings: ClientSettings) -> str:
    """A topic of its own for each test, made by librdkafka, with three partitions."""
    name = next(names)
    create(settings.librdkafka, name, 3)
    return name


def create(librdkafka: dict[str, Any], topic: str, partitions: int) -> None:
    """Create a topic, by the administrator of librdkafka. Raises its errors."""
    client = confluent_admin.AdminClient(librdkafka)
    [made] = client.create_topics([confluent_admin.NewTopic(topic, partitions)]).values()
    made.result(PATIENCE_S)


def in_tms(url: str, topic: str) -> list[Row]:
    """All rows as TMS's own consumer reads them."""
    return [(one.key, one.value) for one in messages_in(url, topic)]


# -- the clients: each publishes rows, and reads so many as a member of a group --------------------


def confluent_publish(
    settings: ClientSettings, topic: str, codec: str, rows: Sequence[Row] = ROWS
) -> None:
    producer = confluent_kafka.Producer(
        {
            **settings.librdkafka,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "partitioner": "murmur2_random",
        }
    )
    for key, value in rows:
        producer.produce(topic, key=key, value=value, headers=[("h", b"1")])
    assert producer.flush(PATIENCE_S) == 0


def confluent_read(settings: ClientSettings, topic: str, group: str, count: int) -> list[Row]:
    consumer = confluent_kafka.Consumer(
        {
            **settings.librdkafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[Row] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until:
        for one in consumer.consume(count, 0.5):
            assert one.error() is None
            found.append((one.key(), one.value()))
    consumer.close()
    return found


def kafka_python_publish(
    settings: ClientSettings, topic: str, codec: str, rows: Sequence[Row] = ROWS
) -> None:
    compression = None if codec == "none" else codec
    producer = kafka_python.KafkaProducer(compression_type=compression, **settings.python)
    sent = [
        producer.send(topic, key=key, value=value, headers=[("h", b"1")]) for key, value in rows
    ]
    for one in sent:
        one.get(PATIENCE_S)
    producer.close()


def kafka_python_read(settings: ClientSettings, topic: str, group: str, count: int) -> list[Row]:
    consumer = kafka_python.KafkaConsumer(
        topic,
        group_id=group,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=int(PATIENCE_S * 1_000),
        **settings.python,
    )
    found = [(one.key, one.value) for one in itertools.islice(consumer, count)]
    consumer.close()
    return found


def aiokafka_publish(
    settings: ClientSettings, topic: str, codec: str, rows: Sequence[Row] = ROWS
) -> None:
    async def publish() -> None:
        compression = None if codec == "none" else codec
        async with aiokafka.AIOKafkaProducer(
            enable_idempotence=True, compression_type=compression, **settings.python
        ) as producer:
            for key, value in rows:
                await producer.send(topic, key=key, value=value, headers=[("h", b"1")])

    asyncio.run(publish())


def aiokafka_read(settings: ClientSettings, topic: str, group: str, count: int) -> list[Row]:
    async def read() -> list[Row]:
        found: list[Row] = []
        async with (
            aiokafka.AIOKafkaConsumer(
                topic,
                group_id=group,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                **settings.python,
            ) as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            while len(found) < count:
                one = await consumer.getone()
                found.append((one.key, one.value))
        return found

    return asyncio.run(read())


Publish = Callable[..., None]
Read = Callable[[ClientSettings, str, str, int], list[Row]]
CLIENTS: dict[str, tuple[Publish, Read]] = {
    "confluent-kafka": (confluent_publish, confluent_read),
    "kafka-python": (kafka_python_publish, kafka_python_read),
    "aiokafka": (aiokafka_publish, aiokafka_read),
}
CODECS = {  # that the clients have without another library
    "confluent-kafka": ("none", "gzip", "snappy", "lz4", "zstd"),
    "kafka-python": ("none", "gzip"),
    "aiokafka": ("none", "gzip"),
}


@pytest.mark.parametrize(
    ("client", "codec"), [(client, codec) for client in CLIENTS for codec in CODECS[client]]
)
def test_tms_reads_what_a_client_publishes(
    broker: Broker, settings: ClientSettings, topic: str, client: str, codec: str
) -> None:
    CLIENTS[client][0](settings, topic, codec)
    assert_same(in_tms(broker.url, topic), ROWS)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reads_what_tms_publishes_and_goes_on_where_it_was(
    broker: Broker, settings: ClientSettings, topic: str, client: str
) -> None:
    _, read = CLIENTS[client]
    with tms.connect(broker.url) as bus:
        for key, value in ROWS:
            bus.publish(topic, value, key=key)
        assert_same(read(settings, topic, f"group of {topic}", len(ROWS)), ROWS)
        bus.publish(topic, b"more", key=b"k")
        assert read(settings, topic, f"group of {topic}", 1) == [(b"k", b"more")]


@pytest.mark.parametrize("client", CLIENTS)
def test_two_members_share_the_partitions(
    settings: ClientSettings, topic: str, client: str
) -> None:
    publish, read = CLIENTS[client]
    found: list[Row] = []

    def member() -> None:
        found.extend(read(settings, topic, f"shared {topic}", 1))

    members = [threading.Thread(target=member) for _ in range(2)]
    for one in members:
        one.start()
    time.sleep(1)
    until = time.monotonic() + PATIENCE_S
    while any(one.is_alive() for one in members) and time.monotonic() < until:
        publish(settings, topic, "none")
        time.sleep(0.5)
    for one in members:
        one.join(PATIENCE_S)
    assert len(found) == 2


def test_transactions_of_librdkafka_are_seen_whole_or_not_at_all(
    broker: Broker, topic: str
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.servers, "transactional.id": f"id of {topic}"}
    )
    producer.init_transactions(PATIENCE_S)
    for outcome in ("kept", "dropped", "kept too"):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, value=f"{outcome} {number}".encode())
        if outcome == "dropped":
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    found = confluent_read(plain(broker.servers), topic, f"reads {topic}", 20)
    wanted = [
        (None, f"{kept} {number}".encode()) for kept in ("kept", "kept too") for number in range(10)
    ]
    assert_same(found, wanted)
    assert_same(in_tms(broker.url, topic), wanted)


def test_a_transaction_of_aiokafka_moves_offsets_with_its_messages(
    broker: Broker, topic: str
) -> None:
    async def transform() -> None:
        source = aiokafka.TopicPartition(topic, 0)
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.servers, transactional_id=f"moves {topic}"
        ) as producer:
            for offset, keeps in ((3, False), (5, True)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % offset, partition=1)
                await producer.send_offsets_to_transaction({source: offset}, f"moved {topic}")
                await (producer.commit_transaction() if keeps else producer.abort_transaction())
        client = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.servers, group_id=f"moved {topic}", enable_auto_commit=False
        )
        await client.start()
        assert await client.committed(source) == 5
        await client.stop()

    asyncio.run(transform())
    assert in_tms(broker.url, topic) == [(None, b"5")]


def test_tools_of_librdkafka_look_at_topics_and_groups(
    settings: ClientSettings, topic: str
) -> None:
    confluent_publish(settings, topic, "none")
    confluent_read(settings, topic, f"seen {topic}", len(ROWS))
    client = confluent_admin.AdminClient(settings.librdkafka)
    assert len(client.list_topics(topic, PATIENCE_S).topics[topic].partitions) == 3
    resource = confluent_admin.ConfigResource(confluent_admin.RESOURCE_TOPIC, topic)
    [configs] = client.describe_configs([resource]).values()
    assert configs.result(PATIENCE_S)["cleanup.policy"].value == "delete"
    listed = client.list_consumer_groups().result(PATIENCE_S).valid
    assert f"seen {topic}" in {one.group_id for one in listed}
    [deleted] = client.delete_consumer_groups([f"seen {topic}"]).values()
    deleted.result(PATIENCE_S)
    [gone] = client.delete_topics([topic]).values()
    gone.result(PATIENCE_S)
    assert topic not in client.list_topics(timeout=PATIENCE_S).topics


def test_the_administrator_of_librdkafka_changes_topics(
    settings: ClientSettings, topic: str
) -> None:
    client = confluent_admin.AdminClient(settings.librdkafka)
    confluent_publish(settings, topic, "none")
    place = confluent_kafka.TopicPartition(topic, 0)
    [end] = client.list_offsets({place: confluent_admin.OffsetSpec.latest()}).values()
    upto = end.result(PATIENCE_S).offset
    assert upto > 1
    cut = confluent_kafka.TopicPartition(topic, 0, upto - 1)
    [deleted] = client.delete_records([cut]).values()
    assert deleted.result(PATIENCE_S).low_watermark == upto - 1
    [first] = client.list_offsets({place: confluent_admin.OffsetSpec.earliest()}).values()
    assert first.result(PATIENCE_S).offset == upto - 1
    beyond = confluent_kafka.TopicPartition(topic, 0, upto + 1)
    [refused] = client.delete_records([beyond]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="OFFSET_OUT_OF_RANGE"):
        refused.result(PATIENCE_S)
    [grown] = client.create_partitions([confluent_admin.NewPartitions(topic, 5)]).values()
    grown.result(PATIENCE_S)
    assert len(client.list_topics(topic, PATIENCE_S).topics[topic].partitions) == 5
    [refused] = client.create_partitions([confluent_admin.NewPartitions(topic, 5)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_PARTITIONS"):
        refused.result(PATIENCE_S)


def test_the_administrator_of_librdkafka_changes_settings(
    settings: ClientSettings, topic: str
) -> None:
    client = confluent_admin.AdminClient(settings.librdkafka)
    operations = confluent_admin.AlterConfigOpType
    entry = confluent_admin.ConfigEntry
    kind = confluent_admin.ConfigResource.Type.TOPIC

    def told(name: str) -> tuple[str, bool]:
        [found] = client.describe_configs([confluent_admin.ConfigResource(kind, topic)]).values()
        one = found.result(PATIENCE_S)[name]
        return one.value, one.is_default

    for value, operation, wanted in (
        ("compact", operations.APPEND, ("compact,delete", False)),
        ("delete", operations.SUBTRACT, ("compact", False)),
        (None, operations.DELETE, ("delete", True)),
    ):
        change = entry("cleanup.policy", value, incremental_operation=operation)
        resource = confluent_admin.ConfigResource(kind, topic, incremental_configs=[change])
        [altered] = client.incremental_alter_configs([resource]).values()
        altered.result(PATIENCE_S)
        assert told("cleanup.policy") == wanted
    resource = confluent_admin.ConfigResource(kind, topic, set_config={"retention.ms": "5000"})
    [altered] = client.alter_configs([resource]).values()
    altered.result(PATIENCE_S)
    assert told("retention.ms") == ("5000", False)
    assert told("cleanup.policy") == ("delete", True)


def test_the_administrator_of_kafka_python_changes_and_measures_topics(
    broker: Broker, settings: ClientSettings, topic: str
) -> None:
    kafka_python_publish(settings, topic, "none")
    client = kafka_python.KafkaAdminClient(**settings.python)
    try:
        place = kafka_python.TopicPartition(topic, 1)
        end = in_end(broker, topic, 1)
        deleted = client.delete_records({place: -1})
        assert deleted[place]["low_watermark"] == end > 0
        client.create_partitions({topic: 4})
        [described] = client.describe_topics([topic])
        assert len(described["partitions"]) == 4
        resource = kafka_python.admin.ConfigResource
        kind = kafka_python.admin.ConfigResourceType.TOPIC
        client.alter_configs([resource(kind, topic, {"retention.ms": ("SET", "5000")})])
        [changed] = client.describe_configs([resource(kind, topic)])["topic"].values()
        assert {name: one["value"] for name, one in changed.items()} == {"retention.ms": "5000"}
        [directory] = client.describe_log_dirs([topic])[0]["log_dirs"]
        sizes = [one["partition_size"] for one in directory["topics"][0]["partitions"]]
        assert (len(sizes), min(sizes[0], sizes[2]) > 0, sizes[3]) == (4, True, 0)
        assert not client.list_partition_reassignments()
        known = client.describe_producers([place])[place].active_producers
        assert [one.current_transaction_start_offset for one in known] == [-1]
    finally:
        client.close()


def in_end(broker: Broker, topic: str, partition: int) -> int:
    """The end of a partition, as TMS tells it."""
    with tms.connect(broker.url) as bus:
        return bus.offsets(topic)[partition]
