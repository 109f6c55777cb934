"""TMS in the harness that runs Kafka, Redis, NATS JetStream and RabbitMQ on the same workloads.

    PEERS_ADAPTER=python/bench/peers_adapter.py …/venv/bin/python bench.py --peers kafka,tms,redis

Peer `tms` acknowledges when a message survives a crash of the process (`written`), `tms-synced`
when it survives a power loss. The client uses the public API, with its defaults. The service runs
in the project's `.venv`; the client runs in the harness's environment, where nothing has to be
installed: this file puts the project's `python/` in front of the path there and the packages of
`.venv` behind everything else. Both environments need the same minor version of Python.
"""

import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.base import Adapter, now  # type: ignore[import-not-found]

PROJECT = Path(__file__).resolve().parents[2]
VENV = PROJECT / ".venv"
PACKAGES = VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
if not PACKAGES.is_dir():
    raise RuntimeError(
        f"{PACKAGES} is missing: run `make env`, and use the same Python for the harness."
    )
sys.path.insert(0, str(PROJECT / "python"))
sys.path.append(str(PACKAGES))

import tms  # noqa: E402 - the path had to be set first


class TMS(Adapter):  # type: ignore[misc]
    """The service, and its synchronous client."""

    port = 21_950

    # --- the server's half ------------------------------------------------------------------------

    def launch(self) -> None:
        self.spawn([f"{VENV}/bin/tms", "serve", f"--data={self.dir}/data", f"--port={self.port}"])

    def ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)

    def create_topic(self, topic: str) -> None:
        with tms.connect(self.url) as bus:
            bus.create_topic(topic, durability=self.s["durability"])

    def delete_topic(self, topic: str) -> None:
        with tms.connect(self.url) as bus:
            bus.delete_topic(topic)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- the client's half ------------------------------------------------------------------------

    def connect(self, role: str) -> None:
        import pyarrow  # noqa: F401 - as other peers load their libraries here

        self.bus = tms.connect(self.url)
        next(self.bus.list_topics(), None)  # make the connection
        self.producer: Any = None

    def close(self) -> None:
        self.bus.close()

    def publish_batch(self, topic: str, feed: Any) -> int:
        with self.bus.producer(topic) as producer:
            while part := feed.batch(2_000):
                producer.send_many(part)
        sent: int = feed.sent
        return sent

    def publish_one(self, topic: str, msg: bytes) -> None:
        self.bus.publish(topic, msg)

    def publish_due(self, topic: str, msgs: list[bytes]) -> None:
        if self.producer is None:
            self.producer = self.bus.producer(topic)
        for value in msgs:
            self.producer.send(value)

    def flush(self) -> None:
        self.producer.flush()

    def publish_tx(self, topic: str, msgs: list[bytes]) -> None:
        with self.bus.transaction() as tx:
            tx.send_many(topic, msgs)

    def consume(
        self, topic: str, n: int, t: float, on_batch: Callable[[list[bytes | None]], None]
    ) -> int:
        got, until = 0, now() + t
        with self.bus.consumer(topic) as consumer:
            out_of_time = threading.Timer(t, consumer.close)
            out_of_time.daemon = True
            out_of_time.start()
            for batch in consumer.batches():
                values = batch.values()
                got += len(values)
                on_batch(values)
                if got >= n or now() > until:
                    break
            out_of_time.cancel()
        return got


PEERS = {
    "tms": (TMS, {"durability": "written"}, "page cache (written, no fsync)", set()),
    "tms-synced": (TMS, {"durability": "synced"}, "fsync before ack (group commit)", {"W3"}),
}
