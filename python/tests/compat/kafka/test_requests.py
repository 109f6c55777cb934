"""Requests of Kafka's protocol on a service: each version that is advertised is answered."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest

import tms
from tests.kafka_kit import (
    ENDED,
    Broker,
    KafkaConnection,
    create_topic,
    fetching,
    kafka_serving,
    messages_in,
    metadata,
)
from tms.compat.kafka import codec, requests
from tms.compat.kafka.codec import NO_ID
from tms.compat.kafka.errors import ErrorCode
from tms.serve.config import Settings
from tms.store.leveldb import LevelDBStore

KNOWN = requests.load()


# -- versions --------------------------------------------------------------------------------------


def test_versions_are_told_to_clients_of_every_age(kafka: KafkaConnection) -> None:
    for version in range(5):
        answer = kafka.ask("ApiVersions", version)
        told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        assert told == {key: (one.advertised_from, one.versions.last) for key, one in KNOWN.items()}


def test_a_newer_version_of_api_versions_is_answered_in_the_oldest(kafka: KafkaConnection) -> None:
    kafka.socket.sendall(bytes.fromhex("0000000c001200630000000700026162"))
    frame = kafka.frame()
    answer = codec.reader("ApiVersionsResponse", 0)(frame, 4)
    assert frame[:4] == b"\0\0\0\7"
    assert (answer.error_code, bool(answer.api_keys)) == (ErrorCode.UNSUPPORTED_VERSION, True)


def test_every_version_that_is_told_has_an_answer(kafka: KafkaConnection) -> None:
    for request in KNOWN.values():
        fields = {"key": "g", "coordinator_keys": ["g"]} if "Coord" in request.name else {}
        for version in range(request.versions.first, request.versions.last + 1):
            if request.name == "Produce":
                fields = {"acks": 1}
            kafka.ask(request.name, version, **fields)


@pytest.mark.parametrize(
    "frame",
    [
        b"\0",
        bytes.fromhex("7fff000000000001ffff"),  # an unknown request
        bytes.fromhex("0003006300000001ffff"),  # version 99 of Metadata
        bytes.fromhex("0003000c0000000100ff"),  # the client's name is cut off
        bytes.fromhex("0003000c00000001ffff00ffffffff0f"),  # a bomb
    ],
)
def test_a_frame_that_is_no_request_ends_its_connection_only(broker: Broker, frame: bytes) -> None:
    with broker.connect() as stays, broker.connect() as ends:
        stays.ask("ApiVersions", 3)
        ends.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        with pytest.raises(ENDED):
            ends.frame()
        stays.ask("ApiVersions", 3)


def test_answers_come_in_the_order_of_requests(kafka: KafkaConnection) -> None:
    for version in range(5):
        kafka.send("ApiVersions", version)
    kafka.send("Metadata", 12, topics=None)
    for _ in range(6):
        kafka.answer()


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_is_created_once_described_and_deleted(kafka: KafkaConnection) -> None:
    result = create_topic(kafka, "once", 3, {"cleanup.policy": "compact", "retention.ms": "-1"})
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    assert {one.name: one.value for one in result.configs}["cleanup.policy"] == "compact"
    assert create_topic(kafka, "once", 3).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    found = metadata(kafka, "once")
    assert found.topic_id == result.topic_id != NO_ID
    assert [one.partition_index for one in found.partitions] == [0, 1, 2]
    by_id = codec.class_of("DeleteTopicsRequest").DeleteTopicState(topic_id=found.topic_id)
    [deleted] = kafka.ask("DeleteTopics", 6, topics=[by_id]).responses
    assert (deleted.name, deleted.error_code) == ("once", 0)
    [again] = kafka.ask("DeleteTopics", 6, topics=[by_id]).responses
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    [named] = kafka.ask("DeleteTopics", 5, topic_names=["once"]).responses
    assert named.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    gone = metadata(kafka, "once", allow_auto_topic_creation=False)
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_of_the_same_name_has_another_id(kafka: KafkaConnection) -> None:
    first = create_topic(kafka, "again")
    kafka.ask("DeleteTopics", 5, topic_names=["again"])
    second = create_topic(kafka, "again")
    assert first.topic_id != second.topic_id
    topic = codec.class_of("MetadataRequest").MetadataRequestTopic
    old, new = kafka.ask(
        "Metadata",
        12,
        topics=[topic(name=None, topic_id=one.topic_id) for one in (first, second)],
    ).topics
    assert (old.error_code, new.error_code, new.name) == (ErrorCode.UNKNOWN_TOPIC_ID, 0, "again")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 100_000}, ErrorCode.INVALID_PARTITIONS),
        ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"cleanup.policy": "burn"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_code(
    kafka: KafkaConnection, given: dict[str, Any], code: ErrorCode
) -> None:
    result = create_topic(kafka, "never", **given)
    assert (result.error_code, bool(result.error_message)) == (code, True)
    gone = metadata(kafka, "never", allow_auto_topic_creation=False)
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_names_that_are_none_are_refused(kafka: KafkaConnection) -> None:
    for name in ("", "a b", "x" * 250, "a/b"):
        assert create_topic(kafka, name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert metadata(kafka, name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_is_created_by_asking_for_it_if_both_sides_want() -> None:
    with kafka_serving(partitions=4) as broker, broker.connect() as kafka:
        refused = metadata(kafka, "asked", allow_auto_topic_creation=False)
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(metadata(kafka, "asked").partitions) == 4
    with kafka_serving(existing_topics_only=True) as broker, broker.connect() as kafka:
        assert metadata(kafka, "asked").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_all_topics_are_listed_and_no_others(kafka: KafkaConnection, broker: Broker) -> None:
    create_topic(kafka, "listed")
    with tms.connect(broker.url) as bus:
        bus.create_topic("elsewhere:hidden")
    names = {one.name for one in kafka.ask("Metadata", 12, topics=None).topics}
    assert "listed" in names
    assert "hidden" not in names
    assert not any(name.startswith("_") for name in names)


def test_a_topic_that_is_deleted_while_all_are_listed_is_left_out(
    kafka: KafkaConnection, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("deleted-now", "deleted-not"):
        create_topic(kafka, name)
    engine = broker.served.service.engine
    page_of = engine.list_topics

    def list_topics(*given: Any) -> Any:
        page = page_of(*given)
        for info in page:
            if info.name.topic == "deleted-now":
                engine.delete_topic(info.name)
        return page

    monkeypatch.setattr(engine, "list_topics", list_topics)
    names = {one.name for one in kafka.ask("Metadata", 12, topics=None).topics}
    assert "deleted-not" in names
    assert "deleted-now" not in names


def test_keys_go_where_kafkas_clients_send_them(kafka: KafkaConnection, broker: Broker) -> None:
    create_topic(kafka, "keyed", 7)
    with tms.connect(broker.url) as bus:
        for key in (b"21", b"foobar", b"a-little-bit-long-string"):
            bus.publish("keyed", b"", key=key)
    found = {one.key: one.partition for one in messages_in(broker.url, "keyed")}
    # murmur2 of kafka-clients' own tests: -973932308, -790332482, -985981536
    wanted = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert found == {key: (hash & 0x7FFFFFFF) % 7 for key, hash in wanted.items()}


def test_settings_are_described_as_kafka_spells_them(kafka: KafkaConnection) -> None:
    create_topic(
        kafka, "described", configs={"retention.ms": "86400000", "max.message.bytes": "1000012"}
    )
    resource = codec.class_of("DescribeConfigsRequest").DescribeConfigsResource
    wanted = [
        resource(resource_type=2, resource_name="described", configuration_keys=None),
        resource(resource_type=4, resource_name="0", configuration_keys=None),
        resource(resource_type=2, resource_name="nowhere", configuration_keys=None),
    ]
    whole, broker, nowhere = kafka.ask("DescribeConfigs", 4, resources=wanted).results
    one_key = resource(
        resource_type=2, resource_name="described", configuration_keys=["retention.ms"]
    )
    [one] = kafka.ask("DescribeConfigs", 4, resources=[one_key]).results
    told = {config.name: config.value for config in whole.configs}
    assert (told["retention.ms"], told["max.message.bytes"]) == ("86400000", "1000012")
    assert told["cleanup.policy"] == "delete"
    assert [config.name for config in one.configs] == ["retention.ms"]
    assert "auto.create.topics.enable" in {config.name for config in broker.configs}
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- the service around it -------------------------------------------------------------------------


def test_the_cluster_keeps_its_id(tmp_path: Path) -> None:
    ids = set()
    for _ in range(2):
        with (
            kafka_serving(LevelDBStore(tmp_path, create=True)) as broker,
            broker.connect() as kafka,
        ):
            ids.add(kafka.ask("DescribeCluster", 0).cluster_id)
            ids.add(kafka.ask("Metadata", 12, topics=[]).cluster_id)
    assert len(ids) == 1


def test_clients_are_told_the_address_that_was_given() -> None:
    with kafka_serving(advertised="kafka.example:9092") as broker, broker.connect() as kafka:
        [node] = kafka.ask("Metadata", 12, topics=[]).brokers
        assert (node.host, node.port) == ("kafka.example", 9092)


@pytest.mark.parametrize("advertised", ["kafka", "kafka:", ":9092", "a b:1", "kafka:port"])
def test_an_address_that_is_none_is_refused(advertised: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Settings(data=Path("data"), kafka={"port": 0, "advertised": advertised})  # type: ignore[arg-type]


@pytest.mark.parametrize("kafka", [{"port": 65_534}, {"port": 0, "advertised": "host:65534"}])
def test_each_worker_has_a_port(kafka: dict[str, object]) -> None:
    def settings(workers: int) -> Settings:
        return Settings(data=Path("data"), kafka=kafka, server={"workers": workers})  # type: ignore[arg-type]

    assert settings(2).server.workers == 2
    with pytest.raises(ValueError, match="65533"):
        settings(3)


def test_an_advertised_port_exists() -> None:
    with pytest.raises(ValueError, match=r"kafka\.advertised"):
        Settings(data=Path("data"), kafka={"port": 0, "advertised": "host:70000"})  # type: ignore[arg-type]


def test_a_drain_answers_and_ends_connections() -> None:
    with kafka_serving() as broker, broker.connect() as kafka:
        create_topic(kafka, "drained")
        kafka.send("Fetch", 12, **fetching("drained", max_wait_ms=60_000))
        time.sleep(0.2)
        began = time.monotonic()
        broker.served.stop()
        assert not kafka.answer().responses[0].partitions[0].records
        with pytest.raises(ENDED):
            kafka.frame()
        assert time.monotonic() - began < 10
        with pytest.raises(OSError):
            socket.create_connection(broker.address, 10)
