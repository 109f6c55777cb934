"""The table of Kafka's clients in docs/kafka.md: each client that the lane `kafka` runs, with the
version that is pinned, and no request that is not answered."""

from integration.kafka_clients.install import pins
from integration.kafka_clients.programs import CLIENTS, Kcat
from integration.kafka_clients.table import of_page, read
from tms.compat.kafka import requests

ROWS = read(of_page())


def test_the_table_has_every_client_in_its_pinned_version() -> None:
    found = {row.client: row.version for row in ROWS}
    assert {client.name for client in CLIENTS} <= {Kcat.name, *pins()} == found.keys()
    assert {name: found[name] for name in pins()} == pins()


def test_each_request_of_the_table_is_answered_in_that_version() -> None:
    answered = {request.name: request.versions for request in requests.load().values()}
    for row in ROWS:
        for name, version in row.requests.items():
            assert version in answered[name], f"{row.client} used {name} {version}"
