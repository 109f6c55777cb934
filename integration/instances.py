"""`tms serve` as instances of a cluster: processes over one HBase and one ZooKeeper."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import tms
from integration.cluster.zookeeper import ZooKeeper
from tests.faults.clients import free_port
from tests.faults.service import Service, within

SESSION_S = 1.0
PARTITIONS = 8


class Instances:
    """Instances of these names, each at a port of its own."""

    def __init__(self, store: str, zookeeper: ZooKeeper, names: str = "abc") -> None:
        self._store = store
        self.zookeeper = f"zookeeper://{zookeeper.address}/{Path(store).name}"
        self.ports = {name: free_port() for name in names}
        self.running = {name: self._serve(name) for name in names}
        self.wait()

    def wait(self) -> None:
        """Until all see each other, and one of them coordinates."""
        count = len(self.running)
        within(30, lambda: all(len(self.view(n)["instances"]) == count for n in self.running))
        with self.connect() as bus:
            bus.create_topic("warm", partitions=PARTITIONS)

    @property
    def urls(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports.values())

    def connect(self, name: str = "", timeout_s: float = 30.0) -> tms.Bus:
        url = self.running[name].url if name else self.urls
        return tms.connect(url, timeout_s=timeout_s)

    def ask(self, path: str, name: str = "", method: str = "GET", body: Any = None) -> Any:
        """What one of them answers."""
        at = next(iter(self.running.values())) if not name else self.running[name]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{at.url}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    def view(self, name: str = "") -> Any:
        """The cluster as one of them sees it."""
        return self.ask("/v2/cluster", name)

    def owners(self, topic: str) -> list[str]:
        """Who should own the partitions of a topic."""
        owners: list[str] = self.ask(f"/v2/namespaces/default/topics/{topic}/owners")["owners"]
        return owners

    def move(self, topic: str, partition: int, to: str) -> None:
        """Let an instance own a partition."""
        path = f"/v2/namespaces/default/topics/{topic}/owners/{partition}"
        self.ask(path, method="PUT", body={"to": to})

    def start(self, name: str) -> None:
        self.running[name] = self._serve(name)

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def pause(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGCONT)

    def close(self) -> None:
        for service in self.running.values():
            service.kill()

    def _serve(self, name: str) -> Service:
        flags = ["--cluster", self.zookeeper, "--instance", name, "--session-s", str(SESSION_S)]
        return Service(self._store, "--port", str(self.ports[name]), *flags)
