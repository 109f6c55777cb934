"""Shared parts of the tests of log, topic and engine: an engine on a store that can fail, and
messages as plain tuples.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.waiting import PATIENCE_S
from tms.block import decode, encode
from tms.block.placing import places
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.log.partition import LogLimits
from tms.log.pending import PendingAppend
from tms.model.ids import MessageId
from tms.model.message import Appended, Fetched, NewBlock, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.topic import Durability, PartitionInfo, TopicName, TopicSettings
from tms.store.base import Store
from tms.store.memory import MemoryStore

NAME = TopicName.parse("topic")
EARLIEST, LATEST = Position.earliest(), Position.latest()
NONE, WRITTEN, SYNCED = Durability.NONE, Durability.WRITTEN, Durability.SYNCED
SEGMENTS = "t"  # prefix of the names of segment maps
MANY = 1 << 30
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class Seen(NamedTuple):
    """A message as a reader sees it."""

    offset: int
    id: MessageId
    value: bytes | None


def block(*values: bytes | None, producer: int = 0, sequence: int = 0) -> bytearray:
    """A new block of these values."""
    return encode(values, producer_id=producer, producer_sequence=sequence)


def seen(blocks: Sequence[StoredBlock]) -> list[Seen]:
    """The messages of stored blocks."""
    found = []
    for stored in blocks:
        cells = zip(places(stored), decode(stored.block).values(), strict=True)
        found += [Seen(*place, value) for place, value in cells]
    return found


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that tests make small."""

    log: LogLimits = field(default_factory=LogLimits)
    cache_bytes: int = 1 << 20
    in_flight_bytes: int = 1 << 20

    def config(self) -> EngineConfig:
        return EngineConfig(
            cache_bytes=self.cache_bytes,
            in_flight_bytes=self.in_flight_bytes,
            threads=2,
            log=self.log,
        )


class KeptStore(MemoryStore):
    """Memory that outlives its closing, as a disk does."""

    def close(self) -> None:
        pass


class Bench:
    """An engine with one topic on a faulty store over `inner`, and its clock."""

    def __init__(
        self,
        settings: TopicSettings | None = None,
        limits: Limits | None = None,
        inner: Store | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.limits = limits or Limits()
        self.settings = settings or TopicSettings()
        self.store = FaultyStore(inner or KeptStore())
        self.engine = self.open()
        self.engine.create_topic(NAME, self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def open(self) -> Engine:
        """Open a new engine on the store as it is."""
        return Engine(self.store, self.clock, self.limits.config())

    def restart(self) -> None:
        """Close the engine and start again."""
        self.engine.close()
        self.engine = self.open()

    def kill(self) -> None:
        """Crash the process and start again: written rows are still there."""
        self.engine._threads.shutdown(wait=True)
        for name in self.store.names(""):
            self.store.open(name, create=False).recover()  # a new process knows of no failure
        self.engine = self.open()

    def lose_power(self) -> None:
        """Crash the machine and start again: unsynced rows are lost."""
        self.store = FaultyStore(self.store.crash())
        self.engine._threads.shutdown(wait=True)
        self.engine = self.open()

    def publish(
        self,
        *values: bytes | None,
        partition: int = 0,
        durability: Durability | None = None,
        producer: int = 0,
        sequence: int = 0,
    ) -> Appended:
        """Publish one block."""
        made = block(*values, producer=producer, sequence=sequence)
        return self.engine.append(NAME, [NewBlock(partition, made)], durability, 10)[0]

    def submit(
        self, *blocks: bytearray, durability: Durability | None = None, partition: int = 0
    ) -> PendingAppend:
        """Submit one request of these blocks."""
        return self.engine.submit(NAME, [NewBlock(partition, one) for one in blocks], durability)

    def fetch(
        self, position: Position, partition: int = 0, bytes_max: int = MANY, wait_s: float = 0
    ) -> Fetched:
        """One fetch of one partition."""
        return self.engine.fetch(
            NAME, [PartitionPosition(partition, position)], bytes_max, wait_s=wait_s
        )

    def read(
        self, position: Position = EARLIEST, partition: int = 0, bytes_max: int = MANY
    ) -> list[Seen]:
        """Everything from a position on, by as many fetches as needed."""
        found: list[Seen] = []
        while (fetched := self.fetch(position, partition, bytes_max)).blocks:
            found += seen(fetched.blocks)
            position = fetched.next[partition]
        return found

    def values(self, position: Position = EARLIEST, partition: int = 0) -> list[bytes | None]:
        """The values of everything from a position on."""
        return [one.value for one in self.read(position, partition)]

    def partition(self, partition: int = 0) -> PartitionInfo:
        """The description of the partition."""
        return self.engine.describe_topic(NAME).partition_infos[partition]

    def keep_up(self) -> None:
        """Wait until the background has taken a snapshot or rolled the segment, if that is due. If
        it was just ending when that became due, the next publish starts it, so this gives up."""
        state = self.engine.topics.partitions.opened()[-1].state
        ended_s = time.monotonic() + 1.0
        while state.maintenance_due and time.monotonic() < ended_s:
            time.sleep(0.001)

    def maps(self) -> list[str]:
        """Names of all segment maps."""
        return self.store.inner.names(SEGMENTS)


def small(limits: Limits | None = None, **log: int) -> Limits:
    """Limits with these bounds of the log."""
    limits = limits or Limits()
    return replace(limits, log=replace(limits.log, **log))


class Gate:
    """Holds back writes to segments until it is opened."""

    def __init__(self, store: FaultyStore) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        store.before = self._before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def wait_entered(self) -> None:
        """Wait until a write waits at the gate."""
        assert self.entered.acquire(timeout=PATIENCE_S), "no write came"

    def open(self) -> None:
        """Let everything through from now on."""
        self._open.set()

    def _before(self, operation: str, name: str) -> None:
        if operation == "write" and name.startswith(SEGMENTS) and not self._open.is_set():
            self.entered.release()
            assert self._open.wait(PATIENCE_S), "the gate was never opened"
