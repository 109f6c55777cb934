"""`tms serve` as instances of a cluster: processes over one HBase and one ZooKeeper."""

import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import tms
from integration.cluster.zookeeper import ZooKeeper
from integration.links import Link
from tests.faults.clients import free_port
from tests.faults.service import Service, within

SESSION_S = 1.0
CALL_S = 5  # of HBase for a call
PARTITIONS = 8
MEET_S = 90.0  # in which instances must see each other; a quiet machine needs one or two


class Links:
    """The links between an instance and its peers and servers, each of which can be cut."""

    def __init__(self, store: str, zookeeper: str, port: int) -> None:
        parts = urlsplit(store)
        assert parts.port is not None
        self.thrift = Link(parts.port)
        self.zookeeper = Link(int(zookeeper.rpartition(":")[2]))
        self.front = Link(port)  # other instances send requests here
        self.all = (self.thrift, self.zookeeper, self.front)
        self.store = f"hbase://127.0.0.1:{self.thrift.port}{parts.path}"
        self.advertised = f"http://127.0.0.1:{self.front.port}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for link in self.all:
            self._stack.enter_context(link)
        return self

    def __exit__(self, *ended: object) -> None:
        self._stack.close()


class Instances:
    """Instances of these names, each at a port of its own; with `cut` through links of its own,
    with `kafka` at another port for Kafka's clients."""

    def __init__(
        self,
        store: str,
        zookeeper: ZooKeeper,
        names: str = "abc",
        cut: bool = False,
        kafka: bool = False,
    ) -> None:
        self._store = store
        self.folder = Path(store).name
        self.zookeeper = f"zookeeper://{zookeeper.address}/{self.folder}"
        self.ports = {name: free_port() for name in names}
        self.kafka_ports = {name: free_port() for name in names if kafka}
        self._stack = ExitStack()
        self.links: dict[str, Links] = {}
        for name in names if cut else "":
            links = Links(store, zookeeper.address, self.ports[name])
            self.links[name] = self._stack.enter_context(links)
        self.running = {name: self._serve(name) for name in names}
        self.wait()

    def wait(self) -> None:
        """Wait until all instances see each other, and one of them coordinates."""
        within(MEET_S, self.meet)
        with self.connect() as bus:
            bus.create_topic("warm", partitions=PARTITIONS)

    def meet(self) -> bool:
        """True if all instances run, see each other and are ready."""
        with contextlib.suppress(OSError, urllib.error.URLError):
            names = sorted(self.ports)
            return all(
                name in self.running
                and sorted(self.members(name)) == names
                and self.running[name].ready()
                for name in names
            )
        return False

    @property
    def kafka_servers(self) -> str:
        """The brokers as Kafka's clients take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.kafka_ports.values())

    @property
    def urls(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports.values())

    def connect(self, name: str = "", timeout_s: float = 30.0) -> tms.Bus:
        url = self.running[name].url if name else self.urls
        return tms.connect(url, timeout_s=timeout_s)

    def ask(self, path: str, name: str = "", method: str = "GET", body: Any = None) -> Any:
        """The answer of one of the instances."""
        at = next(iter(self.running.values())) if not name else self.running[name]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{at.url}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    def view(self, name: str = "") -> Any:
        """The cluster, as one of the instances sees it."""
        return self.ask("/v2/cluster", name)

    def owners(self, topic: str, name: str = "") -> list[str]:
        """The designated owners of the partitions of a topic, as one of the instances sees them."""
        path = f"/v2/namespaces/default/topics/{topic}/owners"
        owners: list[str] = self.ask(path, name)["owners"]
        return owners

    def move(self, topic: str, partition: int, to: str) -> None:
        """Let an instance own a partition."""
        path = f"/v2/namespaces/default/topics/{topic}/owners/{partition}"
        self.ask(path, method="PUT", body={"to": to})

    def start(self, name: str) -> None:
        self.running[name] = self._serve(name)

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def wait_until_gone(self, name: str) -> None:
        """Wait until the others that run see that this instance is no member any more."""
        others = [other for other in self.running if other != name]
        within(MEET_S, lambda: all(name not in self.members(other) for other in others))

    def members(self, name: str) -> list[str]:
        """The ids of the instances that one of them sees."""
        return [instance["id"] for instance in self.view(name)["instances"]]

    def pause(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGCONT)

    def close(self) -> None:
        """End all instances."""
        for service in self.running.values():
            service.kill()
        self.print_logs()
        self._stack.close()

    def print_logs(self) -> None:
        """Print the last lines of the instances' logs; pytest shows them if the test failed."""
        for name, service in self.running.items():
            print(name, *service.lines[-60:], sep="\n")

    def _serve(self, name: str) -> Service:
        store, zookeeper = self._store, self.zookeeper
        flags = ["--port", str(self.ports[name]), "--instance", name]
        flags += ["--session-s", str(SESSION_S), "--call-timeout-s", str(CALL_S)]
        if name in self.kafka_ports:
            flags += ["--kafka-port", str(self.kafka_ports[name])]
        if name in self.links:
            links = self.links[name]
            store, flags = links.store, [*flags, "--advertise", links.advertised]
            zookeeper = f"zookeeper://127.0.0.1:{links.zookeeper.port}/{self.folder}"
        return Service(store, *flags, "--cluster", zookeeper)


class Standing:
    """Three instances that one test after another uses, with topics of its own: starting three
    takes seconds. If a test has left them in another state, the next test gets new ones."""

    def __init__(self, store: str, zookeeper: ZooKeeper) -> None:
        self._store = store
        self._zookeeper = zookeeper
        self._instances: Instances | None = None

    def take(self) -> Instances:
        """The instances: all of them run, see each other and are ready."""
        if self._instances is not None and not self._instances.meet():
            self.close()
        if self._instances is None:
            self._instances = Instances(self._store, self._zookeeper)
        return self._instances

    def close(self) -> None:
        """End the instances."""
        if self._instances is not None:
            self._instances.close()
            self._instances = None
