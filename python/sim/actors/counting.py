"""Producers whose sequences count messages, as those of Kafka's clients do: several appends are in
flight and repeated in their order, epochs change, and late blocks of earlier epochs come. In runs
whose partitions remember few producers, others publish in between and push them out."""

from random import Random

from msgspec import Struct

from sim.actors.actor import SYNCED, WRITTEN, block, topic_of
from sim.actors.producers import FEW, REPEATED_SHARE
from sim.history import Acknowledged, Place, Sent
from sim.world import World, quietly
from tms.block import MESSAGE_SEQUENCES, count_messages
from tms.errors import OutOfOrderSequence, TMSError
from tms.log import producers
from tms.log.pending import PendingAppend
from tms.model.message import NewBlock
from tms.model.topic import Durability

FULL = 3  # messages of a full block
IN_FLIGHT = 3


class _Append(Struct):
    """An append on its way. `refused` is set once it is certain that it is not stored."""

    values: tuple[str, ...]
    sequence: int
    durability: Durability
    first_sent_ms: int
    pending: PendingAppend | None = None
    life: int = -1  # of the engine that got it
    alone: bool = False  # True if nothing before it was in doubt when it was sent
    refused: bool = False


class CountingProducer:
    """Publishes appends of one block or several, and repeats those without an answer for as long as
    the service promises to remember their producer. It draws from a `Random` of its own."""

    def __init__(self, world: World, name: str, place: Place, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._name, self.place = name, place
        self._made = 0
        self._number = 0  # none yet
        self._numbers: set[int] = set()  # all that it ever got
        self._epoch = 0
        self._sequence = 0
        self._fences_ms = -1  # time when the current epoch was stored for good
        self._appends: list[_Append] = []

    def step(self) -> None:
        """Publish, repeat, or look for answers."""
        self._look()
        if self._chance.random() < 0.2:
            quietly(self._send_late)
        if not self._appends and self._chance.random() < 0.2:
            self._begin_epoch()
        if self._chance.random() < 0.6 and len(self._appends) < IN_FLIGHT:
            self._make()
        quietly(self._send)
        self._look()

    def settle(self) -> bool:
        """Repeat until every append is answered."""
        if self._appends:
            quietly(self._send)
            self._look()
        return not self._appends

    # -- appends -------------------------------------------------------------------------------

    def _make(self) -> None:
        history, chance = self._world.history, self._chance
        count = chance.choice((1, 1, 2, 4, 7))
        values = self._new_values(count)
        history.add(Sent(history.now(), self.place, values))
        durability = chance.choice((WRITTEN, SYNCED))
        now_ms = self._world.clock.passed_ms
        self._appends.append(_Append(values, self._sequence, durability, now_ms))
        self._sequence = (self._sequence + count) % MESSAGE_SEQUENCES

    def _send(self) -> None:
        """Send the appends that are not on their way, in order."""
        if self._appends and self._is_late(self._appends[0].first_sent_ms):
            self._appends.clear()  # they may be stored or not
            self._number = 0
        if not self._number:
            self._begin()
        in_doubt = False
        for one in self._appends:
            if one.refused or (one.pending is not None and one.life == self._world.life):
                in_doubt = in_doubt or not one.refused
                continue
            one.pending, one.life, one.alone = None, self._world.life, not in_doubt
            in_doubt = True
            if self._chance.random() < 0.3:
                self._push_out()
            new = self._blocks(one.values, self._epoch, one.sequence)
            one.pending = self._submit(new, one.durability)

    def _look(self) -> None:
        in_doubt = False
        for one in [*self._appends]:
            if one.refused:
                continue
            if one.pending is None or one.life != self._world.life or not one.pending.done():
                return
            try:
                ids = [str(id) for part in one.pending.result(0) for id in part.ids()]
            except OutOfOrderSequence:  # a power loss took the messages before, or a failure did
                one.refused = one.alone and not in_doubt
                in_doubt = in_doubt or not one.refused
                one.pending = None
            except TMSError:
                in_doubt, one.pending = True, None
            else:
                self._acknowledge(one, ids)
        if self._appends and all(one.refused for one in self._appends):
            self._begin_epoch()

    def _acknowledge(self, one: _Append, ids: list[str]) -> None:
        history, synced = self._world.history, one.durability is SYNCED
        messages = tuple(zip(ids, one.values, strict=True))
        history.add(Acknowledged(history.now(), self.place, messages, synced))
        self._appends.remove(one)
        if synced:
            self._fences_ms = self._world.clock.passed_ms

    # -- producers -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Become a new producer; the appends are none, or were never sent."""
        self._number, self._epoch = self._new_number(), self._chance.choice((0, 3))
        self._renumber(self._chance.choice((0, 5, MESSAGE_SEQUENCES - 4)))

    def _new_number(self) -> int:
        number = self._world.engine.new_producer()
        assert number not in self._numbers, f"The number {number} was handed out twice"
        self._numbers.add(number)
        return number

    def _begin_epoch(self) -> None:
        """Begin a new epoch, or become another producer, with the refused appends."""
        if self._chance.random() < 0.2:
            self._number = 0
        self._epoch += 1
        self._renumber(0)

    def _renumber(self, sequence: int) -> None:
        self._fences_ms = -1
        for one in self._appends:
            one.sequence, one.refused, one.pending = sequence, False, None
            one.first_sent_ms = self._world.clock.passed_ms
            sequence = (sequence + len(one.values)) % MESSAGE_SEQUENCES
        self._sequence = sequence

    def _send_late(self) -> None:
        """Send a block of an earlier epoch, whose messages must never be seen."""
        if not self._epoch or self._fences_ms < 0 or self._is_late(self._fences_ms):
            return
        values = self._new_values(self._chance.choice((1, 2)))
        sequence = self._chance.choice((0, self._sequence))
        self._submit(self._blocks(values, self._epoch - 1, sequence), WRITTEN)

    def _push_out(self) -> None:
        """Publish with as many other producers as the partition remembers, if those are few."""
        few = self._world.producers_max
        if few > FEW or self._chance.random() < 0.5:
            return
        for _ in range(few + 1):
            values = self._new_values(1)
            self._world.history.add(Sent(self._world.history.now(), self.place, values))
            made = block(values)
            count_messages(made, self._new_number(), 0, 0)
            self._submit([NewBlock(self.place[1], made)], WRITTEN)

    def _is_late(self, sent_ms: int) -> bool:
        """True if the service may soon forget the producer."""
        remembered_s = min(producers.COUNTING_S, producers.REMEMBERED_S)
        passed_ms = self._world.clock.passed_ms - sent_ms
        return passed_ms > remembered_s * 1_000 * REPEATED_SHARE

    # -- blocks --------------------------------------------------------------------------------

    def _new_values(self, count: int) -> tuple[str, ...]:
        self._made += count
        return tuple(f"{self._name}-{self._made - i}" for i in reversed(range(count)))

    def _blocks(self, values: tuple[str, ...], epoch: int, sequence: int) -> list[NewBlock]:
        blocks = []
        for at in range(0, len(values), FULL):
            made = block(values[at : at + FULL])
            count_messages(made, self._number, epoch, (sequence + at) % MESSAGE_SEQUENCES)
            blocks.append(NewBlock(self.place[1], made))
        return blocks

    def _submit(self, new: list[NewBlock], durability: Durability) -> PendingAppend:
        return self._world.engine.submit(topic_of(self.place), new, durability)
