"""Actors that decide on the newest message of a key, and publish only if it still is the newest."""

from sim.actors.actor import block, seen, topic_of
from sim.history import Acknowledged, Place, Sent
from sim.world import World, quietly
from tms.errors import OutOfOrderSequence, SequenceReused, WrongLastId
from tms.model.ids import MessageId
from tms.model.message import NOTHING, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability

KEY = b"decided"


class Decider:
    """A member of a team whose messages form a chain: each rests on the one before it."""

    def __init__(self, world: World, name: str, place: Place) -> None:
        self._world = world
        self._name, self._place = name, place
        self._made = 0
        self._value = ""
        self._begin_anew()

    def step(self) -> None:
        """Read the newest message, or publish one that rests on it."""
        quietly(self._step)

    def settle(self) -> bool:
        """Repeat until every publish is answered."""
        if self._value:
            quietly(self._publish)
        return not self._value

    def after_power_loss(self) -> None:
        """Forget messages that a power loss may have taken."""
        if not self._value:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._producer_id = self._world.random.getrandbits(62) | 1
        self._sequence = 0
        self._position = Position.earliest()
        self._newest, self._id = "", NOTHING
        self._value = ""

    def _step(self) -> None:
        world = self._world
        if not self._value:
            if world.random.random() < 0.8:
                self._read()
            self._made += 1
            self._value = f"{self._name}-{self._made}"
            sent = Sent(world.history.now(), self._place, (self._value,), rests_on=self._newest)
            world.history.add(sent)
        self._publish()

    def _read(self) -> None:
        topic, partition = topic_of(self._place), self._place[1]
        while True:
            at = [PartitionPosition(partition, self._position)]
            fetched = self._world.engine.fetch(topic, at, 1 << 20)
            for id, value in seen(fetched, self._position):
                if value.startswith("d"):
                    self._newest, self._id = value, MessageId.parse(id)
            if not fetched.blocks:
                return
            self._position = fetched.next[partition]

    def _publish(self) -> None:
        world, topic = self._world, topic_of(self._place)
        raw = block((self._value,), self._producer_id, self._sequence, KEY)
        new = NewBlock(self._place[1], raw, self._id)
        try:
            [stored] = world.engine.append(topic, [new], Durability.SYNCED)
        except WrongLastId:
            self._begin_anew()  # the service expects another number: nothing was stored
            return
        except (OutOfOrderSequence, SequenceReused):  # a power loss took the messages before
            self._begin_anew()
            return
        [id] = stored.ids()
        messages = ((str(id), self._value),)
        world.history.add(Acknowledged(world.history.now(), self._place, messages, True))
        self._newest, self._id = self._value, id
        self._sequence += 1
        self._value = ""
