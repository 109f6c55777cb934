"""Debezium publishes the rows of a table of PostgreSQL, and a view of TMS has them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import tms
from integration.cluster.site import LOCAL
from integration.kafka_clients.service import KafkaService
from integration.kafka_recipes.connect import REST, Worker, rest_address
from integration.kafka_recipes.page import Recipe
from integration.kafka_recipes.postgres import Postgres
from integration.kafka_recipes.topic import Topic
from tests.waiting import until

ROWS = 500  # on the page
PORT = "5432"  # on the page
COPY_S = 120.0


def test_a_view_equals_the_table_though_the_worker_is_killed(
    service: KafkaService, tmp_path: Path
) -> None:
    rest = rest_address()
    with Postgres() as postgres, tms.connect(service.url) as bus:
        addresses = {REST: rest, PORT: str(postgres.port)}
        worker = Worker(Recipe("Kafka Connect", tmp_path / "recipe", service, addresses), rest)
        recipe = Recipe("Changes of PostgreSQL", tmp_path / "recipe", service, addresses)
        recipe.run("psql")

        def change(round_: int) -> None:
            """Change, delete and add rows, in a transaction each."""
            for first in range(1, ROWS, 50):
                items = f"id BETWEEN {first} AND {first + 49}"
                sql(
                    postgres,
                    f"UPDATE items SET pieces = pieces * 2 + {round_} WHERE {items};"
                    f"DELETE FROM items WHERE {items} AND id % 7 = {round_};"
                    f"INSERT INTO items VALUES ({ROWS * round_ + first + ROWS}, 'new', {first})",
                )

        def rows_in_view() -> list[Any]:
            return by_id(recipe.run("python items.py"))

        with worker:
            recipe.run("curl")
            changes = Topic(bus, "shop.public.items")
            until(lambda: len(changes.rows()) >= ROWS, "the topic has the table", COPY_S)
            assert rows_in_view() == rows_in(postgres)
            change(1)
            until(lambda: len(changes.rows()) > ROWS, "changes arrive", COPY_S)
            worker.kill()
            change(2)
            worker.start()
            worker.wait_for_tasks("shop")
            change(3)
            until(lambda: rows_in_view() == rows_in(postgres), "the view equals the table", COPY_S)
        assert bus.describe_topic("shop.public.items").settings.cleanup.compacts
        assert len(rows_in(postgres)) != ROWS


def sql(postgres: Postgres, statements: str) -> str:
    """The output of statements, which are one transaction."""
    command = ["psql", "-qAt", "-h", LOCAL, "-p", str(postgres.port), "-U", "postgres"]
    done = subprocess.run(
        [*command, "-v", "ON_ERROR_STOP=1", "-c", statements],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout


def rows_in(postgres: Postgres) -> list[Any]:
    """The rows of the table by their ids."""
    return by_id(sql(postgres, "SELECT row_to_json(items) FROM items"))


def by_id(lines: str) -> list[Any]:
    rows = [json.loads(line) for line in lines.splitlines()]
    return sorted(rows, key=lambda row: row["id"])
