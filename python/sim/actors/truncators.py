"""Actors that make the beginnings of topics unreadable for good."""

from sim.actors.actor import before, topic_of
from sim.history import Acknowledged, Crashed, Place, Read, Truncated
from sim.world import World, quietly
from tms.model.ids import MessageId
from tms.model.position import Position

_EVENTS_MAX = 200  # how far back the actor looks for a message


class Truncator:
    """Truncates partitions of some topics before, or behind, a message that a reader saw."""

    def __init__(self, world: World, places: tuple[Place, ...]) -> None:
        self._world = world
        self._places = places

    def step(self) -> None:
        """Truncate a partition; rarely to its end."""
        random, history = self._world.random, self._world.history
        place = random.choice(self._places)
        known: list[str] = []
        for event in history.events[-_EVENTS_MAX:]:
            if isinstance(event, Crashed) and event.power:
                known.clear()  # they may be lost, and return before the truncated end
            elif isinstance(event, Acknowledged | Read) and event.place == place:
                known.extend(id for id, _ in event.messages)
        if not known or random.random() < 0.5:
            return
        id = MessageId.parse(random.choice(known))
        position, upto = Position.at(id), before(id)
        if random.random() < 0.3:
            position, upto = Position.after(id), str(id)
        began, done = history.now(), False

        def truncate() -> None:
            nonlocal done
            self._world.engine.truncate_topic(topic_of(place), position, place[1])
            done = True

        try:
            quietly(truncate)
        finally:  # also when the process dies during it
            history.add(Truncated(began, place, upto, history.now(), done))

    def settle(self) -> bool:
        """Nothing is left to do."""
        return True
