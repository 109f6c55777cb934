"""Fault 32: drivers, executors and Python workers of Spark die while a stream goes from topic to
topic, and executors while a batch query writes.

They die at requests: before the service has one, after it took effect but before the answer, or
after the answer but before Spark notes it. Each written value names its batch and the message that
was read; the checkpoint names the messages of a batch.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom

import pytest

import tms
from tests.faults.streaming import END, REQUESTS, ROWS
from tests.spark_kills_kit import Gate, Life, Moment, Strike
from tests.spark_topics_kit import Topics, topics
from tms.model.position import Position
from tms.model.transaction import Commit
from tms.runtime.clock import SystemClock
from tms.spark.sink.fence import BATCH_TIMEOUT_S, FENCE

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]  # cold JVMs on a busy machine

BATCHES = 50
LOCAL, CLUSTER = "local[2,8]", "local-cluster[1,2,512]"
LIFE_S = 400.0  # at most
STEPS_BEFORE, STEPS = 160, 300  # of publishing; each makes about ten offsets
PARTITIONS = 3
KILLED = -9
STAGE, COMMIT, FETCH, PLAN = "staged", "commit", "messages", "offsets"  # kinds of requests

Place = tuple[int, int]  # partition and offset in the topic `in`
Values = Mapping[Place, bytes | None]


class ShiftedClock(SystemClock):
    """The machine's clocks, with additional time that only seems to have passed."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.passed_s * 1_000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.passed_s


@dataclass(frozen=True)
class Row:
    """A line of `streaming.py`."""

    batch: int
    place: Place
    value: bytes | None

    @classmethod
    def parse(cls, line: bytes | None) -> "Row":
        assert line is not None
        batch, partition, offset, value = line.decode().split(" ")
        place = int(partition), int(offset)
        return cls(int(batch), place, None if value == "-" else bytes.fromhex(value))


class World:
    """A service behind a gate, and a topic that is filled while it is read."""

    def __init__(self, found: Topics, clock: ShiftedClock, gate: Gate, folder: Path) -> None:
        self.topics, self.clock, self.gate, self._folder = found, clock, gate, folder
        self._checkpoint = folder / "checkpoint"
        seed = SystemRandom().getrandbits(32)
        print("seed", seed)
        self.random = Random(seed)
        self._lives = 0
        self._steps = 0
        (folder / "reads").mkdir()
        for name in ("in", "out", "batch"):
            found.bus.create_topic(name, partitions=PARTITIONS, durability="written")

    def at(self, kind: str, moment: Moment, act: Callable[[Life], None]) -> "Plan":
        """Plan a strike at a request of a kind, some batches after the start or the strike
        before."""
        tasks = PARTITIONS if kind in (STAGE, FETCH) else 1
        nth = self.random.randint(3 * tasks, 6 * tasks)
        delay_s = self.random.uniform(0, 0.5) if moment is Moment.ANSWERED else 0.0
        return lambda life: Strike(kind, nth, moment, lambda: act(life), delay_s)

    def live(self, job: str, master: str, *plans: "Plan") -> int | None:
        """Start the driver, strike, and publish until it ends; returns its exit code."""
        self._lives += 1
        began_s = time.monotonic()
        with Life(job, master, self.gate.url, self._folder, f"life{self._lives}") as life:
            self.gate.script(*(plan(life) for plan in plans))
            while (code := life.wait(1.0)) is None:
                assert time.monotonic() - began_s < LIFE_S, "the driver goes on for too long"
                if 0 < self._steps < STEPS:
                    self.publish(min(STEPS, self._steps + 3))
            assert not self.gate.failed
            assert not self.gate.left, f"it ended with {code} before {self.gate.left} strikes"
        print(f"life {self._lives}: {time.monotonic() - began_s:.0f} s, to batch {self.batches}")
        return code

    def publish(self, steps: int) -> None:
        """Fill the topic up to so many steps; some of its open transactions end."""
        self.topics.fill(self.random, "in", PARTITIONS, steps - self._steps, foreign=0)
        self._steps = steps
        for pointer in self.topics.open[:]:
            if steps == STEPS or self.random.random() < 0.3:
                self._end(pointer)

    def _end(self, pointer: int) -> None:
        if self.random.random() < 0.5:
            self.topics.abort(pointer)
        else:
            self.topics.engine.transactions.commit(Commit(pointer))
            self.topics.open.remove(pointer)

    def consumed(self, topic: str) -> list[tms.Message]:
        """All visible messages; except in `in`, offsets have no gap."""
        found = list(self.topics.bus.consumer(topic, stop_at_end=True))
        for partition in range(PARTITIONS):
            offsets = [one.offset for one in found if one.partition == partition]
            assert topic == "in" or offsets == list(range(len(offsets)))
        return found

    @property
    def open(self) -> int:
        """The number of open transactions."""
        return len(self.topics.engine.transactions.open())

    @property
    def batches(self) -> int:
        """The number of batches that the checkpoint has begun."""
        begun = (self._checkpoint / "offsets").glob("[0-9]*")
        return 1 + max((int(path.name) for path in begun), default=-1)

    def rows_of(self, batch: int, given: Values) -> Values:
        """The rows that a batch must have, by the checkpoint."""
        starts, stops = self._ends(batch - 1), self._ends(batch)
        return {
            (partition, offset): value
            for (partition, offset), value in given.items()
            if starts[partition] <= offset < stops[partition]
        }

    def _ends(self, batch: int) -> dict[int, int]:
        if batch < 0:
            return dict.fromkeys(range(PARTITIONS), 0)
        lines = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return {int(partition): end for partition, end in json.loads(lines[2])["in"].items()}

    @property
    def position(self) -> Position:
        """The position that marks the finished batches."""
        query = json.loads((self._checkpoint / "metadata").read_text())["id"]
        return self.topics.engine.groups.positions(FENCE, f"spark-{query}")[0]

    def attempts(self) -> Iterator[tuple[str, list[Row], bool]]:
        """The rows that attempts of tasks have read: batch and task, rows, whether the attempt read
        all."""
        for path in (self._folder / "reads").iterdir():
            task = path.name.partition(".")[2].rpartition(".")[0]
            lines = path.read_bytes().splitlines()
            whole = lines[-1:] == [END.encode()]
            yield task, [Row.parse(line) for line in lines[: len(lines) - whole]], whole

    def failures(self) -> list[str]:
        """The errors with which queries have failed."""
        files = sorted(self._folder.glob("*.failed"))
        return [line for path in files for line in path.read_text().splitlines()]


Plan = Callable[[Life], Strike]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ShiftedClock()
    with topics(clock=clock) as found:
        host, _, port = found.url.removeprefix("http://").rpartition(":")
        with Gate((host, int(port))) as gate:
            yield World(found, clock, gate, tmp_path)


def test_fault_32_a_stream_whose_processes_are_killed_writes_every_message_once(
    world: World,
) -> None:
    at = world.at
    kills = [
        (
            LOCAL,
            at(FETCH, Moment.DONE, Life.kill_workers),
            at(STAGE, Moment.DONE, Life.kill_workers),
            at(COMMIT, Moment.LOST, Life.kill),
        ),
        (LOCAL, at(COMMIT, Moment.DONE, Life.kill)),
        (LOCAL, at(COMMIT, Moment.AFTER_NEXT, Life.kill)),
        (
            CLUSTER,
            at(STAGE, Moment.DONE, Life.kill_executors),
            at(STAGE, Moment.LOST, Life.kill_executors),
            at(STAGE, Moment.DONE, Life.kill_driver),
        ),
        (LOCAL, at(COMMIT, Moment.ANSWERED, Life.kill)),
        (LOCAL, at(COMMIT, Moment.BEFORE_NEXT, Life.kill)),
    ]
    world.publish(STEPS_BEFORE)
    for master, *strikes in kills:
        assert world.live("stream", master, *strikes) == KILLED
    world.publish(STEPS)
    last = at(COMMIT, Moment.DONE, Life.kill_sink), at(PLAN, Moment.DONE, Life.kill_source)
    assert world.live("stream", LOCAL, *last) == 0
    assert world.batches >= BATCHES
    assert world.gate.late == [409, 200], "whoever commits second is refused"
    overtaken, *struck = world.failures()
    assert "Another driver has committed" in overtaken
    assert len(struck) == 2, "the query has failed for other reasons than the last strikes"
    check_once(world)
    check_reads(world)
    written = world.consumed("out")
    assert 1 <= world.open <= len(kills), "what a driver left that was killed before its commit"
    world.clock.passed_s += BATCH_TIMEOUT_S + 60
    world.topics.engine.transactions.tidy()
    assert world.open == 0
    assert world.consumed("out") == written


def check_once(world: World) -> None:
    """Check that each message of `in` is once in `out`, in the batches of the checkpoint."""
    given = {(one.partition, one.offset): one for one in world.consumed("in")}
    values = {place: one.value for place, one in given.items()}
    written = world.consumed("out")
    rows = [Row.parse(one.value) for one in written]
    assert Counter(row.place for row in rows) == Counter(values.keys())
    for one, row in zip(written, rows, strict=True):
        assert (one.key, row.value) == (given[row.place].key, values[row.place])
    for batch in range(world.batches):
        there = {row.place: row.value for row in rows if row.batch == batch}
        assert there == world.rows_of(batch, values)
    assert world.position == Position.offset(max(row.batch for row in rows) + 1)


def check_reads(world: World) -> None:
    """Check that all attempts of a task have read the same rows."""
    values = {(one.partition, one.offset): one.value for one in world.consumed("in")}
    expected = [world.rows_of(batch, values) for batch in range(world.batches)]
    times: Counter[str] = Counter()
    for task, rows, whole in world.attempts():
        batch = int(task.partition(".")[0])
        there = {row.place: row.value for row in rows}
        assert len(there) == len(rows) and {row.batch for row in rows} <= {batch}
        partitions = {partition for partition, _ in there}
        wanted = {at: value for at, value in expected[batch].items() if at[0] in partitions}
        assert there == wanted if whole else there.items() <= wanted.items()
        times[task] += 1
    again = sum(count > 1 for count in times.values())
    print(f"{again} of {len(times)} tasks were read more than once")
    assert again >= 5


def test_fault_32_a_batch_query_whose_executors_are_killed_writes_every_row_once(
    world: World,
) -> None:
    def after(nth: int, moment: Moment) -> Plan:
        return lambda life: Strike(STAGE, nth, moment, life.kill_executors)

    first, second = world.random.randint(1, REQUESTS - 1), world.random.randint(1, 2)
    kills = after(first, Moment.DONE), after(second, Moment.LOST)
    assert world.live("batch", CLUSTER, *kills) == 0
    numbers = sorted(int(one.value or b"") for one in world.consumed("batch"))
    assert numbers == list(range(ROWS))
    assert world.open == 0
