"""The console's cost: each page of a service with very much to show, publishing while the overview
is looked at, and a service that has the console and nobody who opens it.

* A page is asked for as a browser does, compressed, on a connection of its own: the first byte is
  the time until the head of the answer, the transferred bytes are those of head and body.
* A browser that shows the overview is a connection that follows its live parts.
"""

import http.client
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from bench import machine
from bench.report import Goal, Report, Sample, interleaved, measured, percentile, ratio
from bench.targets import START_S, TOPIC, Embedded, Service, Setup, values
from bench.throughput import AT_ONCE, publish
from integration.cluster.site import free_ports
from tms.client.client import Bus

FIRST_BYTE_MS, PAGE_KIB = 150.0, 100.0
MESSAGES = 10
VIEWERS, CROWD_S, PAUSE_S = 200, 20.0, 0.02
READ = "read"
OVERVIEW = "/console/"
ROOT = Path(__file__).resolve().parents[2]
REST_S, SETTLING_S = 20.0, 5.0
WHEEL_KIB, REST_MIB, START_MS = 300.0, 3.0, 20.0
WITHOUT = {"TMS__CONSOLE__PAGES": "off"}
_LIVE_PART = re.compile(r'id="([^"]+)" data-live')
PAGES = (
    "",
    "topics",
    "topics?order=messages",
    "topics?search=99",
    "topics/default/t7",
    "messages/default/t7",
    "publish/default/t7",
    "groups",
    "groups?search=99",
    "groups/default/t7/g7",
    "groups/default/t7/g7/reset?to=earliest",
    "queues",
    "queues/default/t7/g7",
    "queues/default/t7/g7/dead",
    "delayed",
    "transactions",
    "access",
    "instances",
    "service",
)
_NAMES = "with", "without"


def run(setup: Setup, report: Report) -> None:
    """All of it, one after the other."""
    topics, queues = (1_000, 100) if setup.quick else (10_000, 1_000)
    with setup.directory() as path:
        with Embedded.open(path / "data") as filled:
            _fill(filled.bus, topics, queues)
        report.title(f"A service with {topics:,} topics, {topics:,} groups, {queues:,} queues")
        with Service.start(path) as target:
            _pages(setup, report, target)
            _beside(setup, report, target)
    with setup.directory() as path, Service.start(path) as target:
        _crowd(report, target)
    _at_rest(setup, report)
    _wheel(report)


def _pages(setup: Setup, report: Report, target: Service) -> None:
    for page in PAGES:
        first = _load(target.url, page)
        loads = [_load(target.url, page) for _ in range(setup.runs * 4)]
        taken = percentile([one[0] for one in loads], 90)
        report.line("console", f"{page}, the first time", first[0], "ms")
        report.line("console", f"{page}, p90", taken, "ms", Goal(at_most=FIRST_BYTE_MS))
        kib = max(one[1] for one in loads) / 1_024
        report.line("console", f"{page}, transferred", kib, "KiB", Goal(at_most=PAGE_KIB))
    report.line("console", "memory after all pages", target.memory_mib()["VmRSS"], "MiB")


def _fill(bus: Bus, topics: int, queues: int) -> None:
    for number in range(topics):
        bus.create_topic(f"t{number}", durability="written")
        bus.publish_many(f"t{number}", [b'{"number": %d}' % number] * MESSAGES)
        bus.set_positions(f"t{number}", {0: f"offset:{number % MESSAGES}"}, group=f"g{number}")
    for number in range(queues):
        bus.queue(f"t{number}", group=f"g{number}")


def _load(url: str, page: str) -> tuple[float, int]:
    """Milliseconds until the first byte, and transferred bytes."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.connect()
    began_s = time.perf_counter()
    connection.request("GET", f"/console/{page}", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    first_ms = (time.perf_counter() - began_s) * 1e3
    size = len(answer.read()) + sum(len(a) + len(b) + 4 for a, b in answer.getheaders())
    connection.close()
    assert answer.status == http.client.OK, f"/console/{page}: {answer.status}"
    return first_ms, size


def _beside(setup: Setup, report: Report, target: Service) -> None:
    """Publishing 1 KiB through HTTP, alone and while a browser shows the overview."""
    count = 200_000 if setup.quick else 1_000_000
    cells = values(1_024)
    parts = [cells[at : at + AT_ONCE] for at in range(0, len(cells) - AT_ONCE + 1, AT_ONCE)]
    target.bus.create_topic(TOPIC, durability="written", retention_bytes=1 << 28)
    publish(target.bus, parts, AT_ONCE)

    def alone() -> Sample:
        return measured(partial(publish, target.bus, parts, count), target.pid)

    def watched() -> Sample:
        with _viewers(target.url, 1):
            return alone()

    samples = interleaved({"alone": alone, "overview": watched}, setup.runs)
    report.rates("console", "publish 1 KiB", samples)
    beside = ratio(samples, "overview", "alone")
    report.line("console", "overview ÷ alone", beside, "×", Goal(at_least=0.97), samples)


def _crowd(report: Report, target: Service) -> None:
    """The service's CPU while many look at the overview, beside that while one consumer reads the
    topic again and again; a message is published each `PAUSE_S`, so that numbers change."""
    bus = target.bus
    bus.create_topic("t0", durability="written")
    bus.create_topic(READ, durability="written")
    bus.publish_many(READ, values(1_024) * 20)

    def busy(work: Callable[[], object]) -> float:
        cpu_s, began_s = machine.cpu_s(target.pid), time.perf_counter()
        while (passed_s := time.perf_counter() - began_s) < CROWD_S:
            bus.publish("t0", b"x")
            work()
        return 100 * (machine.cpu_s(target.pid) - cpu_s) / passed_s

    rest = busy(lambda: time.sleep(PAUSE_S))
    with _viewers(target.url, VIEWERS):
        viewers = busy(lambda: time.sleep(PAUSE_S)) - rest
    consumer = busy(lambda: deque(bus.consumer(READ, stop_at_end=True).batches(), 0)) - rest
    report.line("console", "one consumer that reads all the time, CPU", consumer, "%")
    goal = Goal(at_most=consumer)
    report.line("console", f"{VIEWERS} open overviews, CPU", viewers, "%", goal)


@contextmanager
def _viewers(url: str, count: int) -> Iterator[None]:
    """Browsers that load the overview and follow its live parts."""
    place = urlsplit(url)
    with ExitStack() as stack:
        for _ in range(count):
            viewer = stack.enter_context(socket.create_connection((place.hostname, place.port)))
            viewer.sendall(f"GET {_live(url)} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
            assert b" 200 " in viewer.recv(1 << 16), "the overview is not followed"
            reader = threading.Thread(target=_drain, args=(viewer,))
            reader.start()
            stack.callback(reader.join)
            stack.callback(viewer.shutdown, socket.SHUT_RDWR)
        yield


def _drain(viewer: socket.socket) -> None:
    with suppress(ConnectionError):
        while viewer.recv(1 << 16):
            pass


def _live(url: str) -> str:
    """The address of the overview's live parts."""
    with urlopen(url + OVERVIEW, timeout=60) as answer:
        parts = _LIVE_PART.findall(answer.read().decode())
    assert parts, "the overview has no live part"
    return "/console/live?" + urlencode({"page": OVERVIEW, "parts": ",".join(parts)})


def _at_rest(setup: Setup, report: Report) -> None:
    """A fresh service each time, with the console and without it in turns."""
    report.title("A service with the console that nobody opens, beside one without it")
    starts: dict[str, list[float]] = {name: [] for name in _NAMES}
    busy: dict[str, list[float]] = {name: [] for name in _NAMES}
    memory: dict[str, list[float]] = {name: [] for name in _NAMES}
    for _ in range(setup.runs * 4):
        for name in _NAMES:
            with setup.directory() as path:
                starts[name].append(_started_ms(path, name))
    for _ in range(setup.runs):
        for name in _NAMES:
            with setup.directory() as path, _environment(name), Service.start(path) as target:
                time.sleep(SETTLING_S)
                cpu_s = machine.cpu_s(target.pid)
                time.sleep(REST_S)
                busy[name].append((machine.cpu_s(target.pid) - cpu_s) / REST_S * 100)
                memory[name].append(target.memory_mib()["RssAnon"])
    for what, unit, taken, goal in (
        ("start", "ms", starts, START_MS),
        ("CPU at rest", "%", busy, 0.1),
        ("memory at rest", "MiB", memory, REST_MIB),
    ):
        for name in _NAMES:
            report.line("console", f"{what}, {name}", statistics.median(taken[name]), unit)
        more = statistics.median(a - b for a, b in zip(*taken.values(), strict=True))
        report.line("console", f"{what}, with − without", more, unit, Goal(at_most=goal))


def _started_ms(path: Path, name: str) -> float:
    """Milliseconds from the start of a service until it answers, looked for every millisecond."""
    port = free_ports(1)[0]
    command = [str(Path(sys.executable).with_name("tms")), "serve", "--data", str(path / "data")]
    with _environment(name), (path / "service.log").open("wb") as log:
        began_s = time.perf_counter()
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        try:
            while time.perf_counter() - began_s < START_S:
                with suppress(URLError), urlopen(f"http://127.0.0.1:{port}/readyz"):
                    return (time.perf_counter() - began_s) * 1e3
                time.sleep(0.001)
            raise RuntimeError(f"The service did not start: {(path / 'service.log').read_text()}")
        finally:
            process.kill()
            process.wait()


@contextmanager
def _environment(name: str) -> Iterator[None]:
    """The environment of services that are started, without the console unless `name` is `with`."""
    before = dict(os.environ)
    os.environ.update({} if name == "with" else WITHOUT)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _wheel(report: Report) -> None:
    report.title("The console's files in the wheel")
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program, folder], cwd=ROOT, check=True)
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            console = [one for one in files.infolist() if one.filename.startswith("tms/console/")]
    size = sum(one.compress_size for one in console) / 1_024
    report.line(
        "console", f"{len(console)} files, compressed", size, "KiB", Goal(at_most=WHEEL_KIB)
    )
