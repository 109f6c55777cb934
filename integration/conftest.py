"""HBase for tests: all tests of a run share one, and each test has a namespace of its own.

    def test_something(hbase_url: str) -> None: …     # hbase://127.0.0.1:PORT/NAMESPACE
    def test_other(hbase: Endpoint) -> None: …        # connections, admin, Thrift 1, ZooKeeper

No test may stop, kill or reconfigure the shared one. A test that needs that takes `own_hbase`,
which no other test uses at the same time. If HBase does not start, the tests that need it fail.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import coprocessor
from integration.cluster import Endpoint, Standalone, ZooKeeper
from integration.containers import Containers
from integration.install import install
from integration.instances import Instances, Standing
from integration.shared import Mortal, shared_hbase
from tests import interrupts

interrupts.heed()
HERE = Path(__file__).parent
TIMEOUT_S = 400  # the first test of a run waits until HBase has started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests beside this file as much time as servers take to start on a busy machine."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The HBase of this test run; tests must not stop it."""
    directory, run = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory, run = directory.parent, os.getppid()
    endpoint = shared_hbase(directory / "shared-hbase", run)
    yield endpoint
    endpoint.detach()


@pytest.fixture
def hbase_namespace(hbase: Endpoint) -> Iterator[str]:
    """An empty namespace of the shared HBase, which is dropped with all its tables."""
    if not hbase.answers():  # an earlier test has brought HBase down
        pytest.fail(f"the shared HBase does not answer any more:\n{hbase.tails()}")
    name = f"t{uuid.uuid4().hex[:12]}"
    with hbase.connect() as gateway:
        gateway.create_namespace(name)
    yield name
    with hbase.connect() as gateway:
        gateway.drop_namespace(name)


@pytest.fixture
def hbase_url(hbase: Endpoint, hbase_namespace: str) -> str:
    """The URL of an empty store."""
    return hbase.url(hbase_namespace)


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    """The HBase that tests kill in turn; the first of them starts it."""
    made = Mortal(tmp_path_factory.mktemp("mortal"))
    yield made
    made.close()


@pytest.fixture
def own_hbase(mortal: Mortal) -> Standalone | Containers:
    """A standalone HBase without tables, for this test alone to kill, pause and restart."""
    return mortal.take()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """The ZooKeeper of this test run."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeper) -> ZooKeeper:
    """A ZooKeeper with a folder for this test only; the test may kill and start it."""
    if not zookeeper_server.process.running():
        zookeeper_server.start()
    return zookeeper_server


@pytest.fixture(scope="session")
def standing(hbase: Endpoint, zookeeper_server: ZooKeeper) -> Iterator[Standing]:
    """The three instances that tests use in turn; the first test starts them."""
    url = hbase.url("standing")
    install(url, coprocessor.build())
    made = Standing(url, zookeeper_server)
    yield made
    made.close()


@pytest.fixture
def instances(standing: Standing, zookeeper: ZooKeeper) -> Iterator[Instances]:
    """Three instances of one cluster on the shared HBase. They have topics of earlier tests: a test
    puts its own into the namespace `topics`."""
    found = standing.take()
    yield found
    found.print_logs()


@pytest.fixture
def topics() -> str:
    """A namespace of the service for the topics of one test."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def installed(hbase: Endpoint) -> Iterator[str]:
    """The URL of a store whose tables were installed as an operator installs them; shared by a
    module."""
    name = f"t{uuid.uuid4().hex[:12]}"
    install(hbase.url(name), coprocessor.build())
    yield hbase.url(name)
    with hbase.connect() as gateway:
        gateway.drop_namespace(name)


@pytest.fixture
def tms_url(hbase: Endpoint, installed: str) -> Iterator[str]:
    """The URL of the installed store, emptied: every row that a test left is deleted."""
    yield installed
    with hbase.connect() as gateway:
        for table in ("metadata", "payloads", "messages"):
            gateway.clear(f"{installed.rpartition('/')[2]}:{table}")
