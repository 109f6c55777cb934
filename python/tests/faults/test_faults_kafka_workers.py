"""`tms serve --workers` with Kafka's clients: workers are killed and paused under producers."""

import os
import signal
import socket
from pathlib import Path

import pytest
from confluent_kafka import admin

from integration.cluster.site import ports_in_a_row
from tests.faults.service import Service, within
from tests.faults.test_faults_workers import workers
from tests.kafka_load import KafkaLoad, brokers_answer
from tests.waiting import PATIENCE_S

COUNT = 3
SESSION_S = 1.0
pytestmark = pytest.mark.timeout(240)


def test_kafkas_clients_go_on_when_workers_are_killed_and_paused(tmp_path: Path) -> None:
    port = ports_in_a_row(COUNT)
    servers = ",".join(f"127.0.0.1:{port + nth}" for nth in range(COUNT))
    flags = ("--workers", str(COUNT), "--session-s", str(SESSION_S), "--kafka-port", str(port))
    with Service(tmp_path / "data", *flags) as service:
        brokers_answer(servers, COUNT)
        load = KafkaLoad(servers, "orders")
        with load.running():
            for place, number in ((0, signal.SIGKILL), (1, signal.SIGSTOP), (2, signal.SIGKILL)):
                load.get_on()
                pid = [*workers(service).values()][place]
                os.kill(pid, number)
                within(PATIENCE_S, lambda pid=pid: pid not in workers(service).values())
                within(PATIENCE_S, lambda: len(workers(service)) == COUNT)
                brokers_answer(servers, COUNT)
            load.get_on()
        assert load.check() > 1_000
        assert service.stop() == 0


def test_each_worker_is_a_broker_on_a_port_of_its_own(tmp_path: Path) -> None:
    port = ports_in_a_row(COUNT)
    flags = ("--workers", str(COUNT), "--kafka-port", str(port))
    advertised = ("--kafka-advertised", "localhost:" + str(port))
    with Service(tmp_path / "data", *flags, *advertised) as service:
        brokers_answer(f"127.0.0.1:{port + COUNT - 1}", COUNT)
        client = admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        found = client.list_topics(timeout=10).brokers
        assert {(one.id, one.host, one.port) for one in found.values()} == {
            (1 + nth, "localhost", port + nth) for nth in range(COUNT)
        }
        assert service.stop() == 0


def test_a_taken_port_of_a_worker_ends_the_start(tmp_path: Path) -> None:
    port = ports_in_a_row(COUNT)
    with socket.create_server(("127.0.0.1", port + 1)):
        flags = ("--workers", str(COUNT), "--kafka-port", str(port))
        with Service(tmp_path / "data", *flags, wait=False) as service:
            assert service.wait() == os.EX_CONFIG
            assert f"port {port + 1}" in "\n".join(service.lines)
