"""Actors that read a partition to its end, each time in another way: pages of the engine, pages of
the bus, a consumer, a consumer with a filter; from each kind of start, with pages of any size."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sim.actors.actor import COMPACTED, KEYS, LINES, PEOPLE, before, seen, text_of, topic_of
from sim.actors.readers import held_name
from sim.history import Place, Read, Seen
from sim.world import World, quietly
from tms.client.client import Bus
from tms.model.ids import MessageId
from tms.model.message import Message, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import Isolation

PAGE_BYTES_MAX = 1 << 17
KEYED = (COMPACTED, PEOPLE, LINES[0])
_KNOWN_MAX = 50
_ROUNDS_MAX = 20_000  # of one replay: a replay with more rounds never ends


class _Start(NamedTuple):
    """The start of a replay, and the id after which all its messages come."""

    position: Position
    after: str


class Endless(Exception):
    """A replay never ends."""


class Replayer:
    """Replays one of some partitions at each step."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._replays = 0
        self._known: dict[Place, list[tuple[str, int]]] = {}  # ids and offsets

    def step(self) -> None:
        """Read a partition to the end."""
        random = self._world.random
        keyed = [place for place in self._places if place[0] in KEYED]
        place = random.choice(keyed if random.random() < 0.4 else self._places)
        ways = [self._pages, self._page_by_page, self._consume]
        key = ""
        if place[0] in KEYED and random.random() < 0.5:
            key = f"k{random.randrange(KEYS)}"
            ways = [self._consume]
        way = random.choice(ways)
        quietly(lambda: self._replay(place, way, key))

    def settle(self) -> bool:
        """Nothing is left to do."""
        return True

    def after_power_loss(self) -> None:
        """Forget ids and offsets: a power loss may have taken their messages."""
        self._known.clear()

    def _replay(
        self, place: Place, way: Callable[[Place, Position, str], Iterator[Seen]], key: str
    ) -> None:
        world = self._world
        start = self._start(place)
        self._replays += 1
        began = world.history.now()
        messages = tuple(one for one in way(place, start.position, key) if one[0] > start.after)
        held = self._held(place, messages[-1][0] if messages else start.after)
        ended = world.history.now()
        world.history.add(
            Read(
                began, self._name, self._replays, place, True, start.after, messages, ended, True,
                held, key,
            )
        )  # fmt: skip

    def _start(self, place: Place) -> _Start:
        known, random = self._known.get(place), self._world.random
        if not known or random.random() < 0.5:
            return _Start(Position.earliest(), "")
        text, offset = random.choice(known)
        id = MessageId.parse(text)
        match random.randrange(4):
            case 0:
                return _Start(Position.after(id), text)
            case 1:
                return _Start(Position.at(id), before(id))
            case 2:
                return _Start(Position.offset(offset), before(id))
            case _:
                return _Start(Position.time(id.time_ms), before(MessageId(id.time_ms, 0)))

    def _page_bytes(self, place: Place) -> int:
        """A page size, drawn log-uniformly; or one at the end of a block, or a few bytes off: page
        bugs appear there."""
        random = self._world.random
        if random.random() < 0.5:
            at = [PartitionPosition(place[1], Position.earliest())]
            fetched = self._world.engine.fetch(topic_of(place), at, PAGE_BYTES_MAX)
            if sizes := [len(one.block) for one in fetched.blocks]:
                upto = random.randint(1, min(len(sizes), 9))
                first = random.randint(0, len(sizes) - upto)
                return sum(sizes[first : first + upto]) + random.randint(-1, 12 * upto)
        return round(math.exp(random.random() * math.log(PAGE_BYTES_MAX)))

    def _held(self, place: Place, after: str) -> str:
        """The transaction that holds back a reader that has read up to here."""
        position = Position.after(MessageId.parse(after)) if after else Position.earliest()
        at = [PartitionPosition(place[1], position)]
        fetched = self._world.engine.fetch(topic_of(place), at, 1 << 20)
        return held_name(self._world, fetched.held.get(place[1]))

    # -- ways --------------------------------------------------------------------------------------

    def _pages(self, place: Place, position: Position, key: str) -> Iterator[Seen]:
        """Fetch until the answer repeats the position."""
        bytes_max = self._page_bytes(place)
        for _ in range(_ROUNDS_MAX):
            at = [PartitionPosition(place[1], position)]
            fetched = self._world.engine.fetch(topic_of(place), at, bytes_max)
            yield from seen(fetched, position)
            if not fetched.blocks and fetched.next[place[1]] == position:
                return
            position = fetched.next[place[1]]
        raise Endless(f"{self._name} gets pages of {place} for ever.")

    def _page_by_page(self, place: Place, position: Position, key: str) -> Iterator[Seen]:
        """Fetch pages through the bus until the end."""
        bytes_max = self._page_bytes(place)
        bus = self._bus()
        for _ in range(_ROUNDS_MAX):
            page = bus.fetch(place[0], {place[1]: position}, bytes_max=bytes_max)
            yield from self._noted(place, page.messages())
            if not page.batches and page.next[place[1]] == position:
                return
            position = page.next[place[1]]
        raise Endless(f"{self._name} gets pages of {place} for ever.")

    def _consume(self, place: Place, position: Position, key: str) -> Iterator[Seen]:
        """Read with a consumer, which stops by itself at the end."""
        fetch_bytes = self._page_bytes(place)
        where = f"key = {key}" if key else None
        with self._bus().consumer(
            place[0], {place[1]: position}, stop_at_end=True, bytes_max=fetch_bytes, where=where,
            isolation=Isolation.COMMITTED,
        ) as consumer:  # fmt: skip
            yield from self._noted(place, iter(consumer))

    def _bus(self) -> Bus:
        """A bus over this life of the engine; it is never closed, because that would close the
        engine."""
        return Bus(self._world.engine, timeout_s=0, clock=self._world.clock)

    def _noted(self, place: Place, messages: Iterator[Message]) -> Iterator[Seen]:
        known = self._known.setdefault(place, [])
        for message in messages:
            known.append((str(message.id), message.offset))
            yield str(message.id), text_of(message.value, message.headers)
        del known[:-_KNOWN_MAX]
