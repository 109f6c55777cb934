"""Actors that commit in one request: batches, and messages made of other messages."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sim.actors.actor import SYNCED, WRITTEN, block, durability_at, seen, topic_of
from sim.history import Asked, Ended, Found, Place, Seen, Sent, metadata_of
from sim.world import World, quietly
from tms.errors import Conflict, Fenced, TMSError, TransactionConflict, TransactionEnded
from tms.model.ids import MessageId
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey, TopicBlock


class Work(NamedTuple):
    """A commit that is repeated until it is answered."""

    name: str
    request: Callable[[], Commit]
    synced: bool


def making(
    name: str, output: Place, values: tuple[str, ...], synced: bool = True, **with_them: Any
) -> Work:
    """A commit of messages that were made of others, with the position changes or acknowledgements
    for those others."""

    def request() -> Commit:
        new = TopicBlock(topic_of(output), NewBlock(output[1], block(values)))
        durability = SYNCED if synced else WRITTEN
        return Commit(token=name, blocks=(new,), durability=durability, **with_them)

    return Work(name, request, synced)


class Made(NamedTuple):
    """A name, the values of messages, the values that the name makes of them, and the position
    behind them."""

    name: str
    sources: tuple[str, ...]
    values: tuple[str, ...]
    last: Position


def made_of(name: str, messages: Sequence[Seen]) -> Made:
    """The messages that a name makes of these."""
    sources = tuple(value for _, value in messages)
    values = tuple(f"{name}.{number}" for number in range(len(sources)))
    return Made(name, sources, values, Position.after(MessageId.parse(messages[-1][0])))


def moving(
    key: PositionKey, last: Position, expected: str | None = None, owner: Owner | None = None
) -> PositionChange:
    """The change that moves a group behind a message, with the message's metadata."""
    return PositionChange(key, last, expected, owner, metadata_of(str(last.id)))


class Committer:
    """Commits batches over several partitions in one request each."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._made = 0
        self._work: Work | None = None

    def step(self) -> None:
        """Commit, or repeat an unanswered commit; rarely give it up."""
        if self._work is None:
            self._work = self._make()
        elif self._world.random.random() < 0.05:
            self._work = None
            return
        if commit(self._world, self._work) is not None:
            self._work = None

    def settle(self) -> bool:
        """Repeat until every commit is answered."""
        if self._work is not None:
            self.step()
        return self._work is None

    def _make(self) -> Work:
        world, random = self._world, self._world.random
        self._made += 1
        name = f"{self._name}-{self._made}"
        places = random.sample(self._places, random.randint(1, min(3, len(self._places))))
        parts = []
        for number, place in enumerate(places):
            values = tuple(f"{name}.{number}.{i}" for i in range(random.choice((1, 1, 2))))
            parts.append((place, values))
        synced = any(durability_at(world, place) is SYNCED for place in places)
        for place, values in parts:
            world.history.add(Sent(world.history.now(), place, values, name))
        world.history.add(Asked(world.history.now(), name))
        return Work(name, lambda: _request(name, parts, synced), synced)


def _request(name: str, parts: list[tuple[Place, tuple[str, ...]]], synced: bool) -> Commit:
    blocks = tuple(
        TopicBlock(topic_of(place), NewBlock(place[1], block(values))) for place, values in parts
    )
    return Commit(token=name, blocks=blocks, durability=SYNCED if synced else WRITTEN)


def commit(world: World, work: Work) -> bool | None:
    """Request a commit; True if it was done, None if that is unknown."""
    try:
        world.engine.transactions.commit(work.request())
        done = True
    except (TransactionConflict, TransactionEnded, Fenced):
        done = False
    except Conflict as error:
        if "position" not in error.details:
            return None
        done = False
    except TMSError:
        return None
    world.history.add(Ended(world.history.now(), work.name, done, work.synced))
    return done


class ExactlyOnce:
    """Makes messages of messages, and repeats a commit until it knows the outcome."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._made = 0
        self._work: Work | None = None  # under way

    def _read(self, topic: TopicName, partition: int, start: Position) -> Made | None:
        """The next messages of the next few from `start` on; None if there are none."""
        world = self._world
        at = [PartitionPosition(partition, start)]
        fetched = world.engine.fetch(topic, at, world.random.choice((1, 400)))
        messages = seen(fetched, start)
        if not messages:
            return None
        self._made += 1
        return made_of(f"{self._name}-{self._made}", messages)

    def _finish(self) -> None:
        assert self._work is not None
        done = commit(self._world, self._work)
        if done is None:
            return
        self._work = None
        self._ended(done)

    def _ended(self, done: bool) -> None:
        raise NotImplementedError


class Transformer(ExactlyOnce):
    """A member of a team that makes one message of each message, exactly once."""

    GROUP = "transformers"

    def __init__(self, world: World, name: str, source: Place, output: Place) -> None:
        super().__init__(world, name)
        self._source, self._output = source, output
        self._position: Position | None = None
        self._known = False
        self._next: Position | None = None

    def step(self) -> None:
        """Look up the group's position, or process the next few messages."""
        quietly(self._step)

    def settle(self) -> bool:
        """Repeat until every commit is answered."""
        if self._work is not None:
            self._finish()
        return self._work is None

    def _step(self) -> None:
        if self._work is not None:
            self._finish()
        elif not self._known:
            self._look()
        else:
            self._process()

    def _look(self) -> None:
        history, topic = self._world.history, topic_of(self._source)
        began = history.now()
        committed = self._world.engine.groups.committed(self.GROUP, [topic])
        found = committed[topic].get(self._source[1])
        self._position = None if found is None else found.position
        self._known = True
        id, metadata = ("", "") if found is None else (str(found.position.id), found.metadata)
        history.add(Found(began, self.GROUP, self._source, id, history.now(), metadata))

    def _process(self) -> None:
        start = self._position or Position.earliest()
        made = self._read(topic_of(self._source), self._source[1], start)
        if made is None:
            return
        name, sources, values, last = made
        key = PositionKey(self.GROUP, topic_of(self._source), self._source[1])
        expected = "" if self._position is None else str(self._position)
        synced = self._world.random.random() < 0.7
        history = self._world.history
        history.add(Sent(history.now(), self._output, values, name, sources))
        history.add(Asked(history.now(), name, ((self.GROUP, self._source, str(last.id)),)))

        change = moving(key, last, expected)
        self._work = making(name, self._output, values, synced, positions=(change,))
        self._next = last
        self._finish()

    def _ended(self, done: bool) -> None:
        if done:
            self._position = self._next
        else:
            self._known = False
