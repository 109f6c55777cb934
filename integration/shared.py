"""The one HBase of a test run, whichever of its processes need it, and however they end.

The first process that asks starts a keeper (`python -m integration.shared`), whose child HBase is;
the others wait for it. The keeper ends HBase and itself when the process of the whole run (under
xdist the one that started the workers) has ended. In the directory that the processes share:

    lock        held while somebody starts it or looks whether it was started
    hbase/      the cluster's directory, with the endpoint's description
    started     exists when HBase has answered
    failed      why it did not start: said to everybody, tried once
    keeper.log  what the keeper printed
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from integration.cluster import Description, Endpoint, LocalEndpoint, Standalone, Unavailable
from integration.containers import ContainerEndpoint, Containers

BACKEND = "TMS_TEST_CLUSTER"
START_S = 600  # more than HBase and its gateway are given


def shared_hbase(directory: Path, run: int) -> Endpoint:
    """The HBase of the run whose process has this id; directory: shared by its processes."""
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


def _start_keeper(directory: Path, run: int) -> None:
    """Start it and wait until it says that HBase answers, or that it does not."""
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
    """Run HBase until a process has ended."""
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
