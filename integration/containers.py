"""HBase in containers, if a Docker engine answers: `TMS_TEST_CLUSTER=docker`.

    server (alias hbase) ← thrift, thrift1        one network; the gateways' ports on 127.0.0.1

`Containers` has the interface that tests use of `Standalone`: `server` and `thrift` to be killed,
paused and started, `start`, `kill`, connections, admin. The image is built from
`docker/hbase/Dockerfile` (the engine keeps its layers). Ports are chosen here, so they are the same
after a restart.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import thriftpy2
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.image import DockerImage
from testcontainers.core.network import Network

from integration.cluster import Description, Endpoint, Unavailable
from integration.cluster.endpoint import START_S
from integration.cluster.site import LOCAL, free_ports

ROOT = Path(__file__).resolve().parents[1]
DOCKER = "docker"  # the command line of the engine
IMAGE = "tms-hbase"
DOCKERFILE = "docker/hbase/Dockerfile"
RUN = "/opt/hbase/run.sh"
IDL = "/opt/hbase/hbase.thrift"
STOP_S = 10
POLL_S = 0.1
TAIL_LINES = 40
_GATEWAYS = {"thrift": 9090, "thrift1": 9091}  # the ports within the containers


class Child:
    """One container, with the methods of a process of this machine."""

    def __init__(self, name: str, network: Network, port: int = 0) -> None:
        self.name = name
        self._declared = DockerContainer(IMAGE, command=name, network=network)
        self._container: Any = None
        if port:
            ports: dict[str, Any] = self._declared.ports
            ports[f"{_GATEWAYS[name]}/tcp"] = (LOCAL, port)
        else:
            self._declared.with_network_aliases("hbase").with_kwargs(hostname="hbase")

    @property
    def id(self) -> str:
        return str(self._container.id)

    def running(self) -> bool:
        if self._container is None:
            return False
        self._container.reload()
        return self._container.status in ("running", "paused")

    def start(self) -> None:
        if self._container is None:
            self._container = self._declared.start().get_wrapped_container()
        else:
            self._container.start()

    def kill(self) -> None:
        if self.running():
            self._container.kill()
            self._container.wait(timeout=STOP_S)

    def pause(self) -> None:
        self._container.pause()

    def resume(self) -> None:
        self._container.unpause()

    def stop(self) -> None:
        if self.running():
            self._container.stop(timeout=STOP_S)

    def remove(self) -> None:
        """Remove the container and its data."""
        if self._container is not None:
            self._declared.stop()

    def copy(self, path: str, target: Path) -> None:
        """Copy a file of the container to this machine."""
        self._declared.copy_from_container(path, target)

    def wait_until(self, happens: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for an event while it runs; `Unavailable` if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while not happens():
            if not self.running():
                raise Unavailable(f"container {self.name} ended before {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name}: not within {seconds} s: {what}\n{self.tail()}")
            time.sleep(POLL_S)

    def tail(self) -> str:
        """The end of the container's log."""
        said = b"" if self._container is None else self._container.logs(tail=TAIL_LINES)
        return f"--- the end of the log of container {self.name}\n{said.decode(errors='replace')}"


class ContainerEndpoint(Endpoint):
    """An HBase in containers, reached from any process of this machine."""

    def __init__(self, directory: Path, where: Description) -> None:
        idl = directory / "hbase.thrift"
        types = thriftpy2.load(str(idl), module_name="tms_integration_hbase_thrift")
        super().__init__(directory, where, types)
        self._where = where

    def thrift1_port(self) -> int:
        return self._where.thrift1_port

    def admin_command(self) -> list[str]:
        return [DOCKER, "exec", "-i", self._where.containers[0], RUN, "admin"]

    def tails(self) -> str:
        return "\n".join(
            subprocess.run(
                [DOCKER, "logs", "--tail", str(TAIL_LINES), one],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=STOP_S,
            ).stdout
            for one in self._where.containers
        )


class Containers(ContainerEndpoint):
    """Server and gateways: made in a network of their own, and removed by `remove`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        thrift, thrift1 = free_ports(len(_GATEWAYS))
        try:
            DockerImage(ROOT, tag=IMAGE, clean_up=False, dockerfile_path=DOCKERFILE).build()
            self._network = Network().create()
            self.server = Child("server", self._network)
            self.server.start()
        except DockerException as error:
            raise Unavailable(
                f"TMS_TEST_CLUSTER=docker needs a Docker engine that can build {DOCKERFILE}: "
                f"{error}\nStart one, or unset TMS_TEST_CLUSTER: then HBase runs as processes"
            ) from error
        self.thrift = Child("thrift", self._network, thrift)
        self.thrift1 = Child("thrift1", self._network, thrift1)
        self.server.copy(IDL, directory / "hbase.thrift")
        for gateway in (self.thrift, self.thrift1):
            gateway.start()
        ids = tuple(child.id for child in self.children())
        where = Description(thrift, thrift1_port=thrift1, containers=ids)
        where.write(directory)
        super().__init__(directory, where)

    def children(self) -> list[Child]:
        return [self.server, self.thrift, self.thrift1]

    def start(self) -> None:
        """Start the containers that do not run; returns when HBase answers."""
        for child in self.children():
            if not child.running():
                child.start()
        try:
            self.thrift.wait_until(self.answers, START_S, "HBase answers through it")
        except Unavailable as error:
            error.add_note(self.server.tail())
            raise

    def stop(self) -> None:
        """End everything in order; the data stays."""
        self.detach()
        for child in reversed(self.children()):
            child.stop()

    def kill(self) -> None:
        """Kill all containers; the data stays."""
        self.detach()
        for child in reversed(self.children()):
            child.kill()

    def remove(self) -> None:
        """Remove all containers with their data."""
        self.detach()
        for child in reversed(self.children()):
            child.remove()
        self._network.remove()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            for child in self.children():
                error.add_note(child.tail())
        self.remove()
