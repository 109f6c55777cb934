"""Apicurio Registry keeps schemas in a topic, and confluent-kafka writes and reads Avro by it."""

import urllib.request
from pathlib import Path

import tms
from integration.cluster.site import LOCAL, free_ports
from integration.kafka_clients.service import KafkaService
from integration.kafka_recipes.page import Recipe
from tests.kafka_kit import messages_in

PORT = "8081"  # on the page
START_S = 150.0
READING = "{'sensor': 'roof', 'celsius': -2.5}\n"


def test_schemas_keep_their_ids_though_registry_and_service_are_killed(
    service: KafkaService, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    recipe = Recipe("Schema registry", tmp_path / "recipe", service, {PORT: str(port)})
    recipe.run("mvn")
    recipe.run("tar")
    recipe.run("tms topic create")
    subjects = f"http://{LOCAL}:{port}/apis/ccompat/v7/subjects"
    with recipe.process("java", "registry") as registry, tms.connect(service.url) as bus:
        for _ in range(2):
            registry.start()
            registry.wait_until(lambda: answer(subjects) is not None, START_S, "it answers")
            assert recipe.run("venv/bin/python readings.py") == READING
            assert answer(subjects) == '["readings-value"]'
            assert answer(f"{subjects}/readings-value/versions") == "[1]"
            registry.kill()
            service.restart()
        assert bus.describe_topic("kafkasql-journal").settings.retention_ms is None
        first, second = (message.value for message in messages_in(service.url, "readings"))
        assert first == second and first is not None and first[0] == 0


def answer(url: str) -> str | None:
    """The body of an answer with 200; None while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return str(response.read().decode())
    except OSError:
        return None
