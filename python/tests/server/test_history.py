"""The last hour in memory: no peaks that never were, nothing known that was not counted,
bounded."""

import tracemalloc
from collections.abc import Mapping, Sequence

import pytest

from tests.clocks import ManualClock
from tms.model.history import (
    GAUGES,
    HISTORY_S,
    LAG_STEP_S,
    LAG_STEPS,
    OTHERS,
    SERVICE_RATES,
    STEP_S,
    STEPS,
)
from tms.server.history import GROUPS_MAX, TOPICS_MAX, GroupOfTopic, HistoryRings, TopicLife

A, B = TopicLife("default:a", 1), TopicLife("default:b", 2)


class Hour:
    """Rings, and a clock that goes on by steps."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rings = HistoryRings(self.clock)

    def step(
        self,
        topics: Mapping[TopicLife, Sequence[float]] | None = None,
        after_s: float = STEP_S,
        **counts: float,
    ) -> None:
        self.clock.pass_ms(round(after_s * 1_000))
        gauges = {name: counts.pop(name) for name in [*counts] if name in GAUGES}
        self.rings.add(counts, topics or {}, gauges)

    def look(self, lags: Mapping[GroupOfTopic, float | None], after_s: float = LAG_STEP_S) -> None:
        self.clock.pass_ms(round(after_s * 1_000))
        assert self.rings.wants_lags
        self.rings.note_lags(lags)

    def service(self, name: str) -> list[float | None]:
        return self.rings.of_service(HISTORY_S).series[name]

    def topic(self, topic: TopicLife, name: str = "messages_in_s") -> list[float | None]:
        return self.rings.of_topic(topic, HISTORY_S).series[name]

    def lag(self, group: GroupOfTopic) -> list[float | None]:
        return self.rings.of_group(group, HISTORY_S).series["lag"]


def known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def test_before_the_first_step_everything_is_unknown() -> None:
    hour = Hour()
    history = hour.rings.of_service(HISTORY_S)
    assert set(history.series) == {*SERVICE_RATES, *OTHERS, *GAUGES}
    assert all(values == [None] * STEPS for values in history.series.values())
    assert history.since_ms == history.end_ms == hour.clock.now_ms()


def test_counts_of_a_step_are_shown_per_second_and_the_oldest_leave() -> None:
    hour = Hour()
    for number in range(STEPS + 2):
        hour.step(bytes_in_s=10 * number, connections=number)
    rates, gauges = hour.service("bytes_in_s"), hour.service("connections")
    assert rates == [float(number) for number in range(2, STEPS + 2)]
    assert gauges == rates
    assert hour.rings.of_service(3 * STEP_S).series["bytes_in_s"] == rates[-3:]


def test_a_late_step_makes_no_peak_and_loses_nothing() -> None:
    hour = Hour()
    hour.step({A: (100, 0, 0)}, messages_in_s=100, connections=5)
    hour.step({A: (300, 0, 0)}, after_s=3 * STEP_S, messages_in_s=300, connections=7)
    assert known(hour.service("messages_in_s")) == [10, 10, 10, 10]
    assert known(hour.topic(A)) == [10, 10, 10, 10]
    assert hour.service("connections")[-4:] == [5, None, None, 7]


def test_a_step_that_is_a_little_late_is_divided_by_its_own_time() -> None:
    hour = Hour()
    hour.step(messages_in_s=100)
    hour.step(after_s=STEP_S + 5, messages_in_s=150)
    hour.step(after_s=STEP_S - 5, messages_in_s=50)
    assert known(hour.service("messages_in_s")) == [10, 10, 10]


def test_a_pause_of_more_than_an_hour_leaves_its_mean() -> None:
    hour = Hour()
    hour.step(messages_in_s=1_000_000)
    hour.step({A: (72_000, 0, 0)}, after_s=2 * HISTORY_S, messages_in_s=72_000)
    assert hour.service("messages_in_s") == [10.0] * STEPS
    assert hour.topic(A) == [10.0] * STEPS


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_jump_of_the_wall_clock_moves_nothing(jump_s: int) -> None:
    hour = Hour()
    hour.step(messages_in_s=100)
    hour.clock.jump_ms(jump_s * 1_000)
    hour.step(messages_in_s=100)
    assert known(hour.service("messages_in_s")) == [10, 10]
    history = hour.rings.of_service(HISTORY_S)
    assert history.end_ms == hour.clock.now_ms()
    assert history.end_ms - history.since_ms == 2 * STEP_S * 1_000


def test_the_past_of_a_topic_that_becomes_busy_is_unknown_and_then_known() -> None:
    hour = Hour()
    hour.step()
    hour.step({A: (10, 1_000, 0)})
    hour.step()
    assert hour.topic(A)[-4:] == [None, None, 1, 0]
    assert hour.topic(A, "bytes_in_s")[-2:] == [100, 0]
    assert hour.topic(B) == [None] * STEPS


def test_a_deleted_topic_leaves_and_one_of_its_name_has_no_past() -> None:
    hour = Hour()
    reader = GroupOfTopic(A, "g")
    hour.step({A: (10, 10, 10)})
    hour.look({reader: 5})
    hour.rings.forget([A])
    assert hour.rings.own_topics() == []
    assert known(hour.topic(A)) == known(hour.lag(reader)) == []
    again = TopicLife(A.name, 9)
    hour.step({again: (2 * (LAG_STEP_S + STEP_S), 0, 0)})
    assert known(hour.topic(again)) == [2] * 7


def test_the_busiest_have_their_own_and_the_others_are_added_up() -> None:
    hour = Hour()
    topics = {TopicLife(f"default:t{n}", n + 1): (10, 1_000, 0) for n in range(TOPICS_MAX)}
    quiet = TopicLife("default:quiet", 10_000)
    hour.step(topics)
    hour.step({**topics, quiet: (10, 1_100, 0)})
    assert known(hour.topic(quiet)) == []
    assert hour.service("others_messages_in_s")[-1] == 1
    assert hour.service("others_bytes_in_s")[-1] == 110
    hour.step({**topics, quiet: (1_000, 100_000, 0)})
    assert hour.topic(quiet)[-2:] == [None, 100]
    assert hour.service("others_messages_in_s")[-1] == 1, "the topic that had to leave"
    own = [one for one in topics if known(hour.topic(one))]
    assert len(own) == TOPICS_MAX - 1


def test_a_topic_that_was_busy_long_ago_makes_room() -> None:
    hour = Hour()
    hour.step({TopicLife(f"default:t{n}", n + 1): (1, 1_000_000, 0) for n in range(TOPICS_MAX)})
    for _ in range(STEPS):
        hour.step()
    late = TopicLife("default:late", 77_777)
    for _ in range(6):
        hour.step({late: (10, 10_000, 0)})
    assert known(hour.topic(late)) == [1, 1, 1], "once it has twice a 64th of theirs"


def test_lags_are_shown_by_group_and_a_missed_look_is_unknown() -> None:
    hour = Hour()
    one, other = GroupOfTopic(A, "one"), GroupOfTopic(B, "other")
    hour.look({one: 0, other: 7})
    assert not hour.rings.wants_lags
    hour.look({one: 2**53 + 2, other: None}, after_s=2 * LAG_STEP_S)
    assert hour.lag(one)[-3:] == [0, None, 2**53 + 2]
    assert hour.lag(other)[-3:] == [7, None, None]


def test_a_group_that_is_gone_keeps_its_past_for_an_hour() -> None:
    hour = Hour()
    one = GroupOfTopic(A, "one")
    hour.look({one: 7})
    hour.look({})
    assert hour.lag(one)[-2:] == [7, None]
    for _ in range(LAG_STEPS):
        hour.look({})
    assert not hour.rings._groups.rings


def test_the_groups_with_the_most_lag_have_their_own() -> None:
    hour = Hour()
    lags = {GroupOfTopic(A, f"g{n}"): float(n % 7) for n in range(2 * GROUPS_MAX)}
    worst = GroupOfTopic(B, "worst")
    hour.look(lags)
    hour.look({**lags, worst: 1_000})
    assert hour.lag(worst)[-1] == 1_000
    assert len(hour.rings._groups.rings) == GROUPS_MAX


def test_memory_is_bounded() -> None:
    """10,000 topics and 10,000 groups, all of them busy, take at most 6 MiB; the sampler takes the
    rest of 8 MiB."""
    topics = [TopicLife(f"default:topic-{n:05}", n + 1) for n in range(10_000)]
    groups = {GroupOfTopic(one, f"group-{one.uid}"): float(one.uid) for one in topics}
    tracemalloc.start()
    try:
        hour = Hour()
        for number in range(14):
            counts = {one: (one.uid, 1_000 * one.uid + number, 10) for one in topics}
            hour.step(counts)
            if hour.rings.wants_lags:
                hour.rings.note_lags(groups)
        del counts
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(hour.rings._topics.rings) == TOPICS_MAX
    assert len(hour.rings._groups.rings) == GROUPS_MAX
    assert held <= 6 << 20, f"{held / (1 << 20):.1f} MiB"
