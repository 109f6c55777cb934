"""Those who use the engine in a simulation. Each step is one call or two; what it asked for and
what it was told goes into the history before and after.

Every actor takes any error, and a crash between any two steps, as a user must: what was not
answered is repeated in the same words, or given up and left open.
"""

from typing import Protocol

from sim.history import Place, Seen, is_tombstone
from sim.world import World
from tms.model.block import decode, encode
from tms.model.log import Fetched
from tms.model.placing import places
from tms.model.position import Position
from tms.model.topic import Durability, TopicName

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED
SOURCE: Place = ("a", 0)  # what groups consume
SHARED = "shared"  # the topic that members of a group share
COMPACTED = "kept"  # a topic that is compacted
PEOPLE = "people"  # another one with keys, from which messages are erased
KEYS = 6
JOBS: Place = ("jobs", 0)  # what a queue hands out
OUTPUT: Place = ("made", 0)


class Actor(Protocol):
    """One user."""

    def step(self) -> None:
        """Do the next thing."""
        ...

    def settle(self) -> bool:
        """The run ends and nothing fails any more: finish; whether there is nothing left to do."""
        ...


class Remembering(Actor, Protocol):
    """A user who remembers what it has read."""

    def after_power_loss(self) -> None:
        """What was read may not be there any more."""
        ...


def topic_of(place: Place) -> TopicName:
    """The name of a place's topic."""
    return TopicName.parse(place[0])


def durability_at(world: World, place: Place) -> Durability:
    """How durably to publish to a place: what groups consume is synced, or they would stand after
    messages that a power loss took."""
    if place in (SOURCE, JOBS) or place[0] in (SHARED, COMPACTED, PEOPLE):
        return SYNCED
    return world.random.choice((WRITTEN, SYNCED))


def keyed(world: World, name: str, tombstone: bool = False) -> str:
    """A value that says its key; no other one, whatever its name, has it as a part."""
    return f"k{world.random.randrange(KEYS)}={'-' * tombstone}{name};"


def block(
    values: tuple[str, ...], producer: int = 0, sequence: int = 0, key: bytes | None = None
) -> bytearray:
    """A block of these values, all with one key, or each with its own, if it says one. A header
    stands for the value of a tombstone."""
    raw = [None if is_tombstone(value) else value.encode() for value in values]
    names = None
    if key is not None or any("=" in value for value in values):
        names = [key or _key_of(value) for value in values]
    headers = None
    if None in raw:
        headers = [{"value": value.encode()} if is_tombstone(value) else None for value in values]
    return encode(raw, names, headers, producer_id=producer, producer_sequence=sequence)


def _key_of(value: str) -> bytes | None:
    key, says_it, _ = value.partition("=")
    return key.encode() if says_it else None


def seen(fetched: Fetched, position: Position) -> tuple[Seen, ...]:
    """The messages of a fetch of one partition, after a position."""
    after = str(position.id) if position.id is not None else ""
    found = []
    for stored in fetched.blocks:
        columns = decode(stored.block)
        values = columns.values()
        if columns.has_tombstones:
            named = (one.get("value") for one in columns.headers())
            values = [value or name for value, name in zip(values, named, strict=True)]
        for (_, place), value in zip(places(stored), values, strict=True):
            if (id := str(place)) > after:
                found.append((id, (value or b"").decode()))
    return tuple(found)
