"""A plugin for pytest: all tests of a process run with the bounds that the text in
`TMS_TEST_BOUNDS` draws."""

import os
from contextlib import ExitStack

import pytest

from sim.bounds.drawing import Bounds
from sim.replacing import replaced
from tms.engine import engine

DRAWN_BY = "TMS_TEST_BOUNDS"
# Other tests would be refused what they do: they have more of it than the least that is drawn.
NOT_DRAWN = {
    "client.batching.REQUEST_BYTES",
    "engine.config.EngineConfig.block_bytes",
    "engine.config.EngineConfig.in_flight_bytes",
    "log.partition.LogLimits.producers",
    "log.partition.LogLimits.queue_bytes",
    "transactions.transactional_state.BYTES_MAX",
    "transactions.transactional_state.RECORDS_MAX",
    "transactions.transactional_state.RECORD_BYTES_MAX",
}
# These tests look at the edge of a default, or count what it lets through.
AT_DEFAULT = {
    "test_a_bomb_is_refused_before_it_takes_memory",
    "test_a_request_writes_few_refusals_to_the_audit_log",
    "test_a_transaction_spans_leaders_and_coordinators",
    "test_an_id_is_forgotten_a_week_after_its_last_use",
    "test_batches_that_take_long_are_converted_by_a_thread",
    "test_groups_and_transactions_are_listed_by_their_coordinator",
    "test_headers_of_a_large_record_are_counted_before_they_become_objects",
    "test_offsets_by_event_time",
}


def pytest_configure(config: pytest.Config) -> None:
    """Set the bounds until the tests are over."""
    drawn = Bounds.of(os.environ[DRAWN_BY]).drawn
    bounds = Bounds({path: value for path, value in drawn.items() if path not in NOT_DRAWN})
    stack = ExitStack()
    stack.enter_context(bounds.set())
    stack.enter_context(replaced([(engine, "EngineConfig", bounds.config)]))
    config.add_cleanup(stack.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of defaults."""
    left = [one for one in items if getattr(one, "originalname", one.name) in AT_DEFAULT]
    items[:] = [one for one in items if one not in left]
    config.hook.pytest_deselected(items=left)
