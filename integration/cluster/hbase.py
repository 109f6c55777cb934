"""HBase on this machine: its processes, their order, and who is killed.

    with Standalone(directory) as hbase:
        hbase.url("ns")     # hbase://127.0.0.1:PORT/ns
        hbase.connect()     # a connection to its Thrift 2 gateway
        hbase.server.kill(); hbase.start()

`HBase` is what all arrangements share: a directory, a configuration, the gateways. `Standalone` is
ZooKeeper, master and region server in one JVM with its data in files; `distributed` has the rest.

Invariants

* Directory and ports stay: `start` after a kill brings the same data back at the same address.
* `start` returns when HBase answers through Thrift, and starts only what does not run.
"""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from thriftpy2.thrift import TException

from integration.cluster.gateway import Gateway, load_types
from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, resolve
from integration.cluster.site import GATEWAY, LOCAL, common, free_ports, listens, write_conf

START_S = 240  # on a loaded machine; quiet ones need 15
ANSWER_S = 5
SERVER_HEAP_MB = 768
GATEWAY_HEAP_MB = 256

_MASTER = "org.apache.hadoop.hbase.master.HMaster"
_THRIFT2 = "org.apache.hadoop.hbase.thrift2.ThriftServer"
_THRIFT1 = "org.apache.hadoop.hbase.thrift.ThriftServer"
READY = "Master has completed initialization"


class HBase:
    """A cluster in a directory; subclasses say which processes it consists of."""

    def __init__(
        self,
        directory: Path,
        root: str,
        settings: Mapping[str, str],
        runtime: Runtime | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.runtime = runtime or resolve()
        ports = free_ports(5)
        self.zookeeper_port, self.master_port, self.region_port, thrift2, thrift1 = ports
        self.site = {
            **common(self.directory, root, *ports[:3]),
            **settings,
        }
        conf = write_conf(self.directory / "conf", {"hbase-site": self.site})
        gateway = write_conf(
            self.directory / "conf-gateway", {"hbase-site": {**self.site, **GATEWAY}}
        )
        self.conf = conf
        self.thrift = self._gateway("thrift", _THRIFT2, thrift2, gateway)
        self.thrift1 = self._gateway("thrift1", _THRIFT1, thrift1, gateway)
        self.port = thrift2
        self.thrift1_port = thrift1
        self.types: Any = load_types(self.runtime, self.directory)

    # What subclasses say.

    def servers(self) -> list[Process]:
        """Every process but the gateways, in the order in which they start."""
        raise NotImplementedError

    def start_servers(self) -> None:
        """Start those that do not run, and wait until HBase is up."""
        raise NotImplementedError

    # What all of them do.

    @property
    def zookeeper(self) -> str:
        """Its ZooKeeper, as Java clients name it."""
        return f"{LOCAL}:{self.zookeeper_port}"

    def url(self, namespace: str = "") -> str:
        """The store's URL for TMS."""
        return f"hbase://{LOCAL}:{self.port}{f'/{namespace}' if namespace else ''}"

    def connect(self) -> Gateway:
        """A connection to the Thrift 2 gateway."""
        return Gateway(LOCAL, self.port, self.types)

    def start(self, seconds: float = START_S) -> None:
        """Start what does not run; returns when HBase answers."""
        try:
            self.start_servers()
            self.start_gateway(seconds)
        except BaseException:
            self.kill()
            raise

    def start_gateway(self, seconds: float = START_S) -> None:
        """Start the Thrift 2 gateway if it does not run, and wait for an answer through it."""
        if not self.thrift.running():
            self.thrift.start()
        self.thrift.wait_until(self.answers, seconds, "HBase answers through it")

    def start_thrift1(self, seconds: float = START_S) -> int:
        """Start the Thrift 1 gateway (for happybase) too; its port."""
        if not self.thrift1.running():
            self.thrift1.start()
        self.thrift1.wait_until(
            lambda: listens(self.thrift1_port), seconds, f"it listens at {self.thrift1_port}"
        )
        return self.thrift1_port

    def answers(self) -> bool:
        """Does HBase answer through Thrift 2 now?"""
        with (
            contextlib.suppress(OSError, EOFError, TException),
            Gateway(LOCAL, self.port, self.types, ANSWER_S) as gateway,
        ):
            return "default" in gateway.namespaces()
        return False

    def stop(self) -> None:
        """End everything in order: nothing has to be recovered at the next start."""
        for process in [self.thrift1, self.thrift, *reversed(self.servers())]:
            process.stop()

    def kill(self) -> None:
        """kill -9 of every process."""
        for process in [self.thrift1, self.thrift, *reversed(self.servers())]:
            process.kill()

    def remove(self) -> None:
        """Kill it and delete its directory."""
        self.kill()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        if error is not None:
            for process in [*self.servers(), self.thrift]:
                error.add_note(process.tail())

    def java(
        self,
        name: str,
        main: str,
        *arguments: str,
        heap_mb: int = SERVER_HEAP_MB,
        conf: Path | None = None,
    ) -> Process:
        """A process of this cluster that runs a Java class; not started."""
        command = self.runtime.command(main, *arguments, conf=conf or self.conf, heap_mb=heap_mb)
        return Process(name, command, self.directory / f"{name}.log")

    def _gateway(self, name: str, main: str, port: int, conf: Path) -> Process:
        arguments = ("start", "-b", LOCAL, "-p", str(port), "--infoport", "-1")
        return self.java(name, main, *arguments, heap_mb=GATEWAY_HEAP_MB, conf=conf)


class Standalone(HBase):
    """ZooKeeper, master and region server in one JVM; data in files of `directory`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        settings = {"hbase.cluster.distributed": "false", **(settings or {})}
        super().__init__(directory, f"file://{directory.resolve()}/data", settings, runtime)
        self.server = self.java("server", _MASTER, "start")

    def servers(self) -> list[Process]:
        return [self.server]

    def start_servers(self) -> None:
        if not self.server.running():
            self.server.start()
        self.server.wait_for_line(READY, START_S)
