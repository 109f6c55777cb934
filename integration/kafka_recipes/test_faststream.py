"""FastStream, over aiokafka and over confluent-kafka, publishes an invoice for each order."""

import json
from pathlib import Path

import pytest

import tms
from integration.kafka_clients.service import KafkaService
from integration.kafka_recipes.page import Recipe
from integration.kafka_recipes.topic import Topic
from tests.waiting import until

ORDERS = 200  # of a command of the page
ANSWER_S = 90.0


@pytest.mark.parametrize("client", ["aiokafka", "confluent-kafka"])
def test_each_order_gets_an_invoice_though_the_service_is_killed(
    client: str, tmp_path: Path
) -> None:
    with KafkaService(tmp_path / "data") as service, tms.connect(service.url) as bus:
        recipe = Recipe("FastStream", tmp_path / "recipe", service)
        recipe.run("tms topic create orders")
        recipe.run("tms topic create invoices")
        recipe.run("seq")
        if client == "confluent-kafka":
            recipe.run("sed")
        with recipe.process("venv/bin/faststream", "faststream") as app:
            app.start()
            invoices = Topic(bus, "invoices")
            until(lambda: invoiced(invoices) == {*range(1, ORDERS + 1)}, "all invoices", ANSWER_S)
            service.restart()
            bus.publish("orders", b'{"id": 0, "cents": 50}')
            until(lambda: 0 in invoiced(invoices), "the invoice after the restart", ANSWER_S)
            until(lambda: lag(bus) == 0, "the group has committed its offsets")
            assert "offset:" in recipe.run("tms group show")
            assert '"total":59' in "".join(invoices.values()[-1].split())
        assert not service.faults


def invoiced(invoices: Topic) -> set[int]:
    return {json.loads(value)["order"] for value in invoices.values()}


def lag(bus: tms.Bus) -> int:
    [group] = bus.list_groups("orders")
    return group.lag
