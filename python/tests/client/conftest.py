"""A log in memory, for the tests that name a `TOPIC` of it."""

from collections.abc import Iterator
from contextlib import closing

import pytest

import tms
from tms.testing.memory import MemoryLog


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[MemoryLog]:
    """A log with the `TOPIC` of the module, of two partitions."""
    with closing(MemoryLog()) as opened:
        opened.bus.create_topic(request.module.TOPIC, partitions=2)
        yield opened


@pytest.fixture
def bus(log: MemoryLog) -> tms.Bus:
    """The bus on the log in memory."""
    return log.bus
