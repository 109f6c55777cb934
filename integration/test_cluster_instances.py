"""Three `tms serve` over one HBase and one ZooKeeper, as processes: messages while one is killed or
paused, while ZooKeeper is down, and while instances join and leave."""

import shutil
import time
from collections.abc import Iterator

import pytest

import tms
from integration.cluster import ZooKeeper
from integration.instances import MEET_S, PARTITIONS, SESSION_S, Instances
from tests.faults.clients import Clients
from tests.faults.service import within
from tms.errors import TMSError

BACK_S = SESSION_S + 3  # within which a dead instance's partitions take writes again
HEALED_S = 15.0  # within which all are ready after the return of ZooKeeper
BUSY = 20  # for each second that the same writes took before: for a busy machine
OUTAGES_S = (0.3, SESSION_S + 1.5)  # of ZooKeeper: sessions survive the first, not the second
pytestmark = pytest.mark.timeout(300)
TIMES = [1, pytest.param(4, marks=pytest.mark.long)]


def test_any_of_three_instances_answers(instances: Instances, topics: str) -> None:
    orders = f"{topics}:orders"
    with instances.connect("a") as bus:
        bus.create_topic(orders, partitions=PARTITIONS)
        for number in range(64):
            bus.publish(orders, b"%d" % number, partition=number % PARTITIONS)
        with bus.transaction() as tx:
            for partition in range(PARTITIONS):
                tx.send(orders, b"tx", partition=partition)
    for name in "bc":
        with instances.connect(name) as bus:
            assert len(list(bus.consumer(orders, stop_at_end=True))) == 72
    with tms.connect(instances.zookeeper) as bus:
        assert len(list(bus.consumer(orders, stop_at_end=True))) == 72


def victims(instances: Instances, times: int) -> Iterator[str]:
    """A member that does not coordinate, then the coordinator, so many times."""
    for _ in range(times):
        coordinator = instances.view()["coordinator"]
        yield next(name for name in "cba" if name != coordinator)
        yield instances.view()["coordinator"]


@pytest.mark.parametrize("times", TIMES)
def test_fault_12_instances_die_or_are_paused_and_wake_up_and_nothing_is_lost(
    instances: Instances, topics: str, times: int
) -> None:
    clients = Clients(instances.urls, topics)
    clients.start()
    clients.get_on()
    for name in victims(instances, times):
        instances.kill(name)
        clients.killed()
        instances.wait_until_gone(name)
        instances.start(name)
        clients.get_on()
    for name in victims(instances, times):
        instances.pause(name)
        clients.killed()
        instances.wait_until_gone(name)
        clients.get_on()
        instances.resume(name)
        clients.get_on()
    assert clients.check() > 20


@pytest.mark.parametrize("times", TIMES)
def test_faults_13_and_14_zookeeper_is_killed_comes_back_and_forgets_everything(
    instances: Instances, zookeeper: ZooKeeper, topics: str, times: int
) -> None:
    clients = Clients(instances.urls, topics)
    clients.start()
    clients.get_on()
    for outage_s in times * OUTAGES_S:
        zookeeper.process.kill()
        clients.killed()
        time.sleep(outage_s)
        zookeeper.start()
        within(HEALED_S, instances.meet)
        clients.get_on()
    zookeeper.process.kill()
    clients.killed()
    shutil.rmtree(zookeeper.directory / "data")
    zookeeper.start()
    within(HEALED_S, instances.meet)
    clients.get_on()
    assert clients.check() > 20


def test_what_a_killed_instance_owned_takes_writes_again_in_time(
    instances: Instances, topics: str
) -> None:
    orders = f"{topics}:orders"
    victim = next(name for name in "bc" if instances.view()["coordinator"] != name)
    with instances.connect("a") as bus:
        bus.create_topic(orders, partitions=PARTITIONS)
        calm_s = publish_everywhere(bus, orders, b"before")
        instances.kill(victim)
        took_s = publish_everywhere(bus, orders, b"after")
        assert took_s < BACK_S + BUSY * calm_s
        assert len(list(bus.consumer(orders, stop_at_end=True))) >= 2 * PARTITIONS
    instances.start(victim)


def publish_everywhere(bus: tms.Bus, topic: str, value: bytes) -> float:
    """Publish to each partition, repeatedly until it is acknowledged; returns the time it took."""
    began_s = time.monotonic()
    for partition in range(PARTITIONS):
        while True:
            try:
                bus.publish(topic, value, partition=partition)
                break
            except TMSError:
                assert time.monotonic() < began_s + MEET_S
    return time.monotonic() - began_s
