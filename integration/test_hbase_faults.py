"""Everything below and beside the service is killed while clients write, read and transform: what
they saw is checked as a history: nothing acknowledged lost or twice, one order, whole transactions.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from integration.cluster import Standalone
from integration.install import install
from tests.faults.clients import Clients, free_port
from tests.faults.service import Service

BUSY_S = 4.0


class Stack:
    """A service on an HBase of its own, and its clients."""

    def __init__(self, hbase: Standalone) -> None:
        self.hbase = hbase
        self.url = hbase.url("tms")
        install(self.url)
        self.port = free_port()
        self.service = self.serve()
        self.clients = Clients(f"http://127.0.0.1:{self.port}")

    def serve(self) -> Service:
        return Service(self.url, "--port", str(self.port), "--call-timeout-s", "10")

    def kill_service(self) -> None:
        self.service.kill()
        self.clients.killed()
        self.service = self.serve()

    def kill_thrift(self) -> None:
        self.hbase.thrift.kill()
        self.clients.killed()
        self.hbase.start()

    def kill_server(self) -> None:
        self.hbase.server.kill()
        self.clients.killed()
        self.hbase.start()

    def kill_all(self) -> None:
        self.service.kill()
        self.hbase.thrift.kill()
        self.hbase.server.kill()
        self.clients.killed()
        self.hbase.start()
        self.service = self.serve()

    def pause_thrift(self) -> None:
        """Longer than any call may take: what it holds lands when it goes on."""
        self.hbase.thrift.pause()
        time.sleep(12)
        self.hbase.thrift.resume()


@pytest.fixture
def stack(own_hbase: Standalone) -> Iterator[Stack]:
    made = Stack(own_hbase)
    yield made
    made.service.kill()


@pytest.mark.timeout(500)
def test_faults_16_and_17_clients_see_nothing_wrong_whatever_is_killed_below_them(
    stack: Stack,
) -> None:
    stack.clients.start()
    steps: list[Callable[[], None]] = [
        stack.kill_service,
        stack.kill_thrift,
        stack.pause_thrift,
        stack.kill_server,
        stack.kill_service,
        stack.kill_all,
    ]
    for step in steps:
        time.sleep(BUSY_S)
        step()
    time.sleep(BUSY_S)
    assert stack.clients.check() > 50, "hardly anything happened"
