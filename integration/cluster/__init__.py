"""Real HBase on this machine, for tests and for trying TMS: `python -m integration.cluster`.

This package knows nothing of TMS. `runtime` finds Java and the jars, `site` writes configurations,
`process` is one child; `gateway` (Thrift 2) and `admin` (Java) talk to HBase; `endpoint` is a
running HBase, `hbase` and `distributed` are the arrangements that can be started, `zookeeper` is a
server alone.
"""

from integration.cluster.distributed import Distributed
from integration.cluster.endpoint import Description, Endpoint, LocalEndpoint
from integration.cluster.gateway import Gateway
from integration.cluster.hbase import HBase, Standalone
from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, Unavailable, resolve
from integration.cluster.zookeeper import ZooKeeper

__all__ = [
    "Description",
    "Distributed",
    "Endpoint",
    "Gateway",
    "HBase",
    "LocalEndpoint",
    "Process",
    "Runtime",
    "Standalone",
    "Unavailable",
    "ZooKeeper",
    "resolve",
]
