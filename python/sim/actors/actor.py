"""Those who use the engine in a simulation. Each step is one call or two; what it asked for and
what it was told goes into the history before and after.

Every actor takes any error, and a crash between any two steps, as a user must: what was not
answered is repeated in the same words, or given up and left open.
"""

from collections.abc import Mapping
from typing import Protocol
from zlib import crc32

from sim.history import Place, Seen, is_tombstone
from sim.world import World
from tms.block import Compression, decode, encode
from tms.block.placing import places
from tms.model.ids import MessageId
from tms.model.message import Fetched
from tms.model.position import Position, PositionKind
from tms.model.topic import Durability, TopicName

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED
SOURCE: Place = ("a", 0)  # what groups consume
SHARED = "shared"  # the topic that members of a group share
COMPACTED = "kept"  # a topic that is compacted
PEOPLE = "people"  # another one with keys, from which messages are erased
KEYS = 6
SIZES = (1, 1, 1, 1, 1, 1, 1, 40, 40, 40, 40, 600, 600, 5_000, 0)  # of messages, beside their text
JOBS: Place = ("jobs", 0)  # what a queue hands out
LINES: Place = ("lines", 0)  # another one does, those of a key one after another
CUT: Place = ("cut", 0)  # whose beginning is cut off now and then
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
    if place in (SOURCE, JOBS, LINES) or place[0] in (SHARED, COMPACTED, PEOPLE):
        return SYNCED
    return world.random.choice((WRITTEN, SYNCED))


def keyed(world: World, name: str, tombstone: bool = False) -> str:
    """A value that says its key; no other one, whatever its name, has it as a part."""
    return f"k{world.random.randrange(KEYS)}={'-' * tombstone}{name};"


def block(
    values: tuple[str, ...], producer: int = 0, sequence: int = 0, key: bytes | None = None
) -> bytearray:
    """A block of these values, all with one key, or each with its own, if it says one; some blocks
    are compressed."""
    names = None
    if key is not None or any("=" in value for value in values):
        names = [key or _key_of(value) for value in values]
    headers = None
    if any(_is_in_header(value) for value in values):
        headers = [{"value": value.encode()} if _is_in_header(value) else {} for value in values]
    packing = (*[Compression.NONE] * 6, Compression.LZ4, Compression.ZSTD)
    return encode(
        [_payload(value) for value in values],
        names,
        headers,
        producer_id=producer,
        producer_sequence=sequence,
        compression=packing[crc32(values[-1].encode()) % len(packing)],
    )


def text_of(value: bytes | None, headers: Mapping[str, bytes]) -> str:
    """What `block` made a message of; something else if it is not whole."""
    if "value" in headers:
        text = headers["value"].decode()
    else:
        text = (value or b"").rstrip(b"\0").decode()
    return text if value == _payload(text) else f"{text} with {len(value or b'')} bytes"


def _is_in_header(value: str) -> bool:
    """Whether a message is too small to hold its text: a header has it."""
    return not _payload(value)


def _payload(value: str) -> bytes | None:
    """The bytes of a message: its text and as many bytes as follow from it, or none."""
    if is_tombstone(value):
        return None
    chance, size = divmod(crc32(value.encode()), 1 << 16)
    most = SIZES[chance % len(SIZES)]
    return value.encode() + bytes(size % most) if most else b""


def _key_of(value: str) -> bytes | None:
    key, says_it, _ = value.partition("=")
    return key.encode() if says_it else None


def after_of(position: Position) -> str:
    """The id that everything from a position on comes after, empty for the beginning."""
    if position.kind is PositionKind.TIME:
        return before(MessageId(position.number, 0))
    if position.id is None:
        return ""
    return str(position.id) if position.kind is PositionKind.AFTER else before(position.id)


def before(id: MessageId) -> str:
    """The greatest id before this one."""
    text = str(id)
    return f"{max(0, int(text, 16) - 1):0{len(text)}x}"


def seen(fetched: Fetched, position: Position) -> tuple[Seen, ...]:
    """The messages of a fetch of one partition, from a position on."""
    after = after_of(position)
    found = []
    for stored in fetched.blocks:
        columns = decode(stored.block)
        cells = zip(places(stored), columns.values(), columns.headers(), strict=True)
        for (_, place), value, headers in cells:
            if (id := str(place)) > after:
                found.append((id, text_of(value, headers)))
    return tuple(found)
