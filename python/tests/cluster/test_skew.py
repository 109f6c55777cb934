"""The difference between the clocks of instances: measured, and reported beyond a bound."""

import re
from collections.abc import Callable

import pytest

from tests.clocks import LateClock, ManualClock
from tests.cluster_kit import instances
from tests.http_kit import Client
from tests.waiting import until
from tms.cluster.skew import LOOK_S, SKEW_MS_MAX, ClockSkews
from tms.errors import Unavailable
from tms.model.lag import InstanceLoad
from tms.runtime.clock import SystemClock


class Other:
    """An instance whose answer takes some time, and whose clock is off by `skew_ms`."""

    def __init__(self, clock: ManualClock, name: str, skew_ms: int, takes_ms: int = 0) -> None:
        self.name, self._clock = name, clock
        self.skew_ms, self._takes_ms = skew_ms, takes_ms
        self.asked = 0

    def load(self) -> InstanceLoad:
        self.asked += 1
        self._clock.pass_ms(self._takes_ms // 2)
        load = InstanceLoad(self.name, "", now_ms=self._clock.now_ms() + self.skew_ms)
        self._clock.pass_ms(self._takes_ms // 2)
        return load


class Away(Other):
    def load(self) -> InstanceLoad:
        raise Unavailable("It is away.")


def at_once(question: Callable[[], None]) -> None:
    question()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("skew_ms", [20_000, -20_000, 0])
@pytest.mark.parametrize("takes_ms", [0, 100])
def test_a_skew_is_what_is_certain_of_it(clock: ManualClock, skew_ms: int, takes_ms: int) -> None:
    skews = ClockSkews(clock)
    skews.look([Other(clock, "a", 0), Other(clock, "b", skew_ms, takes_ms)], at_once)
    assert skews.largest_ms() == max(0, abs(skew_ms) - takes_ms // 2)


def test_a_slow_answer_is_no_skew(clock: ManualClock) -> None:
    skews = ClockSkews(clock)
    skews.look([Other(clock, "a", 4_000, 8_000)], at_once)
    assert skews.largest_ms() == 0 and skews.warnings() == []


def test_only_a_skew_beyond_the_bound_is_told_with_its_direction(clock: ManualClock) -> None:
    skews = ClockSkews(clock)
    apart = {"a": SKEW_MS_MAX, "b": SKEW_MS_MAX + 1, "c": -20_000}
    skews.look([Other(clock, name, ms) for name, ms in apart.items()], at_once)
    ahead, behind = skews.warnings()
    assert "instance b is 1.0 s ahead of" in ahead and "instance c is 20.0 s behind" in behind


def test_an_instance_is_asked_once_in_a_while_and_never_twice_at_a_time(
    clock: ManualClock,
) -> None:
    skews, other = ClockSkews(clock), Other(clock, "a", 5_000)
    waiting: list[Callable[[], None]] = []
    for _ in range(3):
        skews.look([other], waiting.append)
        clock.pass_ms(int(LOOK_S * 1_000))
    assert len(waiting) == 1 and skews.largest_ms() == 0
    waiting.pop()()
    assert skews.largest_ms() == 5_000
    skews.look([other], at_once)
    skews.look([other], at_once)
    assert other.asked == 2


def test_clocks_of_instances_that_have_gone_or_do_not_tell_are_no_skew(clock: ManualClock) -> None:
    skews, other = ClockSkews(clock), Other(clock, "a", 5_000)
    skews.look([other, Away(clock, "b", 9_000)], at_once)
    assert skews.largest_ms() == 5_000
    clock.pass_ms(int(LOOK_S * 1_000))
    other.skew_ms = -clock.now_ms()  # an earlier version
    skews.look([other], at_once)
    assert skews.largest_ms() == 5_000
    clock.pass_ms(int(LOOK_S * 1_000))
    skews.look([], at_once)
    assert skews.largest_ms() == 0


def test_readiness_and_metrics_tell_that_the_clock_of_another_instance_is_wrong() -> None:
    with instances("a", "b") as all:
        all.coordinator()
        here = all.cluster["a"]
        all.served["b"].service.engine.topics.clock = LateClock(20_000)
        here.skews = ClockSkews(SystemClock())
        here.settle_again()  # its background thread measures afterwards
        until(here.skews.largest_ms, "a skew is measured")
        with Client(all.served["a"].address) as client:
            answer = client.request("GET", "/readyz")
            assert answer.status == 200
            told = re.search(r"instance b is (\S+) s behind", answer.json["warnings"][0])
            assert told is not None and 19 < float(told[1]) <= 20
            metrics = client.request("GET", "/metrics").body.decode()
        (skew,) = (line for line in metrics.splitlines() if line.startswith("tms_cluster_clock"))
        assert 19_000 < float(skew.split()[1]) <= 20_000
