"""HBase on this machine: its processes, their order, and their deaths.

    with Standalone(directory) as hbase:
        hbase.url("ns")     # hbase://127.0.0.1:PORT/ns
        hbase.connect()     # a connection to its Thrift 2 gateway
        hbase.server.kill(); hbase.start()

`HBase` has the parts of all arrangements: a directory, a configuration, the gateway. `Standalone`
is ZooKeeper, master and region server in one JVM with its data in files; `distributed` has the
other arrangement.

Invariants

* Directory and ports stay: `start` after a kill brings the same data back at the same address.
* `start` returns when HBase answers through Thrift, and starts only processes that do not run.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from integration.cluster.endpoint import START_S, Description, LocalEndpoint
from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, resolve
from integration.cluster.site import GATEWAY, LOCAL, common, free_ports, write_conf

MASTER = "org.apache.hadoop.hbase.master.HMaster"
READY = "Master has completed initialization"
_THRIFT2 = "org.apache.hadoop.hbase.thrift2.ThriftServer"
_SETTINGS = {
    "hbase.cluster.distributed": "false",
    "hbase.master.wait.on.regionservers.maxtostart": "1",  # it does not wait for a second one
}


class HBase(LocalEndpoint):
    """A cluster in a directory; subclasses name its processes."""

    def __init__(
        self,
        directory: Path,
        root: str,
        settings: Mapping[str, str],
        runtime: Runtime | None = None,
        port: int | None = None,  # of the gateway; None: any free one
    ) -> None:
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        zookeeper, master, region, thrift = free_ports(4)
        thrift = port or thrift
        where = Description(thrift, f"{LOCAL}:{zookeeper}")
        super().__init__(directory, where, runtime or resolve())
        site = {**common(directory, root, zookeeper, master, region), **settings}
        write_conf(self.conf, {"hbase-site": site})
        write_conf(directory / "conf-gateway", {"hbase-site": {**site, **GATEWAY}})
        where.write(directory)
        self.thrift = self.gateway("thrift", _THRIFT2, thrift)

    # Methods of subclasses.

    def servers(self) -> list[Process]:
        """Every process except the gateway, in the order in which they start."""
        raise NotImplementedError

    def start_servers(self) -> None:
        """Start the servers that do not run, and wait until HBase is up."""
        raise NotImplementedError

    # Methods of all arrangements.

    def start(self) -> None:
        """Start the processes that do not run; returns when HBase answers."""
        try:
            self.start_servers()
            if not self.thrift.running():
                self.thrift.start()
            self.thrift.wait_until(self.answers, START_S, "HBase answers through it")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End everything in order, so that the next start has nothing to recover."""
        self.detach()
        for process in [self.thrift, *reversed(self.servers())]:
            process.stop()

    def kill(self) -> None:
        """Kill every process with SIGKILL."""
        self.detach()
        for process in [self.thrift, *reversed(self.servers())]:
            process.kill()

    def remove(self) -> None:
        """Kill HBase and delete its directory."""
        self.kill()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.kill()
        if error is not None:
            for process in [*self.servers(), self.thrift]:
                error.add_note(process.tail())


class Standalone(HBase):
    """ZooKeeper, master and region server in one JVM; data in files of `directory`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        runtime: Runtime | None = None,
        port: int | None = None,
    ) -> None:
        root = f"file://{directory.resolve()}/data"
        super().__init__(directory, root, {**_SETTINGS, **(settings or {})}, runtime, port)
        self.server = self.java("server", MASTER, "start")

    def servers(self) -> list[Process]:
        return [self.server]

    def start_servers(self) -> None:
        if not self.server.running():
            self.server.start()
        self.server.wait_for_line(READY, START_S)
