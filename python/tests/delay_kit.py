"""Kit for tests of delayed messages: an engine on a store that can fail, with one clock, and a
reader of the delivered messages."""

import threading
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Self

from sim.faulty import FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tests.waiting import PATIENCE_S
from tms.block import decode, encode
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.model import keys
from tms.model.delayed import Deferred, DelayedId, Due
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.store.base import MapRow, Store
from tms.store.memory import MemoryMap

A = TopicName("default", "a")
PARTITIONS = 2
CONFIG = EngineConfig(threads=2)


class World:
    """An engine with a topic over a store that survives it."""

    def __init__(
        self,
        shared: bool = False,
        durability: Durability = Durability.SYNCED,
        inner: Store | None = None,
        clock: ManualClock | None = None,
        config: EngineConfig = CONFIG,
    ) -> None:
        self._config = config
        self.clock = clock or ManualClock()
        self.store = FaultyStore(inner or KeptStore(shared=shared))
        self.open()
        settings = TopicSettings(PARTITIONS, durability=durability)
        if all(info.name != A for info in self.engine.list_topics(A.namespace)):
            self.engine.create_topic(A, settings)

    def open(self) -> None:
        self.engine = Engine(self.store, self.clock, self._config)
        self.delayed = self.engine.delayed

    def restart(self) -> None:
        """Close the engine and start again."""
        self.engine.close()
        self.open()

    def kill(self) -> None:
        """Continue with the written rows, as after a crash of the process."""
        self.engine._threads.shutdown(wait=True)
        self.store.crashed = True
        self.store = FaultyStore(self.store.inner)
        self.open()

    def lose_power(self, random: Random | None = None) -> None:
        """Continue with the synced rows, and with those unsynced rows that chance has kept."""
        self.engine._threads.shutdown(wait=True)
        self.store = FaultyStore(self.store.crash(random))
        self.open()

    def later(
        self,
        *values: bytes,
        delay_ms: int | None = None,
        at_ms: int | None = None,
        partition: int = 0,
        token: str = "",
        key: bytes | None = None,
        name: TopicName = A,
    ) -> list[DelayedId]:
        """Publish one block."""
        due = Due(at_ms, delay_ms)
        block = encode(list(values), [key] * len(values) if key else None)
        (place,) = self.delayed.publish(name, [NewBlock(partition, block)], due, None, token)
        return place.ids()

    def together(self, values: dict[int, list[bytes]], due: Due, token: str) -> list[Deferred]:
        """Publish a block for each of several partitions."""
        blocks = [NewBlock(partition, encode(some)) for partition, some in values.items()]
        return self.delayed.publish(A, blocks, due, None, token)

    def read(self, partition: int | None = None, name: TopicName = A) -> list[bytes | None]:
        """The messages delivered to a partition, or to all, one after another."""
        if partition is None:
            return [value for one in range(PARTITIONS) for value in self.read(one, name)]
        found: list[bytes | None] = []
        position = Position.earliest()
        while True:
            fetched = self.engine.fetch(name, [PartitionPosition(partition, position)], 1 << 20)
            if not fetched.blocks and fetched.next[partition] == position:
                return found
            for stored in fetched.blocks:
                found += decode(stored.block).values()
            position = fetched.next[partition]


class AtStep:
    """Does something in a thread of its own at the nth operation of the store. The calling thread
    goes on once it is done, or blocks."""

    def __init__(self, store: FaultyStore, step: int, do: Callable[[], object]) -> None:
        self.came = False
        self._store = store
        self._step = step
        self._steps = count()
        self._thread = threading.Thread(target=do)

    def __enter__(self) -> Self:
        self._store.before = self._before
        return self

    def __exit__(self, *_: object) -> None:
        self._store.before = lambda operation, name: None
        if self.came:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()

    def _before(self, operation: str, name: str) -> None:
        if next(self._steps) == self._step:
            self.came = True
            self._thread.start()
            self._thread.join(0.02)


class NotingStore(KeptStore):
    """Notes the kind and the durability of each write to a map of delayed messages."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__(shared=shared)
        self.noted: list[tuple[bytes, Durability]] = []

    def open(self, name: str, create: bool) -> MemoryMap:
        found = super().open(name, create)
        if keys.is_delayed_map(name) and "write" not in vars(found):
            write = found.write

            def noting(rows: Sequence[MapRow], durability: Durability) -> None:
                self.noted.append((min(rows)[0][:1], durability))
                write(rows, durability)

            found.write = noting  # type: ignore[method-assign]
        return found
