"""Fixtures and settings of every test: hypothesis, the run seed, a fast directory, the databases of
a store on disk, both event loops, and objects that the garbage collector leaves alone.
"""

import asyncio
import gc
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from sim.corpus.seeds import collect_rarely
from tests import interrupts, run_seed
from tests.databases import NAMES, prefer
from tests.process_state import unchanged

if TYPE_CHECKING:
    from tests.http_kit import Client, Served
    from tests.tls_kit import Authority

# Found examples are printed so that they can be kept; no deadline, because test machines stall. The
# run seed decides what is drawn, also where hypothesis would by itself draw the same each time.
settings.register_profile(
    "tms",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tms")
interrupts.heed()

ON_ONE_DATABASE = (
    "python/tests/faults/",
    "python/tests/store/test_store.py::TestLevelDBWithValuesApart",
    "python/tests/store/test_store_damage.py",
    "python/tests/store/test_store_faults.py",
    "python/tests/store/test_store_values.py",
)
FEW_SHARDS = tuple(
    f"python/tests/{room}/"
    for room in ("compaction", "delayed", "groups", "log", "observer", "queues", "topics")
)
CONTRACTS_DRAWN = "python/tests/contracts/test_contracts_drawn.py"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the run seed before hypothesis configures itself."""
    if not config.pluginmanager.is_registered(run_seed):
        config.pluginmanager.register(run_seed)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a landing these tests run with one database, and a test of a contract with drawn bounds
    runs in one world, which the run seed draws for each test; the long run has the others."""
    worlds: dict[str, set[str]] = defaultdict(set)  # by test of a contract
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if item.nodeid.startswith(ON_ONE_DATABASE):
            name = item.callspec.params.get("database") if hasattr(item, "callspec") else None
            if name not in (None, run_seed.one_of(item.originalname, NAMES)):
                item.add_marker(pytest.mark.long)
        elif item.nodeid.startswith(CONTRACTS_DRAWN):
            worlds[item.originalname].add(world_of(item))
    for item in items:
        if isinstance(item, pytest.Function) and item.nodeid.startswith(CONTRACTS_DRAWN):
            some = sorted(worlds[item.originalname])
            if world_of(item) != run_seed.one_of(f"world of {item.originalname}", some):
                item.add_marker(pytest.mark.long)


def world_of(item: pytest.Function) -> str:
    """The class that runs a contract in one world."""
    return "" if item.cls is None else str(item.cls.__name__)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collected tests stay alive, so looking for garbage among them finds none and takes
    seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    collect_rarely()


@pytest.fixture(scope="session", autouse=True)
def no_contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the contexts of the user that runs the tests: no command of a test uses their
    service."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves the process changed for the next one. `few_shards` asks for it before
    anything is patched, so that patches are undone before it looks."""
    with unchanged():
        yield


@pytest.fixture
def no_logs() -> Iterator[None]:
    """Log nothing."""
    disabled = logging.root.manager.disable
    logging.disable()
    yield
    logging.disable(disabled)


@pytest.fixture
def log_level() -> Iterator[None]:
    """Put back the level of TMS' logger, which a service in this process sets when it is asked."""
    level = logging.getLogger("tms").level
    yield
    logging.getLogger("tms").setLevel(level)


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if possible: its tests need no real disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(params=NAMES)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database for new data directories, in this process and in those that it starts."""
    name: str = request.param
    prefer(name, monkeypatch)
    return name


@pytest.fixture
def client(served: "Served") -> Iterator["Client"]:
    """A connection to the service of the test's module."""
    with served.connect() as connected:
        yield connected


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run `asyncio.run` on asyncio's own loop, and once more on uvloop's, uvicorn's default."""
    policies = {"asyncio": asyncio.DefaultEventLoopPolicy, "uvloop": uvloop.EventLoopPolicy}
    asyncio.set_event_loop_policy(policies[request.param]())
    yield
    asyncio.set_event_loop_policy(None)


@pytest.fixture
def one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give one shard to stores that this test creates."""
    monkeypatch.setattr("tms.topics.sharding.SHARDS", 1)


@pytest.fixture(autouse=True)
def few_shards(
    nothing_left_behind: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give two shards, in a landing, to the stores of these rooms: an engine opens them in a third
    of the time that the usual 16 take; some tests open hundreds of engines. The long run has 16."""
    if request.node.nodeid.startswith(FEW_SHARDS) and not request.node.get_closest_marker("long"):
        monkeypatch.setattr("tms.topics.sharding.SHARDS", 2)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> "Authority":
    """The authority that signs the certificates of the tests of a module."""
    from tests.tls_kit import Authority

    return Authority(tmp_path_factory.mktemp("certificates"))
