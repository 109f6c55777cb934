"""Long lists of a service, searched and sorted: the first byte of a page of each, and publishing
while a browser looks at a sorted list."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from urllib.parse import urlencode, urlsplit

from bench.report import Goal, Report, Sample, interleaved, measured, percentile, ratio
from bench.targets import TOPIC, Embedded, Service, Setup, values
from bench.throughput import AT_ONCE, publish
from tms.client.client import Bus

FIRST_BYTE_MS, PAGE_KIB, BESIDE = 150.0, 100.0, 0.97
SORTED_S = 120.0  # until the numbers of all entries are there for the first time
WATCHED = "/console/topics?order=messages"
NAMESPACE = "/v2/namespaces/default"
LISTS = (
    "/console/topics",
    "/console/topics?search=t99",
    "/console/topics?search=nothing",
    "/console/topics?after=t5",
    WATCHED,
    f"{NAMESPACE}/groups?limit=100",
    f"{NAMESPACE}/groups?limit=100&search=g99",
    f"{NAMESPACE}/groups?limit=100&order=lag",
    f"{NAMESPACE}/queues?limit=100",
    f"{NAMESPACE}/queues?limit=100&order=oldest_ms",
)


def run(setup: Setup, report: Report) -> None:
    """Both, on one service."""
    topics, queues = (1_000, 100) if setup.quick else (10_000, 1_000)
    with setup.directory() as path:
        with Embedded.open(path / "data") as filled:
            _fill(filled.bus, topics, queues)
        with Service.start(path) as target:
            report.title(f"Lists of {topics:,} topics, {topics:,} groups, {queues:,} queues")
            for page in LISTS:
                _list(setup, report, target.url, page)
            report.line("lists", "memory after all pages", target.memory_mib()["VmRSS"], "MiB")
            _beside(setup, report, target)


def _list(setup: Setup, report: Report, url: str, page: str) -> None:
    report.line("lists", f"{page}, until it is there", _sorted_s(url, page), "s")
    loads = [_load(url, page) for _ in range(setup.runs * 4)]
    taken, size = percentile([one[1] for one in loads], 90), max(one[2] for one in loads)
    report.line("lists", f"{page}, p90", taken, "ms", Goal(at_most=FIRST_BYTE_MS))
    report.line("lists", f"{page}, transferred", size / 1_024, "KiB", Goal(at_most=PAGE_KIB))


def _fill(bus: Bus, topics: int, queues: int) -> None:
    for number in range(topics):
        bus.create_topic(f"t{number}", durability="written")
        bus.publish_many(f"t{number}", [b"x"] * (number % 10))
        bus.set_positions(f"t{number}", {0: "offset:0"}, group=f"g{number}")
    for number in range(queues):
        bus.queue(f"t{number}", group=f"g{number}", start="earliest")


def _load(url: str, page: str) -> tuple[int, float, int]:
    """Status, milliseconds until the first byte, and transferred bytes."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.connect()
    began_s = time.perf_counter()
    connection.request("GET", page, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    first_ms = (time.perf_counter() - began_s) * 1e3
    size = len(answer.read()) + sum(len(a) + len(b) + 4 for a, b in answer.getheaders())
    connection.close()
    return answer.status, first_ms, size


def _sorted_s(url: str, page: str) -> float:
    """Seconds until a page is answered for the first time."""
    began_s = time.perf_counter()
    while (status := _load(url, page)[0]) == http.client.TOO_MANY_REQUESTS:
        assert time.perf_counter() - began_s < SORTED_S, f"{page} is still being sorted"
        time.sleep(0.05)
    assert status == http.client.OK, f"{page}: {status}"
    return time.perf_counter() - began_s


def _beside(setup: Setup, report: Report, target: Service) -> None:
    report.title("Publishing 1 KiB through HTTP while a browser looks at all topics, sorted")
    count = 200_000 if setup.quick else 1_000_000
    cells = values(1_024)
    parts = [cells[at : at + AT_ONCE] for at in range(0, len(cells) - AT_ONCE + 1, AT_ONCE)]
    target.bus.create_topic(TOPIC, durability="written", retention_bytes=1 << 28)
    publish(target.bus, parts, AT_ONCE)

    def alone() -> Sample:
        return measured(partial(publish, target.bus, parts, count), target.pid)

    def watched() -> Sample:
        with _watching(target.url):
            return alone()

    samples = interleaved({"alone": alone, "watched": watched}, setup.runs)
    report.rates("lists", "publish 1 KiB", samples)
    beside = ratio(samples, "watched", "alone")
    report.line("lists", "watched ÷ alone", beside, "×", Goal(at_least=BESIDE), samples)


@contextmanager
def _watching(url: str) -> Iterator[None]:
    """A browser that follows the live part of a sorted list."""
    place = urlsplit(url)
    live = "/console/live?" + urlencode({"page": WATCHED, "parts": "topics"})
    with socket.create_connection((place.hostname, place.port)) as viewer:
        viewer.sendall(f"GET {live} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert b" 200 " in viewer.recv(1 << 16), "the list is not followed"
        reader = threading.Thread(target=_drain, args=(viewer,))
        reader.start()
        try:
            yield
        finally:
            viewer.shutdown(socket.SHUT_RDWR)
            reader.join()


def _drain(viewer: socket.socket) -> None:
    with suppress(ConnectionError):
        while viewer.recv(1 << 16):
            pass
