"""The contracts of the client once more, with bounds that are drawn for each test: on LevelDB and
over HTTP, where the simulation does not come by. `TMS_TEST_SEED=n` draws others.

A test that fails here alone has met a bound: `Bounds.of(…).drawn` has them all.
"""

import os
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

# What producers may be given at most: their default would be too much.
NOT_DRAWN = {"client.batching.REQUEST_BYTES"}
SEED = os.environ.get("TMS_TEST_SEED", "1")
clock, served = test_client_delay.clock, test_queue_contract.served


@pytest.fixture(autouse=True)
def bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those of this test."""
    drawn = Bounds.of(f"contract {SEED} {request.node.name} of {request.node.parent.name}").drawn
    with Bounds({path: value for path, value in drawn.items() if path not in NOT_DRAWN}).set():
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
