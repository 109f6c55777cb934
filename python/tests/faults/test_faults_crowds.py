"""Faults 19, 29 and 30: a thousand consumers that never read, little memory, few descriptors."""

import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tms
from tests.faults.clients import free_port
from tests.faults.crowd import Crowd, descriptors, exchange
from tests.faults.memory import bound_memory
from tests.faults.service import Service, metric, percentile, within
from tests.http_kit import request
from tests.kafka_kit import KafkaConnection, batch, produced
from tests.waiting import PATIENCE_S
from tms import block
from tms.api import bodies, routes
from tms.model.message import NewBlock

TOPIC = "big"
MESSAGES = f"/v2/namespaces/default/topics/{TOPIC}/messages"
MIB = 1 << 20
CONSUMERS = 1_000
CROWDED = (  # they count, however soon there is room again
    'tms_http_overloaded_total{kind="fetch"}',  # refused for lack of memory
    "tms_http_connections_cut_off_total",  # cut off, because others waited for its memory
)
PATIENCE = ("--write-timeout-s", "600")  # no client waits until one that does not read is cut off
SMALL = (  # as docs/operations.md says
    *("--cache-bytes", str(16 * MIB)),
    *("--publish-bytes-in-flight-max", str(16 * MIB)),
    *("--write-buffer-bytes", str(4 * MIB)),
)
LATENCY_S = 0.5  # the most that a crowd may add to the p99 while it "hurts nobody"
SLOWER = 4  # the most that publishing may slow down, on a busy machine


def test_fault_19_a_thousand_consumers_that_never_read_cost_32_mib_and_hurt_nobody(
    tmp_path: Path,
) -> None:
    fetch = request("GET", f"{MESSAGES}?start=0:earliest&bytes_max={8 * MIB}", Accept=routes.BLOCKS)
    with (
        descriptors(CONSUMERS + 200),
        Service(tmp_path / "data", "--cache-bytes", str(16 * MIB), *PATIENCE) as service,
        tms.connect(service.url) as bus,
    ):
        bus.create_topic(TOPIC, durability="written")
        for _ in range(24):
            bus.publish_many(TOPIC, [bytes(65_536)] * 16)
        for _ in bus.consumer(TOPIC, stop_at_end=True).batches():
            pass  # the cost of reading everything once is not the crowd's
        usual = publish_for(bus, 100)
        before = service.resident_bytes()
        peak = Peak(service)
        with Crowd(service.address, window_bytes=4_096) as crowd, peak:
            crowd.join(CONSUMERS, fetch)
            within(PATIENCE_S, lambda: any(metric(service, name) > 0 for name in CROWDED))
            latencies = publish_for(bus, 300)
        assert peak.bytes - before <= 32 * MIB, f"{(peak.bytes - before) / MIB:.1f} MiB more"
        assert_unhurt(usual, latencies)
        assert service.ready()
        assert service.stop() == 0


def test_fault_19_while_a_crowd_does_not_read_a_replay_from_the_store_goes_on(
    tmp_path: Path,
) -> None:
    """The crowd's answers take all memory for answers: each connection asks for more than the 4 MiB
    that Linux may buffer for the service."""
    fetch = request("GET", f"{MESSAGES}?start=0:earliest&bytes_max={8 * MIB}", Accept=routes.BLOCKS)
    options = ("--cache-bytes", str(MIB), "--fetch-bytes-in-flight-max", str(4 * MIB))
    with (
        descriptors(CONSUMERS + 200),
        Service(tmp_path / "data", *options, *PATIENCE) as service,
        tms.connect(service.url) as bus,
    ):
        bus.create_topic(TOPIC, durability="written")
        for _ in range(24):
            bus.publish_many(TOPIC, [bytes(65_536)] * 16)
        with Crowd(service.address, window_bytes=4_096) as crowd:
            crowd.join(CONSUMERS // 20, fetch * 16)
            within(PATIENCE_S, lambda: any(metric(service, name) > 0 for name in CROWDED))
            assert sum(1 for _ in bus.consumer(TOPIC, stop_at_end=True)) == 24 * 16
        assert service.stop() == 0


def test_fault_29_in_256_mib_no_single_request_is_too_much(tmp_path: Path) -> None:
    with (
        bound_memory(256 * MIB) as bound,
        Service(tmp_path / "data", before_exec=bound.enter) as service,
        tms.connect(service.url) as bus,
    ):
        bus.create_topic(TOPIC, durability="written")
        for asked in greedy():
            for _ in range(2):
                assert exchange(service.address, asked) in (routes.OK, 413)
        assert bound.kills() == 0 and service.ready()
        assert service.stop() == 0


def test_fault_29_a_flood_in_256_mib_is_refused_and_no_process_is_killed(
    tmp_path: Path,
) -> None:
    with (
        bound_memory(256 * MIB) as bound,
        Service(tmp_path / "data", *SMALL, before_exec=bound.enter) as service,
        tms.connect(service.url) as bus,
    ):
        bus.create_topic(TOPIC, durability="written")
        flood = greedy()
        assert exchange(service.address, flood[0]) == routes.OK
        with ThreadPoolExecutor(24) as lanes:
            asked = (flood[n % len(flood)] for n in range(20 * len(flood)))
            statuses = Counter(lanes.map(lambda one: exchange(service.address, one), asked))
        assert statuses.keys() == {200, 413, 429}, statuses
        assert statuses[413] == 20, statuses
        assert bound.kills() == 0 and service.ready()
        id = bus.publish(TOPIC, b"after", durability="synced")
        assert id is not None
        (after,) = bus.consumer(TOPIC, start=id, stop_at_end=True)
        assert after.value == b"after"
        assert service.stop() == 0


def greedy() -> list[bytes]:
    """Requests that want as much memory as allowed, or more."""
    fetch = f"{MESSAGES}?start=0:earliest&bytes_max={8 * MIB}"
    return [
        request("POST", MESSAGES, framed(8 * MIB - 4_096, 1), media=routes.BLOCKS),
        request("POST", MESSAGES, framed(64 << 10, 200), media=routes.BLOCKS),
        request("POST", MESSAGES, bytes(17 * MIB), media=routes.BLOCKS),
        request("GET", fetch, Accept=routes.BLOCKS),
        request("GET", fetch, Accept=routes.ARROW_STREAM),
        request("GET", fetch, Accept=routes.JSON),
    ]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Service]:
    """A service with 256 descriptors and a topic."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with Service(tmp_path / "data", before_exec=limit) as service:
        with tms.connect(service.url) as bus:
            bus.create_topic(TOPIC, durability="written")
        yield service


def test_fault_30_with_256_descriptors_5000_idle_connections_shed_only_themselves(
    narrow: Service,
) -> None:
    with (
        descriptors(5_200),
        tms.connect(narrow.url) as existing,
        Crowd(narrow.address) as crowd,
    ):
        usual = publish_for(existing, 50)
        latencies: list[float] = []
        for _ in range(10):
            crowd.join(500)
            latencies += publish_for(existing, 20)
        assert narrow.descriptors() < 256
        left = crowd.wait_ended(enough=255)
        assert left < 256, f"{left} of 5,000 idle connections are held"
        assert_unhurt(usual, latencies)
        latencies = publish_for(existing, 50)
        assert_unhurt(usual, latencies)
        assert len(list(existing.consumer(TOPIC, stop_at_end=True))) == 300
    with tms.connect(narrow.url, timeout_s=10) as fresh:
        publish_for(fresh, 1)
    assert narrow.stop() == 0


def test_fault_30_a_thousand_slow_heads_are_cut_off_within_ten_seconds(narrow: Service) -> None:
    with (
        descriptors(1_200),
        tms.connect(narrow.url) as existing,
        Crowd(narrow.address) as crowd,
    ):
        usual = publish_for(existing, 50)
        began = time.monotonic()
        crowd.join(1_000, f"GET {MESSAGES} HTTP/1.1\r\nHost: slow\r\nX-Slow: ".encode())
        stop = threading.Event()
        trickle = threading.Thread(target=lambda: trickling(crowd, stop), daemon=True)
        trickle.start()
        latencies = publish_for(existing, 300, pause_s=0.01)
        assert crowd.wait_ended() == 0, "a slow head is still read"
        assert time.monotonic() - began < 12
        stop.set()
        trickle.join(PATIENCE_S)
        assert_unhurt(usual, latencies)
    assert narrow.ready()
    assert narrow.stop() == 0


def test_fault_30_5000_idle_clients_of_kafka_cost_little_and_hurt_nobody(tmp_path: Path) -> None:
    port, clients_max = free_port(), 2_000
    flags = ("--kafka-port", str(port), "--kafka-clients-max", str(clients_max))
    with (
        descriptors(5_200),
        Service(tmp_path / "data", *flags) as service,
        tms.connect(service.url) as bus,
        KafkaConnection(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) as producer,
        Crowd(("127.0.0.1", port)) as crowd,
    ):
        bus.create_topic(TOPIC, durability="written")
        usual = [produce(producer) for _ in range(50)]
        publish_for(bus, 50)
        before = service.resident_bytes()
        crowd.join(5_000, b"\0\0")  # half a length
        assert crowd.wait_ended(enough=clients_max - 1) == clients_max - 1, "the others are refused"
        assert service.resident_bytes() - before < 64 * MIB
        assert_unhurt(usual, [produce(producer) for _ in range(50)])
        assert_unhurt(usual, publish_for(bus, 50))
        assert metric(service, 'tms_front_connections{front="kafka"}') == clients_max
        assert service.stop() == 0


def produce(producer: KafkaConnection) -> float:
    """Publish a small message; the seconds that it took."""
    began = time.monotonic()
    [result] = produced(producer, TOPIC, batch([(None, b"small")]), acks=1, timeout_ms=9_000)
    assert not result.error_code
    return time.monotonic() - began


def trickling(crowd: Crowd, stop: threading.Event) -> None:
    """Send a byte to everyone, each second."""
    while not stop.wait(1):
        crowd.send(b"x")


class Peak:
    """The peak of a service's memory during the block."""

    def __init__(self, service: Service) -> None:
        self.bytes = 0
        self._service = service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.bytes = max(self.bytes, self._service.resident_bytes())


def publish_for(bus: tms.Bus, count: int, pause_s: float = 0) -> list[float]:
    """Publish small messages; the seconds that each took."""
    took = []
    for _ in range(count):
        began = time.monotonic()
        bus.publish(TOPIC, b"small")
        took.append(time.monotonic() - began)
        if pause_s:
            time.sleep(pause_s)
    return took


def assert_unhurt(usual: list[float], latencies: list[float]) -> None:
    """Check that publishing is about as fast as before."""
    assert percentile(latencies, 0.99) < LATENCY_S + SLOWER * max(usual)


def framed(size: int, count: int) -> bytes:
    return b"".join(bodies.frames([NewBlock(0, block.encode([bytes(size)] * count))]))
