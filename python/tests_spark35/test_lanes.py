"""One topic, read in every way there is: what a consumer gets, both sources of the data source in
Spark 4, and the connector in Spark 3.5 have the same rows.

    HBase ◀─ service ◀─ consumer                 the reference
      ▲  ▲       ▲
      │  │       └── Spark 4, source=service
      │  └────────── Spark 4, source=hbase       over Thrift
      └───────────── Spark 3.5, connector        from the region servers
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest

from tests.clocks import LateClock
from tests.log_kit import HOUR_MS, KeptStore
from tests.run_seed import drawn
from tests.spark4_kit import PYTHON, Spark4, spark4
from tests.spark_topics_kit import Row, Topics, consumed, in_order, topics
from tms.model.topic import MESSAGE_BYTES_MAX, TopicName
from tms.spark import read
from tms.store.base import Store
from tms.store.hbase import HBaseStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)  # two cold JVMs and an HBase on a busy machine
TOPIC, PARTITIONS, STEPS = "flights", 4, 30
SEEDS = range(1, 7)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark4]:
    """Spark 4."""
    with spark4(tmp_path_factory.mktemp("spark4")) as started:
        yield started


@contextmanager
def lived(random: Random, opened: Callable[[], Store]) -> Iterator[Topics]:
    """A topic whose name had other lives, of which a service published a part three hours ago, and
    another service the rest; expired, truncated, and with transactions of every fate."""
    retention = random.choice(["1h", None])
    with topics(opened(), LateClock(3 * HOUR_MS)) as past:
        past.relive(random, TOPIC, PARTITIONS, 10)
        past.bus.create_topic(
            TOPIC, partitions=PARTITIONS, durability="written", retention=retention
        )
        past.fill(random, TOPIC, PARTITIONS, STEPS)
        for partition in range(PARTITIONS):
            past.publish_in(past.begin(long=False), TOPIC, partition, b"times out")
    with topics(opened()) as now:
        cleans = random.random() < 0.5  # else what has expired is there, and nobody sees it
        now.settle(cleans)
        now.fill(random, TOPIC, PARTITIONS, STEPS)
        now.bus.publish(TOPIC, random.randbytes(MESSAGE_BYTES_MAX))  # two cells in HBase
        if random.random() < 0.5:
            now.truncate(random, TOPIC)
        now.fill(random, TOPIC, PARTITIONS, STEPS)
        now.settle(cleans)
        yield now


@dataclass(frozen=True)
class Range:
    """What is read, as each lane is told, and which rows that are."""

    options: dict[str, str]
    arguments: dict[str, Any]
    wanted: Callable[[Row], bool]


def everything() -> Range:
    return Range({"subscribe": TOPIC}, {}, lambda row: True)


def between_offsets(random: Random, world: Topics) -> Range:
    """The same offsets of every partition, as far as it has them."""
    first = world.bus.offsets(TOPIC, "earliest")
    ends = world.bus.offsets(TOPIC, "latest")
    start, stop = sorted(random.choices(range(max(ends.values()) + 1), k=2))

    def places(offset: int) -> str:
        return json.dumps(
            {TOPIC: {str(p): max(first[p], min(offset, end)) for p, end in ends.items()}}
        )

    return Range(
        {"subscribe": TOPIC, "startingOffsets": places(start), "endingOffsets": places(stop)},
        {"start": f"offset:{start}", "stop": f"offset:{stop}"},
        lambda row: start <= row["offset"] < stop,
    )


def between_times(random: Random, rows: list[Row], partitions: list[int]) -> Range:
    """What some partitions got between two times at which there were messages."""
    times = [int(row["id"][:16], 16) for row in rows]
    start, stop = sorted(random.choices([*times, times[-1] + 1], k=2))
    return Range(
        {
            "assign": json.dumps({TOPIC: partitions}),
            "startingTimestamp": str(start),
            "startingOffsetsByTimestampStrategy": "latest",
            "endingTimestamp": str(stop),
        },
        {"partitions": partitions, "start": f"time:{start}", "stop": f"time:{stop}"},
        lambda row: row["partition"] in partitions and start <= int(row["id"][:16], 16) < stop,
    )


def plain(frame: "DataFrame") -> list[Row]:
    """The rows of Spark 3.5 as those of all others."""
    return [row for batch in frame._collect_as_arrow() for row in batch.to_pylist()]  # type: ignore[operator]


def differences(found: list[Row], wanted: list[Row]) -> list[str]:
    """What a lane has that it should not have, and what it lacks; the first few, in short."""
    found = in_order(found)
    if found == wanted:
        return []
    lacking = [f"lacks {short(row)}" for row in wanted if row not in found]
    more = [f"has {short(row)}" for row in found if row not in wanted]
    return [f"has {len(found)} rows of {len(wanted)}", *lacking[:5], *more[:5]]


def short(row: Row) -> Row:
    """A row whose value may be large."""
    return {**row, "value": row["value"] and row["value"][:20]}


def test_these_topics_have_messages_of_every_fate() -> None:
    expired = uncleaned = truncated = large = gaps = 0
    values: set[bytes | None] = set()
    keys: set[bytes | None] = set()
    for seed in SEEDS:
        memory = KeptStore(shared=True)
        with lived(Random(seed), lambda memory=memory: memory) as world:
            info = world.bus.describe_topic(TOPIC)
            assert info.generation > 1
            first = world.bus.offsets(TOPIC, "earliest")
            if any(first.values()):
                expired += info.settings.retention_ms is not None
                truncated += info.settings.retention_ms is None
            there = world.engine.inspect(TopicName.parse(TOPIC), 0, 1)
            uncleaned += (there.segments[0].last_id or there.floor_id) < there.floor_id
            rows = consumed(world.bus, TOPIC)
            large += any(len(row["value"] or b"") == MESSAGE_BYTES_MAX for row in rows)
            keys |= {row["key"] for row in rows}
            seen = {row["value"] for row in rows}
            hidden = world.bus.consumer(TOPIC, isolation="uncommitted", stop_at_end=True)
            values |= {one.value for one in hidden} - seen
            ends = world.bus.offsets(TOPIC)
            gaps += sum(ends.values()) - sum(first.values()) - len(rows)
            assert any(one.end_offset > ends[one.partition] for one in info.partition_infos)
    assert expired and uncleaned and truncated and large and gaps
    assert values >= {b"open", b"rolled back", b"invalid", b"from elsewhere", b"times out"}
    assert keys >= {None, b"", b"staged", b"gone"}


@pytest.mark.parametrize("seed", drawn("lanes of Spark", SEEDS, 1))
def test_every_lane_has_the_rows_that_a_consumer_gets(
    spark: "SparkSession", other: Spark4, store: str, seed: int
) -> None:
    random = Random(seed)
    with lived(random, lambda: HBaseStore(store)) as world:
        rows = consumed(world.bus, TOPIC)
        some = sorted(random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)))
        ranges = (
            everything(),
            between_offsets(random, world),
            between_times(random, rows, some),
        )
        assert len(rows) > 50
        for one in ranges:
            wanted = [row for row in rows if one.wanted(row)]
            tasks = {"minPartitions": str(random.choice([1, 9]))}
            more = {"includeHeaders": "true", "includeMessageId": "true"} | tasks | one.options
            by_hbase = other.rows(source="hbase", **{"tms.store": store}, **more)
            assert not differences(by_hbase, wanted)
            by_service = other.rows(**{"tms.url": world.url}, **more)
            assert not differences(by_service, wanted)
            frame = read(spark, TOPIC, store, headers=True, message_id=True, **one.arguments)
            assert not differences(plain(frame), wanted)


def test_without_spark_4_nothing_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PYTHON, str(tmp_path / "nowhere"))
    with pytest.raises(AssertionError, match="make env"), spark4(tmp_path):
        pass
    monkeypatch.setenv(PYTHON, str(which("false")))
    with spark4(tmp_path) as dead, pytest.raises(AssertionError, match="did not answer"):
        dead.rows(subscribe=TOPIC)
