"""Many followers of one topic: the time that a publish takes to reach all of them, and the cost of
each.

The followers are sockets of one process that only checks whether the mark of a part has come; a
publish counts from before its request is sent until the last follower has its part.
"""

import multiprocessing
import resource
import selectors
import socket
import time
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from bench import machine
from bench.report import Goal, Report, measured, percentile
from bench.targets import TOPIC, Service, Setup, values
from tms.api import routes

FOLLOWERS = 1_000
SIZE = 1_024
PAUSE_S = 0.02  # between two publishes
IN_TIME_S = 30.0


def run(setup: Setup, report: Report) -> None:
    """A topic of one partition on LevelDB."""
    rounds = 40 if setup.quick else 200
    title = f"{FOLLOWERS:,} followers of one topic, a publish of {SIZE:,} B reaches all"
    report.title(title)
    context = multiprocessing.get_context("spawn")
    with setup.directory() as path, Service.start(path) as target:
        bus = target.bus
        bus.create_topic(TOPIC, durability="written")
        cells = values(SIZE)
        bus.publish(TOPIC, cells[0])
        ours, theirs = context.Pipe()
        before_kib = target.memory_mib()["VmRSS"] * 1_024
        followers = context.Process(target=_follow, args=(target.url, rounds, theirs), daemon=True)
        followers.start()
        assert ours.poll(IN_TIME_S) and ours.recv() == "they follow", "they do not follow"
        each_kib = (target.memory_mib()["VmRSS"] * 1_024 - before_kib) / FOLLOWERS
        cpu_s = machine.cpu_s(target.pid)
        took_ms: list[float] = []

        def publish() -> int:
            for number in range(rounds):
                began_ns = time.monotonic_ns()
                bus.publish(TOPIC, cells[number % len(cells)])
                assert ours.poll(IN_TIME_S), "a message has not reached all"
                took_ms.append((ours.recv() - began_ns) / 1e6)
                time.sleep(PAUSE_S)
            return rounds * FOLLOWERS

        sample = measured(publish, target.pid)
        cpu_us = (machine.cpu_s(target.pid) - cpu_s) / (rounds * FOLLOWERS) * 1e6
        peak_kib = (target.memory_mib()["VmRSS"] * 1_024 - before_kib) / FOLLOWERS
        followers.join(IN_TIME_S)
    samples = {"followers": [sample]}
    p50, p99 = percentile(took_ms, 50), percentile(took_ms, 99)
    report.line("followers", "reaches all, p50", p50, "ms", Goal(at_most=100), samples)
    report.line("followers", "reaches all, p99", p99, "ms", Goal(at_most=100))
    report.line("followers", "CPU of the service a follower and append", cpu_us, "us")
    report.line("followers", "memory a follower, idle", each_kib, "KiB", Goal(at_most=64))
    report.line("followers", "memory a follower, after it all", peak_kib, "KiB", Goal(at_most=64))


def _follow(url: str, rounds: int, tell: Connection) -> None:
    """Run the followers' process: it reports when each message has reached all of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    place = urlsplit(url)
    query = "follow=true&start=latest&wait_s=60"
    request = (
        f"GET /v2/namespaces/default/topics/{TOPIC}/messages?{query} HTTP/1.1\r\n"
        f"Host: bench\r\nAccept: {routes.BLOCKS}\r\n\r\n"
    ).encode()
    selector = selectors.DefaultSelector()
    for _ in range(FOLLOWERS):
        one = socket.create_connection((place.hostname, place.port))
        one.sendall(request)
        selector.register(one, selectors.EVENT_READ, _Parts())
    for number in range(rounds + 1):  # the first part carries the end's position
        parts = 0
        while parts < FOLLOWERS:
            for key, _ in selector.select(IN_TIME_S):
                assert isinstance(key.fileobj, socket.socket)
                parts += key.data.feed(key.fileobj.recv(1 << 16))
        tell.send(time.monotonic_ns() if number else "they follow")


class _Parts:
    """Counts the parts that one follower receives; each is a chunk of HTTP."""

    def __init__(self) -> None:
        self._received = b""
        self._headed = False

    def feed(self, received: bytes) -> int:
        """The number of complete parts so far."""
        assert received, "the service has closed the connection"
        self._received += received
        if not self._headed:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            self._headed = bool(end)
            if not end:
                return 0
            assert b" 200 " in head, head
            self._received = rest
        parts = 0
        while (at := self._received.find(b"\r\n")) >= 0:
            whole = at + 2 + int(self._received[:at], 16) + 2
            if len(self._received) < whole:
                break
            self._received, parts = self._received[whole:], parts + 1
        return parts
