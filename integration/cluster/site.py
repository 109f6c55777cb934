"""Configuration files and free ports of a cluster on this machine.

Invariants

* Every server listens on 127.0.0.1 only, at a port that is chosen here, once: the same after a
  restart. Ports lie below those that the system gives to outgoing connections, so that none is
  taken between the choice and its use, nor while its server is down.
* A client of HBase within a gateway gives up long before clients of the gateway do.
"""

import contextlib
import random
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

LOCAL = "127.0.0.1"
_PORT_MIN = 10_000
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200

SERVER_HANDLERS = "10"

# HBase's defaults suit a large cluster: each start waits seconds for servers that do not exist, and
# each region that opens or closes waits 150 ms for others to share its request.
SOON = {
    "hbase.regionserver.msginterval": "250",  # a server gets its first region after its report
    "hbase.master.wait.on.regionservers.interval": "100",
    "hbase.procedure.remote.dispatcher.delay.msec": "0",
    "hbase.client.pause": "20",
    "hbase.client.retries.number": "30",  # the time-out of an operation ends it, not their number
}

# Waits of a gateway's own client. The defaults, 60 s and 20 min, let one hung server of hbase:meta
# hold every connection.
GATEWAY = {
    "hbase.rpc.timeout": "10000",
    "hbase.client.operation.timeout": "30000",
    "hbase.client.meta.operation.timeout": "30000",
}

_LOG4J = Path(__file__).resolve().parents[1] / "runtime" / "log4j.properties"


def ports_in_a_row(count: int) -> int:
    """The first of so many ports that follow each other, at which no process listens."""
    for first in (port for _ in range(_TRIES) for port in free_ports(1)):
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.create_server((LOCAL, port)))
            except OSError:
                continue
        return first
    raise OSError(f"no {count} free ports follow each other")


def free_ports(count: int) -> list[int]:
    """Ports at which no process listens."""
    limit = int(_PORT_RANGE.read_text().split()[0]) if _PORT_RANGE.exists() else 32_768
    ports: list[int] = []
    for port in random.sample(range(_PORT_MIN, max(limit, _PORT_MIN + _TRIES)), _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind((LOCAL, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no {count} free ports between {_PORT_MIN} and {limit} in {_TRIES} tries")


def listens(port: int) -> bool:
    """True if a process accepts connections at this port."""
    with socket.socket() as probe:
        return probe.connect_ex((LOCAL, port)) == 0


def common(directory: Path, root: str, zookeeper: int, master: int, region: int) -> dict[str, str]:
    """The properties that every hbase-site.xml of a cluster has; `root` is the URL of its data."""
    return {
        "hbase.rootdir": root,
        "hbase.tmp.dir": f"{directory}/tmp",
        "hbase.unsafe.stream.capability.enforce": "false",
        "hbase.wal.provider": "filesystem",
        "hbase.zookeeper.quorum": LOCAL,
        "hbase.zookeeper.property.clientPort": str(zookeeper),
        "hbase.zookeeper.property.clientPortAddress": LOCAL,
        "hbase.zookeeper.property.dataDir": f"{directory}/zookeeper",
        "hbase.master.hostname": "localhost",
        "hbase.regionserver.hostname": "localhost",
        "hbase.unsafe.regionserver.hostname": "localhost",
        "hbase.master.ipc.address": LOCAL,
        "hbase.regionserver.ipc.address": LOCAL,
        "hbase.master.port": str(master),
        "hbase.regionserver.port": str(region),
        "hbase.master.info.port": "-1",
        "hbase.regionserver.info.port": "-1",
        # Files that a compaction has replaced go soon, so that their regions can merge.
        "hbase.hfile.compaction.discharger.interval": "1000",
        "hbase.regionserver.handler.count": SERVER_HANDLERS,
        "hbase.master.handler.count": SERVER_HANDLERS,
        **SOON,
    }


def write_conf(conf: Path, sites: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a folder with a file of properties for each name of `sites`, and the configuration of
    logging."""
    conf.mkdir(parents=True, exist_ok=True)
    for name, properties in sites.items():
        lines = [
            f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
            for key, value in properties.items()
        ]
        text = "\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>"])
        (conf / f"{name}.xml").write_text(text + "\n")
    shutil.copy(_LOG4J, conf)
    return conf
