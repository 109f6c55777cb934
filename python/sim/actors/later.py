"""Actors that publish delayed messages, cancel some of them, and list the waiting ones; and the
scheduler of the engine, which moves due messages when the simulation runs it.

While the scheduler holds borrowed entries, other actors may publish and cancel between any two of
its operations on the store.
"""

from collections import deque
from dataclasses import dataclass

from sim.actors.actor import block, text_of, topic_of
from sim.history import Cancelled, Deferred, Listed, Place, Sent
from sim.world import World, quietly
from tms.delayed.delayed import LIST_MAX, DelayedMessages
from tms.delayed.topic_queue import DelayQueue
from tms.errors import Conflict, TMSError
from tms.log.pending import Pending
from tms.model import delayed
from tms.model.delayed import DelayedId, Due
from tms.model.message import NewBlock
from tms.model.topic import Durability

LATER: tuple[Place, ...] = (("later", 0), ("later", 1))
TOPIC = topic_of(LATER[0])
DELAYS_MS = (0, 0, 1, 5, 300, 300, 3_000, 20_000, 800_000)
REPEATED_MS = 300_000  # the latest repetition: after it a request may be forgotten
AT_ONCE_S = 1e-6  # no other thread exists to wait for
_KNOWN = 12  # ids that may be cancelled


class Mover:
    """The scheduler of the live engine: the work of its thread, one step at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._life = -1
        self._moving = False

    def step(self) -> None:
        """Move a batch of due messages; rarely tidy."""
        self._moving = True
        try:
            delays = self._world.engine.delayed
            if self._life != self._world.life:
                self._life = self._world.life
                delays._scheduler.look()
            delays._scheduler.move_some()
            if self._world.random.random() < 0.2:
                delays.tidy()
        finally:
            self._moving = False

    def settle(self) -> bool:
        """Let time pass until a message is due, and move it; True if no message waits any more."""
        world = self._world
        try:
            next_ms = world.engine.delayed.info(TOPIC).next_due_ms
        except TMSError:
            next_ms = 0
        if next_ms is not None:
            world.clock.pass_ms(max(1_000, next_ms - world.clock.now_ms()))
            self.step()
        return next_ms is None

    def lends(self) -> bool:
        """True if it holds borrowed entries, and other actors can act meanwhile without having to
        wait for it."""
        if not self._moving:
            return False
        engine = self._world.engine
        waiting = _waiting(engine.delayed)
        if waiting is None or waiting._taken is None or not waiting.stored.trusted:
            return False
        held = (waiting.writing, engine.topics.registry._lock, engine.topics.partitions._lock)
        return not waiting._changes.busy and not any(lock.locked() for lock in held)


@dataclass(slots=True)
class _Message:
    """An acknowledged delayed message."""

    place: Place
    id: DelayedId
    value: str
    asked: int = 0  # moment of a cancel that has no answer yet
    cancel_ms: int | None = None  # time of the first cancel


@dataclass(slots=True)
class _Request:
    """A publish that is always repeated unchanged."""

    parts: list[tuple[Place, tuple[str, ...]]]
    due: Due
    durability: Durability
    token: str
    began_ms: int
    life: int = -1
    pending: Pending[list[delayed.Deferred]] | None = None

    def blocks(self) -> list[NewBlock]:
        """The blocks to publish."""
        return [NewBlock(place[1], block(values)) for place, values in self.parts]


class Later:
    """Publishes delayed messages and cancels them."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._made = 0
        self._request: _Request | None = None
        self._answered: _Request | None = None
        self._known: deque[_Message] = deque(maxlen=_KNOWN)
        self._cancel: _Message | None = None

    def step(self) -> None:
        """Publish, cancel, or repeat an unanswered request; rarely list the waiting messages."""
        quietly(self._list if self._world.random.random() < 0.08 else self._step)

    def meddle(self) -> None:
        """Take a step that waits for no lock, while the scheduler holds borrowed entries."""
        if self._request is None or self._request.pending is None:
            quietly(lambda: self._step(at_once=True))

    def settle(self) -> bool:
        """Repeat until every request is answered."""
        if self._cancel is not None or self._request is not None:
            quietly(self._step)
        return self._cancel is None and self._request is None

    def _step(self, at_once: bool = False) -> None:
        random = self._world.random
        if self._cancel is None and self._request is None:
            if self._known and random.random() < 0.4:
                self._choose()
            elif self._answered is not None and random.random() < 0.15:
                self._request = self._answered
            else:
                self._make()
        if self._cancel is not None:
            self._finish_cancel(self._cancel)
        elif self._request is not None:
            self._finish(self._request, at_once)

    # -- publishing --------------------------------------------------------------------------------

    def _make(self) -> None:
        world, random = self._world, self._world.random
        self._made += 1
        name = f"{self._name}-{self._made}"
        places = random.sample(LATER, random.choice((1, 1, 2)))
        parts = []
        for number, place in enumerate(places):
            count = 70 if random.random() < 0.02 else random.choice((1, 1, 2, 3))
            parts.append((place, tuple(f"{name}.{number}.{i}" for i in range(count))))
        delay_ms = random.choice(DELAYS_MS)
        due = Due(delay_ms=delay_ms)
        if random.random() < 0.4:
            due = Due(at_ms=world.clock.now_ms() + delay_ms - random.choice((0, 1_000)))
        for place, values in parts:
            sent = Sent(world.history.now(), place, values, due_ms=due.at_ms, delay_ms=due.delay_ms)
            world.history.add(sent)
        durability = random.choice((Durability.WRITTEN, Durability.SYNCED))
        token = name if random.random() < 0.6 else ""
        self._request = _Request(parts, due, durability, token, world.clock.passed_ms)

    def _finish(self, one: _Request, at_once: bool) -> None:
        """Repeat the request, or look for the answer. A request without a token is sent only once:
        a repetition would be stored again."""
        world, delays = self._world, self._world.engine.delayed
        if one.pending is not None and one.life == world.life:
            if not one.pending.done():
                return
        elif one.life >= 0 and self._gives_up(one):
            self._request = None
            return
        else:
            args = TOPIC, one.blocks(), one.due, one.durability, one.token
            one.life, one.pending = world.life, None
            if at_once or world.random.random() < 0.5:
                self._answer(one, delays.publish(*args, timeout_s=AT_ONCE_S))
            else:
                one.pending = delays.submit(*args)
            return
        pending, one.pending = one.pending, None
        self._answer(one, pending.result(0)[0])

    def _gives_up(self, one: _Request) -> bool:
        return not one.token or self._is_long_ago(one.began_ms)

    def _answer(self, one: _Request, found: list[delayed.Deferred]) -> None:
        history, synced = self._world.history, one.durability is Durability.SYNCED
        for (place, values), placed in zip(one.parts, found, strict=True):
            ids = placed.ids()
            messages = tuple((*id, value) for id, value in zip(ids, values, strict=True))
            history.add(Deferred(history.now(), place, messages, synced))
            if one is not self._answered:
                self._known += (
                    _Message(place, id, value) for id, value in zip(ids, values, strict=True)
                )
        self._request = None
        self._answered = one if one.token and not self._is_long_ago(one.began_ms) else None

    # -- cancelling --------------------------------------------------------------------------------

    def _choose(self) -> None:
        one = self._world.random.choice(self._known)
        if one.cancel_ms is not None and self._is_long_ago(one.cancel_ms):
            self._known.remove(one)
            return
        if one.cancel_ms is None:
            one.cancel_ms = self._world.clock.passed_ms
        history = self._world.history
        one.asked = history.now()
        history.add(Cancelled(one.asked, one.place, one.value, None, one.asked, False))
        self._cancel = one

    def _finish_cancel(self, one: _Message) -> None:
        if one.cancel_ms is not None and self._is_long_ago(one.cancel_ms):
            self._known.remove(one)
            self._cancel = None
            return
        world = self._world
        try:
            done = world.engine.delayed.cancel(TOPIC, one.id, AT_ONCE_S)
        except Conflict:  # another process has taken over: the outcome is unknown
            self._known.remove(one)
            self._cancel = None
            return
        history, durability = world.history, world.engine.topics.registry.find(TOPIC).durability
        synced = durability is Durability.SYNCED
        history.add(Cancelled(one.asked, one.place, one.value, done, history.now(), synced))
        self._cancel = None

    def _is_long_ago(self, ms: int) -> bool:
        return self._world.clock.passed_ms - ms > REPEATED_MS

    # -- looking -----------------------------------------------------------------------------------

    def _list(self) -> None:
        look(self._world)


def look(world: World) -> None:
    """Note all waiting messages."""
    delays, history = world.engine.delayed, world.history
    began = history.now()
    values: list[str] = []
    after = None
    while page := delays.messages(TOPIC, after, world.random.choice((1, LIST_MAX))):
        values += (text_of(one.value, one.headers) for one in page)
        after = page[-1].id
    waiting = delays.info(TOPIC).waiting
    there = _waiting(delays)
    owned = not world.store.shared or (there is not None and there.stored.trusted)
    history.add(Listed(began, LATER[0][0], tuple(values), waiting, history.now(), owned))


def _waiting(delays: DelayedMessages) -> DelayQueue | None:
    """The delay queue of the topic, if this life of the engine has opened it."""
    return next((one for one in delays._waiting.values() if one.stored.name == TOPIC), None)
