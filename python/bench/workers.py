"""The gain of several worker processes on one data directory: JSON publishes by a client that only
sends bytes, so that the service has the cores."""

import json
import socket
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.report import Goal, Report, Sample, interleaved, measured, ratio
from bench.targets import Service, Setup
from bench.threads import in_threads

PARTITIONS, PER_REQUEST, DEPTH = 32, 100, 1
_GOOD = b"HTTP/1.1 200"
ALONE, TWO = "one process", "two workers"


def run(setup: Setup, report: Report) -> None:
    """Measure all variants in turns, each with a directory of its own."""
    report.title("Two workers on LevelDB beside one process, JSON publishes of 100 × 100 B")
    requests = 400 if setup.quick else 4_000
    with (
        setup.directory() as first,
        setup.directory() as second,
        Service.start(first) as alone,
        Service.start(second, "--workers", "2") as two,
    ):
        samples = interleaved(
            {ALONE: _publishing(alone, requests), TWO: _publishing(two, requests)}, setup.runs
        )
    report.rates("workers", "publish 100 B in JSON, written", samples)
    share = ratio(samples, TWO, ALONE)
    report.line("workers", "two workers ÷ one process", share, "×", Goal(at_least=1.5), samples)


def _publishing(service: Service, requests: int) -> Callable[[], Sample]:
    service.bus.create_topic("measured", partitions=PARTITIONS, durability="written")
    addresses = _addresses(service)

    def publish() -> int:
        share = requests // PARTITIONS
        works = [partial(_send, at, number, share) for number, at in enumerate(addresses)]
        in_threads(works)
        return share * PARTITIONS * PER_REQUEST

    return partial(measured, publish, service.pid)  # and of its workers


def _addresses(service: Service) -> list[tuple[str, int]]:
    """The address of the owner of each partition."""
    if not service.workers:
        return [_place(service.url)] * PARTITIONS
    while len(view := _ask(service, "/v2/cluster")["instances"]) < len(service.workers):
        time.sleep(0.1)
    by_id = {one["id"]: _place(one["address"]) for one in view}
    owners = _ask(service, "/v2/namespaces/default/topics/measured/owners")["owners"]
    assert len(set(owners)) == len(service.workers)
    return [by_id[owner] for owner in owners]


def _ask(service: Service, path: str) -> Any:
    with urllib.request.urlopen(f"{service.url}{path}", timeout=10) as answer:
        return json.load(answer)


def _place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def _send(address: tuple[str, int], partition: int, requests: int) -> None:
    """Send requests that are already bytes, several in flight at a time."""
    messages = [{"value": "x" * 100, "partition": partition}] * PER_REQUEST
    body = json.dumps({"messages": messages}).encode()
    head = (
        "POST /v2/namespaces/default/topics/measured/messages HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    under_way, done, tail = 0, 0, b""
    with socket.create_connection(address) as connection:
        while done < requests:
            while under_way < min(DEPTH, requests - done):
                connection.sendall(request)
                under_way += 1
            received = connection.recv(1 << 20)
            assert received, "the service closed the connection"
            tail += received
            assert b"HTTP/1.1 2" in tail or b"HTTP/1.1" not in tail, tail
            count = tail.count(_GOOD)
            done, under_way, tail = done + count, under_way - count, tail[1 - len(_GOOD) :]
