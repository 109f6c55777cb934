"""`tms serve` with a port for Kafka's clients, that tests kill and start again.

    with KafkaService(directory) as service:
        service.servers     # 127.0.0.1:PORT, of a recorder before the first broker
        service.url         # http://127.0.0.1:PORT, for TMS's own clients

The addresses stay the same when the service is killed and started. `TMS_TEST_KAFKA_WORKERS` is the
number of its workers, each of which is a broker; one process otherwise.
"""

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from integration.cluster.site import LOCAL, free_ports, ports_in_a_row
from integration.kafka_clients.recorder import Recorder
from tests.faults.service import Service


class KafkaService:
    """A service on a data directory of its own, and a recorder of the requests to each of its
    brokers. `flags` are added to its command."""

    def __init__(self, directory: Path, *flags: str) -> None:
        (http,) = free_ports(1)
        self.url = f"http://{LOCAL}:{http}"
        workers = int(os.environ.get("TMS_TEST_KAFKA_WORKERS", "1"))
        kafka = ports_in_a_row(2 * workers)
        shown = kafka + workers
        self._recorders = [Recorder((LOCAL, kafka + nth), shown + nth) for nth in range(workers)]
        self.brokers = [f"{LOCAL}:{shown + nth}" for nth in range(workers)]
        self.servers = self.brokers[0]  # it tells of the others
        self._directory = directory
        ports = ("--port", str(http), "--kafka-port", str(kafka), "--workers", str(workers))
        self._flags = (*ports, "--kafka-advertised", self.brokers[0], *flags)
        self._lives: list[Service] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for recorder in self._recorders:
                stack.enter_context(recorder)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.kill()
        self._stack.close()

    def recorded(self) -> Counter[tuple[int, int]]:
        """The requests so far, by API key and version."""
        return sum((one.requests for one in self._recorders), Counter())

    def forget_recorded(self) -> None:
        """Record anew."""
        for one in self._recorders:
            one.requests.clear()

    @property
    def log(self) -> str:
        """The last lines of the service's log."""
        return "\n".join(line for life in self._lives[-1:] for line in life.lines[-30:])

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Requests that the service failed to answer through a fault of its own."""
        return [event for life in self._lives for event in life.events("kafka_request_failed")]

    def start(self) -> None:
        """Start the service; returns once it is ready."""
        self._lives.append(Service(self._directory, *self._flags))

    def kill(self) -> None:
        """Send SIGKILL; returns once the service has ended."""
        if self._lives and self._lives[-1].running():
            self._lives[-1].kill()

    def restart(self) -> None:
        """Kill the service, and start it on the same directory."""
        self.kill()
        self.start()
