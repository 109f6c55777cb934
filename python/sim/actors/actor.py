"""The users of the engine in a simulation. Each step makes one or two calls; the history notes the
request before the call and the answer after it.

Every actor survives any error, and a crash between any two steps, as a user must: it repeats an
unanswered request unchanged, or gives it up and leaves it open.
"""

from typing import Protocol
from zlib import crc32

from sim.history import Place, Seen, is_tombstone
from sim.world import World
from tms.block import Compression, decode, encode
from tms.block.placing import places
from tms.model.ids import MessageId
from tms.model.message import Fetched, Headers
from tms.model.position import Position, PositionKind
from tms.model.topic import Durability, TopicName

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED
SOURCE: Place = ("a", 0)  # consumed by groups
SHARED = "shared"  # the topic that members of a group share
COMPACTED = "kept"  # a topic that is compacted
PEOPLE = "people"  # a second topic with keys, from which messages are erased
KEYS = 6
SIZES = (1, 1, 1, 1, 1, 1, 1, 40, 40, 40, 40, 600, 600, 5_000, 0)  # of messages, beside their text
JOBS: Place = ("jobs", 0)  # handed out by a queue
LINES: Place = ("lines", 0)  # handed out by a queue that is ordered by key
CUT: Place = ("cut", 0)  # its beginning is truncated now and then
OUTPUT: Place = ("made", 0)


class Actor(Protocol):
    """A user of the engine."""

    def step(self) -> None:
        """Take the next step."""
        ...

    def settle(self) -> bool:
        """Finish, at the end of the run, when nothing fails any more; True if nothing is left to
        do."""
        ...


class Remembering(Actor, Protocol):
    """An actor that remembers messages that it has read."""

    def after_power_loss(self) -> None:
        """Forget messages that a power loss may have taken."""
        ...


def topic_of(place: Place) -> TopicName:
    """The name of a place's topic."""
    return TopicName.parse(place[0])


def durability_at(world: World, place: Place) -> Durability:
    """The durability for publishes to a place. Messages that groups consume are synced: a power
    loss would otherwise leave the groups' positions behind the end of the log."""
    if place in (SOURCE, JOBS, LINES) or place[0] in (SHARED, COMPACTED, PEOPLE):
        return SYNCED
    return world.random.choice((WRITTEN, SYNCED))


def keyed(world: World, name: str, tombstone: bool = False) -> str:
    """A value that contains its key, and that is never a substring of another value."""
    return f"k{world.random.randrange(KEYS)}={'-' * tombstone}{name};"


def block(
    values: tuple[str, ...], producer: int = 0, sequence: int = 0, key: bytes | None = None
) -> bytearray:
    """A block of these values, all with `key`, or each with the key that it contains, if any; some
    blocks are compressed."""
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


def text_of(value: bytes | None, headers: Headers) -> str:
    """The text from which `block` made a message; another text if the message is damaged."""
    if (named := headers.get("value")) is not None:
        text = named.decode()
    else:
        text = (value or b"").rstrip(b"\0").decode()
    return text if value == _payload(text) else f"{text} with {len(value or b'')} bytes"


def _is_in_header(value: str) -> bool:
    """True if a message is too small for its text, which then stands in a header."""
    return not _payload(value)


def _payload(value: str) -> bytes | None:
    """The bytes of a message: its text and padding derived from it, or none."""
    if is_tombstone(value):
        return None
    chance, size = divmod(crc32(value.encode()), 1 << 16)
    most = SIZES[chance % len(SIZES)]
    return value.encode() + bytes(size % most) if most else b""


def _key_of(value: str) -> bytes | None:
    key, says_it, _ = value.partition("=")
    return key.encode() if says_it else None


def after_of(position: Position) -> str:
    """The id after which all messages from a position on come; empty for the beginning."""
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
