"""Three `tms serve` over one HBase and one ZooKeeper, as processes: what happens to messages when
one is killed or paused, when ZooKeeper goes, and when instances come and leave."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from integration.cluster.zookeeper import ZooKeeper
from integration.instances import PARTITIONS, SESSION_S, Instances
from tests.faults.clients import Clients
from tests.faults.service import within
from tms.errors import TMSError

BACK_S = SESSION_S + 3  # within which what a dead instance owned takes writes again
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def instances(tms_url: str, zookeeper: ZooKeeper) -> Iterator[Instances]:
    three = Instances(tms_url, zookeeper)
    try:
        yield three
    finally:
        three.close()


def test_any_of_three_instances_answers(instances: Instances) -> None:
    with instances.connect("a") as bus:
        bus.create_topic("orders", partitions=PARTITIONS)
        for number in range(64):
            bus.publish("orders", b"%d" % number, partition=number % PARTITIONS)
        with bus.transaction() as tx:
            for partition in range(PARTITIONS):
                tx.send("orders", b"tx", partition=partition)
    for name in "bc":
        with instances.connect(name) as bus:
            assert len(list(bus.consumer("orders", stop_at_end=True))) == 72
    with tms.connect(instances.zookeeper) as bus:
        assert len(list(bus.consumer("orders", stop_at_end=True))) == 72


def test_instances_are_killed_under_load_and_nothing_is_lost(instances: Instances) -> None:
    clients = Clients(instances.urls)
    clients.start()
    for name in ("a", "b", "c", instances.view()["coordinator"]):
        time.sleep(2)
        instances.kill(name)
        clients.killed()
        time.sleep(3)
        instances.start(name)
    time.sleep(2)
    assert clients.check() > 20


def test_fault_12_paused_instances_wake_up_and_nothing_is_lost(instances: Instances) -> None:
    clients = Clients(instances.urls)
    clients.start()
    for name in ("a", "b", "c", instances.view()["coordinator"]):
        time.sleep(2)
        instances.pause(name)
        clients.killed()
        time.sleep(2 * SESSION_S + 1)
        instances.resume(name)
    time.sleep(2)
    assert clients.check() > 20


def test_fault_13_zookeeper_is_killed_and_comes_back(
    instances: Instances, zookeeper: ZooKeeper
) -> None:
    clients = Clients(instances.urls)
    clients.start()
    for pause_s in (0.5, 4.0):
        time.sleep(2)
        zookeeper.process.kill()
        clients.killed()
        time.sleep(pause_s)
        zookeeper.start()
        within(15, lambda: all(service.ready() for service in instances.running.values()))
    time.sleep(2)
    assert clients.check() > 20


def test_what_a_killed_instance_owned_takes_writes_again_in_time(instances: Instances) -> None:
    with instances.connect("a") as bus:
        bus.create_topic("orders", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            bus.publish("orders", b"before", partition=partition)
    victim = next(name for name in "bc" if instances.view()["coordinator"] != name)
    with instances.connect("a", timeout_s=BACK_S) as bus:
        instances.kill(victim)
        began_s = time.monotonic()
        for partition in range(PARTITIONS):
            while True:
                try:
                    bus.publish("orders", b"after", partition=partition)
                    break
                except TMSError:
                    assert time.monotonic() - began_s < BACK_S
        assert time.monotonic() - began_s < BACK_S
        assert len(list(bus.consumer("orders", stop_at_end=True))) >= 2 * PARTITIONS
