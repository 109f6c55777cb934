"""Actors that publish new values of a few keys, and tombstones: to a topic that is compacted
meanwhile, and to one that is not."""

from sim.actors.actor import COMPACTED, PEOPLE, durability_at, keyed, topic_of
from sim.actors.producers import Producer
from sim.history import Compacting, Place, Sent
from sim.world import World, quietly
from tms.model.topic import Cleanup, Durability, TopicSettings

KEPT: Place = (COMPACTED, 0)
NAMED: tuple[Place, ...] = ((PEOPLE, 0), (PEOPLE, 1))
TOMBSTONE_RETENTION_MS = 1_000
SETTINGS = TopicSettings(
    1,
    None,
    None,
    Durability.SYNCED,
    cleanup=Cleanup.COMPACT,
    tombstone_retention_ms=TOMBSTONE_RETENTION_MS,
)


class Keeper(Producer):
    """A producer whose messages have keys."""

    def _make(self) -> None:
        world, random = self._world, self._world.random
        names = (f"{self._name}-{self._made + i}" for i in range(random.choice((1, 1, 2, 4))))
        self._values = tuple(keyed(world, name, random.random() < 0.2) for name in names)
        self._made += len(self._values)
        self._durability = durability_at(world, self.place)
        self._pending = None
        world.history.add(Sent(world.history.now(), self.place, self._values))


class Compactor(Producer):
    """Compacts the topic; at the end so often that tombstones are removed, each time after a
    message without a key, because a pass without new messages does nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "compactor", KEPT)
        self._passes_left = 3

    def step(self) -> None:
        """Compact the topic."""
        quietly(lambda: compact(self._world))

    def settle(self) -> bool:
        """Publish, then compact."""
        super().step()
        if not self._values:
            self.step()
            self._passes_left -= 1
        return not self._passes_left


def compact(world: World) -> None:
    """Close the open segment, and compact the closed ones."""
    engine = world.engine
    record = engine.topics.registry.find(topic_of(KEPT))
    log = engine.topics.partitions.get(topic_of(KEPT), record, KEPT[1])
    with log.state.changing():
        log.state.load()
        if log.state.chain.active is not None and log.state.chain.record.last < log.state.last:
            log.state.roll(world.clock.now_ms())
    world.history.add(Compacting(world.history.now(), KEPT))
    engine.compaction.run()
