"""Producers that publish outside of transactions. In runs whose partitions remember few producers,
other producers publish in between and push them out."""

from functools import partial

from sim.actors.actor import SYNCED, block, durability_at, topic_of
from sim.history import Acknowledged, Place, Sent
from sim.world import World, quietly
from tms.errors import OutOfOrderSequence, SequenceReused, TMSError
from tms.log import producers
from tms.log.pending import PendingAppend
from tms.model.message import NewBlock

FEW = 8
REPEATED_SHARE = 2 / 3  # of the time for which producers are remembered


class Producer:
    """Publishes with a producer id, outside of transactions: repeats unanswered publishes for as
    long as the service promises to remember the id. If the service refuses the id as forgotten
    within that time, it promises that the publish was not stored, and the producer publishes it
    under a new id."""

    def __init__(self, world: World, name: str, place: Place) -> None:
        self._world = world
        self._name, self.place = name, place
        self._made = 0
        self._values: tuple[str, ...] = ()
        self._lone = False  # True if each value is a block of its own
        self._durability = SYNCED
        self._pending: PendingAppend | None = None
        self._life = 0
        self._sent_ms = -1  # time when the values were first sent
        self._strangers = 0
        self._begin_anew()

    def step(self) -> None:
        """Publish, repeat, or look for the answer."""
        if not self._values:
            self._make()
        if self._pending is None or self._life != self._world.life:
            self._send()
        self._look()

    def settle(self) -> bool:
        """Repeat until every publish is answered."""
        if self._values:
            self.step()
        return not self._values

    def _begin_anew(self) -> None:
        self._producer_id = self._world.random.getrandbits(62) | 1
        self._sequence = 0
        self._values, self._pending, self._sent_ms = (), None, -1

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
        clock = self._world.clock
        if self._sent_ms < 0:
            self._sent_ms = clock.passed_ms
        elif clock.passed_ms - self._sent_ms > producers.REMEMBERED_S * 1_000 * REPEATED_SHARE:
            self._begin_anew()  # it may be stored or not
            return
        else:
            self._push_out()
        new = self._new()
        self._life, self._pending = self._world.life, None
        quietly(lambda: self._submit(new))

    def _new(self) -> list[NewBlock]:
        blocks = [(value,) for value in self._values] if self._lone else [self._values]
        return [
            NewBlock(self.place[1], block(values, self._producer_id, self._sequence + number))
            for number, values in enumerate(blocks)
        ]

    def _push_out(self) -> None:
        """Publish with as many other producers as the partition remembers, if those are few."""
        world, few = self._world, self._world.producers_max
        if few > FEW or world.random.random() < 0.5:
            return
        for _ in range(few + 1):
            self._strangers += 1
            value = f"{self._name}-stranger-{self._strangers}"
            world.history.add(Sent(world.history.now(), self.place, (value,)))
            new = NewBlock(self.place[1], block((value,), world.random.getrandbits(62) | 1, 0))
            quietly(partial(self._submit_stranger, new))

    def _submit_stranger(self, new: NewBlock) -> None:
        self._world.engine.submit(topic_of(self.place), [new], self._durability)

    def _submit(self, new: list[NewBlock]) -> None:
        engine = self._world.engine
        self._pending = engine.submit(topic_of(self.place), new, self._durability)

    def _look(self) -> None:
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending = self._pending, None
        try:
            appended = pending.result(0)
        except OutOfOrderSequence:  # a power loss took the messages before, or the id is forgotten
            self._producer_id = self._world.random.getrandbits(62) | 1
            self._sequence = 0
            return
        except SequenceReused:  # as before, and others published in their place
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
        self._values, self._sent_ms = (), -1
