"""Kafka Streams counts words."""

from collections import Counter, defaultdict
from pathlib import Path

import tms
from integration.kafka_clients.service import KafkaService
from integration.kafka_recipes.page import Recipe
from integration.kafka_recipes.topic import Topic
from tests.waiting import until

WORDS = ("ada", "bit", "cog", "dot", "elf")
STEP = 50_000  # words that are published at a time
SOME = 2_000  # words that are counted between two kills
COUNT_S = 120.0


def test_every_word_is_counted_once_though_application_and_service_are_killed(
    service: KafkaService, tmp_path: Path
) -> None:
    recipe = Recipe("Kafka Streams", tmp_path / "recipe", service)
    published: Counter[str] = Counter()
    with recipe.process("java", "count") as count, tms.connect(service.url) as bus:
        recipe.run("tms topic create lines")
        recipe.run("tms topic create counted")

        def publish() -> None:
            words = [WORDS[number * number % 7 % len(WORDS)] for number in range(STEP)]
            bus.publish_many("lines", [word.encode() for word in words])
            published.update(words)

        publish()
        count.start()
        counted = Topic(bus, "counted")
        until(lambda: counted.rows(), "it counts", COUNT_S)
        count.kill()
        at_kill = len(counted.rows())
        assert at_kill < STEP - SOME
        count.start()
        until(lambda: len(counted.rows()) > at_kill + SOME, "it counts again", COUNT_S)
        service.restart()
        assert len(counted.rows()) < STEP
        until(lambda: len(counted.rows()) >= published.total(), "all are counted", COUNT_S)
        publish()
        until(lambda: len(counted.rows()) >= published.total(), "new ones, too", COUNT_S)
        counts = defaultdict(list)
        for word, number in counted.rows():
            counts[word].append(int(number))
        assert counts == {word: list(range(1, n + 1)) for word, n in published.items()}
