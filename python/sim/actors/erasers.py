"""Those who erase what stands under a key, or under an id that somebody got, and do it again until
they are told that it is done. Then they look whether it is.
"""

from sim.actors.actor import KEYS, topic_of
from sim.actors.readers import Reader
from sim.history import Acknowledged, Erased, Place, Read, Seen
from sim.world import World, quietly
from tms.model.ids import MessageId

_EVENTS_MAX = 200  # how far back a message is looked for
_RECENT = 4


class Eraser:
    """Erases from one topic."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._readers = {
            place: Reader(world, f"{name}-{place[1]}", place, True) for place in places
        }
        self._where: tuple[Place, ...] = ()  # to erase from, and not answered
        self._key = self._id = ""

    def step(self) -> None:
        """Choose what to erase, or repeat it; often let it be. Often the process dies of it."""
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
        """Until it was answered."""
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
        """Read on from before the newest that is gone: if messages come from the cache there, it
        must not be among them."""
        gone = ""
        for id, value in sorted(self._known(place), reverse=True):
            if gone and id < gone:
                self._readers[place].look(id)
                return
            if not gone and (id == self._id or (self._key and value.startswith(f"{self._key}="))):
                gone = id

    def _known(self, place: Place) -> list[Seen]:
        """What somebody got to know lately."""
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
        finally:  # also when the process dies of it
            done = not self._where
            history.add(Erased(began, where, self._key, self._id, history.now(), done))

    def _erase(self) -> None:
        partition = self._where[0][1] if len(self._where) < len(self._places) or self._id else None
        id = MessageId.parse(self._id) if self._id else None
        key = self._key.encode() if self._key else None
        self._world.engine.erase(topic_of(self._where[0]), key, id, partition)
        self._where = ()
