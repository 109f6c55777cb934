"""Actors that publish a key only if none of its messages can be read, in a topic whose messages
expire."""

from random import Random

from sim.actors.actor import block, seen
from sim.history import Renewed
from sim.world import World
from tms.errors import TMSError, WrongLastId
from tms.model.message import NOTHING, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock

TOPIC = TopicName.parse("renewed")
KEY = b"renewed"
SETTINGS = TopicSettings(1, retention_ms=1_000, durability=Durability.SYNCED)


class Renewer:
    """Publishes to a topic of its own, whose messages expire or are truncated. It draws from a
    `Random` of its own, and nothing else happens during its steps, so a run without it takes the
    same steps."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._made = 0
        self._is_sure = False  # True if it knows which messages the store has

    def step(self) -> None:
        """Publish the key if none of its messages can be read; now and then remove all of them."""
        with self._world.undisturbed():
            try:
                self._step()
            except TMSError:
                self._is_sure = False

    def _step(self) -> None:
        engine, chance = self._world.engine, self._chance
        if not self._is_sure:
            engine.create_topic(TOPIC, SETTINGS)  # no effect if the topic exists
            engine.append(TOPIC, [NewBlock(0, block(("settled",), key=b"other"))])
            self._is_sure = True
        if chance.random() < 0.1:
            engine.truncate_topic(TOPIC, Position.latest())
        self._made += 1
        new = NewBlock(0, block((f"renewed-{self._made}",), key=KEY), NOTHING)
        readable = self._readable()
        stored = True
        try:
            if chance.random() < 0.3:
                engine.transactions.commit(Commit(blocks=(TopicBlock(TOPIC, new),)))
            else:
                engine.append(TOPIC, [new])
        except WrongLastId:
            stored = False
        history = self._world.history
        history.add(Renewed(history.now(), (str(TOPIC), 0), readable, stored))

    def _readable(self) -> tuple[str, ...]:
        """The messages of the key that can be read, and the one in doubt: only this actor has
        transactions here, and messages stored by an open transaction count as present until it
        ends."""
        position = Position.earliest()
        found: list[str] = []
        while True:
            fetched = self._world.engine.fetch(TOPIC, [PartitionPosition(0, position)], 1 << 20)
            if not fetched.blocks:
                return (*found, "in doubt") if fetched.held else tuple(found)
            values = [value for _, value in seen(fetched, position)]
            found += [value for value in values if value.startswith("renewed-")]
            position = fetched.next[0]
