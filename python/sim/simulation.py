"""A run: the actors of a seed, faults between their steps, and the findings of the checker.

run(seed) ─▶ Outcome: the history, and its findings
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

from sim.actors.actor import (
    CUT,
    JOBS,
    KEYS,
    LINES,
    OUTPUT,
    PEOPLE,
    SOURCE,
    Actor,
    Remembering,
    seen,
    topic_of,
)
from sim.actors.classic import Fleet
from sim.actors.committers import Committer, Transformer
from sim.actors.counting import FULL, CountingProducer
from sim.actors.deciders import Decider
from sim.actors.erasers import Eraser
from sim.actors.followers import FollowingReader
from sim.actors.interactive import Foreign, Interactive
from sim.actors.keepers import KEPT, NAMED, TOMBSTONE_RETENTION_MS, Compactor, Keeper, compact
from sim.actors.keepers import SETTINGS as KEEPING
from sim.actors.later import LATER, Later, Mover, look
from sim.actors.members import GROUP as MEMBERS
from sim.actors.members import JOINED, SHARED, Member
from sim.actors.producers import Producer
from sim.actors.readers import Reader
from sim.actors.renewers import Renewer
from sim.actors.replays import Replayer
from sim.actors.streams import GROUP as STREAMS
from sim.actors.streams import STREAMED, Stream, Team
from sim.actors.streams import tidy as tidy_ids
from sim.actors.truncators import Truncator
from sim.actors.workers import ORDERED, PLAIN, WORKS, Work, Worker
from sim.bounds.drawing import Bounds
from sim.history import (
    Compacted,
    Crashed,
    Done,
    Drained,
    Final,
    History,
    Place,
    Seen,
    Sent,
    Stored,
)
from sim.replacing import Replacement, replaced
from sim.rules.checker import check
from sim.rules.findings import Finding
from sim.serving import Servers
from sim.world import FOREVER, Stuck, World, quietly, shorten, shorten_positions
from tms.errors import TopicNotFound, Unavailable
from tms.groups import classic_shard
from tms.groups.classic_calls import ClassicBounds
from tms.log import counting
from tms.model.keys import Partitioner
from tms.model.message import Fetched, PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicSettings
from tms.transactions import writes

TOPICS = (
    "a",
    "b",
    "made",
    "jobs",
    "lines",
    "cut",
    "handled",
    "shared",
    "joined",
    PEOPLE,
    LATER[0][0],
)
PLACES: tuple[Place, ...] = (("a", 0), ("a", 1), ("b", 0))
HANDED = tuple(place for work in WORKS for place in (work.place, work.handled))
# In one thread a wait never ends: a write in flight stands below on the stack.
_NO_WAITING: list[Replacement] = [(writes, "ENDING_TIMEOUT_S", 0.0)]
_SMALL_BLOCKS: list[Replacement] = [(counting, "MESSAGES_MAX", FULL)]
SHORT_MS, LONG_MS = (0, 1, 5, 300, 3_000), (700_000, 7_300_000)
SETTLE_ROUNDS = 400  # more than blocks in a partition: a reader may take one a round
KEYED_SHARE = 0.3  # of the runs
RENEWED_SHARE = 0.2
COUNTING_SHARE = 0.25
STREAMED_SHARE = 0.2
CLASSIC_SHARE = 0.2
EXPIRING = 4  # minutes after which all transactions have ended: a pointer may be ahead of the clock


class Outcome(NamedTuple):
    """A run and its findings."""

    history: History
    findings: list[Finding]


class Simulation:
    """One run."""

    def __init__(
        self, seed: int, bounds: Bounds, steps: int | None = None, of: type[World] = World
    ) -> None:
        self.world = of(seed, TOPICS, bounds)
        self._steps = of.steps if steps is None else steps
        random, world = self.world.random, self.world
        self.readers = [
            Reader(world, f"reader-{number}", place, committed)
            for number, (place, committed) in enumerate(
                [(place, True) for place in (*PLACES, OUTPUT, KEPT, *LATER)]
                + [(random.choice(PLACES), False)]
            )
        ]
        staging: tuple[Actor, ...] = (
            Interactive(world, "i0", PLACES),
            Interactive(world, "i1", (*PLACES, JOBS)),
        )
        jobs = (Producer(world, "p2", JOBS), Keeper(world, "q0", LINES), Keeper(world, "q1", LINES))
        self.actors: list[Actor] = [
            *self.readers,
            Producer(world, "p0", SOURCE),
            Producer(world, "p1", random.choice(PLACES)),
            Producer(world, "p6", CUT),
            Truncator(world, (CUT, CUT, JOBS, LINES)),
            Eraser(world, "e2", (LINES,)),
            Committer(world, "c0", (*PLACES, *SHARED)),
            Committer(world, "c1", (*PLACES, JOBS, KEPT)),
            *staging,
            *jobs,
            *(Keeper(world, f"k{number}", KEPT) for number in range(2)),
            *(Producer(world, f"p{number + 3}", place) for number, place in enumerate(SHARED)),
            Transformer(world, "t0", SOURCE, OUTPUT),
            Transformer(world, "t1", SOURCE, OUTPUT),
        ]
        self.takers: list[Actor] = [
            *(Worker(world, f"w{number}", PLAIN) for number in range(3)),
            *(Worker(world, f"w{number + 3}", ORDERED) for number in range(2)),
            *(Member(world, f"m{number}") for number in range(3)),
        ]
        self.mover = Mover(world)
        self.later = [Later(world, f"l{number}") for number in range(2)]
        self.actors += self.later
        everywhere = (*PLACES, OUTPUT, KEPT, *NAMED, *HANDED, CUT, *SHARED, JOINED, *LATER)
        replayer = Replayer(world, "r0", everywhere)
        self.actors += [replayer] * 2
        deciders = tuple(Decider(world, f"d{number}", PLACES[2]) for number in range(2))
        self.actors += deciders
        self.remembering: list[Remembering] = [*self.readers, *deciders, replayer]
        if random.random() < 0.3:
            self.actors.append(Foreign(world, "f0", random.choice(PLACES[1:])))
        self.producers = [actor for actor in self.actors if isinstance(actor, Producer)]
        chance, servers = Random(f"following {seed}"), Servers(world, bounds)
        self._chance, self._servers = chance, servers
        self.followers = [
            FollowingReader(world, servers, f"follower-{number}", place, chance)
            for number, place in enumerate((*PLACES, PLACES[0], OUTPUT, KEPT, CUT, LATER[0]))
        ]
        self.remembering += self.followers
        self._partitioner = Random(f"partitioner {seed}").choice([*Partitioner])
        renewing = Random(f"renewing {seed}")
        renews = of is World and renewing.random() < RENEWED_SHARE
        self._renewer = Renewer(world, renewing) if renews else None
        numbering = Random(f"counting {seed}")
        counted = numbering.random() < COUNTING_SHARE
        self._counting = [
            CountingProducer(world, f"n{number}", place, numbering)
            for number, place in enumerate((numbering.choice(PLACES[1:]), CUT) if counted else ())
        ]
        joining = Random(f"classic {seed}")
        classic = joining.random() < CLASSIC_SHARE
        members_max = bounds.make(ClassicBounds).members_max
        self._fleets = [Fleet(world, joining, members_max)] if classic else []
        # Kafka's producers are served by a single process.
        self._streams = of is World and Random(f"streams {seed}").random() < STREAMED_SHARE
        self._at: Actor | None = None  # the actor whose step runs
        self.often: list[Actor] = []  # the actors that a run is mostly about
        if random.random() < KEYED_SHARE:
            self._add_keyed()
        else:
            subjects = ((), deciders * 4, staging * 4, (*jobs, *self.takers[:5]) * 2)
            self.often += random.choice(subjects)
        if self._streams:
            self._add_streams()
        world.step(self._declare)
        world.between = self._glance

    def run(self) -> Outcome:
        """Take all steps, then settle; raises `Stuck`."""
        try:
            return self._run()
        finally:
            self._servers.end()

    def _run(self) -> Outcome:
        world, random = self.world, self.world.random
        for _ in range(self._steps):
            crashes = world.life
            if random.random() < 0.25:
                world.step(self._trouble)
            else:
                self._at = random.choice([*self.actors, *self.takers, *self.often])
                world.step(self._at.step)
                self._at = None
            world.step(self._follow)
            if self._renewer is not None:
                world.step(self._renewer.step)
            for producer in self._counting:
                world.step(producer.step)
            for fleet in self._fleets:
                world.step(fleet.step)
            if world.life != crashes:
                self._after_crash()
        world.step(self._settle)
        return Outcome(world.history, check(world.history))

    def _follow(self) -> None:
        """Turn the loops of the services."""
        with self.world.undisturbed():
            while self._chance.random() < 0.6:
                self._chance.choice(self.followers).step()

    def _add_keyed(self) -> None:
        """Add the actors that only a run about keys, tombstones and erasing has, and make the run
        mostly theirs."""
        world = self.world
        readers = [Reader(world, f"named-{place[1]}", place, True) for place in NAMED]
        keyed: list[Actor] = [
            *readers,
            *(Keeper(world, f"k{number + 2}", KEPT) for number in range(3)),
            Keeper(world, "k5", NAMED[0]),
            Interactive(world, "i2", NAMED),
            Interactive(world, "i3", (KEPT, NAMED[0])),
            Compactor(world),
            Eraser(world, "e0", (KEPT,)),
            Eraser(world, "e1", NAMED),
        ]
        self.readers += readers
        self.remembering += readers
        self.actors += keyed
        self.often += keyed * 6

    def _add_streams(self) -> None:
        """Add the producers of a transactional id, and readers of what they make."""
        world = self.world
        team = Team()
        streams = [Stream(world, f"s{number}", team) for number in range(2)]
        readers = [Reader(world, f"streamed-{place[1]}", place, True) for place in STREAMED]
        self.readers += readers
        self.remembering += readers
        self.actors += [*streams, *readers]
        self.often += [*streams * 16, *readers * 2, *self.producers[:1] * 8]

    def _declare(self) -> None:
        if self._streams:
            self.world.engine.create_topic(topic_of(STREAMED[0]), FOREVER)
        self.world.engine.create_topic(topic_of(KEPT), KEEPING)
        dead = TopicSettings(len(ORDERED.dead), None, partitioner=self._partitioner)
        self.world.engine.create_topic(topic_of(ORDERED.dead[0]), dead)
        for work in WORKS:
            self.world.engine.queues.declare(work.topic, work.group, work.settings)

    def _glance(self) -> None:
        random = self.world.random
        if random.random() < 0.15:
            random.choice(self.readers).glance()
        if random.random() < 0.15 and self.mover.lends():
            random.choice(self.later).meddle()
        place = self.world.looked_through
        if self.world.crowded and random.random() < (0.1 if place is None else 0.3):
            there = [one for one in self.producers if one.place == place]
            producer = random.choice(there or self.producers)
            if producer is not self._at:
                producer.step()

    def _after_crash(self) -> None:
        crashes = [event for event in self.world.history.events[-9:] if isinstance(event, Crashed)]
        if any(one.power for one in crashes):
            for one in self.remembering:
                one.after_power_loss()

    def _trouble(self) -> None:
        world, random = self.world, self.world.random
        world.stir()
        engine = world.engine
        match random.randrange(10):
            case 0 | 1 | 2:
                self._pass(random.random() < 0.02)
                quietly(engine.transactions.manager.expire)
                tidy_ids(world)
                quietly(engine.queues.tidy)
                quietly(engine.groups.tidy)
            case 3:
                world.jump(random.choice((-2_000, -1, 2_000)))
            case 4:
                quietly(engine.maintenance.clean)
                quietly(lambda: engine.transactions.manager.shorten(20))
                quietly(lambda: shorten_positions(engine, 5))
                quietly(lambda: shorten(engine.queues, 10))
                quietly(lambda: compact(world))
            case 5:
                quietly(engine.maintenance.recover)
                if random.random() < 0.3:
                    world.close()
            case 6 | 7:
                world.store.fail_write(random.randint(1, 8), stored=random.random() < 0.5)
            case 8:
                world.die_soon(random.randint(1, 30), power=False)
            case 9:
                world.die_soon(random.randint(1, 30), power=True)
        if random.random() < 0.33:
            self.mover.step()
        while random.random() < 0.7 and world.background.run():
            pass

    def _pass(self, long: bool) -> None:
        """Let time pass; if `long`, queued work does not wait all the while."""
        world = self.world
        while long and world.background.run():
            pass
        world.clock.pass_ms(world.random.choice(LONG_MS if long else SHORT_MS))

    def _settle(self) -> None:
        self.world.settle()
        self._settle_all([*self.actors, *self._counting, *self._fleets])
        self._settle_all(self.followers)
        for _ in range(EXPIRING):  # so that no message is held back any more
            self.world.clock.pass_ms(60_000)
            self._expire()
            if not self.world.engine.transactions.manager.state.open:
                break
        self._settle_all(self.takers)
        self._settle_all([self.mover])
        self._conclude()

    def _expire(self) -> None:
        quietly(lambda: self.world.engine.transactions.manager.expire())

    def _settle_all(self, unsettled: Sequence[Actor | Mover]) -> None:
        world = self.world
        for _ in range(SETTLE_ROUNDS):
            world.clock.pass_ms(1_000)
            world.settle_roles()
            self._expire()
            quietly(world.engine.queues.tidy)
            unsettled = [actor for actor in unsettled if not actor.settle()]
            while world.background.run():
                pass
            if not unsettled:
                return
        raise Stuck(f"These do not finish: {unsettled}")

    def _conclude(self) -> None:
        world, history = self.world, self.world.history
        look(world)
        dead = [place for work in WORKS for place in work.dead]
        ours = (*PLACES, OUTPUT, KEPT, *NAMED, *HANDED, *dead, CUT, *SHARED, JOINED, *LATER)
        ours += STREAMED if self._streams else ()
        for place in ours:
            history.add(Final(history.now(), place, self._all(place)))
        world.drop_unreadable()
        history.add(Compacted(history.now(), KEPT, TOMBSTONE_RETENTION_MS))
        history.add(Stored(history.now(), self._stored()))
        for work in WORKS:
            by_key = bool(work.settings.ordered_by)
            homes = tuple(self._homes(work)) if by_key else ()
            history.add(Drained(history.now(), work.group, work.place, work.dead, by_key, homes))
        groups = [(Transformer.GROUP, SOURCE, OUTPUT[0])]
        groups += [(MEMBERS, place, JOINED[0]) for place in SHARED]
        groups += [(STREAMS, SOURCE, STREAMED[0][0])] if self._streams else []
        for group, (topic, partition), output in groups:
            place, name = (topic, partition), topic_of((topic, partition))
            found = world.engine.groups.committed(group, [name])[name].get(partition)
            if found is not None:
                id, metadata = str(found.position.id), found.metadata
                history.add(Done(history.now(), group, place, id, output, metadata))

    def _homes(self, work: Work) -> Iterator[tuple[str, Place]]:
        for key in (f"k{number}" for number in range(KEYS)):
            partition = self._partitioner.partition_of(key.encode(), len(work.dead))
            yield key, work.dead[partition]

    def _stored(self) -> tuple[str, ...]:
        """Messages that may be erased, are not visible, and whose bytes are still stored."""
        events = self.world.history.events
        shown = {value for one in events if isinstance(one, Final) for _, value in one.messages}
        sent = [
            value
            for one in events
            if isinstance(one, Sent) and one.place in (KEPT, *NAMED)
            for value in one.values
        ]
        return tuple(value for value in self.world.disk.holds(sent) if value not in shown)

    def _all(self, place: Place) -> tuple[Seen, ...]:
        try:
            return self._read(place)
        except TopicNotFound:  # no process has died
            return ()

    def _read(self, place: Place) -> tuple[Seen, ...]:
        messages: list[Seen] = []
        position = Position.earliest()
        while True:
            fetched = self._fetch(place, position)
            if fetched.held:
                raise Stuck(f"{place} is held back by {fetched.held}")
            if not fetched.blocks:
                return tuple(messages)
            messages += seen(fetched, position)
            position = fetched.next[place[1]]

    def _fetch(self, place: Place, position: Position) -> Fetched:
        """The messages from a position on; repeated, as clients do, while another step is in
        progress."""
        at = [PartitionPosition(place[1], position)]
        for _ in range(SETTLE_ROUNDS):
            with suppress(Unavailable):
                return self.world.engine.fetch(topic_of(place), at, 1 << 20)
        raise Stuck(f"{place} cannot be read.")


def run(seed: int, steps: int | None = None, of: type[World] = World) -> Outcome:
    """Run one seed, with the bounds that it draws, in a world of one engine or of several."""
    bounds = Bounds.of(seed)
    classic: list[Replacement] = [
        (classic_shard, "ClassicBounds", lambda: bounds.make(ClassicBounds))
    ]
    with bounds.set(), replaced([*_NO_WAITING, *_SMALL_BLOCKS, *classic]):
        return Simulation(seed, bounds, steps, of).run()
