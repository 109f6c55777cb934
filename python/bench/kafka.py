"""Kafka's protocol: TMS beside Kafka, both with the same client, confluent-kafka.

    publish         a producer sends all messages and waits for their acknowledgements
    consume, cold   a consumer reads the topic from its start; TMS has converted none of it before
    consume, warm   another one reads its end, of which TMS keeps the converted batches
    lone            publish one message, wait for its acknowledgement, publish the next

Both acknowledge when the page cache has a message: Kafka always, TMS with `acks=1`. Every topic has
one partition. CPU time is that of the server alone; the client's is the same work for both. Kafka
runs for a while first, because Java compiles hot code.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench import machine
from bench.latency import timed
from bench.report import Goal, Report, Sample, Samples, interleaved, measured, median, more, ratio
from bench.targets import Service, Setup, values
from integration.cluster.site import LOCAL, free_ports
from integration.kafka import Broker

TMS, KAFKA = "TMS", "Kafka"
GOALS = {100: Goal(at_least=0.7), 1_024: Goal(at_least=0.5)}  # of messages a second, to Kafka's
LONE_GOAL = Goal(at_most=1.3)  # of a lone message's time, to Kafka's
RUN_BYTES = 96 << 20  # of values
WARM_BYTES = 16 << 20  # of values at the end of a topic: fewer than TMS keeps as batches
SERVER_CPU = "server_cpu_s"
_TIMEOUT_S = 60.0
_POLL = 1_000  # messages


class _Peer(NamedTuple):
    """A server: where clients find it, and its process."""

    bootstrap: str
    pid: int


def run(setup: Setup, report: Report) -> None:
    """Compare both servers, in turns."""
    report.title("Kafka's protocol: TMS beside Kafka, confluent-kafka as client")
    with _peers(setup) as peers:
        for size in GOALS:
            _streams(setup, report, peers, size)
        _lone(setup, report, peers)


@contextlib.contextmanager
def _peers(setup: Setup) -> Iterator[dict[str, _Peer]]:
    (port,) = free_ports(1)
    with (
        setup.directory() as directory,
        Service.start(directory, "--kafka-port", str(port)) as service,
        Broker(directory / "kafka", 1) as broker,
    ):
        yield {
            TMS: _Peer(f"{LOCAL}:{port}", service.pid),
            KAFKA: _Peer(broker.bootstrap, broker.pid),
        }


def _streams(setup: Setup, report: Report, peers: dict[str, _Peer], size: int) -> None:
    """Publish and consume messages of a size."""
    amount = RUN_BYTES // size // (3 if setup.quick else 1)
    warm = WARM_BYTES // size
    rounds = count()
    cells = values(size)
    taken: dict[str, Samples] = {}

    def one_round(name: str) -> Sample:
        peer, topic = peers[name], f"stream-{size}-{next(rounds)}"
        published = _of_server(peer, partial(_publish, peer, topic, cells, amount))
        for what, start in (("cold", 0), ("warm", amount - warm)):
            sample = _of_server(peer, partial(_consume, peer, topic, start, amount))
            taken.setdefault(what, {}).setdefault(name, []).append(sample)
        return published

    variants = {name: partial(one_round, name) for name in peers}
    for warm_up in variants.values():
        warm_up()
    taken.clear()
    taken = {"publish": interleaved(variants, setup.runs)} | taken
    for what, samples in taken.items():
        label = f"publish {size} B" if what == "publish" else f"consume {size} B, {what}"
        report.rates("kafka", label, samples)
        for name, its in samples.items():
            cpu = median(its, lambda s: s.more[SERVER_CPU] / s.messages * 1e6)
            report.line("kafka", f"{label}, {name}, CPU of the server", cpu, "s/million")
        report.line(
            "kafka", f"{label}, TMS ÷ Kafka", ratio(samples, TMS, KAFKA), "×", GOALS[size], samples
        )


def _lone(setup: Setup, report: Report, peers: dict[str, _Peer]) -> None:
    messages = 1_000 if setup.quick else 3_000
    variants = {name: partial(_lone_of, peer, messages) for name, peer in peers.items()}
    for warm_up in variants.values():
        warm_up()
    samples = interleaved(variants, setup.runs)
    for name, its in samples.items():
        for point in ("p50_ms", "p99_ms"):
            value = median(its, more(point))
            report.line("kafka", f"lone 1 KiB, {name}, {point[:3]}", value, "ms", None, {name: its})
    times = ratio(samples, TMS, KAFKA, more("p50_ms"))
    report.line("kafka", "lone 1 KiB, p50 of TMS ÷ Kafka", times, "×", LONE_GOAL, samples)


def _lone_of(peer: _Peer, messages: int) -> Sample:
    cells = values(1_024)
    producer = _producer(peer, **{"linger.ms": 0})

    def one(number: int) -> None:
        producer.produce("lone", cells[number % len(cells)], on_delivery=_require_delivered)
        if producer.flush(_TIMEOUT_S):
            raise RuntimeError("A message was not acknowledged in time.")

    return timed(one, messages, peer.pid)


def _of_server(peer: _Peer, work: Callable[[], int]) -> Sample:
    """A sample with the CPU seconds of the server beside those of both."""
    before_s = machine.cpu_s(peer.pid)
    sample = measured(work, peer.pid)
    sample.more[SERVER_CPU] = machine.cpu_s(peer.pid) - before_s
    return sample


def _publish(peer: _Peer, topic: str, cells: list[bytes], amount: int) -> int:
    producer = _producer(peer, **{"linger.ms": 5})
    for number in range(amount):
        key = b"key-%08d" % number
        while True:
            try:
                producer.produce(
                    topic, cells[number % len(cells)], key, on_delivery=_require_delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
        if not number % _POLL:
            producer.poll(0)
    if left := producer.flush(_TIMEOUT_S):
        raise RuntimeError(f"{left} messages were not acknowledged in time.")
    return amount


def _producer(peer: _Peer, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": peer.bootstrap, "acks": 1, **settings})


def _require_delivered(error: KafkaError | None, _: object) -> None:
    if error is not None:
        raise RuntimeError(f"A message was not stored: {error}")


def _consume(peer: _Peer, topic: str, start: int, end: int) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap,
            "group.id": "measured",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        got = 0
        until_s = time.monotonic() + _TIMEOUT_S
        while got < end - start:
            messages = consumer.consume(min(_POLL, end - start - got), timeout=1.0)
            failed = [one.error() for one in messages if one.error() is not None]
            if failed or time.monotonic() > until_s:
                raise RuntimeError(f"{got} of {end - start} messages came: {failed}")
            got += len(messages)
        return got
    finally:
        consumer.close()
