"""HBase for tests: one that all tests of a run share, and a namespace of each test's own.

    def test_something(hbase_url: str) -> None: …     # hbase://127.0.0.1:PORT/NAMESPACE
    def test_other(hbase: Endpoint) -> None: …        # connections, admin, Thrift 1, ZooKeeper

Nobody may stop, kill or reconfigure the shared one. A test that wants to takes `own_hbase`, whose
every process is its own. An HBase that does not start fails the tests that asked for it.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import coprocessor
from integration.cluster import Endpoint, Standalone
from integration.containers import Containers
from integration.install import install
from integration.shared import make_hbase, shared_hbase
from tests import interrupts

interrupts.heed()
HERE = Path(__file__).parent
TIMEOUT_S = 400  # the first test of a run waits until HBase has started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests beside this file may take as long as servers take to start on a busy machine."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The HBase of this test run; not to be stopped."""
    directory, run = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory, run = directory.parent, os.getppid()
    endpoint = shared_hbase(directory / "shared-hbase", run)
    yield endpoint
    endpoint.detach()


@pytest.fixture
def hbase_namespace(hbase: Endpoint) -> Iterator[str]:
    """An empty namespace of the shared HBase; dropped with all its tables."""
    if not hbase.answers():  # an earlier test has brought it down
        pytest.fail(f"the shared HBase does not answer any more:\n{hbase.tails()}")
    name = f"t{uuid.uuid4().hex[:12]}"
    with hbase.connect() as gateway:
        gateway.create_namespace(name)
    yield name
    with hbase.connect() as gateway:
        gateway.drop_namespace(name)


@pytest.fixture
def hbase_url(hbase: Endpoint, hbase_namespace: str) -> str:
    """The URL of a store that is empty."""
    return hbase.url(hbase_namespace)


@pytest.fixture
def own_hbase(tmp_path: Path) -> Iterator[Standalone | Containers]:
    """A standalone HBase of this test's own, to be killed, paused and restarted."""
    with make_hbase(tmp_path / "hbase") as started:
        yield started


@pytest.fixture(scope="module")
def installed(hbase: Endpoint) -> Iterator[str]:
    """The URL of a store whose tables were installed as an operator does; shared by a module."""
    name = f"t{uuid.uuid4().hex[:12]}"
    install(hbase.url(name), coprocessor.build())
    yield hbase.url(name)
    with hbase.connect() as gateway:
        gateway.drop_namespace(name)


@pytest.fixture
def tms_url(hbase: Endpoint, installed: str) -> Iterator[str]:
    """The same, and it is empty: every row that a test left is deleted."""
    yield installed
    with hbase.connect() as gateway:
        for table in ("metadata", "payloads", "messages"):
            gateway.clear(f"{installed.rpartition('/')[2]}:{table}")
