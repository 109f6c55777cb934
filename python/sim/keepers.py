"""Those who publish new values of a few keys, to a topic that is compacted meanwhile."""

from sim.actors import COMPACTED, Producer, block, topic_of
from sim.history import Place, Sent
from sim.world import World
from tms.model.log import NewBlock
from tms.model.topic import Cleanup, Durability, TopicSettings

KEPT: Place = (COMPACTED, 0)
SETTINGS = TopicSettings(1, None, None, Durability.SYNCED, cleanup=Cleanup.COMPACT)
KEYS = 3


class Keeper(Producer):
    """A producer whose values begin with their key and `=`."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, KEPT)

    def _make(self) -> None:
        world = self._world
        self._values = (f"k{world.random.randrange(KEYS)}={self._name}-{self._made}",)
        self._made += 1
        self._durability = Durability.SYNCED
        self._pending = None
        world.history.add(Sent(world.history.now(), KEPT, self._values))

    def _new(self) -> NewBlock:
        key = self._values[0].partition("=")[0].encode()
        raw = block(self._values, self._producer_id, self._sequence, key)
        return NewBlock(self._place[1], raw)


def compact(world: World) -> None:
    """Close the open segment, and compact what is closed."""
    engine = world.engine
    record = engine._registry.find(topic_of(KEPT))
    log = engine._partitions.get(topic_of(KEPT), record, KEPT[1])
    with log.state.changing():
        log.state.load()
        if log.state.chain.active is not None and log.state.chain.record.last < log.state.last:
            log.state.roll(world.clock.now_ms())
    engine.compaction.run()
