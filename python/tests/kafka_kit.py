"""A service that speaks Kafka's protocol, and a client that sends requests of any version."""

import contextlib
import itertools
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

import tms
from tests.http_kit import Served, serving
from tms.compat.kafka import codec
from tms.compat.kafka.settings import KafkaSection
from tms.engine.engine import Engine
from tms.runtime.clock import Clock
from tms.runtime.tls import ServerTls
from tms.serve.config import ServerSection, Settings
from tms.serve.listeners import bind
from tms.serve.running import open_fronts
from tms.server.certificates import Certificates
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.base import Store

CLIENTS_MAX = 50
ENDED = (EOFError, ConnectionError)  # raised once the service has ended a connection
LATEST, EARLIEST, NEWEST = -1, -2, -3  # times of ListOffsets that are places


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

    @property
    def engine(self) -> Engine:
        """The engine of the service."""
        return self.served.service.engine

    @property
    def front(self) -> Any:
        """The front of the service for Kafka's clients."""
        [front] = self.served.server._fronts.values()
        return front

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


# -- requests --------------------------------------------------------------------------------------


def create_topic(
    kafka: KafkaConnection,
    name: str,
    partitions: int = 2,
    configs: Mapping[str, str] | None = None,
    **fields: Any,
) -> Any:
    """The result of creating a topic, which may be a refusal."""
    made = codec.class_of("CreateTopicsRequest").CreatableTopic
    given = [made.CreatableTopicConfig(name=one, value=of) for one, of in (configs or {}).items()]
    sizes = {"num_partitions": partitions, "replication_factor": -1}
    topic = made(name=name, configs=given, **sizes, **fields)
    [result] = kafka.ask("CreateTopics", 7, topics=[topic]).topics
    return result


def metadata(kafka: KafkaConnection, name: str, **fields: Any) -> Any:
    """The metadata of a topic, which a client asks for by name."""
    topic = codec.class_of("MetadataRequest").MetadataRequestTopic(name=name)
    [found] = kafka.ask("Metadata", 12, topics=[topic], **fields).topics
    return found


def producing(topic: str, batches: Mapping[int, bytes], **fields: Any) -> dict[str, Any]:
    """The fields of a request that publishes a batch to each of these partitions."""
    made = codec.class_of("ProduceRequest").TopicProduceData
    parts = [
        made.PartitionProduceData(index=number, records=records)
        for number, records in batches.items()
    ]
    data = [made(name=topic, partition_data=parts)]
    return {"acks": -1, "timeout_ms": 5_000, "topic_data": data} | fields


def produced(kafka: KafkaConnection, topic: str, *batches: bytes, **fields: Any) -> list[Any]:
    """The answers for batches to the partitions 0, 1, … of a topic."""
    answer = kafka.ask("Produce", 9, **producing(topic, dict(enumerate(batches)), **fields))
    return list(answer.responses[0].partition_responses)


def fetching(topic: str, offset: int = 0, partition: int = 0, **fields: Any) -> dict[str, Any]:
    """The fields of a request that fetches from one partition; `size` is the most of it."""
    made = codec.class_of("FetchRequest").FetchTopic
    part = made.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=fields.pop("size", 1 << 20)
    )
    wanted = [made(topic=topic, partitions=[part])]
    return {"topics": wanted, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | fields


def fetched(
    kafka: KafkaConnection, topic: str, offset: int = 0, partition: int = 0, **fields: Any
) -> Any:
    """The answer for one partition."""
    answer = kafka.ask("Fetch", 12, **fetching(topic, offset, partition, **fields))
    assert not answer.error_code
    return answer.responses[0].partitions[0]


def offset_at(
    kafka: KafkaConnection, topic: str, time_ms: int, partition: int = 0, **fields: Any
) -> Any:
    """The answer for a time or a place in one partition."""
    made = codec.class_of("ListOffsetsRequest").ListOffsetsTopic
    part = made.ListOffsetsPartition(partition_index=partition, timestamp=time_ms)
    asked = [made(name=topic, partitions=[part])]
    [found] = kafka.ask("ListOffsets", 7, topics=asked, **fields).topics
    return found.partitions[0]


# -- records ---------------------------------------------------------------------------------------


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


# -- rows: a key, a value, and whatever else a test compares ---------------------------------------


def messages_in(url: str, topic: str) -> list[tms.Message]:
    """All messages, as TMS's own consumer reads them."""
    with (
        tms.connect(url) as bus,
        bus.consumer(topic, start="earliest", stop_at_end=True) as consumer,
    ):
        return list(consumer)


def by_key(rows: Iterable[Any]) -> dict[bytes, list[Any]]:
    """Rows by key, in the order in which they come; rows without a key have no order."""
    found: dict[bytes, list[Any]] = {}
    for row in rows:
        if row[0] is not None:
            found.setdefault(row[0], []).append(row)
    return found


def assert_same(found: Iterable[Any], wanted: Iterable[Any]) -> None:
    """All rows are there, once, and in the order of each key."""
    found, wanted = list(found), list(wanted)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert by_key(found) == by_key(wanted)
