"""A service for each module of tests, with topics of its own for each test. A module in this folder
defines the fixture `client`, whose requests are noted for the table of clients."""

import itertools
from collections.abc import Iterator

import pytest

from integration.kafka_clients import table
from integration.kafka_clients.programs import Client, PythonClient
from integration.kafka_clients.service import KafkaService

_numbers = itertools.count()


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[KafkaService]:
    """The service of a module, which may add to its command by `FLAGS`."""
    flags = getattr(request.module, "FLAGS", ())
    with KafkaService(tmp_path_factory.mktemp("kafka") / "data", *flags) as running:
        yield running
        assert not running.faults


@pytest.fixture(autouse=True)
def service_log(service: KafkaService) -> Iterator[None]:
    """Print the end of the service's log: pytest shows it if the test fails."""
    yield
    print(f"the service logged:\n{service.log}")


@pytest.fixture(scope="module", autouse=True)
def noted(service: KafkaService, client: Client | PythonClient) -> Iterator[None]:
    """Note the requests of a client for the table."""
    service.forget_recorded()
    yield
    table.note(client.name, client.version, service.recorded())


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test uses."""
    return f"topic-{next(_numbers)}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table of clients, once all workers have ended."""
    if not hasattr(session.config, "workerinput") and table.NOTES.is_dir():
        table.TABLE.write_text(table.table())
