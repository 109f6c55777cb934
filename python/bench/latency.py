"""The latency of one message: acknowledged alone, and from publishing to a waiting consumer.

* Alone: publish, wait for the acknowledgement, publish the next.
* End to end: 1,000 messages of 1 KiB a second are sent at times that were fixed before, and each
  latency counts from its intended time, so that a stall is seen in full. The consumer is a process
  of its own; it follows, as consumers do, or asks again for each answer.
"""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import tms
from bench import machine
from bench.report import Goal, Report, Sample, interleaved, measured, median, more, percentile
from bench.targets import TOPIC, Embedded, Service, Setup, raw_leveldb, values
from tms.block import encode
from tms.client.client import Bus
from tms.client.http.following import FollowedTail
from tms.model.keys import block_key

PER_SECOND = 1_000
WARM_UP = 1_000  # messages
_STAMP = 19  # digits of a time in ns


def run(setup: Setup, report: Report) -> None:
    """Benchmark 3."""
    _alone(setup, report)
    _end_to_end(setup, report)


def _alone(setup: Setup, report: Report) -> None:
    report.title("A lone 1 KiB publish, acknowledged as written")
    count = 3_000 if setup.quick else 10_000
    samples = interleaved(
        {
            "encode and put, raw LevelDB": lambda: _raw(setup, count),
            "embedded": lambda: _embedded(setup, count),
            "HTTP": lambda: _http(setup, count),
        },
        setup.runs,
    )
    goals = {"embedded": Goal(at_most=0.025), "HTTP": Goal(at_most=0.22)}
    for name, its in samples.items():
        for point in ("p50_ms", "p99_ms"):
            goal = goals.get(name) if point == "p50_ms" else None
            value = median(its, more(point))
            report.line("3", f"{name}, {point[:3]}", value, "ms", goal, {name: its})
        report.line("3", f"{name}, CPU", median(its, lambda s: s.cpu_s_per_million), "s/million")


def _raw(setup: Setup, count: int) -> Sample:
    cells = values(1024)
    with setup.directory() as path, raw_leveldb(path) as database:

        def one(number: int) -> None:
            database.put(block_key(number, 0), encode([cells[number % len(cells)]]))

        return timed(one, count)


def _embedded(setup: Setup, count: int) -> Sample:
    with setup.directory() as path, Embedded.open(path) as target:
        return timed(_publishing(target.bus), count)


def _http(setup: Setup, count: int) -> Sample:
    with setup.directory() as path, Service.start(path) as target:
        return timed(_publishing(target.bus), count, target.pid)


def _publishing(bus: Bus) -> Callable[[int], None]:
    bus.create_topic(TOPIC, durability="written")
    cells = values(1024)

    def one(number: int) -> None:
        bus.publish(TOPIC, cells[number % len(cells)])

    return one


def timed(one: Callable[[int], None], count: int, *pids: int) -> Sample:
    """`one(0)`, `one(1)` …, each timed by itself, after a warm-up."""
    for number in range(WARM_UP):
        one(number)
    took_ns: list[int] = []

    def work() -> int:
        clock = time.perf_counter_ns
        for number in range(WARM_UP, WARM_UP + count):
            begun_ns = clock()
            one(number)
            took_ns.append(clock() - begun_ns)
        return count

    sample = measured(work, *pids)
    sample.more.update(_points([ns / 1e6 for ns in took_ns]))
    return sample


def _points(took_ms: list[float]) -> dict[str, float]:
    return {f"p{point}_ms": percentile(took_ms, point) for point in (50, 99)}


def _end_to_end(setup: Setup, report: Report) -> None:
    report.title(f"Publish to consume at {PER_SECOND:,} messages a second, 1 KiB, through HTTP")
    count = PER_SECOND * (3 if setup.quick else 10)
    samples = interleaved(
        {
            "following": lambda: _paced(setup, count, follows=True),
            "long polls": lambda: _paced(setup, count, follows=False),
        },
        setup.runs,
    )
    goals = {"p50_ms": Goal(at_most=0.5), "p99_ms": Goal(at_most=3), "cpu_us": Goal(at_most=200)}
    for name, its in samples.items():
        for point, unit in (("p50_ms", "ms"), ("p99_ms", "ms"), ("cpu_us", "us")):
            what = "CPU of the service a message" if unit == "us" else point[:3]
            goal = goals[point] if name == "following" else None
            value = median(its, more(point))
            report.line("3", f"end to end, {name}, {what}", value, unit, goal, {name: its})


def _paced(setup: Setup, count: int, follows: bool) -> Sample:
    context = multiprocessing.get_context("spawn")
    with setup.directory() as path, Service.start(path) as target:
        target.bus.create_topic(TOPIC, durability="written")
        ours, theirs = context.Pipe()
        consumer = context.Process(
            target=_consume, args=(target.url, count + WARM_UP, follows, theirs), daemon=True
        )
        consumer.start()
        assert ours.recv() == "waiting" and consumer.pid is not None
        cpu_s = machine.cpu_s(target.pid)
        sample = measured(
            lambda: _send_paced(target.bus, count + WARM_UP), target.pid, consumer.pid
        )
        assert ours.poll(60), "the consumer did not get every message"
        sample.more.update(_points(ours.recv()[WARM_UP:]))
        cpu_s = machine.cpu_s(target.pid) - cpu_s
        sample.more["cpu_us"] = cpu_s / (count + WARM_UP) * 1e6
        consumer.join()
    return sample


def _send_paced(bus: Bus, count: int) -> int:
    pad = values(1024)[0][_STAMP:]
    with bus.producer(TOPIC) as producer:
        begun_ns = time.monotonic_ns() + 10_000_000
        for number in range(count):
            due_ns = begun_ns + number * 1_000_000_000 // PER_SECOND
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / 1e9)
            producer.send(b"%019d" % due_ns + pad)
    return count


def _consume(url: str, count: int, follows: bool, tell: Connection) -> None:
    """Run the consumer's process: it reports latencies in ms, in order."""
    if not follows:
        FollowedTail.is_at = lambda self, request: False  # type: ignore[method-assign]
    took_ms: list[float] = []
    with tms.connect(url) as bus, bus.consumer(TOPIC) as consumer:
        tell.send("waiting")
        for batch in consumer.batches():
            now_ns = time.monotonic_ns()
            took_ms += [(now_ns - int(cell[:_STAMP])) / 1e6 for cell in batch.values() if cell]
            if len(took_ms) >= count:
                break
    tell.send(took_ms)
