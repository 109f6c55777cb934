"""Topics of the service that the benchmarks in Spark read."""

from bench.targets import values
from tms.client.client import Bus

PARTITIONS = 2  # one for each thread of Spark


def filled(bus: Bus, topic: str, size: int, messages: int) -> str:
    """A topic with that many messages of `size` bytes; its name."""
    bus.create_topic(topic, partitions=PARTITIONS, durability="written")
    texts = values(size)
    with bus.producer(topic) as producer:
        for number in range(messages):
            producer.send(texts[number % len(texts)], partition=number % PARTITIONS)
    return topic
