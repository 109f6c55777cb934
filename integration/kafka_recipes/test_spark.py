"""Spark's own source and sink for Kafka, in batches and in streams."""

from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest

import tms
from integration.kafka_clients.service import KafkaService
from integration.kafka_recipes.page import Recipe
from integration.kafka_recipes.topic import Topic

SHOPS = (b"north", b"south", b"west")
LARGE = 50_000  # cents, on the page
SEND_S = 30.0


class Till:
    """Publishes sales in transactions, and knows those that are committed."""

    def __init__(self, servers: str) -> None:
        self.sold: list[tuple[str, int]] = []
        self._next = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": "till",
                "partitioner": "murmur2_random",
            }
        )
        self._producer.init_transactions(SEND_S)

    def sell(self, count: int, is_committed: bool = True) -> None:
        """Publish sales in a transaction, and end it."""
        self._producer.begin_transaction()
        for _ in range(count):
            self._next += 1
            shop, cents = SHOPS[self._next % len(SHOPS)], self._next * 7_919 % (2 * LARGE)
            self._producer.produce("sales", key=shop, value=b"%d" % cents)
            if is_committed:
                self.sold.append((shop.decode(), cents))
        if is_committed:
            self._producer.commit_transaction(SEND_S)
        else:
            assert self._producer.flush(SEND_S) == 0  # it is stored, and then rolled back
            self._producer.abort_transaction(SEND_S)


@pytest.mark.timeout(900)
def test_batches_and_streams_read_committed_sales_once(
    service: KafkaService, tmp_path: Path
) -> None:
    recipe = Recipe("Spark", tmp_path / "recipe", service)
    recipe.run("tms topic create large-sales")
    with tms.connect(service.url) as bus:
        bus.create_topic("sales", partitions=3, partitioner="murmur2")
        till = Till(service.servers)
        till.sell(10, is_committed=False)  # the first offsets hold nothing
        for _ in range(3):
            till.sell(100)
            till.sell(20, is_committed=False)  # and some in the middle, and the last
        for _ in range(2):
            before = bus.offsets("large-sales")[0]
            totals = Counter[str]()
            for shop, cents in till.sold:
                totals[shop] += cents
            lines = recipe.run("python sales.py").splitlines()
            assert lines == [f"{shop} {totals[shop]}" for shop in sorted(totals)]
            large = Topic(bus, "large-sales").rows()
            expected = [(shop, str(cents)) for shop, cents in till.sold if cents >= LARGE]
            assert sorted(large) == sorted(expected)
            assert before < len(large)
            till.sell(100)
            till.sell(20, is_committed=False)
