"""Processes that share one store, with writes whose answers are lost."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from sim.faulty import FaultyMap, FaultyStore
from tests.clocks import ManualClock
from tests.log_kit import EARLIEST, MANY, NAME, SEGMENTS, KeptStore, Seen, block, seen, small
from tms.engine.engine import Engine
from tms.errors import StorageUnavailable
from tms.log.records import PartitionRecord, decode
from tms.model import keys
from tms.model.message import Appended, NewBlock, PartitionPosition
from tms.model.topic import Durability, TopicSettings
from tms.store.base import Map, MapRow


class LateMap(FaultyMap):
    """A map whose writes may be answered with an error and take effect later."""

    late: "LateStore"
    target: Map
    name: str

    def write(self, rows: Sequence[MapRow], durability: Durability) -> None:
        if not (rows and self.late.delays(self.name)):
            super().write(rows, durability)
            return
        kept = [(key, bytes(value)) for key, value in rows]
        self.late.flying.append((self.target, kept))
        raise StorageUnavailable("No answer came; was it written? Unknown.")


class Forgotten(KeptStore):
    """Memory that other processes can reach, as HBase is: a dropped map loses its name, and
    processes that had opened it go on writing to it."""

    def __init__(self) -> None:
        super().__init__(shared=True)

    def drop(self, name: str) -> None:
        if name.startswith(SEGMENTS):
            with self._lock:
                self._maps.pop(name, None)
        else:
            super().drop(name)


class LateStore(FaultyStore):
    """The access of one process to the shared store."""

    def __init__(self, inner: KeptStore) -> None:
        super().__init__(inner)
        self.flying: list[tuple[Map, list[MapRow]]] = []
        self.delays: Callable[[str], bool] = lambda name: False

    def open(self, name: str, create: bool) -> LateMap:
        found = LateMap(self, name, self.inner.open(name, create))
        found.late, found.target, found.name = self, self.inner.open(name, False), name
        return found

    def land(self, pick: Callable[[list[MapRow]], list[MapRow]] = lambda rows: rows) -> None:
        """Let late writes take effect, or some of their rows."""
        for target, rows in self.flying:
            target.write(pick(rows), Durability.SYNCED)
        self.flying.clear()


class Later(Executor):
    """Background work that waits until `run`: no thread is ever free."""

    def __init__(self) -> None:
        self.tasks: deque[Callable[[], object]] = deque()

    def submit(self, task: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self.tasks.append(lambda: task(*given, **named))
        return Future()

    def run(self) -> None:
        """Run the waiting work, and the work that it submits."""
        while self.tasks:
            self.tasks.popleft()()


class Processes:
    """Engines that share one store, each as if in a process of its own."""

    def __init__(
        self, count: int = 2, threads: Callable[[], Executor | None] = lambda: None, **log: int
    ) -> None:
        self.clock = ManualClock()
        self.threads = threads
        self.kept = Forgotten()
        self.log = log
        self.stores = [LateStore(self.kept) for _ in range(count)]
        self.engines = [self._open(0)]
        self.engines[0].create_topic(NAME, TopicSettings())
        self.engines += [self._open(number) for number in range(1, count)]

    def _open(self, number: int) -> Engine:
        config = small(**self.log).config()
        return Engine(self.stores[number], self.clock, config, threads=self.threads())

    def start_anew(self, number: int) -> None:
        """Kill a process and start another one in its place; its last writes may still land."""
        old = self.stores[number]
        old.crashed = True
        self.stores[number] = LateStore(self.kept)
        self.stores[number].flying = old.flying
        self.engines[number] = self._open(number)

    def publish(self, number: int, *values: bytes, **producer: int) -> Appended:
        self.clock.pass_ms(1)
        made = NewBlock(0, block(*values, **producer))
        return self.engines[number].append(NAME, [made], None, 10)[0]

    def read(self, number: int) -> list[Seen]:
        found: list[Seen] = []
        position = EARLIEST
        while True:
            fetched = self.engines[number].fetch(NAME, [PartitionPosition(0, position)], MANY)
            if not fetched.blocks:
                return found
            found += seen(fetched.blocks)
            position = fetched.next[0]

    def values(self, number: int) -> list[bytes | None]:
        return [one.value for one in self.read(number)]

    def record(self) -> PartitionRecord:
        key = keys.partition_key(self.engines[0].topics.registry.find(NAME).uid, 0)
        raw = self.kept.open("metadata", False).get(key)
        assert raw is not None
        return decode(raw, PartitionRecord, key)
