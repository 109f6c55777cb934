"""Kafka's Java client and command-line tools: a group that loses a member, producers that survive
the death of the service, and the calls of consoles."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import tms
from integration.kafka_clients.install import java_program, java_tool
from integration.kafka_clients.programs import Java
from integration.kafka_clients.running import Tool, run
from integration.kafka_clients.service import KafkaService
from tests.kafka_kit import messages_in
from tests.waiting import busily, until

pytestmark = pytest.mark.long
WAIT_S = 120.0
NUMBERS = 4_000
CALLS = {  # that end otherwise than with "ok"
    "describeAcls": "SecurityDisabledException",
    "describeMetadataQuorum": "UnsupportedVersionException",
    "describeClientQuotas": "UnsupportedVersionException",
}


@pytest.fixture(scope="module")
def client() -> Java:
    return Java()


def values(service: KafkaService, topic: str) -> list[tuple[int, bytes | None, int]]:
    """Partition, key and number of each committed message."""
    found = messages_in(service.url, topic)
    return [(one.partition, one.key, int(one.value or b"")) for one in found]


def test_verifiable_consumers_read_every_acked_record_though_one_is_killed(
    service: KafkaService, topic: str
) -> None:
    def member() -> Tool:
        flags = ("--session-timeout", 6000, "--reset-policy", "earliest", "--verbose")
        at = ("--bootstrap-server", service.servers, "--topic", topic, "--group-id", "verified")
        return Tool(java_tool("VerifiableConsumer"), *at, *flags)

    def assigned(one: Tool) -> set[int]:
        parts = [part for told in one.named("partitions_assigned") for part in told["partitions"]]
        return {part["partition"] for part in parts}

    at = ("--bootstrap-server", service.servers, "--topic", topic)
    count = ("--max-messages", 6_000, "--throughput", 500)
    with tms.connect(service.url) as bus:
        bus.create_topic(topic, partitions=3)
    with member() as first, member() as second:
        until(lambda: assigned(first) and assigned(second), "both have some", busily(WAIT_S))
        with Tool(java_tool("VerifiableProducer"), *at, *count) as producer:
            until(lambda: read(second), "the second reads", busily(WAIT_S))
            sent = "producer_send_success"
            until(lambda: len(producer.named(sent)) > 1_000, "it sends", busily(WAIT_S))
            second.kill()
            producer.wait()
        acked = {(one["partition"], one["offset"]) for one in producer.named(sent)}
        assert len(acked) == 6_000
        until(lambda: {*read(first), *read(second)} >= acked, "all is read", busily(WAIT_S))
        for one in first, second:
            assert set(Counter(read(one)).values()) == {1}
        assert {*read(first), *read(second)} == acked
        assert not set(read(first)) & set(committed_by(second))


def read(one: Tool) -> list[tuple[int, int]]:
    """Partition and offset of the records that a verifiable consumer read."""
    return [(told["partition"], told["offset"]) for told in one.named("record_data")]


def committed_by(one: Tool) -> list[tuple[int, int]]:
    """Those of them that it also committed: another member reads the rest again."""
    ends: dict[int, int] = {}
    for told in one.named("offsets_committed"):
        assert told["success"], told
        ends.update({part["partition"]: part["offset"] for part in told["offsets"]})
    return [(part, offset) for part, offset in read(one) if offset < ends.get(part, 0)]


def test_an_idempotent_producer_loses_and_doubles_nothing_when_the_service_is_killed(
    service: KafkaService, topic: str
) -> None:
    program = java_program("Client")
    with Tool(program, "numbers", service.servers, topic, NUMBERS) as producer:
        for some in NUMBERS // 5, NUMBERS // 2:
            until(lambda some=some: len(producer.told) > some, "it goes on", busily(WAIT_S))
            service.restart()
        producer.wait()
        assert len(producer.told) == NUMBERS
    found = values(service, topic)
    assert sorted(number for _, _, number in found) == list(range(NUMBERS))
    for key in {key for _, key, _ in found}:
        numbers = [number for _, of, number in found if of == key]
        assert numbers == sorted(numbers)


def test_transactions_lose_double_and_tear_nothing_when_the_service_is_killed(
    service: KafkaService, topic: str
) -> None:
    source, target, count = f"{topic}.source", f"{topic}.target", 1_000
    program = java_program("Client")
    with tms.connect(service.url) as bus:
        bus.create_topic(source, partitions=3)
        bus.create_topic(target, partitions=2)
        bus.publish_many(source, [b"%d" % number for number in range(count)])
    with Tool(program, "transfer", service.servers, source, target, count) as transfer:
        for some in 200, 400, 700:
            until(lambda some=some: moved(transfer) > some, "it goes on", busily(WAIT_S))
            service.restart()
        transfer.wait()
    found = values(service, target)
    for partition in 0, 1:
        numbers = sorted(number for of, _, number in found if of == partition)
        assert numbers == list(range(count))


def moved(transfer: Tool) -> int:
    return max((one["acked"] for one in transfer.told), default=0)


def test_the_calls_of_consoles(service: KafkaService, topic: str, client: Java) -> None:
    group = f"group of {topic}"
    publish(service, topic, 100)
    with client.member(service.servers, topic, group, 50) as member:
        member.wait(WAIT_S)
    with Tool(java_program("Console"), service.servers, topic, group) as console:
        console.wait()
    outcomes = {one["call"]: one["outcome"] for one in console.told}
    assert len(outcomes) == 30
    assert {call: how for call, how in outcomes.items() if how != "ok"} == CALLS


def publish(service: KafkaService, topic: str, count: int) -> None:
    with tms.connect(service.url) as bus:
        bus.create_topic(topic, partitions=3)
        bus.publish_many(topic, [b"%d" % number for number in range(count)])


def test_the_performance_tool_publishes(service: KafkaService, topic: str) -> None:
    records = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    command = java_tool("ProducerPerformance")
    settings = ("--bootstrap-server", service.servers)
    told = run([*command, "--topic", topic, *records, *settings])
    assert "20000 records sent" in told
    assert sum(ends(service, topic).values()) == 20_000


def ends(service: KafkaService, topic: str) -> Mapping[int, int]:
    """The end of each partition, as Kafka's tool tells it."""
    at = ("--bootstrap-server", service.servers, "--topic", topic)
    told = run([*java_tool("GetOffsetShell"), *at])
    lines = [line.split(":") for line in told.splitlines() if line.startswith(f"{topic}:")]
    return {int(partition): int(end) for _, partition, end in lines}


def test_the_tool_for_groups_shows_lag_and_resets_it(
    service: KafkaService, topic: str, client: Java, tmp_path: Path
) -> None:
    group = f"group-of-{topic}"
    publish(service, topic, 90)
    with client.member(service.servers, topic, group, 60) as member:
        member.wait(WAIT_S)

    def groups(*arguments: str) -> str:
        command = java_tool("consumer.group.ConsumerGroupCommand")
        return run([*command, "--bootstrap-server", service.servers, *arguments])

    assert group in groups("--list").split()
    assert lag(groups("--describe", "--group", group)) == 30
    back = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    groups(*back)
    assert lag(groups("--describe", "--group", group)) == 90
    groups("--delete", "--group", group)
    assert group not in groups("--list").split()


def lag(told: str) -> int:
    """The sum of the column LAG."""
    rows = [line.split() for line in told.splitlines() if line.strip()]
    header = next(row for row in rows if "LAG" in row)
    column = header.index("LAG")
    return sum(int(row[column]) for row in rows[rows.index(header) + 1 :])
