"""Problems that an operator meets: HBase that is not there yet, a coprocessor that is missing, of
another version or switched off, foreign rows, a ZooKeeper that lost everything."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from integration import coprocessor
from integration.cluster import Endpoint, Standalone
from integration.install import install
from tests.faults.clients import free_port
from tests.faults.service import Service, within
from tms.runtime.clock import SystemClock
from tms.store.hbase.admin import Admin, HBaseTable
from tms.store.hbase.coprocessor import VERSION
from tms.store.hbase.pool import HBasePlace

LOOKS_S = 60  # while something is wrong, the service checks the coprocessor again after 5 s


def warnings(service: Service) -> list[str]:
    with urllib.request.urlopen(f"{service.url}/readyz", timeout=10) as answer:
        found = json.loads(answer.read())
    assert found["ready"], found
    told: list[str] = found["warnings"]
    return told


def told(service: Service, *words: str) -> bool:
    return any(all(word in one for word in words) for one in warnings(service))


def use(url: str) -> None:
    """Check that publishing and reading go on, whatever the state of the coprocessor."""
    with tms.connect(url) as bus:
        bus.create_topic("used")
        before = sum(1 for _ in bus.consumer("used", stop_at_end=True))
        bus.publish("used", b"v")
        with bus.transaction() as tx:
            tx.send("used", b"w")
        assert sum(1 for _ in bus.consumer("used", stop_at_end=True)) == before + 2


@pytest.fixture
def admin(hbase: Endpoint, hbase_namespace: str) -> Iterator[Admin]:
    made = Admin(HBasePlace.parse(hbase.url(hbase_namespace)), SystemClock())
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_fault_26_a_wrong_coprocessor_is_reported_and_nothing_else_suffers(
    hbase: Endpoint, hbase_namespace: str, admin: Admin, tmp_path: Path
) -> None:
    url = hbase.url(hbase_namespace)
    install(url)
    other = coprocessor.changed(
        coprocessor.build(),
        tmp_path / "tms-coprocessor-other.jar",
        coprocessor.replaced(coprocessor.PROBE, VERSION.encode(), b"0.0.9"),
    )
    with Service(url) as service:
        within(LOOKS_S, lambda: told(service, "missing in", "messages", "tms hbase status"))
        use(service.url)
        _deploy(admin, f"file://{other}")
        within(LOOKS_S, lambda: told(service, "version 0.0.9", VERSION, "tms hbase upgrade"))
        use(service.url)
        _deploy(admin, f"file://{coprocessor.build()}", {"tms.enabled": "false"})
        within(LOOKS_S, lambda: told(service, "switched off"))
        use(service.url)
        _deploy(admin, f"file://{coprocessor.build()}", {"tms.enabled": "true"})
        within(LOOKS_S, lambda: warnings(service) == [])
        use(service.url)
        assert all(admin.enabled(table) for table in admin.tables())


def _deploy(admin: Admin, jar: str, more: dict[str, str] | None = None) -> None:
    for name in ("messages", "payloads"):
        found = admin.table(name)
        attributes = {
            key: value for key, value in found.attributes.items() if not key.startswith("coproc")
        }
        attributes["coprocessor$1"] = f"{jar}|io.tms.hbase.RetentionObserver|1073741823|"
        changed = HBaseTable(
            name,
            {**attributes, **(more or {})},
            found.family_attributes,
            found.family_configuration,
        )
        admin.modify_table(changed)


def test_rows_that_are_not_ours_are_told_and_never_delivered(
    hbase: Endpoint, hbase_namespace: str
) -> None:
    url = hbase.url(hbase_namespace)
    install(url)
    with tms.open(url) as bus:
        bus.create_topic("t")
        first = bus.publish("t", b"1")
        bus.publish("t", b"2")
    with hbase.connect() as gateway:
        [row] = [
            row
            for row in gateway.scan(f"{hbase_namespace}:messages")
            if row.endswith(f"{first.time_ms:016x}{first.sequence:04x}".encode())
        ]
        gateway.put(f"{hbase_namespace}:messages", {row[:40] + b"zz": {b"m:b": b"not ours"}})
    with Service(url) as service:
        with tms.connect(service.url) as bus:
            found = [message.value for message in bus.consumer("t", stop_at_end=True)]
        assert found == [b"1", b"2"]
        within(LOOKS_S, lambda: told(service, "not its own"))


@pytest.mark.timeout(400)
def test_fault_14_hbase_may_come_late_and_zookeeper_may_forget_everything(
    own_hbase: Standalone,
) -> None:
    url = own_hbase.url("tms")
    install(url)
    with Service(url) as service:
        use(service.url)
    own_hbase.kill()
    zookeeper = own_hbase.directory / "zookeeper"
    assert zookeeper.is_dir(), sorted(one.name for one in own_hbase.directory.iterdir())
    flags = ("--port", str(free_port()), "--call-timeout-s", "3")
    with Service(url, *flags, wait=False) as service:
        within(60, lambda: bool(service.events("store_unavailable")))
        assert service.running()
        assert not any("Traceback" in line for line in service.lines)
        shutil.rmtree(zookeeper)
        own_hbase.start()
        within(120, lambda: bool(service.url))
        use(service.url)
        with tms.connect(service.url) as bus:
            [partition] = bus.describe_topic("used").partition_infos
        assert partition.epoch >= 2, "an epoch was given out twice"
