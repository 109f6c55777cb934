"""The events of a run, as its clients saw them: the input of the checker.

Anything can write a history: the simulation, threads in one process, clients of a service. Values
of messages are unique in a history. Moments come from one counter, so an event that ended before
another one began has the smaller number.

Lines of JSON, an event each, the first field its kind.
"""

import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

Place = tuple[str, int]  # topic, partition
Seen = tuple[str, str]  # message id, value


def is_tombstone(value: str) -> bool:
    """True if this is the text that stands for a tombstone, which has no value (`Compacted`)."""
    return "=-" in value


def metadata_of(id: str) -> str:
    """The metadata that every group commits with the position behind a message; a third has
    none."""
    return f"behind {id}" if zlib.crc32(id.encode()) % 3 != 1 else ""


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened at a moment."""

    at: int


class Sent(_Event, frozen=True):
    """Messages are about to be published for the first time; `transaction` is a name that the run
    gave it, empty for none. `sources` are the messages that these were made of, one each.
    `rests_on` is the previous message of a chain of messages that each rest on one before; empty
    for the first of the chain, None outside of a chain. With `due_ms` or `delay_ms` they are to
    wait until that time, or for that long; messages that are due already are not delayed."""

    place: Place
    values: tuple[str, ...]
    transaction: str = ""
    sources: tuple[str, ...] = ()
    rests_on: str | None = None
    due_ms: int | None = None
    delay_ms: int | None = None


class Acknowledged(_Event, frozen=True):
    """A plain publish was acknowledged. `synced`: it survives a power loss."""

    place: Place
    messages: tuple[Seen, ...]
    synced: bool


class Renewed(_Event, frozen=True):
    """A publish that expected no message of a key was stored, or refused; `readable` are the
    messages of the key that could be read at that moment."""

    place: Place
    readable: tuple[str, ...]
    stored: bool


class Asked(_Event, frozen=True):
    """A transaction is about to be committed, for the first time; from now on it may be visible."""

    transaction: str
    moves: tuple[tuple[str, Place, str], ...] = ()  # group, place, id of the last message done


class Ended(_Event, frozen=True):
    """The answer to a transaction: committed, or certainly not."""

    transaction: str
    committed: bool
    synced: bool = True


class Read(_Event, frozen=True):
    """A reader got the messages after the id `after` (empty: from the first on). `at` is when the
    read began. `pass_` counts the times that a reader began from anew. A read of `everything`
    returned all visible messages, up to the open transaction `held_by` (`?`: a transaction without
    a name)."""

    reader: str
    pass_: int
    place: Place
    committed: bool
    after: str
    messages: tuple[Seen, ...]
    ended: int
    everything: bool = False
    held_by: str = ""
    key: str = ""  # only messages with this key were requested


class Found(_Event, frozen=True):
    """A group's position was requested; `at` is when the request began."""

    group: str
    place: Place
    id: str
    ended: int
    metadata: str = ""


class Crashed(_Event, frozen=True):
    """The process died; with `power`, unsynced writes may be gone."""

    power: bool


class Final(_Event, frozen=True):
    """All messages of a partition at the end, when every transaction had ended."""

    place: Place
    messages: tuple[Seen, ...]


class Compacting(_Event, frozen=True):
    """A pass of compaction over this place is about to begin."""

    place: Place


class Compacted(_Event, frozen=True):
    """At the end only the newest message of each key of this place must be there. Values are
    `KEY=…`; a tombstone is represented by a unique text, `KEY=-…`. Messages without a key all stay.
    A tombstone goes as well, once a pass runs `tombstone_retention_ms` after the first pass behind
    it; None: never."""

    place: Place
    tombstone_retention_ms: int | None = None


class Erased(_Event, frozen=True):
    """The messages of a key of these places, or the message with an id, were erased; `at` is when
    the request began. Not `done`: it failed, may have begun, and is over."""

    places: tuple[Place, ...]
    key: str
    id: str
    ended: int
    done: bool


class Truncated(_Event, frozen=True):
    """All messages up to an id were made unreadable; `at` is when the request began. Not `done`: it
    failed, and may have taken effect or not."""

    place: Place
    upto: str
    ended: int
    done: bool


class Stored(_Event, frozen=True):
    """Messages whose bytes the store still had at the end, though no reader was shown them."""

    values: tuple[str, ...]


class Done(_Event, frozen=True):
    """The position at the end of a group that makes messages of `output` of those it consumes."""

    group: str
    place: Place
    id: str
    output: str
    metadata: str = ""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A message that a queue handed out, with its delivery number."""

    value: str
    deliveries: int


class Taken(_Event, frozen=True):
    """A worker got messages of a queue; `at` is when it asked. By the service's clock that was at
    `clock_ms`, and no other worker gets them before `lease_ms` later, unless they are returned.
    Each crash of the service, and each jump of its clock, begins another era."""

    worker: str
    queue: str
    jobs: tuple[Job, ...]
    ended: int
    clock_ms: int
    lease_ms: int
    era: int


class Handled(_Event, frozen=True):
    """A worker was told the outcome for messages of an `ack`, `reject`, `nack`, `release`,
    `extend`, or of `made`, a commit. `at` is when the worker first sent the request; the answer
    lists messages in `done` and `late`. Messages in neither had no answer."""

    worker: str
    queue: str
    how: str
    asked: tuple[Job, ...]
    done: tuple[str, ...]
    late: tuple[str, ...]
    ended: int


class Drained(_Event, frozen=True):
    """At the end a queue was empty: each message of `place` was settled, or is in `dead`. `by_key`:
    the queue hands out the messages of a key one after another. `homes`: where the dead letters of
    each key belong."""

    queue: str
    place: Place
    dead: tuple[Place, ...]
    by_key: bool = False
    homes: tuple[tuple[str, Place], ...] = ()


class Clock(_Event, frozen=True):
    """From now on the service's clock shows this, until the next of these events. The clocks of
    some of its instances are ahead, by at most `ahead_ms`."""

    wall_ms: int
    ahead_ms: int = 0


class Deferred(_Event, frozen=True):
    """Delayed messages were acknowledged, each with its due time and its sequence. `synced`: as
    with `Acknowledged`."""

    place: Place
    messages: tuple[tuple[int, int, str], ...]
    synced: bool


class Cancelled(_Event, frozen=True):
    """A delayed message was to be cancelled; `at` is when the request began. `done` is the answer,
    None: without an answer, the cancel may have taken effect or not. `synced`: the answer survives
    a power loss."""

    place: Place
    value: str
    done: bool | None
    ended: int
    synced: bool


class Listed(_Event, frozen=True):
    """All waiting messages of a topic, and the count in the answer; `at` is when the request began.
    `owned`: the answer comes from an owner that had read the moved messages; in a shared store an
    instance may answer before that."""

    topic: str
    values: tuple[str, ...]
    waiting: int
    ended: int
    owned: bool = True


class Generation(_Event, frozen=True):
    """A join of a group of Kafka's classic protocol was answered: the member is in a generation.
    `life` is the number of the group in the shard that answered: it begins at generation 1 whenever
    it gets members while it has none, also in a shard that was opened anew."""

    group: str
    member: str
    generation: int
    instance: str | None
    life: int


class Assigned(_Event, frozen=True):
    """A member got its partitions from the plan of a leader; 0 stands for no plan."""

    group: str
    member: str
    generation: int
    instance: str | None
    life: int
    plan: int
    partitions: tuple[int, ...]


class Moved(_Event, frozen=True):
    """A member was to move a position of its group to an offset that no other request names; `at`
    is when the request began. `done` is the answer, None: without an answer."""

    group: str
    partition: int
    number: int
    member: str
    generation: int
    instance: str | None
    life: int
    ended: int
    done: bool | None


class Positioned(_Event, frozen=True):
    """A position of a group of Kafka's protocol was requested, as `Found`; 0: there is none."""

    group: str
    partition: int
    number: int
    metadata: str
    ended: int


class Present(_Event, frozen=True):
    """A member was told by a shard that it is in the group; `at` is when it asked. `who` names the
    member and what it has: if it is told the same again, it was in the group all the time."""

    group: str
    shard: int
    kind: str
    who: str
    ended: int


Event = (
    Sent
    | Acknowledged
    | Renewed
    | Asked
    | Ended
    | Read
    | Found
    | Crashed
    | Final
    | Done
    | Taken
    | Handled
    | Drained
    | Compacting
    | Compacted
    | Erased
    | Truncated
    | Stored
    | Clock
    | Deferred
    | Cancelled
    | Listed
    | Generation
    | Assigned
    | Moved
    | Positioned
    | Present
)
E = TypeVar("E", bound=_Event)
_DECODER = msgspec.json.Decoder(Event)


class History:
    """The events of a run. Thread-safe."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self._lock = threading.Lock()
        self._moment = 0

    def now(self) -> int:
        """The next moment."""
        with self._lock:
            self._moment += 1
            return self._moment

    def add(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)

    def of(self, kind: type[E]) -> Sequence[E]:
        """The events of one kind, in the order of their moments."""
        return sorted(
            (event for event in self.events if isinstance(event, kind)), key=lambda one: one.at
        )

    def encode(self) -> bytes:
        """All events as lines of JSON."""
        return b"".join(msgspec.json.encode(event) + b"\n" for event in self.events)

    @classmethod
    def decode(cls, lines: bytes) -> "History":
        """A history from lines of JSON."""
        return cls(_DECODER.decode(line) for line in lines.splitlines())
