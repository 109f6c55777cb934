"""Kafka on this machine, for benchmarks that compare with it: one broker, and Spark's jars for it.

    with Broker(directory, partitions=2) as kafka:
        kafka.bootstrap     # 127.0.0.1:PORT

It acknowledges messages when the page cache has them, as Kafka does; the first write to a topic
creates it.
"""

import base64
import subprocess
import uuid
from pathlib import Path
from typing import Self

from integration.cluster.process import Process, tail_of
from integration.cluster.runtime import Unavailable, jars, java
from integration.cluster.site import LOCAL, free_ports, listens

BROKER_POM = Path(__file__).parent / "broker" / "pom.xml"
SPARK_POM = Path(__file__).parent / "spark" / "pom.xml"
START_S = 60.0
# The flags of Kafka's own start script, with a heap for one machine.
_JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{local}:{controller}
listeners=PLAINTEXT://{local}:{port},CONTROLLER://{local}:{controller}
advertised.listeners=PLAINTEXT://{local}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def spark_jars() -> list[Path]:
    """The jars with which Spark reads and writes Kafka."""
    return sorted(jars("spark-kafka", SPARK_POM).glob("*.jar"))


class Broker:
    """One broker that is its own controller; data and log in a directory."""

    def __init__(self, directory: Path, partitions: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._port, controller = free_ports(2)
        self.bootstrap = f"{LOCAL}:{self._port}"
        self._directory = directory
        self._settings = directory / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                local=LOCAL,
                port=self._port,
                controller=controller,
                directory=directory,
                partitions=partitions,
            )
        )
        self._broker = Process("kafka", self._command("kafka.Kafka"), directory / "kafka.log")

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._broker.pid

    def __enter__(self) -> Self:
        self._format()
        self._broker.start()
        try:
            self._broker.wait_until(lambda: listens(self._port), START_S, "it listens")
        except BaseException:
            self._broker.kill()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._broker.kill()
        if error is not None:
            error.add_note(self._broker.tail())

    def _format(self) -> None:
        """Format the directory: Kafka starts only on a directory that names its cluster."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._command("kafka.tools.StorageTool", "format", "-t", cluster, "-c")
        log = self._directory / "format.log"
        with log.open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=out, timeout=START_S, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Kafka's directory could not be made ready\n{tail_of(log)}")

    def _command(self, main: str, *arguments: str) -> list[str]:
        classes = f"{jars('kafka', BROKER_POM)}/*"
        return [java(), *_JVM, "-cp", classes, main, *arguments, str(self._settings)]
