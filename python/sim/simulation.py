"""A run: the actors of a seed, faults between their steps, and what the checker says at the end.

run(seed) ─▶ Outcome: the history, and what is wrong with it
"""

from typing import NamedTuple

from sim.actors import (
    OUTPUT,
    SOURCE,
    Actor,
    Committer,
    Foreign,
    Interactive,
    Producer,
    Reader,
    Remembering,
    Transformer,
    seen,
    topic_of,
)
from sim.checker import check
from sim.deciders import Decider
from sim.findings import Finding
from sim.history import Crashed, Done, Final, History, Place, Seen
from sim.world import World, quietly
from tms.model.log import PartitionPosition
from tms.model.position import Position

TOPICS = ("a", "b", "made")
PLACES: tuple[Place, ...] = (("a", 0), ("a", 1), ("b", 0))
STEPS = 160
SETTLE_ROUNDS = 60


class Outcome(NamedTuple):
    """A run and what is wrong with it."""

    history: History
    findings: list[Finding]


class Stuck(Exception):
    """Something does not end though nothing fails any more."""


class Simulation:
    """One run."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self._steps = steps
        self.world = World(seed, TOPICS)
        random, world = self.world.random, self.world
        self.readers = [
            Reader(world, f"reader-{number}", place, committed)
            for number, (place, committed) in enumerate(
                [(place, True) for place in (*PLACES, OUTPUT)] + [(random.choice(PLACES), False)]
            )
        ]
        self.actors: list[Actor] = [
            *self.readers,
            Producer(world, "p0", SOURCE),
            Producer(world, "p1", random.choice(PLACES)),
            Committer(world, "c0", PLACES),
            Committer(world, "c1", PLACES),
            Interactive(world, "i0", PLACES),
            Interactive(world, "i1", PLACES),
            Transformer(world, "t0", SOURCE, OUTPUT),
            Transformer(world, "t1", SOURCE, OUTPUT),
        ]
        deciders = [Decider(world, f"d{number}", PLACES[2]) for number in range(2)]
        self.actors += deciders
        self.remembering: list[Remembering] = [*self.readers, *deciders]
        if random.random() < 0.3:
            self.actors.append(Foreign(world, "f0", random.choice(PLACES[1:])))
        world.between = self._glance

    def run(self) -> Outcome:
        """All steps, then the end; raises `Stuck`."""
        world, random = self.world, self.world.random
        for _ in range(self._steps):
            crashes = world.life
            if random.random() < 0.25:
                world.step(self._trouble)
            else:
                world.step(random.choice(self.actors).step)
            if world.life != crashes:
                self._after_crash()
        world.step(self._settle)
        return Outcome(world.history, check(world.history))

    def _glance(self) -> None:
        random = self.world.random
        if random.random() < 0.15:
            random.choice(self.readers).glance()

    def _after_crash(self) -> None:
        crashes = [event for event in self.world.history.events[-9:] if isinstance(event, Crashed)]
        if any(one.power for one in crashes):
            for one in self.remembering:
                one.after_power_loss()

    def _trouble(self) -> None:
        world, random = self.world, self.world.random
        engine = world.engine
        match random.randrange(10):
            case 0 | 1 | 2:
                world.clock.pass_ms(random.choice((0, 1, 5, 300, 3_000)))
                quietly(engine.transactions.manager.expire)
            case 3:
                world.clock.wall_ms += random.choice((-2_000, -1, 2_000))
            case 4:
                quietly(engine.maintenance.clean)
                quietly(lambda: engine.transactions.shorten_journals(20, 5))
            case 5:
                quietly(engine.maintenance.recover)
            case 6 | 7:
                world.store.fail_write(random.randint(1, 8), stored=random.random() < 0.5)
            case 8:
                world.die_soon(random.randint(1, 30), power=False)
            case 9:
                world.die_soon(random.randint(1, 30), power=True)
        while random.random() < 0.7 and world.background.run():
            pass

    def _settle(self) -> None:
        world = self.world
        world.settle()
        unsettled: list[Actor] = self.actors
        for _ in range(SETTLE_ROUNDS):
            world.clock.pass_ms(1_000)
            world.engine.transactions.manager.expire()
            unsettled = [actor for actor in unsettled if not actor.settle()]
            while world.background.run():
                pass
            if not unsettled:
                break
        else:
            raise Stuck(f"These do not finish: {unsettled}")
        world.clock.pass_ms(60_000)
        world.engine.transactions.manager.expire()
        for place in (*PLACES, OUTPUT):
            world.history.add(Final(world.history.now(), place, self._all(place)))
        found = world.engine.transactions.positions(Transformer.GROUP, topic_of(SOURCE))
        if (position := found.get(SOURCE[1])) is not None:
            history = world.history
            done = Done(history.now(), Transformer.GROUP, SOURCE, str(position.id), OUTPUT[0])
            history.add(done)

    def _all(self, place: Place) -> tuple[Seen, ...]:

        messages: list[Seen] = []
        position = Position.earliest()
        while True:
            at = [PartitionPosition(place[1], position)]
            fetched = self.world.engine.fetch(topic_of(place), at, 1 << 20)
            if fetched.held:
                raise Stuck(f"{place} is held back by {fetched.held}")
            if not fetched.blocks:
                return tuple(messages)
            messages += seen(fetched, position)
            position = fetched.next[place[1]]


def run(seed: int, steps: int = STEPS) -> Outcome:
    """Run one seed."""
    return Simulation(seed, steps).run()
