"""Three `tms serve` over one HBase and one ZooKeeper: what is below and between them is killed,
moved, wiped and cut off while producers, transactions, groups, queues and delayed messages run.
What the clients saw is checked as a history."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.cluster import Endpoint, Standalone
from integration.cluster.zookeeper import ZooKeeper
from integration.install import install
from integration.instances import CALL_S, PARTITIONS, SESSION_S, Instances
from tests.faults.clients import Clients
from tests.faults.service import within

BUSY_S = 3.0
HEALED_S = 15.0  # within which everybody takes writes again
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@contextmanager
def serving(store: str, zookeeper: ZooKeeper, cut: bool = False) -> Iterator[Instances]:
    """Three of them; what they logged is shown if anything is wrong."""
    three = Instances(store, zookeeper, cut=cut)
    try:
        yield three
    finally:
        three.close()


def all_ready(instances: Instances) -> bool:
    return all(service.ready() for service in instances.running.values())


def test_fault_14_zookeeper_forgets_everything(tms_url: str, zookeeper: ZooKeeper) -> None:
    with serving(tms_url, zookeeper) as instances:
        clients = Clients(instances.urls)
        clients.start()
        time.sleep(BUSY_S)
        zookeeper.process.kill()
        clients.killed()
        shutil.rmtree(zookeeper.directory / "data")
        zookeeper.start()
        within(HEALED_S, lambda: all_ready(instances))
        time.sleep(BUSY_S)
        assert clients.check() > 20


def test_fault_15_regions_are_split_moved_and_merged(
    tms_url: str, zookeeper: ZooKeeper, hbase: Endpoint
) -> None:
    table, admin = f"{tms_url.rpartition('/')[2]}:messages", hbase.admin()
    with serving(tms_url, zookeeper) as instances:
        clients = Clients(instances.urls)
        clients.start()
        for row in ("5000", "b000"):
            time.sleep(BUSY_S)
            admin.run("split", table, row)
        time.sleep(BUSY_S)
        for region in admin.run("regions", table)[::4]:
            admin.run("move", region, *admin.run("servers"))
        time.sleep(BUSY_S)
        admin.run("major_compact", table)
        admin.run("merge", table)
        time.sleep(BUSY_S)
        assert clients.check() > 20


def test_faults_16_and_17_hbase_and_its_gateway_are_killed(
    own_hbase: Standalone, zookeeper: ZooKeeper
) -> None:
    install(own_hbase.url("tms"))
    with serving(own_hbase.url("tms"), zookeeper) as instances:
        clients = Clients(instances.urls)
        clients.start()
        time.sleep(BUSY_S)
        own_hbase.thrift.kill()
        clients.killed()
        own_hbase.start()
        time.sleep(BUSY_S)
        own_hbase.thrift.pause()
        time.sleep(CALL_S + 2)  # longer than any call may take: what it holds lands later
        own_hbase.thrift.resume()
        time.sleep(BUSY_S)
        for process in own_hbase.servers():
            process.kill()
        instances.kill("a")
        clients.killed()
        own_hbase.start()
        instances.start("a")
        within(60, lambda: all_ready(instances))
        time.sleep(BUSY_S)
        assert clients.check() > 20


def test_fault_18_instances_are_cut_off_and_come_back(tms_url: str, zookeeper: ZooKeeper) -> None:
    """From HBase, from ZooKeeper, from one another; both ways, and one way only."""
    with serving(tms_url, zookeeper, cut=True) as instances:
        clients = Clients(instances.urls)
        clients.start()
        for one_way in (False, True):
            for which in range(3):
                name = instances.view()["coordinator"] if one_way else "abc"[which]
                link = instances.links[name].all[which]
                time.sleep(BUSY_S / 2)
                link.cut(one_way)
                clients.killed()
                time.sleep(2 * SESSION_S + 1)
                link.heal()
                within(HEALED_S, lambda: all_ready(instances))
        time.sleep(BUSY_S)
        assert clients.check() > 20


OPEN = 200  # transactions


def test_fault_22_a_coordinator_that_wakes_up_decides_nothing(
    tms_url: str, zookeeper: ZooKeeper
) -> None:
    """Its transactions are committed by the next one, and no id is given twice."""
    with serving(tms_url, zookeeper) as instances:
        old = instances.view()["coordinator"]
        others = [name for name in "abc" if name != old]
        with instances.connect(old) as bus:
            bus.create_topic("orders", partitions=PARTITIONS)
            begun = [bus.transaction(durability="synced") for _ in range(OPEN)]
            ids = [tx.id for tx in begun]
        with instances.connect() as bus:
            instances.pause(old)
            began_s = time.monotonic()
            with bus.transaction() as tx:
                tx.send("orders", b"first", partition=0)
            assert time.monotonic() - began_s < SESSION_S + 5 + CALL_S
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
