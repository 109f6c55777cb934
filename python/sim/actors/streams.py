"""Producers of one transactional id, as Kafka's clients use it: each makes messages of messages,
and commits them with the position of the group. Only one of them is the producer of the id at a
time; the others are fenced, and know nothing of it until they are refused."""

from sim.actors.actor import SOURCE, block, seen, topic_of
from sim.actors.committers import Made, made_of, moving
from sim.history import Asked, Ended, Found, Place, Sent
from sim.world import World, quietly
from tms.block import count_messages
from tms.errors import TMSError
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.transaction import PositionKey
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactional_state import ProducerEpoch, RefusalCode, Refused

STREAMED: tuple[Place, Place] = (("streamed", 0), ("streamed", 1))
GROUP = "streams"
_ID = "streams"
_TIMEOUTS_MS = (2_000, 30_000)
_TAKES_OVER = 0.05  # while another producer works


class Team:
    """The producers of the id that think that they are its producer, by their names."""

    def __init__(self) -> None:
        self.working: set[str] = set()


class Stream:
    """A producer that takes one step at a time, repeats a step without an answer, and begins anew
    when it is refused."""

    def __init__(self, world: World, name: str, team: Team) -> None:
        self._world = world
        self._name, self._team = name, team
        self._made = 0
        self._producer: ProducerEpoch | None = None
        self._goes_on = False  # True if it asks for the next epoch of its own
        self._position: Position | None = None
        self._sequences = [0, 0]
        self._sent = 0  # places that have the messages of the transaction
        self._current: Made | None = None
        self._steps: list[str] = []  # to be taken, the next one last
        self._asked = False  # True if a commit has been requested

    def step(self) -> None:
        """Take the next step."""
        try:
            self._step()
        except Refused as refused:
            if refused.code is not RefusalCode.CONCURRENT_TRANSACTIONS:
                self._give_up()
        except TMSError:
            pass  # the step is repeated

    def settle(self) -> bool:
        """Finish the transaction that is open."""
        if self._current is not None:
            self.step()
        return self._current is None

    @property
    def _ids(self) -> TransactionalIds:
        return self._world.engine.transactional_ids

    def _step(self) -> None:
        random = self._world.random
        if self._goes_on or self._producer is None:
            if not self._team.working - {self._name} or random.random() < _TAKES_OVER:
                self._initialise()
        elif self._current is None:
            self._make()
        else:
            getattr(self, self._steps[-1])(self._producer, self._current)
            self._steps.pop()
            if not self._steps:
                self._current, self._asked = None, False

    def _initialise(self) -> None:
        expected = self._producer if self._goes_on else None
        timeout_ms = self._world.random.choice(_TIMEOUTS_MS)
        self._producer = self._ids.initialise(_ID, timeout_ms, expected)
        self._goes_on, self._sequences = False, [0, 0]
        self._position = None
        self._team.working.add(self._name)

    def _make(self) -> None:
        """Read the next messages behind the position, and plan a transaction."""
        world, random = self._world, self._world.random
        if random.random() < 0.05:  # it stops, or an error makes it go on with the next epoch
            self._goes_on = random.random() < 0.5
            if not self._goes_on:
                self._stop()
            return
        if self._position is None:
            self._position = self._look()
        at = [PartitionPosition(SOURCE[1], self._position)]
        fetched = world.engine.fetch(topic_of(SOURCE), at, random.choice((1, 400)))
        messages = seen(fetched, self._position)
        if not messages:
            return
        self._made += 1
        self._current = made_of(f"{self._name}-{self._made}", messages)
        self._sent = 0
        for number, place in enumerate(STREAMED):
            if values := self._current.values[number::2]:
                sources, name = self._current.sources[number::2], self._current.name
                world.history.add(Sent(world.history.now(), place, values, name, sources))
        self._steps = ["_abort" if random.random() < 0.2 else "_commit"]
        self._steps += ["_move", "_publish", "_add"]

    def _look(self) -> Position:
        history, topic = self._world.history, topic_of(SOURCE)
        began = history.now()
        committed = self._world.engine.groups.committed(GROUP, [topic], stable=True)
        found = committed[topic].get(SOURCE[1])
        id, metadata = ("", "") if found is None else (str(found.position.id), found.metadata)
        history.add(Found(began, GROUP, SOURCE, id, history.now(), metadata))
        return Position.earliest() if found is None else found.position

    def _add(self, producer: ProducerEpoch, made: Made) -> None:
        places = [(topic_of(place), place[1]) for place in STREAMED]
        self._ids.add_partitions(_ID, producer, places)
        self._ids.add_group(_ID, producer, GROUP)

    def _publish(self, producer: ProducerEpoch, made: Made) -> None:
        while self._sent < len(STREAMED):
            number, place = self._sent, STREAMED[self._sent]
            if values := made.values[number::2]:
                packed = block(values)
                count_messages(packed, *producer, self._sequences[number])
                new = [NewBlock(place[1], packed)]
                self._ids.publish(_ID, producer, topic_of(place), new).result(0)
                self._sequences[number] += len(values)
            self._sent += 1

    def _move(self, producer: ProducerEpoch, made: Made) -> None:
        change = moving(PositionKey(GROUP, topic_of(SOURCE), SOURCE[1]), made.last)
        self._ids.add_positions(_ID, producer, GROUP, [change])

    def _commit(self, producer: ProducerEpoch, made: Made) -> None:
        history = self._world.history
        if not self._asked:
            moves = ((GROUP, SOURCE, str(made.last.id)),)
            history.add(Asked(history.now(), made.name, moves))
            self._asked = True
        self._ids.end(_ID, producer, committed=True)
        history.add(Ended(history.now(), made.name, True))
        self._position = made.last

    def _abort(self, producer: ProducerEpoch, made: Made) -> None:
        self._ids.end(_ID, producer, committed=False)
        history = self._world.history
        history.add(Ended(history.now(), made.name, False))
        self._position = None

    def _give_up(self) -> None:
        """Begin anew: another producer has the id, or the transaction has timed out."""
        history = self._world.history
        if self._current is not None and not self._asked:
            history.add(Ended(history.now(), self._current.name, False))
        self._current, self._asked = None, False
        self._stop()

    def _stop(self) -> None:
        self._producer, self._goes_on = None, False
        self._team.working.discard(self._name)


def tidy(world: World) -> None:
    """Let the ids do their regular work."""
    quietly(lambda: world.engine.transactional_ids.tidy())
