"""Several instances over one HBase: the gain of a second one, the cost of asking another instance
than the owner, of a commit over several owners, and the time without writes when a partition is
moved or its owner dies.

HBase and ZooKeeper run for this benchmark only, from `integration.cluster`.
"""

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import count

from bench.report import Goal, Report, Sample, interleaved, measured, median, more, ratio
from bench.targets import Setup, values
from bench.threads import in_threads
from integration.cluster import Standalone
from integration.cluster.zookeeper import ZooKeeper
from integration.install import install
from integration.instances import SESSION_S, Instances
from tms.client.client import Bus
from tms.errors import TMSError
from tms.runtime.background import meanwhile

REGIONS, PARTITIONS, PRODUCERS = 4, 8, 4
TOPIC = "measured"
ONE, TWO, DIRECT, FORWARDED, ONE_OWNER, THREE_OWNERS = (
    "one instance",
    "two instances",
    "direct",
    "forwarded",
    "one owner",
    "three owners",
)


def run(setup: Setup, report: Report) -> None:
    """Run all parts."""
    report.title("Several instances over one HBase")
    with (
        setup.directory() as directory,
        Standalone(directory / "hbase") as hbase,
        ZooKeeper(directory / "zookeeper") as zookeeper,
    ):
        names = (f"bench{number}" for number in count())

        @contextlib.contextmanager
        def cluster(instances: str) -> Iterator[Instances]:
            url = hbase.url(next(names))
            install(url, regions=REGIONS)
            some = Instances(url, zookeeper, instances)
            try:
                yield some
            finally:
                some.close()

        with cluster("abc") as three:
            _latency(setup, report, three)
            _commits(setup, report, three)
            _moves(setup, report, three)
        _scaling(setup, report, cluster)
        _deaths(setup, report, cluster)


def _scaling(
    setup: Setup,
    report: Report,
    cluster: Callable[[str], contextlib.AbstractContextManager[Instances]],
) -> None:
    """Publish and replay 1 KiB with four producers, each to the owners of its partitions."""
    messages = 20_000 if setup.quick else 100_000
    with cluster("a") as alone, cluster("bc") as two:

        def publish(instances: Instances) -> Sample:
            topic = f"t{time.monotonic_ns()}"
            with instances.connect() as bus:
                bus.create_topic(topic, partitions=PARTITIONS, durability="written")
            owners = instances.owners(topic)
            mine: dict[str, list[int]] = {name: [] for name in instances.running}
            for partition, owner in enumerate(owners):
                mine[owner].append(partition)
            places = [
                (owner, partitions[half :: PRODUCERS // len(mine)])
                for owner, partitions in mine.items()
                for half in range(PRODUCERS // len(mine))
                if partitions[half:]
            ]
            share = messages // len(places)
            pids = [service.pid for service in instances.running.values()]
            return measured(partial(_together, instances, topic, places, share), *pids)

        samples = interleaved(
            {ONE: partial(publish, alone), TWO: partial(publish, two)}, setup.runs
        )
        report.rates("instances", "publish and fetch 1 KiB on HBase", samples)
        share = ratio(samples, TWO, ONE)
        report.line("instances", "two instances ÷ one", share, "×", Goal(at_least=1.7), samples)


def _together(
    instances: Instances, topic: str, places: list[tuple[str, list[int]]], share: int
) -> int:
    """Publish from several threads and read everything back."""
    payloads = values(1 << 10)

    def work(owner: str, partitions: list[int]) -> None:
        with instances.connect(owner) as bus:
            with bus.producer(topic) as producer:
                for number in range(share):
                    producer.send(
                        payloads[number % len(payloads)],
                        partition=partitions[number % len(partitions)],
                    )
            seen = 0
            for batch in bus.consumer(topic, partitions=partitions, stop_at_end=True).batches():
                seen += len(batch)
            assert seen == share, (seen, share)

    in_threads([partial(work, *place) for place in places])
    return share * len(places)


def _latency(setup: Setup, report: Report, three: Instances) -> None:
    """Publish a single message of 1 KiB at a time, at the owner of its partition and at another
    instance. A client of TMS would go straight to the owner the second time; the client here does
    not."""
    rounds = 50 if setup.quick else 300
    message = {"value": "x" * 1_000, "partition": 0}
    body = json.dumps({"messages": [message]}).encode()
    path = f"/v2/namespaces/default/topics/{TOPIC}/messages"
    with three.connect() as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
    owner = three.owners(TOPIC)[0]
    other = next(name for name in three.running if name != owner)

    def lone(name: str) -> Sample:
        times: list[float] = []
        connection = HTTPConnection("127.0.0.1", three.ports[name], timeout=30)

        def publish() -> int:
            for _ in range(rounds):
                began = time.perf_counter()
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.status == HTTPStatus.OK, answer.read()
                answer.read()
                times.append(time.perf_counter() - began)
            return rounds

        with contextlib.closing(connection):
            publish()
            times.clear()
            return _timed(three, publish, times)

    works = {DIRECT: partial(lone, owner), FORWARDED: partial(lone, other)}
    samples = interleaved(works, setup.runs)
    _times(report, "a lone publish of 1 KiB", samples)
    share = ratio(samples, FORWARDED, DIRECT, more("p50_ms"))
    report.line("instances", "forwarded ÷ direct", share, "×", Goal(at_most=1.4), samples)


def _commits(setup: Setup, report: Report, three: Instances) -> None:
    """Commit three messages, in partitions of the coordinator, and of three owners."""
    rounds = 30 if setup.quick else 200
    coordinator = three.view()["coordinator"]
    owners = three.owners(TOPIC)
    one = [owners.index(coordinator)] * 3
    each = [owners.index(name) for name in three.running]

    def commit(partitions: list[int]) -> Sample:
        times: list[float] = []
        with three.connect(coordinator) as bus:

            def work() -> int:
                for _ in range(rounds):
                    began = time.perf_counter()
                    with bus.transaction() as tx:
                        for partition in partitions:
                            tx.send(TOPIC, b"x" * 100, partition=partition)
                    times.append(time.perf_counter() - began)
                return rounds

            return _timed(three, work, times)

    works = {ONE_OWNER: partial(commit, one), THREE_OWNERS: partial(commit, each)}
    samples = interleaved(works, setup.runs)
    _times(report, "a commit of three messages", samples)
    share = ratio(samples, THREE_OWNERS, ONE_OWNER, more("p50_ms"))
    report.line("instances", "three owners ÷ one", share, "×", Goal(at_most=2), samples)


def _moves(setup: Setup, report: Report, three: Instances) -> None:
    """Measure the longest time between two acknowledged messages of a partition that is moved."""
    moves = 6 if setup.quick else 20
    gaps = [0.0]

    def publish(ended: threading.Event) -> None:
        with three.connect() as bus:
            last = time.perf_counter()
            while not ended.is_set():
                bus.publish(TOPIC, b"x", partition=0)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

    pauses: list[float] = []
    with meanwhile(publish):
        for number in range(moves):
            time.sleep(0.5)
            before = len(gaps)
            three.move(TOPIC, 0, "abc"[number % 3])
            time.sleep(1.0)
            pauses.append(max(gaps[before - 1 :]))
    report.line("instances", "planned move, pause, median", statistics.median(pauses) * 1e3, "ms")
    worst = max(pauses) * 1e3
    report.line("instances", "planned move, pause, longest", worst, "ms", Goal(at_most=500))


def _deaths(
    setup: Setup,
    report: Report,
    cluster: Callable[[str], contextlib.AbstractContextManager[Instances]],
) -> None:
    """Measure how long the partitions of a killed instance, and transactions, are without an
    owner."""
    back: list[float] = []
    begun: list[float] = []
    for _ in range(1 if setup.quick else 3):
        with cluster("abc") as three:
            with three.connect() as bus:
                bus.create_topic(TOPIC, partitions=PARTITIONS)
                for partition in range(PARTITIONS):
                    bus.publish(TOPIC, b"x", partition=partition)
            coordinator = three.view()["coordinator"]
            victim = next(name for name in three.running if name != coordinator)
            owned = [p for p, name in enumerate(three.owners(TOPIC)) if name == victim]
            rest = next(name for name in three.running if name not in (victim, coordinator))
            three.kill(victim)
            killed = time.perf_counter()
            with three.connect(rest) as bus:
                for partition in owned:
                    _insist(partial(bus.publish, TOPIC, b"y", partition=partition))
            back.append(time.perf_counter() - killed)
            with three.connect(coordinator) as bus:
                open_ = [_begun(bus) for _ in range(1_000 if setup.quick else 10_000)]
            three.kill(coordinator)
            killed = time.perf_counter()
            with three.connect(rest) as bus:
                _insist(lambda bus=bus: _commit(bus))  # type: ignore[misc]
                begun.append(time.perf_counter() - killed)
            assert len(open_) == len(set(open_))
    report.line(
        "instances",
        f"killed instance, its partitions take writes again, session {SESSION_S:g} s",
        max(back),
        "s",
        Goal(at_most=SESSION_S + 3),
    )
    report.line(
        "instances",
        f"killed coordinator with {len(open_):,} transactions, commits again",
        max(begun),
        "s",
        Goal(at_most=SESSION_S + 5),
    )


def _begun(bus: Bus) -> int:
    return bus._transport.transactions.begin().transaction_id


def _commit(bus: Bus) -> None:
    with bus.transaction() as tx:
        tx.send(TOPIC, b"z", partition=0)


def _insist(do: Callable[[], object]) -> None:
    while True:
        try:
            do()
            return
        except TMSError:
            time.sleep(0.02)


def _timed(three: Instances, work: Callable[[], int], times: list[float]) -> Sample:
    """A sample of work that notes its times, with their median."""
    sample = measured(work, *[service.pid for service in three.running.values()])
    sample.more["p50_ms"] = statistics.median(times) * 1_000
    return sample


def _times(report: Report, what: str, samples: dict[str, list[Sample]]) -> None:
    for name, its in samples.items():
        report.line("instances", f"{what}, {name}, p50", median(its, more("p50_ms")), "ms")
        cpu_us = median(its, lambda sample: sample.cpu_s_per_million)
        report.line("instances", f"{what}, {name}, CPU", cpu_us, "µs")
