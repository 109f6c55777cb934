"""A service that speaks Kafka's protocol, and a client that sends requests of any version."""

import contextlib
import itertools
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from tests.http_kit import Served, serving
from tms.compat.kafka import codec
from tms.compat.kafka.settings import KafkaSection
from tms.runtime.clock import Clock
from tms.runtime.tls import ServerTls
from tms.serve.config import ServerSection, Settings
from tms.serve.listeners import bind
from tms.serve.running import open_fronts
from tms.server.certificates import Certificates
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.base import Store

CLIENTS_MAX = 50


class Broker:
    """A running service, and the address of its listener for Kafka's clients."""

    def __init__(self, served: Served, address: tuple[str, int]) -> None:
        self.served = served
        self.address = address

    @property
    def url(self) -> str:
        """The address for TMS's own clients."""
        return f"http://127.0.0.1:{self.served.address[1]}"

    @property
    def servers(self) -> str:
        """The address as clients take it."""
        return f"{self.address[0]}:{self.address[1]}"

    def connect(self, principal: str = "", token: str = "") -> "KafkaConnection":
        """A connection that sends requests of any version; with a token, that of a principal."""
        connection = KafkaConnection(socket.create_connection(self.address, 10))
        if token:
            connection.ask("SaslHandshake", 1, mechanism="PLAIN")
            said = f"\0{principal}\0{token}".encode()
            answer = connection.ask("SaslAuthenticate", 2, auth_bytes=said)
            assert not answer.error_code, answer.error_message
        return connection


@contextlib.contextmanager
def kafka_serving(
    store: Store | None = None,
    clock: Clock | None = None,
    access: AccessLimits | None = None,
    tls: ServerTls | None = None,
    **given: Any,
) -> Iterator[Broker]:
    """A service with these settings of its section `kafka`; `clock` is the engine's. With `access`
    it controls that, with `tls` it speaks TLS only."""
    section = KafkaSection(port=0, rebalance_delay_ms=0, **given)
    settings = Settings(data=Path("unused"), server=ServerSection(port=0), kafka=section)
    with contextlib.closing(bind(settings)) as listeners:
        address = listeners.fronts["kafka"].getsockname()[:2]
        with serving(
            store,
            clock=clock,
            listener=listeners.http[0],
            tls=tls,
            network=NetworkOptions(access),
            open_fronts=lambda service: open_fronts(
                settings, service, listeners, CLIENTS_MAX, tls and Certificates(tls)
            ),
        ) as served:
            yield Broker(served, address)


class KafkaConnection:
    """Sends requests and reads their answers, in the order that they were sent."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self._numbers = itertools.count(1)
        self._sent: list[tuple[str, int, int]] = []

    def __enter__(self) -> "KafkaConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """The answer to a request."""
        self.send(name, version, **fields)
        return self.answer()

    def send(self, name: str, version: int, **fields: Any) -> None:
        """Send a request."""
        message = codec.class_of(f"{name}Request")(**fields)
        body = b"".join(codec.writer(f"{name}Request", version)(message))
        self.send_body(name, version, body)

    def send_body(self, name: str, version: int, body: bytes) -> None:
        """Send a request whose body is made already."""
        self.socket.sendall(self.framed(name, version, body))

    def framed(self, name: str, version: int, body: bytes) -> bytes:
        """A request as a frame, for the caller to send; its answer comes in turn."""
        definition = codec.definitions()[f"{name}Request"]
        number = next(self._numbers)
        head = definition.key.to_bytes(2, "big") + version.to_bytes(2, "big")
        head += number.to_bytes(4, "big") + b"\0\4test"
        if version in definition.flexible:
            head += b"\0"
        self._sent.append((name, version, number))
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    def answer(self) -> Any:
        """The answer to the oldest request that has none."""
        name, version, number = self._sent.pop(0)
        frame = self.frame()
        assert int.from_bytes(frame[:4], "big") == number
        flexible = version in codec.definitions()[f"{name}Response"].flexible
        at = 5 if flexible and name != "ApiVersions" else 4
        return codec.reader(f"{name}Response", version)(frame, at)

    def frame(self) -> bytes:
        """The next frame. Raises `EOFError` if the service ends the connection."""
        size = int.from_bytes(self._read(4), "big")
        return self._read(size)

    def _read(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            if not more:
                raise EOFError
            got += more
        return got


def batch(
    rows: Sequence[tuple[bytes | None, bytes | None]],
    producer: tuple[int, int, int] = (-1, -1, -1),
    compression: int = 0,
    transactional: bool = False,
    times_ms: Sequence[int] | None = None,
) -> bytes:
    """A batch of records with these keys and values, as a producer makes it; `producer` is its
    number, its epoch and the sequence of the first record. Records without `times_ms` have the time
    -1, which is none."""
    builder = DefaultRecordBatchBuilder(2, compression, int(transactional), *producer, 1 << 30)
    for number, (key, value) in enumerate(rows):
        time_ms = -1 if times_ms is None else times_ms[number]
        builder.append(number, time_ms, key, value, [])
    return bytes(builder.build())


def records_in(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of the records of batches; batches without records give none."""
    found = []
    reading = MemoryRecords(bytes(data))
    while reading.has_next():
        found += [(one.offset, one.key, one.value) for one in reading.next_batch()]
    return found


def times_in(data: bytes) -> list[tuple[int, int]]:
    """Time and type of the time (0: of the producer, 1: of the log) of the records of batches."""
    found = []
    reading = MemoryRecords(bytes(data))
    while reading.has_next():
        found += [(one.timestamp, one.timestamp_type) for one in reading.next_batch()]
    return found


def covered(data: bytes) -> tuple[int, int]:
    """The first offset of a batch, and the one behind its last."""
    base = int.from_bytes(data[:8], "big")
    return base, base + int.from_bytes(data[23:27], "big") + 1
