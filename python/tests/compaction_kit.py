"""A compacted topic on an engine over a store that can fail, and the view of its readers."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sim.bounds.drawing import Bounds
from sim.faulty import FaultyStore
from tests.bounds_kit import AT_DEFAULT
from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tms.block import decode, encode, read_header
from tms.block.placing import places, skipped
from tms.engine.engine import Engine
from tms.log.partition_log import PartitionLog
from tms.model.ids import MessageId
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation
from tms.model.topic import Cleanup, Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicStaged
from tms.store.base import Store
from tms.topics.compaction.compaction import CompactionLimits

NAME = TopicName.parse("t")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class _Death(Exception):
    """The process dies here."""


class Seen(NamedTuple):
    """A message as a reader sees it."""

    offset: int
    id: MessageId
    key: bytes | None
    value: bytes | None


class World:
    """One partition. By default every pass of compaction with work to do is due."""

    def __init__(
        self,
        settings: TopicSettings | None = None,
        keys_max: int = 500,
        inner: Store | None = None,
        bounds: Bounds = AT_DEFAULT,
        dirty_ratio: float = 0.0,
    ) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(inner or KeptStore())
        compaction = bounds.make(CompactionLimits, dirty_ratio=dirty_ratio, keys_max=keys_max)
        self._config = bounds.config(threads=2, compaction=compaction)
        self.open()
        self.engine.create_topic(NAME, settings or compacted())

    def open(self) -> None:
        self.engine = Engine(self.store, self.clock, self._config)

    def restart(self) -> None:
        self.engine.close()
        self.open()

    def crash(self) -> None:
        """Let the process die, but not the machine."""
        self.engine._threads.shutdown(wait=True)
        self.store = FaultyStore(self.store.inner)
        self.clock.pass_ms(1)
        self.open()

    @contextmanager
    def dying_at(self, step: int, operations: Collection[str]) -> Iterator[None]:
        """Within the block the process dies before its nth such operation on the store."""
        left = step

        def before(operation: str, name: str) -> None:
            nonlocal left
            if operation in operations:
                left -= 1
                if left == 0:
                    raise _Death

        self.store.before = before
        with suppress(_Death):
            yield
        self.store.before = lambda operation, name: None

    @property
    def log(self) -> PartitionLog:
        engine = self.engine
        return engine.topics.partitions.get(NAME, engine.topics.registry.find(NAME), 0)

    def publish(
        self, *messages: tuple[bytes | None, bytes | None], durability: Durability | None = None
    ) -> list[int]:
        """Publish pairs of key and value in one block; returns their offsets."""
        block = encode([value for _, value in messages], [key for key, _ in messages])
        (place,) = self.engine.append(NAME, [NewBlock(0, block)], durability)
        self.clock.pass_ms(1)
        return [*range(place.base_offset, place.base_offset + place.count)]

    def stage(self, *messages: tuple[bytes | None, bytes | None]) -> int:
        """Stage a block in a new transaction; returns its id."""
        tx = self.engine.transactions
        id = tx.begin(timeout_s=600).transaction_id
        block = encode([value for _, value in messages], [key for key, _ in messages])
        tx.stage(NAME, [NewBlock(0, block)], id)
        return id

    def commit(self, id: int, blocks: int = 1) -> None:
        """Commit the staged blocks."""
        staged = (TopicStaged(NAME, 0, blocks),)
        self.engine.transactions.commit(Commit(id, staged=staged))
        self.clock.pass_ms(1)

    def seal(self) -> None:
        """Close the open segment."""
        state = self.log.state
        with state.changing():
            state.load()
            if state.chain.active is not None and state.last > state.chain.record.last:
                state.roll(self.clock.now_ms())

    def compact(self) -> None:
        self.engine.compaction.run()

    def read(
        self,
        position: Position | None = None,
        isolation: Isolation = Isolation.COMMITTED,
        bytes_max: int = 1 << 20,
    ) -> list[Seen]:
        """All messages from a position on."""
        found: list[Seen] = []
        position = position or Position.earliest()
        while True:
            at = [PartitionPosition(0, position)]
            fetched = self.engine.fetch(NAME, at, bytes_max, 0, isolation)
            if not fetched.blocks and fetched.next[0] == position:
                return found
            for stored in fetched.blocks:
                columns, header = decode(stored.block), read_header(stored.block)
                first = header.base_offset + skipped(stored, header, position)
                cells = zip(places(stored), columns.keys(), columns.values(), strict=True)
                found += [Seen(*at, key, value) for at, key, value in cells if at[0] >= first]
            position = fetched.next[0]

    def offsets(self) -> list[int]:
        return [one.offset for one in self.read()]


def compacted(
    cleanup: Cleanup = Cleanup.COMPACT,
    tombstones_ms: int | None = DAY_MS,
    durability: Durability = Durability.WRITTEN,
) -> TopicSettings:
    return TopicSettings(
        durability=durability,
        cleanup=cleanup,
        tombstone_retention_ms=tombstones_ms,
    )


def newest(seen: Sequence[Seen]) -> dict[bytes, bytes | None]:
    """The newest value of each key."""
    return {one.key: one.value for one in seen if one.key is not None}
