"""The HBases of a test run: one that all of its processes share, however they end, and one that
tests of a process kill in turn (`Mortal`).

The first process that needs HBase starts a keeper (`python -m integration.shared`), whose child
HBase is; the others wait for it. The keeper ends HBase and itself when the process of the whole run
(under xdist the one that started the workers) has ended. The processes share a directory:

    lock        held while a process starts HBase or checks whether it was started
    hbase/      the cluster's directory, with the endpoint's description
    started     exists when HBase has answered
    failed      why it did not start: raised in every process, tried once
    keeper.log  the output of the keeper
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from thriftpy2.thrift import TException

from integration.cluster import Description, Endpoint, LocalEndpoint, Standalone, Unavailable
from integration.containers import ContainerEndpoint, Containers

BACKEND = "TMS_TEST_CLUSTER"
START_S = 600  # more than the time-outs of HBase and its gateway
DEFAULT, SYSTEM = "default", "hbase"  # namespaces of every HBase


def shared_hbase(directory: Path, run: int) -> Endpoint:
    """The HBase of the run whose process has the id `run`; its processes share `directory`."""
    directory.mkdir(exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "started").exists() and not (directory / "failed").exists():
            _start_keeper(directory, run)
        if (directory / "failed").exists():
            raise Unavailable((directory / "failed").read_text())
    hbase = directory / "hbase"
    where = Description.read(hbase)
    return ContainerEndpoint(hbase, where) if where.containers else LocalEndpoint.attach(hbase)


def make_hbase(directory: Path) -> Standalone | Containers:
    """A standalone HBase, not yet started: processes, or containers if the environment says so."""
    backend = os.environ.get(BACKEND, "process")
    if backend == "docker":
        return Containers(directory)
    if backend != "process":
        raise Unavailable(f"{BACKEND} is {backend!r}; give process (the default) or docker")
    return Standalone(directory)


class Mortal:
    """An HBase to be killed, paused and restarted: starting one takes many seconds, so tests share
    it, one after the other. Each test finds it running and without tables; if a test has left an
    HBase that cannot be brought into that state, the next test gets a new one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._hbase: Standalone | Containers | None = None

    def take(self) -> Standalone | Containers:
        """The HBase, running and empty."""
        if self._hbase is not None:
            try:
                if not self._hbase.answers():  # it may be paused
                    self._hbase.kill()
                self._hbase.start()
                _empty(self._hbase)
                return self._hbase
            except (Unavailable, TException, OSError, EOFError) as error:
                print(f"a new HBase is started, because of the one before: {error!r}")
                self.close()
        self._hbase = make_hbase(self._directory / uuid.uuid4().hex[:8])
        self._hbase.start()
        return self._hbase

    def close(self) -> None:
        """End it and delete its files."""
        if self._hbase is not None:
            self._hbase.remove()
            self._hbase = None


def _empty(hbase: Endpoint) -> None:
    """Drop all tables and namespaces except HBase's own."""
    with hbase.connect() as gateway:
        gateway.drop_tables(DEFAULT)
        for name in gateway.namespaces():
            if name not in (DEFAULT, SYSTEM):
                gateway.drop_namespace(name)


def _start_keeper(directory: Path, run: int) -> None:
    """Start the keeper and wait until it reports that HBase answers, or that it does not."""
    with open(directory / "keeper.log", "wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "integration.shared", str(directory), str(run)],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the run, whose end the keeper sees
        )
    assert keeper.stdout is not None
    with keeper.stdout as said:
        ready, _, _ = select.select([said], [], [], START_S)
        if not ready or not said.readline():
            keeper.kill()
            text = (directory / "keeper.log").read_text()
            (directory / "failed").write_text(f"HBase did not start:\n{text}")


def keep(directory: Path, run: int) -> None:
    """Run HBase until the process `run` has ended."""
    watched = os.pidfd_open(run)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with make_hbase(directory / "hbase"):
        (directory / "started").touch()
        print("started", flush=True)
        select.select([watched], [], [])


if __name__ == "__main__":
    try:
        keep(Path(sys.argv[1]), int(sys.argv[2]))
    except Unavailable as error:
        sys.exit(f"{error}")
