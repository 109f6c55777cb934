"""The plugin for pytest: fixtures for tests of programs that use TMS. pytest finds it by itself in
every environment that has TMS; docs/testing-programs.md says how to use it.

Loading it imports nothing of the engine; the first test that uses a fixture does.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tms.client.aio.bus import AsyncBus
    from tms.client.client import Bus
    from tms.testing.clock import MovableClock
    from tms.testing.faults import Faults
    from tms.testing.memory import MemoryLog, TopicUnderTest
    from tms.testing.service import ServiceUnderTest

TOPIC = "test"
MARKER = "tms_topic(**settings): the settings of the topic of the fixture tms_topic"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def tms_clock() -> "MovableClock":
    """The clock of the test's log, which stands still until `tms_clock.advance("2h")`."""
    from tms.testing.clock import MovableClock

    return MovableClock()


@pytest.fixture
def tms_log(tms_clock: "MovableClock") -> "Iterator[MemoryLog]":
    """The log in memory that the other fixtures share in a test."""
    from tms.testing.memory import MemoryLog

    log = MemoryLog(tms_clock)
    yield log
    log.close()


@pytest.fixture
def tms_bus(tms_log: "MemoryLog") -> "Bus":
    """A bus on a log in memory, empty at the beginning of each test."""
    return tms_log.bus


@pytest.fixture
def tms_aio_bus(tms_log: "MemoryLog") -> "AsyncBus":
    """The log of the test for asyncio."""
    return tms_log.aio_bus


@pytest.fixture
def tms_faults(tms_log: "MemoryLog") -> "Faults":
    """Faults of `tms_bus` and `tms_aio_bus`, to be switched on."""
    return tms_log.faults


@pytest.fixture
def tms_topic(request: pytest.FixtureRequest, tms_bus: "Bus") -> "TopicUnderTest":
    """A topic on `tms_bus`; `@pytest.mark.tms_topic(partitions=4)` gives its settings."""
    from tms.testing.memory import TopicUnderTest

    marker = request.node.get_closest_marker("tms_topic")
    tms_bus.create_topic(TOPIC, **({} if marker is None else marker.kwargs))
    return TopicUnderTest(tms_bus, TOPIC)


@pytest.fixture
def tms_service(tms_log: "MemoryLog") -> "Iterator[ServiceUnderTest]":
    """A service on a free port, before the log of `tms_bus`: `tms.connect(tms_service.url)`."""
    from tms.testing.service import ServiceUnderTest

    service = ServiceUnderTest(tms_log.engine)
    yield service
    service.close()
