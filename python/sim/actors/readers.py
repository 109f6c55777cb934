"""Actors that read, over and over."""

from sim.actors.actor import after_of, seen
from sim.history import Place, Read
from sim.world import World, quietly
from tms.model.ids import MessageId
from tms.model.message import Holder, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation
from tms.model.topic import TopicName


class Reader:
    """Reads a partition over and over."""

    def __init__(self, world: World, name: str, place: Place, committed: bool) -> None:
        self._world = world
        self._name, self._place = name, place
        self._committed = committed
        self._pass = 0
        self._life = 0
        self._powers = 0
        self._position = Position.earliest()

    def step(self) -> None:
        """Read on; now and then from the beginning."""
        random = self._world.random
        if random.random() < 0.04:
            self._begin_anew()
        bytes_max = random.choice((1, 300, 1 << 20))
        quietly(lambda: self._read(bytes_max))

    def glance(self) -> None:
        """Read at the tail while another actor is in the middle of a step."""
        self._read(1 << 20, cached=True)

    def look(self, after: str) -> None:
        """Read the messages after an id, by any means of finding them."""
        self._begin_anew()
        self._position = Position.after(MessageId.parse(after))
        quietly(lambda: self._read(1 << 20))

    def settle(self) -> bool:
        """Nothing is left to do."""
        return True

    def after_power_loss(self) -> None:
        """Forget messages that a power loss may have taken."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pass += 1
        self._position = Position.earliest()

    def _read(self, bytes_max: int, cached: bool = False) -> None:
        world, (topic, partition) = self._world, self._place
        isolation = Isolation.COMMITTED if self._committed else Isolation.UNCOMMITTED
        began, position = world.history.now(), self._position
        at = [PartitionPosition(partition, position)]
        name = TopicName.parse(topic)
        if cached:
            looked = world.engine.fetch_cached(name, at, bytes_max, isolation)
            if looked is None:
                return
            fetched = looked
        else:
            fetched = world.engine.fetch(name, at, bytes_max, isolation=isolation)
        if self._position is not position:  # it has read at the tail meanwhile
            return
        messages = seen(fetched, position)
        held = fetched.held.get(partition)
        world.history.add(
            Read(
                began,
                self._name,
                self._pass,
                self._place,
                self._committed,
                after_of(position),
                messages,
                world.history.now(),
                bool(held) or (not fetched.blocks and fetched.next[partition] == position),
                held_name(world, held),
            )
        )
        if messages or fetched.next[partition] != position:
            self._position = fetched.next[partition]


def held_name(world: World, holder: Holder | None) -> str:
    """The run's name of the transaction that holds readers back: `?` if it has none; empty without
    a holder."""
    if holder is None:
        return ""
    tokens = world.engine.transactions.manager.state.tokens
    return next((token for token, id in tokens.items() if (id, True) == holder[:2]), "?")
