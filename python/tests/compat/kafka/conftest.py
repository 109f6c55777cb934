"""The service that a module of this room shares, unless it starts one with settings of its own, and
what each of its tests has there."""

from collections.abc import Iterator

import pytest

from tests.clocks import ManualClock
from tests.kafka_kit import Broker, KafkaConnection, create_topic, kafka_serving
from tms.server import guard as guarding


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with kafka_serving() as running:
        yield running


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    """The clock of the services that a module starts with it."""
    return ManualClock()


@pytest.fixture(scope="module")
def prompt_refusals() -> Iterator[None]:
    """Clients that guess need not wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarding, "GUESS_S", 0.0)
        yield


@pytest.fixture
def kafka(broker: Broker) -> Iterator[KafkaConnection]:
    with broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(kafka: KafkaConnection, request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test, with two partitions."""
    name = request.node.name.translate({ord("["): "-", ord("]"): None})[:120]
    result = create_topic(kafka, name)
    assert not result.error_code, result.error_message
    return name
