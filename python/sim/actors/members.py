"""Members of a log group, each of which makes messages of those in its partitions.

Only the fence keeps two members from making the same message: a position is moved without a
precondition.
"""

from functools import partial

from sim.actors.actor import SHARED as TOPIC
from sim.actors.committers import ExactlyOnce, making, moving
from sim.history import Asked, Place, Sent
from sim.world import World, quietly
from tms.errors import TMSError
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Owner, PositionKey

GROUP = "members"
SHARED: tuple[Place, ...] = ((TOPIC, 0), (TOPIC, 1))
JOINED: Place = ("joined", 0)
SESSION_S = 5.0


class Member(ExactlyOnce):
    """One member."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._lives = 0
        self._topic = TopicName.parse(SHARED[0][0])
        self._begin_anew()

    def step(self) -> None:
        """Read the assignment, or process a few messages; rarely go silent for good and come back
        under another name."""
        quietly(self._step)

    def settle(self) -> bool:
        """Repeat until everything is answered and no message is left."""
        if self._work is not None:
            quietly(self._finish)
        if self._work is None:
            quietly(self._poll)
            for partition in list(self._holding):
                if self._work is None and partition in self._holding:
                    quietly(partial(self._process, partition))
        return self._work is None and not self._left()

    def _begin_anew(self) -> None:
        self._lives += 1
        self._holding: dict[int, int] = {}
        self._positions: dict[int, Position] = {}
        self._work = None

    def _step(self) -> None:
        random = self._world.random
        if self._work is not None:
            self._finish()
        elif random.random() < 0.03:
            self._begin_anew()
        elif random.random() < 0.4 or not self._holding:
            self._poll()
        else:
            self._process(random.choice(sorted(self._holding)))

    def _poll(self) -> None:
        engine = self._world.engine
        assignment = engine.groups.poll(
            self._topic, GROUP, f"{self._name}-{self._lives}", SESSION_S, self._holding
        )
        mine = dict(assignment.partitions)
        for partition in assignment.release:
            mine.pop(partition, None)
        if mine != self._holding:
            found = engine.groups.positions(self._topic, GROUP)
            for partition, epoch in mine.items():
                if self._holding.get(partition) != epoch:
                    self._positions[partition] = found.get(partition, Position.earliest())
            self._holding = mine

    def _left(self) -> bool:
        """True if a message is left that no member has processed."""
        try:
            ends = self._world.engine.groups.describe(self._topic, GROUP).partitions
        except TMSError:
            return True
        return any(one.lag for one in ends)

    def _process(self, partition: int) -> None:
        made = self._read(self._topic, partition, self._positions[partition])
        if made is None:
            return
        name, sources, values, last = made
        owner = Owner(f"{self._name}-{self._lives}", self._holding[partition])
        change = moving(PositionKey(GROUP, self._topic, partition), last, owner=owner)
        place = (SHARED[0][0], partition)
        history = self._world.history
        history.add(Sent(history.now(), JOINED, values, name, sources))
        history.add(Asked(history.now(), name, ((GROUP, place, str(last.id)),)))

        self._work = making(name, JOINED, values, positions=(change,))
        self._next = partition, last
        self._finish()

    def _ended(self, done: bool) -> None:
        if done:
            partition, last = self._next
            self._positions[partition] = last
        else:
            self._holding = {}
