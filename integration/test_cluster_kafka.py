"""Kafka's clients at three `tms serve` over one HBase and one ZooKeeper, each of them a broker:
instances are killed and come back, and partitions, groups and transactional ids move, while
producers publish."""

from collections.abc import Iterator

import pytest

from integration.cluster import ZooKeeper
from integration.instances import MEET_S, Instances
from tests.faults.service import within
from tests.kafka_load import KafkaLoad, brokers_answer

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 6
TOPIC = "kafka-orders"


@pytest.fixture
def brokers(tms_url: str, zookeeper: ZooKeeper) -> Iterator[Instances]:
    three = Instances(tms_url, zookeeper, kafka=True)
    try:
        yield three
    finally:
        three.close()


def test_kafkas_clients_go_on_when_instances_are_killed_and_partitions_move(
    brokers: Instances,
) -> None:
    brokers_answer(brokers.kafka_servers, 3)
    load = KafkaLoad(brokers.kafka_servers, TOPIC, PARTITIONS)
    with load.running():
        load.get_on()
        coordinator = brokers.view()["coordinator"]
        brokers.kill(coordinator)
        brokers.wait_until_gone(coordinator)
        load.get_on()
        brokers.start(coordinator)
        within(MEET_S, brokers.meet)
        load.get_on()
        for partition in range(PARTITIONS):
            brokers.move(TOPIC, partition, "abc"[partition % 3])
        load.get_on()
    assert load.check() > 500
