"""A single ZooKeeper server, for tests that need no HBase."""

from pathlib import Path
from typing import Self

from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, resolve
from integration.cluster.site import LOCAL, free_ports, listens

_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_START_S = 60
_HEAP_MB = 64
TICK_MS = 200  # sessions may be as short as two ticks, and are at most twenty


class ZooKeeper:
    """A server with its data in `directory`; `address` stays the same over restarts."""

    def __init__(self, directory: Path, runtime: Runtime | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        (self._port,) = free_ports(1)
        self.address = f"{LOCAL}:{self._port}"
        conf = directory / "zoo.cfg"
        conf.write_text(
            f"tickTime={TICK_MS}\ndataDir={directory}/data\nclientPort={self._port}\n"
            f"clientPortAddress={LOCAL}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        command = (runtime or resolve()).command(_MAIN, str(conf), conf=directory, heap_mb=_HEAP_MB)
        self.process = Process("zookeeper", command, directory / "zookeeper.log")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.process.start()
        self.process.wait_until(
            lambda: listens(self._port), _START_S, f"it listens at {self._port}"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
