"""The history of a cluster: the sums of what its instances have counted, whichever answers, and the
names of those that do not."""

from collections.abc import Iterator

import pytest

from tests.cluster_kit import Instances, instances
from tms.client.client import Bus
from tms.errors import Unavailable
from tms.model.history import LAG, LAG_STEP_S, STEP_S, History, HistorySource, added_up
from tms.model.topic import TopicName
from tms.runtime.clock import SystemClock

IDS = ("a", "b", "c")
NAME = TopicName.parse("spread")


class AheadClock(SystemClock):
    """The machine's clock, ahead by some steps of history."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._now_s = super().monotonic_s()

    def monotonic_s(self) -> float:  # type: ignore[override]
        return self._now_s + self.ahead_s


@pytest.fixture
def cluster() -> Iterator[Instances]:
    with instances(*IDS) as cluster:
        with cluster.connect("a") as bus:
            bus.create_topic(str(NAME), partitions=6, durability="written")
        yield cluster


def step(cluster: Instances, clocks: dict[str, AheadClock], seconds: float = STEP_S) -> None:
    for id, served in cluster.served.items():
        sampler = served.service.histories.sampler
        if id not in clocks:
            clocks[id] = AheadClock()
            sampler._clock = sampler.rings._clock = clocks[id]
        clocks[id].ahead_s += seconds
        counts: list[object] = []
        served.in_loop(lambda c=counts, s=sampler: c.append(s.counts()))  # type: ignore[misc]
        sampler.sample(counts[0])  # type: ignore[arg-type]


def topic(bus: Bus) -> History:
    return bus._transport.history.topic(NAME)  # type: ignore[attr-defined,no-any-return]


def test_each_instance_answers_the_sums_of_all(cluster: Instances) -> None:
    assert len({*cluster.owners(str(NAME))}) > 1
    clocks: dict[str, AheadClock] = {}
    with cluster.connect("a") as bus:
        step(cluster, clocks)
        for partition in range(6):
            bus.publish_many(str(NAME), [b"x" * 50] * 10, partition=partition)
        step(cluster, clocks)
        assert len(list(bus.consumer(str(NAME), start="earliest", stop_at_end=True))) == 60
        step(cluster, clocks)
        bus.set_positions(str(NAME), {0: "offset:4"}, group="g")
        step(cluster, clocks, LAG_STEP_S)
    for id in IDS:
        with cluster.connect(id) as bus:
            history = topic(bus)
            counted = sum(n for n in history.series["messages_in_s"] if n)
            assert counted * STEP_S == pytest.approx(60, rel=0.05)
            sent = sum(n for n in history.series["bytes_out_s"] if n)
            stored = sum(n for n in history.series["bytes_in_s"] if n)
            assert stored <= sent < 1.5 * stored, "what was forwarded counts once"
            assert [one.instance for one in history.sources] == [*IDS]
            assert history.silent == []
            port = bus._transport.history  # type: ignore[attr-defined]
            assert [n for n in port.group(NAME, "g").series[LAG] if n is not None] == [6 + 5 * 10]
            assert sum(n for n in port.service().series["messages_in_s"] if n) == counted


def test_bytes_that_an_instance_fetches_for_a_client_count_once(cluster: Instances) -> None:
    assert len({*cluster.owners(str(NAME))}) > 1
    clocks: dict[str, AheadClock] = {}
    with cluster.connect("a") as bus:
        for partition in range(6):
            bus.publish(str(NAME), b"x" * 1_000, partition=partition)
        step(cluster, clocks)
        with cluster.served["a"].connect() as client:
            target = f"/v2/namespaces/default/topics/{NAME.topic}/messages?start=earliest"
            answer = client.request("GET", target)
        assert len(answer.json["messages"]) == 6, "in one answer, of several owners"
        step(cluster, clocks)
        sent = topic(bus).series["bytes_out_s"][-1]
        assert sent is not None
        assert sent * STEP_S == pytest.approx(len(answer.body), rel=0.01)


def test_an_instance_that_does_not_answer_is_named(
    cluster: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise Unavailable("It is away.")

    for peer in cluster.cluster["b"].others():
        if peer.name == "c":
            monkeypatch.setattr(peer, "own_history", silent)
            monkeypatch.setattr(peer, "own_topic_history", silent)
    with cluster.connect("b") as bus:
        for history in (topic(bus), bus._transport.history.service()):  # type: ignore[attr-defined]
            assert [one.answers for one in history.sources] == [True, True, False]
            assert history.silent == ["c"]


def test_steps_are_added_up_from_the_newest_on() -> None:
    sources = [HistorySource("a", 1)], [HistorySource("b", 5)]
    own = History(100, 10, {"x": [None, 1, 2], "disk_bytes": [7, 7, None]}, sources[0])
    other = History(90, 10, {"x": [None, 4], "disk_bytes": [9, 9]}, sources[1])
    both = added_up(own, [other], ["c"])
    assert both.series == {"x": [None, 1, 6], "disk_bytes": [7, 9, 9]}
    assert (both.end_ms, both.since_ms, both.silent) == (100, 5, ["c"])
    assert added_up(own, []).series == own.series
