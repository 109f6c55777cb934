"""An instance that ZooKeeper sees and that cannot work owns nothing, until it can work again."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import permutations

import pytest
from msgspec.structs import replace

from sim.faulty import FaultyStore
from sim.world import AtOnce
from tests.clocks import ManualClock
from tests.cluster_kit import Cut, Instances
from tests.http_kit import Client
from tests.waiting import until
from tms.cluster.cluster import _Owners
from tms.cluster.fitness import Fitness, Reach, unfit
from tms.cluster.membership import InstanceRecord, MembershipView
from tms.cluster.ownership import OwnerLimits
from tms.errors import StorageUnavailable, TMSError, Unavailable

TOPIC, PARTITIONS = "orders", 8
AWAY_S, SESSION_S = 3.0, 10.0
ASK_S = AWAY_S / 2
PATH = f"/v2/namespaces/default/topics/{TOPIC}/messages"


def record(id: str, *unreached: str, away: bool = False, resigned: bool = False) -> InstanceRecord:
    return InstanceRecord(
        id, f"http://{id}", "1", away=away, resigned=resigned, unreached=unreached
    )


# -- own reports of an instance --------------------------------------------------------------------


class Observed:
    """The fitness of the instance `a`, whose peers answer in this thread, or not at all."""

    def __init__(self, *others: InstanceRecord) -> None:
        self.clock = ManualClock()
        self.fitness = Fitness(self.clock, AWAY_S, SESSION_S, self._ask, AtOnce())
        self.others = list(others)
        self.silent: dict[str, TMSError] = {}
        self.record = record("a")
        self.reached_s = self.clock.monotonic_s()

    def _ask(self, other: InstanceRecord, timeout_s: float) -> None:
        if other.id in self.silent:
            raise self.silent[other.id]

    def after(self, seconds: float, reached: bool) -> InstanceRecord:
        """Its record after so many seconds in which the store answered, or did not."""
        for _ in range(round(seconds * 4)):
            self.clock.pass_ms(250)
            if reached:
                self.reached_s = self.clock.monotonic_s()
            view = [self.record, *self.others]
            self.record = self.fitness.look(self.record, view, self.reached_s)
        return self.record


def test_an_instance_without_the_store_reports_it_and_resigns_after_a_session() -> None:
    observed = Observed(record("b"))
    assert observed.after(1, True) == record("a")
    assert observed.after(AWAY_S, False) == record("a")
    assert observed.after(0.25, False) == record("a", away=True)
    assert observed.after(SESSION_S - AWAY_S - 0.25, False) == record("a", away=True)
    assert observed.after(0.25, False) == record("a", away=True, resigned=True)


def test_an_instance_is_back_after_a_whole_session_with_the_store() -> None:
    observed = Observed(record("b"))
    observed.after(60, False)
    assert observed.after(SESSION_S, True) == record("a", resigned=True)
    observed.after(AWAY_S + 1, False)
    assert observed.after(SESSION_S, True) == record("a", resigned=True)
    assert observed.after(1, True) == record("a")


def test_nobody_resigns_while_the_store_is_away_for_all() -> None:
    observed = Observed(record("b", away=True), record("c", away=True), record("d", resigned=True))
    assert observed.after(300, False) == record("a", away=True)
    assert observed.after(0.25, True) == record("a")


def test_nobody_resigns_when_the_store_is_back_for_another_instance_a_little_earlier() -> None:
    observed = Observed(record("b", away=True))
    observed.after(60, False)
    observed.others = [record("b")]
    assert observed.after(SESSION_S - 0.25, False) == record("a", away=True)
    assert observed.after(0.5, False) == record("a", away=True, resigned=True)


def test_a_resigned_instance_stays_away_while_the_store_is_down_for_all() -> None:
    observed = Observed(record("b"))
    observed.after(60, False)
    observed.others = [record("b", away=True)]
    assert observed.after(60, False) == record("a", away=True, resigned=True)


def test_another_instance_is_unreached_after_a_session_without_an_answer() -> None:
    observed = Observed(record("b"), record("c"))
    observed.silent = {"b": Unavailable("No."), "c": StorageUnavailable("An answer is an answer.")}
    assert observed.after(SESSION_S, True) == record("a")
    assert observed.after(ASK_S, True) == record("a", "b")
    observed.silent = {}
    assert observed.after(SESSION_S, True) == record("a", "b")
    assert observed.after(ASK_S + 0.25, True) == record("a")


def test_an_instance_that_says_itself_that_it_is_away_is_not_taken_for_unreached() -> None:
    observed = Observed(record("b", away=True))
    observed.silent = {"b": Unavailable("No.")}
    assert observed.after(60, True) == record("a")
    observed.others = [record("b")]
    assert observed.after(SESSION_S - AWAY_S, True) == record("a")


def test_a_returning_instance_reports_no_other_for_the_time_before() -> None:
    observed = Observed(record("b"))
    observed.silent = {"b": Unavailable("No.")}
    assert observed.after(60, False) == record("a", away=True, resigned=True)
    assert observed.after(SESSION_S + 1, True) == record("a")
    assert observed.after(SESSION_S - 1, True) == record("a")
    assert observed.after(ASK_S, True) == record("a", "b")


def test_an_unreachable_instance_reports_no_other_as_unfit() -> None:
    observed = Observed(record("b", "a"))
    observed.silent = {"b": Unavailable("No.")}
    assert observed.after(60, True) == record("a")
    observed.others = [record("b")]
    assert observed.after(SESSION_S, True) == record("a")
    assert observed.after(ASK_S, True) == record("a", "b")


def test_an_instance_of_that_id_that_was_started_elsewhere_begins_anew() -> None:
    observed = Observed(record("b"))
    observed.silent = {"b": Unavailable("No.")}
    observed.after(60, True)
    observed.others = [InstanceRecord("b", "http://elsewhere", "1")]
    assert observed.after(1, True) == record("a")


def test_a_short_break_begins_nothing_anew() -> None:
    reach = Reach(0.0, AWAY_S, SESSION_S)
    for now_s in range(0, 60, 3):
        reach.reached_s = float(now_s)
        reach.look(float(now_s))
        assert not (reach.away or reach.lost)


def test_time_in_which_an_instance_stands_still_does_not_count() -> None:
    observed = Observed(record("b"))
    observed.after(5, True)
    observed.clock.pass_ms(600_000)
    assert observed.after(0.25, True) == record("a")
    assert observed.after(AWAY_S, False) == record("a")


# -- verdicts of all -------------------------------------------------------------------------------

VIEWS: list[tuple[list[InstanceRecord], set[str]]] = [
    ([record("a"), record("b")], set()),
    ([record("a", resigned=True), record("b")], {"a"}),
    ([record("a", resigned=True), record("b", resigned=True)], set()),
    ([record("a", "b"), record("b", "a")], {"b"}),
    ([record("a"), record("b", "a")], {"a"}),
    ([record("a", "c"), record("b", "c"), record("c", "a", "b")], {"c"}),
    ([record("a", "b"), record("b", "a"), record("c")], set()),
    ([record("a", "c", "d"), record("b", "c", "d"), record("c", "a", "b"), record("d", "a", "b")],
     {"c", "d"}),
    ([record("a", "b", resigned=True), record("b", "a")], {"a"}),
]  # fmt: skip


@pytest.mark.parametrize(("view", "expected"), VIEWS)
def test_fitness_does_not_depend_on_the_order_of_reports(
    view: list[InstanceRecord], expected: set[str]
) -> None:
    assert {unfit(shuffled) for shuffled in permutations(view)} == {frozenset(expected)}


def test_an_instance_alone_is_fit() -> None:
    assert unfit([record("a", "b", away=True)]) == unfit([]) == frozenset()


def test_an_instance_is_watched_by_three_of_a_hundred() -> None:
    ids = [f"i{number:02d}" for number in range(100)]
    blamed = {"i49", "i48", "i20"}
    view = [record(id, *(["i50"] if id in blamed else [])) for id in ids]
    assert unfit(view) == {"i50"}
    strangers = [record(id, *(["i50"] if id < "i47" else [])) for id in ids]
    assert unfit(strangers) == frozenset()


def owners_of(*view: InstanceRecord, pins: Mapping[str, str] | None = None) -> set[str]:
    """The ids of the owners of sixteen partitions while these instances are there."""
    owners = _Owners(MembershipView(1, view), pins or {})
    return {owners.of((7, number), 16).id for number in range(16)}


def test_a_draining_instance_keeps_all_rather_than_an_unfit_one() -> None:
    """Else the roles of the unfit one have no owner: it refuses requests, and the draining ones do
    not own them."""
    resigned, draining = record("a", resigned=True), replace(record("b"), draining=True)
    assert owners_of(resigned, draining) == {"b"}
    assert owners_of(resigned, draining, pins={"7/3": "a"}) == {"b"}
    assert owners_of(resigned, draining, record("c")) == {"c"}
    assert owners_of(resigned, replace(record("b"), resigned=True)) == {"a", "b"}


# -- instances over one store ----------------------------------------------------------------------


class Scene:
    """Two instances that measure by a clock of the test what they reach, and the cuts between each
    and the store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cuts = {id: Cut() for id in "ab"}
        self.all = Instances()
        self.all.clock = self.clock
        self.all.limits = OwnerLimits(beat_s=0.01, silent_s=30.0)
        self.all.away_s = AWAY_S
        self.all.session_s = SESSION_S
        for id, cut in self.cuts.items():
            self.all.start(id, FaultyStore(self.all.store, cut))

    def pass_s(self, seconds: float, *, of: str = "ab") -> None:
        """Let time pass in which these instances reach the store, and each other if both are
        named."""
        for _ in range(round(seconds)):
            self.clock.pass_ms(1_000)
            for id in "ab":
                until(partial(self._has_looked, id, id in of, of == "ab"), f"{id} looks")

    def _has_looked(self, id: str, beats: bool, asks: bool) -> bool:
        now_s, cluster = self.clock.monotonic_s(), self.all.cluster[id]
        if beats and (cluster._ownership.reached_s or 0) < now_s:
            return False
        return cluster._fitness._looked_s >= now_s and not (asks and cluster._fitness._asking)

    def close(self) -> None:
        for cut in self.cuts.values():
            cut.end()
        for id in [*self.all.served]:
            self.all.stop(id)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("tms.cluster.cluster.REACH_S", 0.005)
    with contextlib.closing(Scene()) as made:
        made.all.coordinator()
        yield made


def ready(all: Instances, id: str) -> tuple[int, str]:
    with Client(all.served[id].address) as client:
        answer = client.request("GET", "/readyz")
        return answer.status, " ".join(answer.json["reasons"])


def test_fault_18_others_take_over_from_an_instance_cut_off_from_the_store(
    scene: Scene,
) -> None:
    all, cuts = scene.all, scene.cuts
    with all.connect("b") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        mine = [p for p, id in enumerate(all.owners(TOPIC)) if id == "a"]
        for partition in range(PARTITIONS):
            bus.publish(TOPIC, b"before%d" % partition, partition=partition)
        cuts["a"].begin()
        late = threading.Thread(target=_publish, args=(all.served["a"].address, mine[0]))
        late.start()  # waits in the store, and is stored when the cut ends
        scene.pass_s(AWAY_S + 1, of="b")
        until(lambda: "has not answered" in ready(all, "a")[1], "a says why it is not ready")
        assert set(all.owners(TOPIC, "b")) == {"a", "b"}
        scene.pass_s(SESSION_S, of="b")
        until(lambda: set(all.owners(TOPIC, "b")) == {"b"}, "b owns everything")
        until(lambda: all.served["b"].service.engine.coordinates, "b coordinates")
        for partition in range(PARTITIONS):
            bus.publish(TOPIC, b"after%d" % partition, partition=partition)
        until(lambda: not all.served["a"].service.engine.coordinates, "a has resigned")
        with Client(all.served["a"].address) as client:
            answer = client.request("GET", f"{PATH}?start={mine[0]}:earliest")
            assert answer.status == 503 and "owns nothing" in answer.json["detail"], answer
        events = {(one.what, one.details) for one in all.cluster["b"].events.newest()}
        assert {("an instance owns nothing until it can work", "a")} <= events
        stats = all.served["a"].service.engine.stats()
        assert (stats.cluster_unfit, stats.cluster_store_away) == (1, 1)
        cuts["a"].end()
        late.join()
        scene.pass_s(2 * SESSION_S)
        until(lambda: set(all.owners(TOPIC, "b")) == {"a", "b"}, "a owns again")
        until(lambda: ready(all, "a") == (200, ""), "a is ready")
        with all.connect("a") as again:
            for partition in range(PARTITIONS):
                again.publish(TOPIC, b"back%d" % partition, partition=partition)
            values = [m.value for m in again.consumer(TOPIC, stop_at_end=True)]
        for tag in (b"before", b"after", b"back"):
            found = sorted(v for v in values if v and v.startswith(tag))
            assert found == [b"%b%d" % (tag, partition) for partition in range(PARTITIONS)]


def _publish(address: tuple[str, int], partition: int) -> None:
    with contextlib.suppress(OSError), Client(address) as client:
        body = b'{"messages": [{"value": "late", "partition": %d}]}' % partition
        client.request("POST", PATH, body, media="application/json")


def test_fault_18_what_an_instance_owned_whose_event_loop_stands_others_take_over(
    scene: Scene,
) -> None:
    all = scene.all
    with all.connect("b") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        goes_on = threading.Event()
        all.served["a"].loop.call_soon_threadsafe(goes_on.wait)
        try:
            scene.pass_s(SESSION_S + 2 * AWAY_S, of="b")
            until(lambda: set(all.owners(TOPIC, "b")) == {"b"}, "b owns everything")
            until(lambda: "no answer of a" in all.cluster["a"].reasons()[0], "a says so")
            for partition in range(PARTITIONS):
                bus.publish(TOPIC, b"x", partition=partition)
        finally:
            goes_on.set()
        scene.pass_s(2 * SESSION_S)
        until(lambda: set(all.owners(TOPIC, "b")) == {"a", "b"}, "a owns again")
        until(lambda: ready(all, "a") == (200, ""), "a is ready")
