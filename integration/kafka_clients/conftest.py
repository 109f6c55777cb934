"""A service for each client of each module of tests, with topics of its own for each test.

A module defines the fixture `client`.
"""

import itertools
from collections.abc import Iterator

import pytest

from integration.kafka_clients import table
from integration.kafka_clients.programs import Client, PythonClient
from integration.kafka_clients.service import KafkaService

PARTITIONS = 3
_numbers = itertools.count()


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, client: Client | PythonClient
) -> Iterator[KafkaService]:
    """The service that a client uses; the requests are noted for the table of clients."""
    directory = tmp_path_factory.mktemp("kafka") / "data"
    with KafkaService(directory, "--kafka-partitions", str(PARTITIONS)) as running:
        yield running
        assert not running.faults
        table.note(client.name, client.version, running.recorder.requests)


@pytest.fixture(autouse=True)
def service_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the end of the service's log: pytest shows it if the test fails."""
    running: KafkaService | None = None
    if "service" in request.fixturenames:
        running = request.getfixturevalue("service")
    yield
    if running is not None:
        print(f"the service logged:\n{running.log}")


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test uses. Asked for, it gets three partitions."""
    return f"topic-{next(_numbers)}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table of clients, once all workers have ended."""
    if not hasattr(session.config, "workerinput") and table.NOTES.is_dir():
        table.TABLE.write_text(table.table())
