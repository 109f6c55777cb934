"""The service of a round: one process, one with workers, or instances over one HBase.

Each instance reaches HBase, ZooKeeper and the others through links of its own, which faults cut.
The clock of the last one differs as the plan says.
"""

import os
import resource
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from integration.instances import Links
from integration.soak.ledger import Ledger
from integration.soak.plan import Fault, Plan
from tests.faults.clients import free_port
from tests.faults.faketime import WallClock
from tests.faults.service import Service, within

START_S = 180  # for a busy machine
ALONE = ("",)
SESSION_S, CALL_S = 1, 5  # of instances


class Serving:
    """`tms serve` on a store, at ports that stay. `zookeeper` is an address, for instances."""

    def __init__(self, store: Path | str, plan: Plan, ledger: Ledger, zookeeper: str) -> None:
        self._store, self._plan, self._ledger = store, plan, ledger
        self._names = tuple("abcdefgh"[: plan.instances]) or ALONE
        self._ports = {name: free_port() for name in self._names}
        self._running: dict[str, Service] = {}
        self._links: dict[str, Links] = {}
        self._stack = ExitStack()
        if plan.instances:
            for name, port in self._ports.items():
                links = Links(str(store), zookeeper, port)
                self._links[name] = self._stack.enter_context(links)

    @property
    def urls(self) -> list[str]:
        """The URLs of all its instances."""
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    def start(self) -> None:
        """Start all processes, and wait until they answer."""
        for name in self._names:
            self._start(name)

    def stop(self) -> None:
        """Stop all processes as an operator does; an exit code other than 0 is noted as wrong."""
        for name in list(self._running):
            self._stop(name)

    def inflict(self, fault: Fault) -> None:
        """Kill, restart or pause a process, or cut it off from HBase."""
        name = self._names[int(fault.of * len(self._names))]
        match fault.what:
            case "kill":
                self._kill(name, fault)
            case "stop":
                self._stop(name)
                self._start(name)
            case "pause":
                os.kill(self._running[name].pid, signal.SIGSTOP)
                time.sleep(fault.seconds)
                os.kill(self._running[name].pid, signal.SIGCONT)
            case "part" if name in self._links:
                self._links[name].thrift.cut()
                time.sleep(fault.seconds)
                self._links[name].thrift.heal()

    def close(self) -> None:
        """End the processes that still run."""
        for service in self._running.values():
            service.kill()
        self._stack.close()

    def _kill(self, name: str, fault: Fault) -> None:
        """Kill one of the workers, which its supervisor replaces, or a process that is started
        again."""
        workers = _children(self._running[name].pid) if self._plan.workers else []
        if workers and fault.seconds < 2:
            os.kill(workers[int(fault.of * len(workers))], signal.SIGKILL)
            return
        self._running.pop(name).kill()
        time.sleep(fault.seconds)
        self._start(name)

    def _stop(self, name: str) -> None:
        service = self._running.pop(name)
        code = service.stop()
        if code != 0:
            self._ledger.wrong(f"the service {name} ended with {code}: {service.lines[-5:]}")

    def _start(self, name: str) -> None:
        began = time.monotonic()
        store, flags = self._store, ["--port", str(self._ports[name]), *self._plan.flags]
        if self._plan.workers:
            flags += ["--workers", str(self._plan.workers)]
        if name:
            links = self._links[name]
            store, folder = links.store, Path(str(store)).name
            zookeeper = f"zookeeper://127.0.0.1:{links.zookeeper.port}/{folder}"
            flags += ["--instance", name, "--cluster", zookeeper, "--advertise", links.advertised]
            flags += ["--session-s", str(SESSION_S), "--call-timeout-s", str(CALL_S)]
        self._running[name] = service = Service(
            store, *flags, env=self._env(name), before_exec=self._limit, wait=False
        )
        within(START_S, lambda: bool(service.url) or not service.running())
        if not service.url:
            raise AssertionError(f"the service did not start: {service.lines}")
        self._ledger.note("started", service=name, seconds=time.monotonic() - began)

    def _env(self, name: str) -> dict[str, str]:
        if not self._plan.skew_s or name != self._names[-1]:
            return {}
        clock = WallClock(self._ledger.directory / "clock")
        clock.set(self._plan.skew_s)
        return clock.env

    def _limit(self) -> None:
        if most := self._plan.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
