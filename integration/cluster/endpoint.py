"""The address of an HBase, and the tools to reach it, for tests, whichever process started it.

`HBase` starts and kills; an `Endpoint` reaches a running one, also from another process:

    LocalEndpoint.attach(directory).url("ns")      # hbase://127.0.0.1:PORT/ns

A running HBase describes itself in `endpoint.json` of its directory (`Description`).
"""

import contextlib
import os
from pathlib import Path
from typing import Any, Self

import msgspec
from thriftpy2.thrift import TException

from integration.cluster.admin import Admin
from integration.cluster.gateway import Gateway, load_types
from integration.cluster.process import Process, tail_of
from integration.cluster.runtime import Runtime, resolve
from integration.cluster.site import LOCAL, free_ports, listens

START_S = 240  # on a loaded machine; quiet ones need 15
ANSWER_S = 15
SERVER_HEAP_MB = 768
GATEWAY_HEAP_MB = 256

_THRIFT1 = "org.apache.hadoop.hbase.thrift.ThriftServer"


class Description(msgspec.Struct, frozen=True):
    """The facts by which another process can reach an HBase."""

    port: int  # of the Thrift 2 gateway
    zookeeper: str = ""  # as Java clients name it; empty: not reachable
    thrift1_port: int = 0  # 0: none yet
    containers: tuple[str, ...] = ()  # ids, the server's first, if it runs in containers

    FILE = "endpoint.json"

    def write(self, directory: Path) -> None:
        (directory / self.FILE).write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, directory: Path) -> Self:
        return msgspec.json.decode((directory / cls.FILE).read_bytes(), type=cls)


class Endpoint:
    """An HBase with a Thrift 2 gateway, and a directory for the logs about it."""

    def __init__(self, directory: Path, where: Description, types: Any) -> None:
        self.directory = directory
        self.port = where.port
        self.zookeeper = where.zookeeper
        self.types = types
        self._admin: Admin | None = None

    # Methods that depend on the arrangement.

    def thrift1_port(self) -> int:
        """The port of a Thrift 1 gateway (for happybase), which the first call starts."""
        raise NotImplementedError

    def admin_command(self) -> list[str]:
        """The command that runs Admin.java beside HBase."""
        raise NotImplementedError

    # Methods that do not.

    def url(self, namespace: str = "") -> str:
        """The store's URL for TMS."""
        return f"hbase://{LOCAL}:{self.port}{f'/{namespace}' if namespace else ''}"

    def connect(self, timeout_s: float | None = None) -> Gateway:
        """A connection to the Thrift 2 gateway."""
        return Gateway(LOCAL, self.port, self.types, timeout_s)

    def answers(self) -> bool:
        """True if HBase answers through Thrift 2 now."""
        with (
            contextlib.suppress(OSError, EOFError, TException),
            self.connect(ANSWER_S) as gateway,
        ):
            return "default" in gateway.namespaces()
        return False

    def admin(self) -> Admin:
        """The commands that Thrift does not have: flush, compact, split, merge, move; the first
        call starts it."""
        if self._admin is None or not self._admin.running():
            self._admin = Admin(self.admin_command(), self.directory / f"admin-{os.getpid()}.log")
        return self._admin

    def tails(self) -> str:
        """The ends of the logs in its directory."""
        return "\n".join(tail_of(log) for log in sorted(self.directory.glob("*.log")))

    def detach(self) -> None:
        """End the processes that were started for this process only."""
        if self._admin is not None:
            self._admin.close()


class LocalEndpoint(Endpoint):
    """An HBase whose servers are processes of this machine."""

    def __init__(self, directory: Path, where: Description, runtime: Runtime) -> None:
        super().__init__(directory, where, load_types(runtime))
        self.runtime = runtime
        self.conf = directory / "conf"
        self._thrift1: Process | None = None
        self._thrift1_port = 0

    @classmethod
    def attach(cls, directory: Path) -> "LocalEndpoint":
        """The HBase that another process started in this directory."""
        return LocalEndpoint(directory, Description.read(directory), resolve())

    def thrift1_port(self) -> int:
        if self._thrift1 is None:
            (self._thrift1_port,) = free_ports(1)
            self._thrift1 = self.gateway("thrift1", _THRIFT1, self._thrift1_port)
        if not self._thrift1.running():
            self._thrift1.start()
        port = self._thrift1_port
        self._thrift1.wait_until(lambda: listens(port), START_S, f"it listens at {port}")
        return port

    def admin_command(self) -> list[str]:
        classes = self.runtime.compiled(Admin.SOURCE)
        return self.runtime.command(
            "Admin", conf=self.conf, heap_mb=GATEWAY_HEAP_MB, classes=classes
        )

    def detach(self) -> None:
        super().detach()
        if self._thrift1 is not None:
            self._thrift1.kill()

    def java(
        self,
        name: str,
        main: str,
        *arguments: str,
        heap_mb: int = SERVER_HEAP_MB,
        conf: Path | None = None,
    ) -> Process:
        """A process that runs a Java class with the cluster's configuration; not yet started."""
        command = self.runtime.command(main, *arguments, conf=conf or self.conf, heap_mb=heap_mb)
        return Process(name, command, self.directory / f"{name}-{os.getpid()}.log")

    def gateway(self, name: str, main: str, port: int) -> Process:
        """A Thrift gateway; not yet started."""
        arguments = ("start", "-b", LOCAL, "-p", str(port), "--infoport", "-1")
        conf = self.directory / "conf-gateway"
        return self.java(name, main, *arguments, heap_mb=GATEWAY_HEAP_MB, conf=conf)
