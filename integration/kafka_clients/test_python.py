"""Kafka's clients for Python, which `make test` tests on a service in its own process: here they
use a service of their own, and their requests are counted."""

from collections.abc import Callable

import pytest

from integration.kafka_clients.install import PYTHON
from integration.kafka_clients.programs import PythonClient
from integration.kafka_clients.service import KafkaService
from tests.compat.kafka import test_clients as kafka_clients
from tests.kafka_kit import assert_same

FLAGS = ("--kafka-partitions", "3")
pytestmark = [pytest.mark.long, kafka_clients.pytestmark]


@pytest.fixture(scope="module", params=PYTHON)
def client(request: pytest.FixtureRequest) -> PythonClient:
    return PythonClient(request.param)


def test_what_a_client_for_python_publishes_is_read_by_it_and_by_tms(
    client: PythonClient, service: KafkaService, topic: str
) -> None:
    publish, read = kafka_clients.CLIENTS[client.name]
    settings, rows = kafka_clients.plain(service.servers), kafka_clients.ROWS
    for number, codec in enumerate(kafka_clients.CODECS[client.name]):
        publish(settings, f"{topic}.{number}", codec)
        assert_same(kafka_clients.in_tms(service.url, f"{topic}.{number}"), rows)
    assert_same(read(settings, f"{topic}.0", f"group of {topic}", len(rows)), rows)


@pytest.mark.parametrize(
    ("client", "transactions"),
    [
        ("aiokafka", kafka_clients.test_a_transaction_of_aiokafka_moves_offsets_with_its_messages),
        (
            "confluent-kafka",
            kafka_clients.test_transactions_of_librdkafka_are_seen_whole_or_not_at_all,
        ),
    ],
    indirect=["client"],
    ids=["aiokafka", "confluent-kafka"],
)
def test_transactions_of_a_client_for_python(
    service: KafkaService, topic: str, transactions: Callable[[KafkaService, str], None]
) -> None:
    transactions(service, topic)
