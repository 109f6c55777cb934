"""Where an HBase answers: what a test needs of one, whoever started it.

`HBase` starts and kills; an `Endpoint` reaches one that runs, also from another process:

    Endpoint.attach(directory).url("ns")      # hbase://127.0.0.1:PORT/ns

A running cluster describes itself in `endpoint.json` of its directory: {"port": …, "zookeeper": …}.
"""

import contextlib
import os
from pathlib import Path
from typing import Any, Self

import msgspec
from thriftpy2.thrift import TException

from integration.cluster.admin import Admin
from integration.cluster.gateway import Gateway, load_types
from integration.cluster.process import Process
from integration.cluster.runtime import Runtime, resolve
from integration.cluster.site import LOCAL, free_ports, listens

START_S = 240  # on a loaded machine; quiet ones need 15
ANSWER_S = 5
SERVER_HEAP_MB = 768
GATEWAY_HEAP_MB = 256
DESCRIPTION = "endpoint.json"

_THRIFT1 = "org.apache.hadoop.hbase.thrift.ThriftServer"


class Description(msgspec.Struct):
    """What another process must know to reach a cluster."""

    port: int
    zookeeper: str


class Endpoint:
    """An HBase with a Thrift 2 gateway, and the directory of its configuration and logs."""

    def __init__(self, directory: Path, runtime: Runtime, where: Description) -> None:
        self.directory = directory
        self.runtime = runtime
        self.port = where.port
        self.zookeeper = where.zookeeper  # as Java clients name it
        self.conf = directory / "conf"
        self.types: Any = load_types(runtime)
        self._thrift1: Process | None = None
        self._thrift1_port = 0
        self._admin: Admin | None = None

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """One that somebody else started in this directory."""
        where = msgspec.json.decode((directory / DESCRIPTION).read_bytes(), type=Description)
        return cls(directory, resolve(), where)

    def url(self, namespace: str = "") -> str:
        """The store's URL for TMS."""
        return f"hbase://{LOCAL}:{self.port}{f'/{namespace}' if namespace else ''}"

    def connect(self, timeout_s: float | None = None) -> Gateway:
        """A connection to the Thrift 2 gateway."""
        return Gateway(LOCAL, self.port, self.types, timeout_s)

    def answers(self) -> bool:
        """Does HBase answer through Thrift 2 now?"""
        with (
            contextlib.suppress(OSError, EOFError, TException),
            self.connect(ANSWER_S) as gateway,
        ):
            return "default" in gateway.namespaces()
        return False

    def thrift1_port(self, seconds: float = START_S) -> int:
        """The port of a Thrift 1 gateway (for happybase), which is started when it is wanted."""
        if self._thrift1 is None:
            (self._thrift1_port,) = free_ports(1)
            self._thrift1 = self.gateway("thrift1", _THRIFT1, self._thrift1_port)
        if not self._thrift1.running():
            self._thrift1.start()
        self._thrift1.wait_until(
            lambda: listens(self._thrift1_port), seconds, f"it listens at {self._thrift1_port}"
        )
        return self._thrift1_port

    def admin(self) -> Admin:
        """What Thrift cannot do: flush, compact, split, merge, move; started when it is wanted."""
        if self._admin is None or not self._admin.running():
            self._admin = Admin(
                self.runtime.command(str(Admin.SOURCE), conf=self.conf, heap_mb=GATEWAY_HEAP_MB),
                self.directory / f"admin-{os.getpid()}.log",
            )
        return self._admin

    def detach(self) -> None:
        """End what was started for this process: Thrift 1 gateway and admin."""
        if self._thrift1 is not None:
            self._thrift1.kill()
        if self._admin is not None:
            self._admin.close()

    def java(
        self,
        name: str,
        main: str,
        *arguments: str,
        heap_mb: int = SERVER_HEAP_MB,
        conf: Path | None = None,
    ) -> Process:
        """A process that runs a Java class with the cluster's configuration; not started."""
        command = self.runtime.command(main, *arguments, conf=conf or self.conf, heap_mb=heap_mb)
        return Process(name, command, self.directory / f"{name}-{os.getpid()}.log")

    def gateway(self, name: str, main: str, port: int) -> Process:
        """A Thrift gateway; not started."""
        arguments = ("start", "-b", LOCAL, "-p", str(port), "--infoport", "-1")
        conf = self.directory / "conf-gateway"
        return self.java(name, main, *arguments, heap_mb=GATEWAY_HEAP_MB, conf=conf)
