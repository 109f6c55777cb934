"""Members of Kafka's clients on a service that is killed: the group goes on in the same generation,
with the same members and the same partitions."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest

import tms
from tests.faults.clients import free_port
from tests.faults.service import Service, within
from tests.kafka_kit import KafkaConnection
from tests.kafka_producer import offset_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
TOPIC, GROUP = "orders", "group"
SESSION_MS, HEARTBEAT_MS = 10_000, 300


class Member(Protocol):
    """A member that reads until it is stopped, then commits and leaves."""

    values: list[bytes]
    rebalances: int  # that it was told of

    def run(self, servers: str, stopped: threading.Event) -> None: ...


class Confluent:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.rebalances = 0

    def run(self, servers: str, stopped: threading.Event) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "reconnect.backoff.max.ms": 200,
            }
        )
        consumer.subscribe([TOPIC], on_assign=self._changed, on_revoke=self._changed)
        while not stopped.is_set():
            found = consumer.poll(0.1)
            if found is not None and found.error() is None:
                self.values.append(found.value())
        consumer.close()

    def _changed(self, *_: object) -> None:
        self.rebalances += 1


class KafkaPython:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.rebalances = 0

    def run(self, servers: str, stopped: threading.Event) -> None:
        member = self

        class Listener(kafka_python.ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked: Any) -> None:
                member.rebalances += 1

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.rebalances += 1

        consumer = kafka_python.KafkaConsumer(
            bootstrap_servers=servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            reconnect_backoff_max_ms=200,
        )
        consumer.subscribe([TOPIC], listener=Listener())
        while not stopped.is_set():
            for some in consumer.poll(100).values():
                self.values += [one.value for one in some]
        consumer.close()


class Aiokafka:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.rebalances = 0

    def run(self, servers: str, stopped: threading.Event) -> None:
        asyncio.run(self._run(servers, stopped))

    async def _run(self, servers: str, stopped: threading.Event) -> None:
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: Any) -> None:
                member.rebalances += 1

            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.rebalances += 1

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe([TOPIC], listener=Listener())
        await consumer.start()
        while not stopped.is_set():
            for some in (await consumer.getmany(timeout_ms=100)).values():
                self.values += [one.value for one in some]
        await consumer.stop()


class Group:
    """Two members of a client, each in a thread of its own."""

    def __init__(self, kind: Callable[[], Member], servers: str) -> None:
        self.members = [kind(), kind()]
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=one.run, args=(servers, self._stopped), daemon=True)
            for one in self.members
        ]
        for thread in self._threads:
            thread.start()

    def has(self, count: int) -> bool:
        """True if each message was read by one member, and each member read some."""
        found = sorted(value for one in self.members for value in one.values)
        return found == sorted(b"%d" % number for number in range(count))

    @property
    def rebalances(self) -> int:
        return sum(one.rebalances for one in self.members)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def described(port: int) -> Any:
    """State and members of the group."""
    with KafkaConnection(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) as kafka:
        return kafka.ask("DescribeGroups", 5, groups=[GROUP]).groups[0]


def is_shared(port: int) -> bool:
    """True if both members have a partition."""
    found = described(port)
    return found.group_state == "Stable" and len(found.members) == 2


def publish(url: str, start: int, stop: int) -> None:
    with tms.connect(url) as bus:
        for number in range(start, stop):
            bus.publish(TOPIC, b"%d" % number, partition=number % 2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", [Confluent, KafkaPython, Aiokafka])
def test_members_of_a_killed_service_do_not_join_again(
    kind: Callable[[], Member], fast_path: Path
) -> None:
    port = free_port()
    arguments = ("--kafka-port", str(port))
    with Service(fast_path / "data", *arguments) as service:
        with tms.connect(service.url) as bus:
            bus.create_topic(TOPIC, partitions=2)
        group = Group(kind, f"127.0.0.1:{port}")
        within(PATIENCE_S, lambda: is_shared(port))
        publish(service.url, 0, 20)
        within(PATIENCE_S, lambda: group.has(20))
        before, rebalances = described(port), group.rebalances
        service.kill()
    for begun in (20, 40):
        with Service(fast_path / "data", *arguments) as service:
            publish(service.url, begun, begun + 20)
            within(PATIENCE_S, lambda count=begun + 20: group.has(count))
            with KafkaConnection(socket.create_connection(("127.0.0.1", port))) as kafka:
                heartbeats = 5 * HEARTBEAT_MS / 1_000
                threading.Event().wait(heartbeats)
                assert described(port) == before
                assert group.rebalances == rebalances
                if begun == 40:
                    group.stop()
                    offsets = [offset_of(kafka, GROUP, TOPIC, partition) for partition in (0, 1)]
                    assert offsets == [30, 30]
                    assert described(port).group_state == "Empty"
            service.kill()
    with Service(fast_path / "data", *arguments):
        assert described(port).group_state == "Empty"
