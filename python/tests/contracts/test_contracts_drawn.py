"""The contracts of the client once more, with bounds that are drawn for each test: on LevelDB and
over HTTP, where the simulation does not go. The run seed decides which.

In a landing each test runs in one of its worlds, which the run seed draws; the long run has the
others (`tests/conftest.py`). A test that fails only here depends on a bound: `Bounds.of(…).drawn`
has them all.
"""

from collections.abc import Iterator

import pytest

from sim.bounds.drawing import Bounds
from tests.client import (
    test_client,
    test_client_delay,
    test_client_groups,
    test_client_transactions,
)
from tests.queues import test_queue_contract
from tests.run_seed import run_seed

# The most that producers may get: their default would be too much.
NOT_DRAWN = {"client.batching.REQUEST_BYTES"}
# Tests that count up to more than the least that a bound is drawn to, or that read more partitions.
NOT_DRAWN_IN = {
    "test_of_each_key_only_the_first_is_with_a_worker": {"queues.partition.BLOCKED_MAX"},
    "test_partitions_are_read_in_turn": {"client.cursor.PARTITIONS_PER_FETCH"},
}
clock, served = test_client_delay.clock, test_queue_contract.served


@pytest.fixture(autouse=True)
def bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the bounds of this test."""
    node = request.node
    drawn = Bounds.of(f"contract {run_seed()} {node.name} of {node.parent.name}").drawn
    left = NOT_DRAWN | NOT_DRAWN_IN.get(node.originalname, set())
    with Bounds({path: value for path, value in drawn.items() if path not in left}).set():
        yield


class TestBusEmbedded(test_client.TestEmbedded): ...


class TestBusHttp(test_client.TestHttp): ...


class TestDelayEmbedded(test_client_delay.TestEmbedded): ...


class TestDelayHttp(test_client_delay.TestHttp): ...


class TestGroupsEmbedded(test_client_groups.TestEmbedded): ...


class TestGroupsHttp(test_client_groups.TestHttp): ...


class TestTransactionsEmbedded(test_client_transactions.TestEmbedded): ...


class TestTransactionsHttp(test_client_transactions.TestHttp): ...


class TestQueuesEmbedded(test_queue_contract.TestEmbedded): ...


class TestQueuesHttp(test_queue_contract.TestHttp): ...


class TestQueuesAsyncEmbedded(test_queue_contract.TestAsyncEmbedded): ...


class TestQueuesAsyncHttp(test_queue_contract.TestAsyncHttp): ...
