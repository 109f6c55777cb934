"""Three `tms serve` over one HBase and one ZooKeeper: the servers below and the links between them
are killed, moved, wiped and cut while producers, transactions, groups, queues and delayed messages
run. The checker checks the history that the clients saw."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.cluster import Endpoint, Standalone, ZooKeeper
from integration.install import install
from integration.instances import CALL_S, MEET_S, PARTITIONS, SESSION_S, Instances
from tests.faults.clients import Clients
from tests.faults.service import within

CUT_S = 2 * SESSION_S
DRAIN_S = 10.0  # default time of a service
HEALED_S = 15.0  # within which all partitions take writes again
pytestmark = pytest.mark.timeout(600)


@contextmanager
def serving(store: str, zookeeper: ZooKeeper, cut: bool = False) -> Iterator[Instances]:
    """Three instances for this test only; with `cut` through links of their own."""
    three = Instances(store, zookeeper, cut=cut)
    try:
        yield three
    finally:
        three.close()


def test_fault_15_regions_are_split_moved_and_merged(
    instances: Instances, topics: str, hbase: Endpoint
) -> None:
    table, admin = f"{instances.folder}:messages", hbase.admin()
    clients = Clients(instances.urls, topics)
    clients.start()
    for row in ("5000", "b000"):
        clients.get_on()
        admin.run("split", table, row)
    clients.get_on()
    for region in admin.run("regions", table)[::4]:
        admin.run("move", region, *admin.run("servers"))
    clients.get_on()
    admin.run("major_compact", table)
    admin.run("merge", table)
    clients.get_on()
    assert clients.check() > 20


def test_faults_16_and_17_hbase_and_its_gateway_are_killed(
    own_hbase: Standalone, zookeeper: ZooKeeper
) -> None:
    install(own_hbase.url("tms"))
    with serving(own_hbase.url("tms"), zookeeper) as instances:
        clients = Clients(instances.urls)
        clients.start()
        clients.get_on()
        own_hbase.thrift.kill()
        clients.killed()
        own_hbase.start()
        clients.get_on()
        own_hbase.thrift.pause()
        time.sleep(CALL_S + 1)  # longer than any call may take: held calls take effect later
        own_hbase.thrift.resume()
        clients.get_on()
        for process in own_hbase.servers():
            process.kill()
        instances.kill("a")
        clients.killed()
        own_hbase.start()
        instances.start("a")
        within(MEET_S, instances.meet)
        clients.get_on()
        assert clients.check() > 20


def test_fault_18_instances_are_cut_off_and_come_back(tms_url: str, zookeeper: ZooKeeper) -> None:
    """Instances are cut off from HBase, from ZooKeeper and from one another; in both directions,
    and in one only."""
    with serving(tms_url, zookeeper, cut=True) as instances:
        clients = Clients(instances.urls)
        clients.start()
        for one_way in (False, True):
            for which in range(3):
                name = instances.view()["coordinator"] if one_way else "abc"[which]
                link = instances.links[name].all[which]
                clients.get_on()
                link.cut(one_way)
                clients.killed()
                time.sleep(CUT_S)
                link.heal()
                within(HEALED_S, instances.meet)
        clients.get_on()
        assert clients.check() > 20


RESIGNED_S = 30.0  # within which others own everything; resigning takes six, the rest is opening


@pytest.mark.long
def test_fault_18_an_instance_that_loses_only_hbase_resigns_and_comes_back(
    tms_url: str, zookeeper: ZooKeeper
) -> None:
    """The coordinator loses HBase, while ZooKeeper and the others reach it. Clients go on
    meanwhile, through the others and through it; another one that is cut off ends in time when it
    is stopped."""
    with serving(tms_url, zookeeper, cut=True) as instances:
        clients = Clients(instances.urls)
        clients.start()
        clients.get_on()
        name = instances.view()["coordinator"]
        others = [other for other in "abc" if other != name]
        instances.links[name].thrift.cut()
        clients.killed()
        within(RESIGNED_S, lambda: instances.view(others[0])["coordinator"] in others)
        within(RESIGNED_S, lambda: name not in instances.owners("warm", others[0]))
        clients.get_on()
        assert not instances.running[name].ready()
        instances.links[name].thrift.heal()
        within(RESIGNED_S, instances.meet)
        within(RESIGNED_S, lambda: set(instances.owners("warm")) == set("abc"))
        clients.get_on()
        instances.links[name].thrift.cut()
        clients.killed()
        began_s = time.monotonic()
        assert instances.running.pop(name).stop() == 0
        assert time.monotonic() - began_s < 2 * DRAIN_S + 5
        clients.get_on()
        assert clients.check() > 20


OPEN = 50  # transactions


def test_fault_22_a_coordinator_that_wakes_up_decides_nothing(
    instances: Instances, topics: str
) -> None:
    """Its transactions are committed by the next coordinator, and no id is assigned twice."""
    old, orders = instances.view()["coordinator"], f"{topics}:orders"
    others = [name for name in "abc" if name != old]
    with instances.connect(old) as bus:
        bus.create_topic(orders, partitions=PARTITIONS)
        begun = [bus.transaction(durability="synced") for _ in range(OPEN)]
        ids = [tx.id for tx in begun]
    with instances.connect() as bus:
        instances.pause(old)
        began_s = time.monotonic()
        with bus.transaction() as tx:
            tx.send(orders, b"first", partition=0)
        assert time.monotonic() - began_s < SESSION_S + 5 + CALL_S
        instances.wait_until_gone(old)
        new = [bus.transaction(durability="synced") for _ in range(OPEN)]
        ids += [tx.id for tx in new]
        instances.resume(old)
        for name in (old, *others):
            with instances.connect(name) as at:
                late = [at.transaction(durability="synced") for _ in range(OPEN)]
                ids += [tx.id for tx in late]
                for tx in late:
                    tx.abort()
        for tx in new:
            tx.abort()
    assert len(set(ids)) == len(ids)
