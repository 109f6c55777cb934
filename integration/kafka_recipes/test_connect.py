"""Kafka Connect copies a file to a topic and the topic to a file."""

from pathlib import Path

import tms
from integration.kafka_clients.service import KafkaService
from integration.kafka_recipes.connect import REST, Worker, rest_address
from integration.kafka_recipes.page import Recipe
from integration.kafka_recipes.topic import Topic
from tests.waiting import until

LINES = 40_000
AT_LEAST = 1_000  # lines that a worker has copied when it is killed
UNREAD_MAX = 150  # lines, less than a batch, that the connector holds back until the file grows
COPY_S = 120.0


def test_a_file_is_copied_once_though_worker_and_service_are_killed(
    service: KafkaService, tmp_path: Path
) -> None:
    rest = rest_address()
    recipe = Recipe("Kafka Connect", tmp_path / "recipe", service, {REST: rest})
    source, copy = recipe.directory / "lines.txt", recipe.directory / "copy.txt"
    written = [f"line {number}" for number in range(LINES)]
    source.write_text("".join(f"{line}\n" for line in written))
    with Worker(recipe, rest) as worker, tms.connect(service.url) as bus:
        recipe.run("curl -fsS -X PUT --json @source.json")
        topic = Topic(bus, "lines.of.file")
        until(lambda: len(topic.values()) > AT_LEAST, "lines are in the topic", COPY_S)
        worker.kill()
        assert len(topic.values()) < LINES
        worker.start()
        worker.wait_for_tasks("source")
        killed_at = len(topic.values())
        until(lambda: len(topic.values()) > killed_at, "more lines are in the topic", COPY_S)
        service.restart()
        assert len(topic.values()) < LINES
        until(lambda: len(topic.values()) > LINES - UNREAD_MAX, "most lines are there", COPY_S)
        with source.open("a") as file:
            file.write("the end\n")
        written.append("the end")
        until(lambda: len(topic.values()) >= len(written), "all lines are there", COPY_S)
        assert topic.values() == written
        recipe.run("curl -fsS -X PUT --json @sink.json")
        worker.wait_for_tasks("sink")
        until(lambda: copy.read_text().endswith("the end\n"), "all lines are in the copy", COPY_S)
        assert copy.read_text() == source.read_text()
