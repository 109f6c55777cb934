"""Real HBase on this machine, for tests and for trying TMS: `python -m integration.cluster`.

Knows nothing of TMS. `runtime` finds Java and the jars, `site` writes configurations, `process` is
one child, `hbase` and `distributed` are the arrangements, `gateway` is a small Thrift 2 client.
"""

from integration.cluster.gateway import Gateway
from integration.cluster.hbase import HBase, Standalone
from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, Unavailable, resolve

__all__ = ["Gateway", "HBase", "Process", "Runtime", "Standalone", "Unavailable", "resolve"]
