"""The service that a module of this room shares, unless it starts one with settings of its own, and
what each of its tests has there."""

from collections.abc import Iterator

import pytest

from tests.clocks import ManualClock
from tests.kafka_brokers_kit import ThreeBrokers, brokers
from tests.kafka_kit import Broker, KafkaConnection, create_topic, kafka_serving
from tms.server import guard as guarding
from tms.store.memory import MemoryStore


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module that names `BROKERS` with each of these: `alone`, `three`; those
    that are about a single connection with the first."""
    kinds = getattr(metafunc.module, "BROKERS", ())
    if metafunc.definition.get_closest_marker("one_connection"):
        kinds = kinds[:1]
    if kinds and "broker" in metafunc.fixturenames:
        metafunc.parametrize("broker", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The service: one broker, or three instances; by the fixture `clock` in a module that says so
    (`CLOCKED`)."""
    clocked = getattr(request.module, "CLOCKED", False)
    clock = request.getfixturevalue("clock") if clocked else None
    if getattr(request, "param", "alone") == "three":
        with brokers("a", "b", "c", clock=clock) as three:
            yield ThreeBrokers(three)
    else:
        with kafka_serving(MemoryStore() if clock else None, clock) as running:
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
