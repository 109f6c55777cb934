"""`tms serve` with a port for Kafka's clients, that tests kill and start again.

    with KafkaService(directory) as service:
        service.servers     # 127.0.0.1:PORT, of a recorder before the service
        service.url         # http://127.0.0.1:PORT, for TMS's own clients

Both addresses stay the same when the service is killed and started.
"""

from pathlib import Path
from typing import Any, Self

from integration.cluster.site import LOCAL, free_ports
from integration.kafka_clients.recorder import Recorder
from tests.faults.service import Service


class KafkaService:
    """A service on a data directory of its own, and a recorder of its clients' requests. `flags`
    are added to its command."""

    def __init__(self, directory: Path, *flags: str) -> None:
        http, kafka = free_ports(2)
        self.url = f"http://{LOCAL}:{http}"
        self.recorder = Recorder((LOCAL, kafka))
        self.servers = f"{LOCAL}:{self.recorder.port}"
        self._directory = directory
        ports = ("--port", str(http), "--kafka-port", str(kafka))
        self._flags = (*ports, "--kafka-advertised", self.servers, *flags)
        self._lives: list[Service] = []

    def __enter__(self) -> Self:
        self.recorder.__enter__()
        try:
            self.start()
        except BaseException:
            self.recorder.__exit__()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.kill()
        self.recorder.__exit__()

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
