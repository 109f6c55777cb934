"""Who publishes plainly."""

from sim.actors.actor import SYNCED, block, durability_at, topic_of
from sim.history import Acknowledged, Place, Sent
from sim.world import World, quietly
from tms.errors import OutOfOrderSequence, SequenceReused, TMSError
from tms.log.pending import PendingAppend
from tms.model.message import NewBlock


class Producer:
    """Publishes plainly, with a producer id: repeats what was not answered."""

    def __init__(self, world: World, name: str, place: Place) -> None:
        self._world = world
        self._name, self.place = name, place
        self._made = 0
        self._values: tuple[str, ...] = ()
        self._lone = False  # whether each is a block by itself
        self._durability = SYNCED
        self._pending: PendingAppend | None = None
        self._life = 0
        self._begin_anew()

    def step(self) -> None:
        """Publish, repeat, or look for the answer."""
        if not self._values:
            self._make()
        if self._pending is None or self._life != self._world.life:
            self._send()
        self._look()

    def settle(self) -> bool:
        """Until everything was answered."""
        if self._values:
            self.step()
        return not self._values

    def _begin_anew(self) -> None:
        self._producer_id = self._world.random.getrandbits(62) | 1
        self._sequence = 0
        self._values, self._pending = (), None

    def _make(self) -> None:
        world = self._world
        self._lone = world.random.random() < 0.3
        count = world.random.choice((2, 5, 8) if self._lone else (1, 1, 2, 3))
        self._values = tuple(f"{self._name}-{self._made + i}" for i in range(count))
        self._made += count
        self._durability = durability_at(world, self.place)
        self._pending = None
        world.history.add(Sent(world.history.now(), self.place, self._values))

    def _send(self) -> None:
        new = self._new()
        self._life, self._pending = self._world.life, None
        quietly(lambda: self._submit(new))

    def _new(self) -> list[NewBlock]:
        blocks = [(value,) for value in self._values] if self._lone else [self._values]
        return [
            NewBlock(self.place[1], block(values, self._producer_id, self._sequence + number))
            for number, values in enumerate(blocks)
        ]

    def _submit(self, new: list[NewBlock]) -> None:
        engine = self._world.engine
        self._pending = engine.submit(topic_of(self.place), new, self._durability)

    def _look(self) -> None:
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending = self._pending, None
        try:
            appended = pending.result(0)
        except (OutOfOrderSequence, SequenceReused):  # what came before was lost with the power
            self._begin_anew()
            return
        except TMSError:
            return
        ids = [str(id) for one in appended for id in one.ids()]
        messages = tuple(zip(ids, self._values, strict=True))
        synced = self._durability is SYNCED
        history = self._world.history
        history.add(Acknowledged(history.now(), self.place, messages, synced))
        self._sequence += len(appended)
        self._values = ()
