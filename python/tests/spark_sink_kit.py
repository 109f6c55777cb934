"""Spark as the sink sees it, without Spark: drivers, tasks and attempts that die as scripted,
against a real engine on memory.

    Service   the engine, and every call to it; one of the calls fails, or the store below it stops
    Driver    a query: batches of tasks, a new token for each, Spark's own log of committed batches
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, Protocol, cast

import pyarrow as pa

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tms.block import decode
from tms.client.transport import Transport
from tms.engine.engine import Engine
from tms.errors import StorageUnavailable, TimedOut, TMSError
from tms.model.message import PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.spark.sink.columns import shape_of
from tms.spark.sink.fence import Attempt, BatchFence, Job
from tms.spark.sink.staging import stage
from tms.store.base import Store
from tms.store.memory import MemoryStore

SHAPE = shape_of([("key", "binary"), ("value", "binary"), ("topic", "string")], "")
TOPICS = {"a": 3, "b": 1}
LIVES_MAX = 6
_WRITES = {"write", "delete", "compare_and_set"}

Rows = list[tuple[str, bytes, bytes]]  # topic, key, value
Batch = list[Rows]  # the rows of each task


class Died(BaseException):
    """The process that made the call is gone; none of its code runs any more."""


class Fault(Enum):
    """A fault of a call."""

    REQUEST_LOST = "the request is lost"
    ANSWER_LOST = "the answer is lost"
    CALLER_DIES_BEFORE = "the caller dies before"
    CALLER_DIES_AFTER = "the caller dies after"
    SERVICE_KILLED_BEFORE = "the service is killed before"
    SERVICE_KILLED_AFTER = "the service is killed after"


class Transported(Protocol):
    """The parts of a driver and its tasks that hold a transport."""

    @property
    def transport(self) -> Transport: ...


class Service:
    """An engine, and a transport to it that counts calls; the call `at` meets the fault."""

    def __init__(self, at: int = 0, fault: Fault = Fault.REQUEST_LOST) -> None:
        self.clock = ManualClock()
        self._store: Store = MemoryStore()
        self._at, self._fault = at, fault
        self.calls = 0
        self.writes = 0
        self.stop_at_write = 0
        self._stopped = False
        self._open()
        for name, partitions in TOPICS.items():
            settings = TopicSettings(partitions, durability=Durability.WRITTEN)
            self.engine.create_topic(TopicName.parse(name), settings)
        self.calls = self.writes = 0

    @property
    def transport(self) -> Transport:
        return cast(Transport, self)

    @property
    def transactions(self) -> "Service":
        return self

    @property
    def groups(self) -> "Service":
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **named: self._call(name, *args, **named)

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        """Make one call of the transport, with its fault."""
        if self._stopped:  # the service was started again meanwhile
            self.kill()
        self.calls += 1
        fault = self._fault if self.calls == self._at else None
        if fault is Fault.CALLER_DIES_BEFORE:
            raise Died
        if fault is Fault.REQUEST_LOST:
            raise TimedOut("scripted: lost")
        if fault is Fault.SERVICE_KILLED_BEFORE:
            self.kill()
        of: object = self.engine.transactions
        if name in ("describe_topic", "positions"):
            of = self.engine if name == "describe_topic" else self.engine.groups
        result = getattr(of, name)(*args, **named)
        if fault is Fault.CALLER_DIES_AFTER:
            raise Died
        if fault is Fault.SERVICE_KILLED_AFTER:
            self.kill()
        if fault in (Fault.ANSWER_LOST, Fault.SERVICE_KILLED_AFTER):
            raise TimedOut("scripted: lost")
        return result

    def kill(self) -> None:
        """Cut the power: only synced rows are left."""
        self.engine._threads.shutdown()
        self._store = self._faulty.crash()
        self.clock.pass_ms(5)
        self._open()

    def _open(self) -> None:
        self._stopped = False
        self._faulty = FaultyStore(self._store, self._before)
        self.engine = Engine(self._faulty, self.clock)

    def _before(self, operation: str, name: str) -> None:
        if operation in _WRITES:
            self.writes += 1
            if self.writes == self.stop_at_write:
                self._stopped = True
        if self._stopped:
            raise StorageUnavailable("scripted: the machine has stopped")

    def values(self) -> list[tuple[str, bytes]]:
        """All visible messages, topic and value, in order."""
        if self._stopped:
            self.kill()
        found = []
        for name, partitions in TOPICS.items():
            for partition in range(partitions):
                position = Position.earliest()
                while True:
                    there = [PartitionPosition(partition, position)]
                    fetched = self.engine.fetch(TopicName.parse(name), there, 1 << 20)
                    if not fetched.blocks:
                        break
                    for one in fetched.blocks:
                        found += [(name, value or b"") for value in decode(one.block).values()]
                    position = fetched.next[partition]
        return sorted(found)


def as_batches(rows: Rows, size: int = 3) -> list[pa.RecordBatch]:
    """The rows as Spark passes them to a task."""
    made = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        columns = {
            "key": pa.array([key for _, key, _ in part], pa.binary()),
            "value": pa.array([value for _, _, value in part], pa.binary()),
            "topic": pa.array([topic for topic, _, _ in part], pa.string()),
        }
        made.append(pa.record_batch(columns))
    return made


@dataclass
class Driver:
    """A query with a checkpoint, started again whenever it has ended with an error."""

    service: "Transported"
    batches: Sequence[Batch]
    query: str = "q"
    attempts_max: int = 3
    twice: bool = False  # every task runs twice, and the later attempt counts
    committed: int = 0  # Spark's own log, in the checkpoint
    lives: int = 0
    _tokens = count()

    def run(self) -> None:
        """Run until all batches are committed, whatever happens on the way."""
        while self.committed < len(self.batches):
            self.lives += 1
            assert self.lives <= LIVES_MAX
            try:
                while self.committed < len(self.batches):
                    self.batch()
            except (TMSError, Died):
                continue

    def batch(self) -> None:
        """Run the next batch, as Spark does."""
        job = self.begin()
        attempts: list[Attempt] = []
        try:
            for rows in self.batches[self.committed]:
                attempts.append(self.task(job, rows))
            self.fence(job).commit(attempts)
        except TMSError:
            self.fence(job).abort(attempts)
            raise
        self.committed += 1

    def begin(self) -> Job:
        """A writer of the next batch."""
        return Job(f"token-{next(self._tokens)}", self.query, self.committed)

    def task(self, job: Job, rows: Rows) -> Attempt:
        """Run a task, with attempts until one succeeds."""
        if self.twice:
            self.attempt(job, rows)
        for left in reversed(range(self.attempts_max)):
            try:
                return self.attempt(job, rows)
            except TMSError:
                if not left:
                    raise
        raise AssertionError

    def attempt(self, job: Job, rows: Rows) -> Attempt:
        return stage(self.service.transport, job, SHAPE, iter(as_batches(rows)))

    def fence(self, job: Job) -> BatchFence:
        return BatchFence(self.service.transport, job, timeout_s=5)

    @property
    def expected(self) -> list[tuple[str, bytes]]:
        """The final messages of the topics."""
        rows = [row for batch in self.batches for task in batch for row in task]
        return sorted((topic, value) for topic, _, value in rows)


def some_batches(name: str = "") -> list[Batch]:
    """Batches of one and two tasks, and one without rows; values begin with the name."""
    start = name.encode()

    def rows(batch: int, task: int, count: int) -> Rows:
        return [
            ("ab"[number % 2], b"k%d" % (number % 3), start + b"%d.%d.%d" % (batch, task, number))
            for number in range(count)
        ]

    return [[rows(0, 0, 7), rows(0, 1, 4)], [[], []], [rows(2, 0, 5), []], [rows(3, 0, 2)]]
