"""kcat's own views: lists of brokers and topics, offsets by time, and the two partitioners."""

import json

import pytest

import tms
from integration.kafka_clients.programs import Kcat, Row
from integration.kafka_clients.running import run
from integration.kafka_clients.service import KafkaService
from tests.kafka_kit import messages_in

pytestmark = pytest.mark.long
FLAGS = ("--kafka-partitions", "3")


@pytest.fixture(scope="module")
def client() -> Kcat:
    return Kcat()


def kcat(client: Kcat, service: KafkaService, *arguments: str, given: bytes = b"") -> str:
    return run([client.program(), "-b", service.servers, *arguments], given)


def test_brokers_and_a_topic_are_listed(client: Kcat, service: KafkaService, topic: str) -> None:
    with tms.connect(service.url) as bus:
        bus.create_topic(topic, partitions=3)
    told = json.loads(kcat(client, service, "-L", "-J"))
    assert [broker["name"] for broker in told["brokers"]] == service.brokers
    [listed] = [one for one in told["topics"] if one["topic"] == topic]
    assert [one["partition"] for one in listed["partitions"]] == [0, 1, 2]


def test_offsets_are_found_by_time(client: Kcat, service: KafkaService, topic: str) -> None:
    client.produce(service.servers, topic, "default", [Row(b"k", b"first"), Row(b"k", b"second")])
    [first, second] = messages_in(service.url, topic)
    for time_ms, offset in (
        (first.timestamp_ms, 0),
        (-2, 0),
        (-1, 2),
        (second.timestamp_ms + 60_000, -1),
    ):
        told = kcat(client, service, "-Q", "-t", f"{topic}:{first.partition}:{time_ms}")
        assert told.split() == [topic, f"[{first.partition}]", "offset", str(offset)]


def test_a_keys_messages_share_a_partition_with_those_of_tms(
    client: Kcat, service: KafkaService, topic: str
) -> None:
    given = b"".join(b"k%d\tkcat\n" % key for key in range(50))
    partitioner = ("-X", "partitioner=murmur2_random")
    kcat(client, service, "-t", topic, "-P", "-K", "\t", *partitioner, given=given)
    with tms.connect(service.url) as bus:
        for key in range(50):
            bus.publish(topic, b"tms", key=b"k%d" % key)
    places = {(one.key, one.partition) for one in messages_in(service.url, topic)}
    assert len(places) == 50


def test_a_range_of_a_partition_is_read_and_left(
    client: Kcat, service: KafkaService, topic: str
) -> None:
    with tms.connect(service.url) as bus:
        bus.create_topic(topic, partitions=1)
        bus.publish_many(topic, [b"%d" % number for number in range(20)])
    reads = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-f", "%o %s\n")
    last = kcat(client, service, *reads, "-o", "-3")
    assert last.splitlines() == ["17 17", "18 18", "19 19"]
    some = kcat(client, service, *reads, "-o", "5", "-c", "2")
    assert some.splitlines() == ["5 5", "6 6"]
