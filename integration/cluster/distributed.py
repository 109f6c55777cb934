"""HBase as several JVMs on this machine, each of which can be killed.

    with Distributed(directory, hdfs=True) as hbase:
        hbase.regions[0].kill()     # the other takes over its regions
        hbase.master.kill()
        hbase.start()               # starts the dead processes again

    namenode + datanode (only with hdfs) → zookeeper → master, region0, region1 → thrift

Invariants

* On files (`hdfs` False) a region server that was paused, replaced and resumed can still write to
  its log: nothing fences it, acknowledged rows can be lost. Tests that pause use HDFS.
* The death of a region server is noticed within `SESSION_MS`.
"""

from collections.abc import Mapping
from pathlib import Path

from integration.cluster.endpoint import START_S
from integration.cluster.hbase import MASTER, READY, HBase
from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, Unavailable
from integration.cluster.site import LOCAL, free_ports, listens, write_conf

SESSION_MS = 6000
REGION_SERVERS = 2
REGION_HEAP_MB = 512
SMALL_HEAP_MB = 256

_ZOOKEEPER = "org.apache.hadoop.hbase.zookeeper.HQuorumPeer"
_REGION = "org.apache.hadoop.hbase.regionserver.HRegionServer"
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
# Hadoop's web servers refuse to start without these folders, which its distribution has.
_WEBAPPS = ("hdfs", "datanode", "static", "secondary", "journal")

_SETTINGS = {
    "hbase.cluster.distributed": "true",
    "zookeeper.session.timeout": str(SESSION_MS),
    "hbase.zookeeper.property.tickTime": "1000",
    "hbase.zookeeper.property.maxSessionTimeout": str(SESSION_MS),
    "hbase.master.wait.on.regionservers.mintostart": str(REGION_SERVERS),
    "hbase.master.wait.on.regionservers.maxtostart": str(REGION_SERVERS),
}


class Distributed(HBase):
    """ZooKeeper, a master and two region servers; data in files, or in HDFS (two JVMs more)."""

    def __init__(
        self,
        directory: Path,
        hdfs: bool = False,
        settings: Mapping[str, str] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        self.namenode_port, self.webhdfs_port, *self._datanode_ports = free_ports(5)
        root = f"hdfs://{LOCAL}:{self.namenode_port}/hbase" if hdfs else f"file://{directory}/data"
        if hdfs:
            settings = {"hbase.unsafe.stream.capability.enforce": "true", **(settings or {})}
        super().__init__(directory, root, {**_SETTINGS, **(settings or {})}, runtime)
        self.zookeeper_server = self.java("zookeeper", _ZOOKEEPER, heap_mb=SMALL_HEAP_MB)
        self.master = self.java("master", MASTER, "start", heap_mb=REGION_HEAP_MB)
        self.regions = [
            self.java(
                f"region{number}",
                _REGION,
                "-D",
                f"hbase.regionserver.port={port}",
                "-D",  # a starting JVM deletes existing jars, also those of another JVM
                f"hbase.local.dir={directory}/local{number}",
                "start",
                heap_mb=REGION_HEAP_MB,
            )
            for number, port in enumerate(free_ports(REGION_SERVERS))
        ]
        self.hdfs = self._hdfs() if hdfs else []

    def servers(self) -> list[Process]:
        return [*self.hdfs, self.zookeeper_server, self.master, *self.regions]

    def start_servers(self) -> None:
        if self.hdfs:
            self._start_hdfs()
        if not self.zookeeper_server.running():
            self.zookeeper_server.start()
        port = int(self.zookeeper.rpartition(":")[2])
        self.zookeeper_server.wait_until(lambda: listens(port), START_S, f"it listens at {port}")
        for process in [self.master, *self.regions]:
            if not process.running():
                process.start()
        self._wait_for_master()
        for process in self.regions:
            process.wait_for_line("Serving as ", START_S)

    def _wait_for_master(self) -> None:
        """Wait until the master serves. HBase's master aborts if the node of the previously killed
        one, at the same port, expires between its look and its delete: this starts it again, as an
        operator of HBase does."""
        for last in (False, False, True):
            try:
                self.master.wait_for_line(READY, START_S)
                return
            except Unavailable:
                if last or self.master.running():
                    raise
                self.master.start()

    def _hdfs(self) -> list[Process]:
        conf = self.directory / "conf-hdfs"
        for name in _WEBAPPS:
            (conf / "webapps" / name).mkdir(parents=True, exist_ok=True)
        data, http, ipc = self._datanode_ports
        core = {"fs.defaultFS": f"hdfs://{LOCAL}:{self.namenode_port}"}
        hdfs = {
            "dfs.replication": "1",
            "dfs.namenode.name.dir": f"file://{self.directory}/namenode",
            "dfs.datanode.data.dir": f"file://{self.directory}/datanode",
            "dfs.namenode.http-address": f"{LOCAL}:{self.webhdfs_port}",
            "dfs.datanode.address": f"{LOCAL}:{data}",
            "dfs.datanode.http.address": f"{LOCAL}:{http}",
            "dfs.datanode.ipc.address": f"{LOCAL}:{ipc}",
            "dfs.datanode.hostname": LOCAL,
            "dfs.namenode.safemode.extension": "0",
        }
        write_conf(conf, {"core-site": core, "hdfs-site": hdfs})
        return [
            self.java("namenode", _NAMENODE, heap_mb=SMALL_HEAP_MB, conf=conf),
            self.java("datanode", _DATANODE, heap_mb=SMALL_HEAP_MB, conf=conf),
        ]

    def _start_hdfs(self) -> None:
        namenode, datanode = self.hdfs
        if not (self.directory / "namenode").exists():
            arguments = ("-format", "-force", "-nonInteractive")
            conf = self.directory / "conf-hdfs"
            formatting = self.java(
                "format", _NAMENODE, *arguments, heap_mb=SMALL_HEAP_MB, conf=conf
            )
            formatting.start()
            formatting.wait_until_done(START_S)
        for process in self.hdfs:
            if not process.running():
                process.start()
        port = self.namenode_port
        namenode.wait_until(lambda: listens(port), START_S, f"it listens at {port}")
        datanode.wait_for_line("Successfully sent block report", START_S)
