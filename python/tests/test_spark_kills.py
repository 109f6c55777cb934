"""Fault 32: drivers and executors of Spark are killed while a stream goes from topic to topic, and
while a batch query writes.

They are killed at requests: before the service has it, when it is done but not answered, when it is
answered but not noted by Spark. Each value that is written names its batch and the message that was
read; the checkpoint says which messages are those of a batch.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random, SystemRandom

import pytest

import tms
from tests.faults.streaming import END, ROWS
from tests.spark_kills_kit import Gate, Life, Moment, Strike
from tests.spark_topics_kit import Topics, topics
from tms.clock import SystemClock
from tms.model.position import Position
from tms.model.transaction import Commit
from tms.spark.sink.fence import BATCH_TIMEOUT_S, FENCE

pytestmark = pytest.mark.timeout(1_200)  # cold JVMs on a busy machine

BATCHES = 50
LOCAL, CLUSTER = "local[2,8]", "local-cluster[2,1,512]"
LIFE_S = 300.0  # at most
STEPS_BEFORE, STEPS = 140, 210  # of publishing; each makes about ten offsets
PARTITIONS = 3
KILLED = -9

BEGIN, STAGE, COMMIT, FETCH = "transactions", "staged", "commit", "messages"  # in paths

Place = tuple[int, int]  # partition and offset in the topic `in`
Act = Callable[[Life], None]


class ShiftedClock(SystemClock):
    """The machine's clocks, and time that only seems to have passed."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.passed_s * 1_000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.passed_s


class World:
    """A service behind a gate, and a topic that is filled while it is read."""

    def __init__(self, found: Topics, clock: ShiftedClock, gate: Gate, folder: Path) -> None:
        self.topics, self.clock, self.gate, self.folder = found, clock, gate, folder
        seed = SystemRandom().getrandbits(32)
        print("seed", seed)
        self.random = Random(seed)
        self.lives = 0
        self._steps = 0
        (folder / "reads").mkdir()
        for name in ("in", "out", "batch"):
            found.bus.create_topic(name, partitions=PARTITIONS, durability="written")

    def live(self, job: str, master: str, *strikes: tuple[str, int, Moment, Act]) -> int | None:
        """Start the driver, strike, and publish until it ends; its exit code."""
        self.lives += 1
        began_s = time.monotonic()
        with Life(job, master, self.gate.url, self.folder, f"life{self.lives}") as life:

            def on_life(act: Act) -> Callable[[], None]:
                return lambda: act(life)

            self.gate.script(*(Strike(*said, on_life(act)) for *said, act in strikes))
            while (code := life.wait(0.5)) is None:
                assert time.monotonic() - began_s < LIFE_S, "the driver goes on for too long"
                if self._steps:
                    self.publish(min(STEPS, self._steps + 3))
            assert not self.gate.failed
            assert not self.gate.left, f"it ended with {code} before {self.gate.left} strikes"
            print("life", self.lives, code, f"{time.monotonic() - began_s:.1f} s", self.batches())
            return code

    def publish(self, steps: int) -> None:
        """Fill the topic to so many steps; some of its open transactions end."""
        self.topics.fill(self.random, "in", PARTITIONS, steps - self._steps)
        self._steps = steps
        for pointer in self.topics.open[:]:
            if self.random.random() < 0.3:
                self.end(pointer)

    def end(self, pointer: int) -> None:
        """Commit or abort a transaction whose messages hold the stream back."""
        if self.random.random() < 0.5:
            self.topics.abort(pointer)
        else:
            self.topics.open.remove(pointer)
            self.topics.engine.transactions.commit(Commit(pointer))

    def publish_rest(self) -> None:
        """Fill the topic; no transaction in it stays open."""
        self.publish(STEPS)
        for pointer in self.topics.open[:]:
            self.end(pointer)

    def consumed(self, topic: str) -> list[tms.Message]:
        """Everything that is visible."""
        return list(self.topics.bus.consumer(topic, stop_at_end=True))

    def batches(self) -> int:
        """How many batches the checkpoint has begun."""
        offsets = self.folder / "checkpoint" / "offsets"
        return 1 + max((int(p.name) for p in offsets.glob("[0-9]*")), default=-1)

    def ends(self, batch: int) -> dict[int, int]:
        """By partition, where a batch ends; all begin at 0."""
        if batch < 0:
            return dict.fromkeys(range(PARTITIONS), 0)
        text = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text()
        said = json.loads(text.splitlines()[2])["in"]
        return {int(partition): end for partition, end in said.items()}

    def query(self) -> str:
        """The query's id."""
        return str(json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"])


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
    soon = lambda: world.random.randint(2, 5)  # noqa: E731
    world.publish(STEPS_BEFORE)
    # fmt: off
    lives = [
        (LOCAL, [(STAGE, soon(), Moment.DONE, Life.kill_workers),
                 (COMMIT, soon(), Moment.LOST, Life.kill)]),
        (LOCAL, [(COMMIT, soon(), Moment.DONE, Life.kill)]),
        (LOCAL, [(COMMIT, soon(), Moment.LATE, Life.kill)]),
        (CLUSTER, [(STAGE, soon(), Moment.DONE, Life.kill_executors),
                 (STAGE, soon(), Moment.LOST, Life.kill_executors),
                 (STAGE, soon(), Moment.DONE, Life.kill_driver)]),
        (LOCAL, [(BEGIN, soon(), Moment.DONE, Life.kill)]),
        (LOCAL, [(FETCH, 3 * soon(), Moment.DONE, Life.kill)]),
        (LOCAL, [(COMMIT, soon(), Moment.ANSWERED, Life.kill)]),
    ]
    # fmt: on
    for master, strikes in lives:
        assert world.live("stream", master, *strikes) == KILLED
    world.publish_rest()
    assert world.live("stream", LOCAL) == 0
    check(world)


def check(world: World) -> None:
    """Everything is in `out` once, in the batches that the checkpoint says."""
    given = {(one.partition, one.offset): one for one in world.consumed("in")}
    written = world.consumed("out")
    found = [parsed(one.value) for one in written]
    assert Counter(place for _, place, _ in found) == Counter(given.keys())
    for one, (_, place, value) in zip(written, found, strict=True):
        assert (one.key, value) == (given[place].key, given[place].value)
    for partition in range(PARTITIONS):
        offsets = [one.offset for one in written if one.partition == partition]
        assert offsets == list(range(len(offsets)))
    expected = {batch: rows_of(world, batch, given) for batch in range(world.batches())}
    for batch, rows in expected.items():
        assert {place for number, place, _ in found if number == batch} == rows.keys()
    check_reads(world, expected)


def rows_of(world, batch, given):
    """What a batch has, by the checkpoint."""
    starts, stops = world.ends(batch - 1), world.ends(batch)
    return {
        (partition, offset): one.value
        for (partition, offset), one in given.items()
        if starts[partition] <= offset < stops[partition]
    }


def check_reads(world, expected) -> None:
    again = Counter()
    for path in (world.folder / "reads").iterdir():
        _, batch, task, _ = path.name.split(".")
        *lines, last = path.read_text().split("\n")
        assert last == ""
        whole = lines[-1:] == [END]
        rows = [parsed(line.encode()) for line in lines[: len(lines) - whole]]
        assert all(number == int(batch) for number, _, _ in rows)
        read = {place: value for _, place, value in rows}
        assert len(read) == len(rows)
        there = expected[int(batch)]
        assert read.items() <= there.items()
        if whole:
            of = {p for p, _ in read}
            assert read == {place: value for place, value in there.items() if place[0] in of}
            again[batch, task] += 1
    print(sum(n > 1 for n in again.values()), "tasks read again", len(again))


def parsed(line: bytes | None) -> tuple[int, Place, bytes | None]:
    """Batch, place and value of a line of `streaming.py`."""
    assert line is not None
    batch, partition, offset, value = line.decode().split(" ")
    place = int(partition), int(offset)
    return int(batch), place, None if value == "-" else bytes.fromhex(value)
