"""A service for each module of tests, with topics of its own for each test."""

import itertools
from collections.abc import Iterator

import pytest

from integration.kafka_clients.service import KafkaService

_numbers = itertools.count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaService]:
    """The service of a module; its log is printed if a test fails."""
    with KafkaService(tmp_path_factory.mktemp("kafka") / "data") as running:
        yield running


@pytest.fixture(autouse=True)
def service_log(service: KafkaService) -> Iterator[None]:
    """Print the end of the service's log: pytest shows it if the test fails."""
    yield
    print(f"the service logged:\n{service.log}")


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test uses."""
    return f"topic-{next(_numbers)}"
