"""The number of series that a service exports is bounded, whatever its contents."""

import threading
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.block import encode
from tms.model.group import GroupLag
from tms.model.lag import Lag
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import QueueSettings
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import PositionChange, PositionKey
from tms.server import operating
from tms.server.metrics import GROUPS_SHOWN, POSITIONS_SHOWN, QUEUES_SHOWN, of_groups
from tms.store.memory import MemoryStore

GROUPS, QUEUES, SERIES_MAX = 10_000, 150, 2_000


def test_ten_thousand_groups_and_hundreds_of_queues_make_few_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operating, "LOOK_S", PATIENCE_S)
    with serving(MemoryStore()) as served:
        engine = served.service.engine
        names = [TopicName("default", f"t{number}") for number in range(100)]
        for name in names:
            engine.create_topic(name, TopicSettings(1, durability=Durability.WRITTEN))
            engine.append(name, [NewBlock(0, encode([b"x"] * 101))])
        engine.groups.move(
            [
                PositionChange(
                    PositionKey(f"g{number}", names[number % 100], 0),
                    Position.offset(101 - number // 100),
                )
                for number in range(GROUPS)
            ]
        )
        for number in range(QUEUES):
            engine.queues.declare(names[0], f"q{number}", QueueSettings())
        with served.connect() as client:
            text = client.request("GET", "/metrics").body.decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert len(samples) <= SERIES_MAX
    counts = Counter(sample.name for sample in samples)
    assert counts["tms_group_lag_messages"] == POSITIONS_SHOWN + 1
    assert counts["tms_group_lag_seconds"] == POSITIONS_SHOWN + 1
    assert counts["tms_group_members"] == GROUPS_SHOWN + 1
    assert counts["tms_queue_waiting"] == QUEUES_SHOWN
    assert counts["tms_queue_leased"] == QUEUES_SHOWN + 1
    lags = {tuple(s.labels.values()): s.value for s in samples if s.name.endswith("lag_messages")}
    assert sum(lags.values()) == 100 * sum(range(100))  # nothing is lost in the sum
    assert {value for key, value in lags.items() if key[0] != "(others)"} == {99, 98}
    left = {s.labels["kind"]: s.value for s in samples if s.name == "tms_without_own_series"}
    assert left == {
        "groups": GROUPS - GROUPS_SHOWN,
        "group_partitions": GROUPS - POSITIONS_SHOWN,
        "queues": QUEUES - QUEUES_SHOWN,
    }


def test_what_cannot_be_told_has_no_series() -> None:
    metrics, without = of_groups([GroupLag("g", "t", 2, (Lag(3, 1_500), None))])
    samples = [sample for metric in metrics for sample in metric.samples]
    assert [(one.name, *one.labels.values(), one.value) for one in samples] == [
        ("tms_group_members", "g", "t", 2),
        ("tms_group_lag_messages", "g", "t", "0", 3),
        ("tms_group_lag_seconds", "g", "t", "0", 1.5),
    ]
    assert not any(without.values())


def test_a_store_that_hangs_keeps_no_other_numbers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "LOOK_S", 0.05)
    go_on, looks = threading.Event(), []
    with serving(MemoryStore()) as served:
        groups = served.service.engine.groups
        look = groups.lags_here

        def hang(partitions_max: int) -> tuple[list[GroupLag], int]:
            looks.append(partitions_max)
            assert go_on.wait(PATIENCE_S)
            return [GroupLag("hanging", "t", 1, (Lag(1, 1_000),))], 0

        groups.lags_here = hang  # type: ignore[method-assign]
        with served.connect() as client:
            for _ in range(20):  # more than there are threads
                assert "tms_ready 1.0" in client.request("GET", "/metrics").body.decode()
            assert len(looks) == 1, "one look at a time"
            go_on.set()
            monkeypatch.setattr(operating, "LOOK_S", PATIENCE_S)
            text = client.request("GET", "/metrics").body.decode()
            assert 'tms_group_members{group="hanging",topic="t"} 1.0' in text
            groups.lags_here = look  # type: ignore[method-assign]
            assert "hanging" not in client.request("GET", "/metrics").body.decode()
