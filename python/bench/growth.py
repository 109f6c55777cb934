"""Growth of cost with stored data: an empty store beside a full one.

Full is 4 GiB in the measured topic, and 10,000 other topics. Both stores are open in this process
at the same time and measured in turns.
"""

from collections.abc import Callable
from functools import partial

from bench.latency import timed
from bench.report import Goal, Report, Sample, interleaved, measured, more, ratio
from bench.targets import TOPIC, Embedded, Setup, values
from bench.throughput import AT_ONCE, publish
from tms.client.client import Bus

FULL, EMPTY = "full", "empty"


def run(setup: Setup, report: Report) -> None:
    """Benchmark 6."""
    mib, topics = (256, 1_000) if setup.quick else (4_096, 10_000)
    report.title(f"An empty store beside one with {mib:,} MiB in the topic and {topics:,} topics")
    with (
        setup.directory() as first,
        setup.directory() as second,
        Embedded.open(first) as empty,
        Embedded.open(second) as full,
    ):
        cells = values(1024)
        parts = [cells[at : at + AT_ONCE] for at in range(0, 4 * AT_ONCE, AT_ONCE)]
        for target in (empty, full):
            target.bus.create_topic(TOPIC, durability="written")
        for number in range(topics):
            full.bus.create_topic(f"other-{number}", durability="written")
            if number % 10 == 0:
                full.bus.publish(f"other-{number}", b"one")
        publish(full.bus, parts, mib << 10)
        buses = {EMPTY: empty.bus, FULL: full.bus}
        _compare(setup, report, buses, parts)


def _compare(setup: Setup, report: Report, buses: dict[str, Bus], parts: list[list[bytes]]) -> None:
    bulk = 50_000 if setup.quick else 100_000
    runs = setup.runs + 2

    works: dict[str, tuple[Callable[[Bus], Sample], Callable[[Sample], float]]] = {
        "lone publish": (_lone, more("p50_ms")),
        "tail fetch": (_tail, more("p50_ms")),
        "bulk publish": (partial(_bulk, parts, bulk), lambda sample: 1 / sample.per_s),
        "bulk publish, CPU": (partial(_bulk, parts, bulk), lambda sample: sample.cpu_s_per_million),
    }
    for what, (work, of) in works.items():
        samples = interleaved({name: partial(work, bus) for name, bus in buses.items()}, runs)
        report.line(
            "6",
            f"{what}, full ÷ empty",
            ratio(samples, FULL, EMPTY, of),
            "× time",
            Goal(at_most=1.3),
            samples,
        )


def _bulk(parts: list[list[bytes]], count: int, bus: Bus) -> Sample:
    return measured(lambda: publish(bus, parts, count))


def _lone(bus: Bus) -> Sample:
    cells = values(1024)

    def one(number: int) -> None:
        bus.publish(TOPIC, cells[number % len(cells)])

    return timed(one, 3_000)


def _tail(bus: Bus) -> Sample:
    """Fetch the messages of a moment ago."""
    before = bus.fetch(TOPIC, "latest").next
    bus.publish(TOPIC, b"newest")

    def one(_: int) -> None:
        assert len(bus.fetch(TOPIC, before).batches) == 1

    return timed(one, 3_000)
