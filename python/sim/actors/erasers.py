"""Actors that erase the messages of a key, or a message by an id that a reader got, and repeat the
request until it is answered as done. Then they check that the messages are gone."""

from sim.actors.actor import KEYS, topic_of
from sim.actors.readers import Reader
from sim.history import Acknowledged, Erased, Place, Read, Seen
from sim.world import World, quietly
from tms.model.ids import MessageId

_EVENTS_MAX = 200  # how far back the actor looks for a message
_RECENT = 4


class Eraser:
    """Erases from one topic."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._readers = {
            place: Reader(world, f"{name}-{place[1]}", place, True) for place in places
        }
        self._where: tuple[Place, ...] = ()  # places to erase from, without an answer yet
        self._key = self._id = ""

    def step(self) -> None:
        """Choose messages to erase, or repeat the request; often do neither. The process often dies
        during it."""
        random = self._world.random
        if not self._where:
            if random.random() < 0.6:
                return
            self._choose()
        where = self._where
        if random.random() < 0.2:
            self._world.die_soon(random.randint(5, 40), power=random.random() < 0.5)
        self._attempt()
        if where and not self._where:
            self._look(random.choice(where))

    def settle(self) -> bool:
        """Repeat until the request is answered."""
        self._attempt()
        return not self._where

    def _choose(self) -> None:
        random = self._world.random
        one = random.choice(self._places)
        known = self._known(one)
        pool = known[-_RECENT:] + sorted(known)[-_RECENT:]
        id, value = random.choice(pool) if pool else ("", "")
        self._key = self._id = ""
        if random.random() < 0.5:
            recent, has_key, _ = value.partition("=")
            self._key = recent if has_key else f"k{random.randrange(KEYS)}"
            self._where = random.choice((self._places, (one,)))
        elif id:
            self._id, self._where = id, (one,)

    def _look(self, place: Place) -> None:
        """Read on from before the newest erased message: if the reader is served from the cache
        there, the message must not be among the answers."""
        gone = ""
        for id, value in sorted(self._known(place), reverse=True):
            if gone and id < gone:
                self._readers[place].look(id)
                return
            if not gone and (id == self._id or (self._key and value.startswith(f"{self._key}="))):
                gone = id

    def _known(self, place: Place) -> list[Seen]:
        """Messages that readers saw lately."""
        return [
            message
            for event in self._world.history.events[-_EVENTS_MAX:]
            if isinstance(event, Acknowledged | Read) and event.place == place
            for message in event.messages
        ]

    def _attempt(self) -> None:
        if not self._where:
            return
        history, where = self._world.history, self._where
        began = history.now()
        try:
            quietly(self._erase)
        finally:  # also when the process dies during it
            done = not self._where
            history.add(Erased(began, where, self._key, self._id, history.now(), done))

    def _erase(self) -> None:
        partition = self._where[0][1] if len(self._where) < len(self._places) or self._id else None
        id = MessageId.parse(self._id) if self._id else None
        key = self._key.encode() if self._key else None
        self._world.engine.erase(topic_of(self._where[0]), key, id, partition)
        self._where = ()
