"""Every server below and beside the service is killed while clients write, read and transform: the
checker checks the history that they saw. No acknowledged message is lost or duplicated, there is
one order, and transactions are whole."""

from collections.abc import Callable, Iterator

import pytest

from integration.cluster import Standalone
from integration.stack import Stack


@pytest.fixture
def stack(own_hbase: Standalone) -> Iterator[Stack]:
    made = Stack(own_hbase)
    yield made
    made.service.kill()


@pytest.mark.long
@pytest.mark.timeout(500)
def test_faults_16_and_17_clients_see_nothing_wrong_whatever_is_killed_below_them(
    stack: Stack,
) -> None:
    stack.clients.start()
    steps: list[Callable[[], None]] = [
        stack.kill_service,
        stack.kill_thrift,
        stack.pause_thrift,
        stack.kill_servers,
        stack.kill_service,
        stack.kill_all,
    ]
    for step in steps:
        stack.clients.get_on()
        step()
    stack.clients.get_on()
    assert stack.clients.check() > 50, "hardly anything happened"
