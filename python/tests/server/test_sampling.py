"""Sampling of a running service, and the operations that answer its history."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import tms
from tests.access_kit import People
from tests.clocks import ManualClock
from tests.http_kit import Served, serving
from tests.waiting import until
from tms.errors import Forbidden, StorageUnavailable, TopicNotFound
from tms.model.history import HISTORY_S, LAG_STEP_S, STEP_S, STEPS, History
from tms.model.topic import TopicName, TopicSettings
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore


class Sampled:
    """A service whose steps a test takes."""

    def __init__(self, served: Served, clock: ManualClock) -> None:
        self.served = served
        self.clock = clock
        self.service = served.service

    def step(self, seconds: float = STEP_S) -> None:
        self.clock.pass_ms(round(seconds * 1_000))
        counts: list[Any] = []
        self.served.in_loop(lambda: counts.append(self.service.histories.sampler.counts()))
        self.service.histories.sampler.sample(counts[0])

    def get(self, path: str) -> History:
        with self.served.connect() as client:
            answer = client.request("GET", f"/v2/{path}")
        assert answer.status == 200, answer
        body = answer.json
        return History(body["end_ms"], body["step_ms"], body["series"], body["sources"])

    def topic(self, topic: str) -> dict[str, list[float | None]]:
        return {**self.get(f"namespaces/default/topics/{topic}/history").series}

    def now(self, name: str) -> float | None:
        return self.get("cluster/history").series[name][-1]


@pytest.fixture
def sampled() -> Iterator[Sampled]:
    clock = ManualClock()
    with serving(MemoryStore(), clock=clock) as served:
        yield Sampled(served, clock)


def test_messages_and_bytes_of_a_topic(sampled: Sampled) -> None:
    with tms.connect(sampled.served.url) as bus:
        bus.create_topic("busy", partitions=2)
        bus.create_topic("idle")
        sampled.step()
        for number in range(20):
            bus.publish("busy", b"x" * 100, partition=number % 2)
        sampled.step()
        received = list(bus.consumer("busy", start="earliest", stop_at_end=True))
        assert len(received) == 20
        bus.set_positions("busy", {0: "offset:2"}, group="g")
        sampled.step()
    busy = sampled.topic("busy")
    assert busy["messages_in_s"][-2:] == [2, 0]
    assert busy["bytes_in_s"][-2] and busy["bytes_in_s"][-2] > 200
    assert busy["bytes_out_s"][-2] == 0
    assert busy["bytes_out_s"][-1] and busy["bytes_out_s"][-1] > 200
    assert sampled.topic("idle") == dict.fromkeys(busy, [None] * STEPS)
    service = sampled.get("cluster/history").series
    assert service["messages_in_s"][-3:] == [0, 2, 0], "journals are not counted"
    assert service["bytes_out_s"][-1] == busy["bytes_out_s"][-1]
    assert service["publishes_s"][-2] == 2
    assert service["requests_s"][-1] and service["errors_s"][-1] == 0


def test_lag_of_a_group(sampled: Sampled) -> None:
    with tms.connect(sampled.served.url) as bus:
        bus.create_topic("read")
        bus.publish_many("read", [b"x"] * 5)
        bus.set_positions("read", {0: "offset:2"}, group="g")
        sampled.step(LAG_STEP_S)
        bus.publish("read", b"x")
        sampled.step(LAG_STEP_S)
    history = sampled.get("namespaces/default/topics/read/groups/g/history")
    assert history.series == {"lag": [*[None] * 58, 3, 4]}
    assert history.step_ms == LAG_STEP_S * 1_000
    assert sampled.now("lag") == 4


def test_the_groups_and_queues_that_need_attention(sampled: Sampled) -> None:
    path = "/v2/cluster/backlogs"
    with sampled.served.connect() as client, tms.connect(sampled.served.url) as bus:
        assert client.request("GET", path).json == {"seen_ms": 0, "groups": [], "queues": []}
        for number in range(3):
            name = f"n{number}:worked"
            bus.create_topic(name)
            bus.publish_many(name, [b"x"] * number)
            bus.set_positions(name, {0: "earliest"}, group="g")
            queue = bus.queue(name, group="q")
            for message in queue.receive(1):
                queue.reject(message, "broken")
        sampled.step()
        found = client.request("GET", path).json
        assert found["seen_ms"] == sampled.clock.now_ms()
        assert [(one["topic"], one["lag"]) for one in found["groups"]] == [
            ("n2:worked", 2),
            ("n1:worked", 1),
        ]
        assert {one["topic"]: one["dead"] for one in found["queues"]} == {
            "n1:worked": 1,
            "n2:worked": 1,
        }


def test_a_topic_that_is_made_anew_has_no_past(sampled: Sampled) -> None:
    with tms.connect(sampled.served.url) as bus:
        for _ in range(2):
            bus.create_topic("again")
            bus.publish("again", b"x")
            sampled.step()
            assert [n for n in sampled.topic("again")["messages_in_s"] if n is not None] == [0.1]
            bus.delete_topic("again")
            sampled.step()
    assert sampled.service.histories.sampler.rings.own_topics() == []
    with sampled.served.connect() as client:
        answer = client.request("GET", "/v2/namespaces/default/topics/again/history")
    assert answer.problem == "topic-not-found"


def test_partitions_that_are_closed_and_opened_make_no_peak(sampled: Sampled) -> None:
    partitions = sampled.service.engine.topics.partitions
    with tms.connect(sampled.served.url) as bus:
        bus.create_topic("moved")
        bus.publish_many("moved", [b"x"] * 1_000)
        sampled.step()
        partitions.abandon(StorageUnavailable("It moves."))
        sampled.step()
        bus.publish_many("moved", [b"x"] * 1_100)
        sampled.step()
        partitions.abandon(StorageUnavailable("It moves, and is back before the next step."))
        bus.publish_many("moved", [b"x"] * 1_200)
        sampled.step()
    assert sampled.topic("moved")["messages_in_s"][-4:] == [100, 0, 110, 120]


def test_a_store_that_does_not_answer_loses_only_what_it_keeps(
    sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tms.connect(sampled.served.url) as bus:
        bus.create_topic("read")
        bus.publish("read", b"x")
        bus.set_positions("read", {0: "earliest"}, group="g")
        sampled.step(LAG_STEP_S)
        groups = sampled.service.engine.groups
        monkeypatch.setattr(groups, "lags_here", lambda _: ([], 1))
        sampled.step(LAG_STEP_S)
    assert sampled.now("lag") is None
    assert sampled.now("requests_s") is not None
    history = sampled.get("namespaces/default/topics/read/groups/g/history")
    assert [lag for lag in history.series["lag"] if lag is not None] == [1]


@pytest.mark.parametrize("last_s", [0, STEP_S - 1, HISTORY_S + 1, "x", -1])
def test_only_the_last_hour_is_there(sampled: Sampled, last_s: object) -> None:
    with sampled.served.connect() as client:
        answer = client.request("GET", f"/v2/cluster/history?last_s={last_s}")
    assert answer.problem == "invalid"


def test_a_part_of_the_hour(sampled: Sampled) -> None:
    sampled.step()
    series = sampled.get(f"cluster/history?last_s={3 * STEP_S}").series
    assert {len(values) for values in series.values()} == {3}


def test_history_is_for_those_who_may_observe() -> None:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        people = People(served)
        with people.bus("admin", "all *") as admin:
            admin.create_topic("orders")
            admin.create_topic("secret")
        with people.bus("reader", "observe topic:orders") as bus:
            history = bus._transport.history
            assert history.topic(TopicName.parse("orders"))
            assert history.group(TopicName.parse("orders"), "g")
            for ask in (
                lambda: history.topic(TopicName.parse("secret")),
                lambda: history.topic(TopicName.parse("missing")),
                lambda: history.group(TopicName.parse("secret"), "g"),
                history.service,
            ):
                with pytest.raises(Forbidden):
                    ask()
        with people.bus("operator", "observe service") as bus:
            assert len(bus._transport.history.service().series["bytes_in_s"]) == STEPS
            with pytest.raises(Forbidden):
                bus._transport.history.topic(TopicName.parse("orders"))


def test_sampling_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the service runs it."""
    with serving(MemoryStore()) as served:
        sampler = served.service.histories.sampler
        failures: list[int] = []
        done: list[int] = []

        def sample(_: object) -> None:
            if not failures:
                failures.append(1)
                raise StorageUnavailable("Not now.")
            done.append(1)

        monkeypatch.setattr(sampler, "sample", sample)
        monkeypatch.setattr(sampler.rings, "wait_s", lambda: 0.0)
        tasks: list[Any] = []
        run = sampler.run(served.service.in_thread)
        served.in_loop(lambda: tasks.append(served.loop.create_task(run)))
        until(lambda: len(done) > 1)
        served.in_loop(lambda: tasks[0].cancel())


def test_memory_of_a_service_with_ten_thousand_topics(sampled: Sampled) -> None:
    engine = sampled.service.engine
    names = [TopicName.parse(f"t-{number:05}") for number in range(10_000)]
    for name in names:
        engine.create_topic(name, TopicSettings())
        uid = engine.topics.registry.find(name).uid
        log = engine.topics.log(name, 0)
        log.state.counters.messages = uid + 300
        log.state.counters.bytes = uid * 1_000
    sent = dict.fromkeys(names, 5_000)
    with suppress(TopicNotFound):
        engine.groups.lags_here(10)
    tracemalloc.start()
    try:
        for more in range(3):
            for log in engine.topics.partitions.logs.values():
                log.state.counters.messages += 300 * more
            sampled.clock.pass_ms(STEP_S * 1_000)
            counts = sampled.service.histories.sampler.counts()._replace(sent=sent)
            sampled.service.histories.sampler.sample(counts)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(json.dumps(sampled.topic("t-00000"))) < 16 << 10
    assert held <= 8 << 20, f"{held / (1 << 20):.1f} MiB"
