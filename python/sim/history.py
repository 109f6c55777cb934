"""What happened in a run, as its clients saw it: the input of the checker.

Anything can write a history: the simulation, threads in one process, clients of a service. Values
of messages are unique in a history. Moments come from one counter, so an event that ended before
another one began has the smaller number.

Lines of JSON, an event each, the first field its kind.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

Place = tuple[str, int]  # topic, partition
Seen = tuple[str, str]  # message id, value


def is_tombstone(value: str) -> bool:
    """Whether this stands for the value of a tombstone, which has none: see `Compacted`."""
    return "=-" in value


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened at a moment."""

    at: int


class Sent(_Event, frozen=True):
    """Messages are about to be published for the first time; `transaction` is a name that the run
    gave it, empty for none. `sources` are the messages that these were made of, one each.
    `rests_on` is the message that has to be the one before it of those that rest on one, empty:
    it has to be the first. With `due_ms` or `delay_ms` they are to wait until then, or for so long;
    what of that is past already is due at once."""

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
    """A publish that expected nothing of a key was stored, or refused; `readable` are the messages
    of the key that could be read at that moment."""

    place: Place
    readable: tuple[str, ...]
    stored: bool


class Asked(_Event, frozen=True):
    """A transaction is about to be committed, for the first time; from now on it may be seen."""

    transaction: str
    moves: tuple[tuple[str, Place, str], ...] = ()  # group, place, id of the last message done


class Ended(_Event, frozen=True):
    """The answer to a transaction: committed, or certainly not."""

    transaction: str
    committed: bool
    synced: bool = True


class Read(_Event, frozen=True):
    """A reader got the messages after the id `after` (empty: from the first on). `at` is when the
    read began. `pass_` counts a reader's beginnings from anew. A read of `everything` gave all that
    there was to see, up to the open transaction `held_by` (`?`: one without a name)."""

    reader: str
    pass_: int
    place: Place
    committed: bool
    after: str
    messages: tuple[Seen, ...]
    ended: int
    everything: bool = False
    held_by: str = ""
    key: str = ""  # only messages with this key were asked for


class Found(_Event, frozen=True):
    """A group's position was asked for; `at` is when that began."""

    group: str
    place: Place
    id: str
    ended: int


class Crashed(_Event, frozen=True):
    """The process died; with `power`, what was not synced may be gone."""

    power: bool


class Final(_Event, frozen=True):
    """All messages of a partition at the end, when every transaction had ended."""

    place: Place
    messages: tuple[Seen, ...]


class Compacting(_Event, frozen=True):
    """A pass of compaction over this place is about to begin."""

    place: Place


class Compacted(_Event, frozen=True):
    """Of this place only the newest message of each key has to be there at the end: values are
    `KEY=…`, and tombstones, for which a text stands that is as unique, `KEY=-…`; those without a
    key all stay. A tombstone goes as well, once there was a pass so long after one that came after
    it, None: never."""

    place: Place
    tombstone_retention_ms: int | None = None


class Erased(_Event, frozen=True):
    """The messages of a key of these places, or the one with an id, were erased; `at` is when it
    was asked for. Not `done`: it failed, was perhaps begun, and is over."""

    places: tuple[Place, ...]
    key: str
    id: str
    ended: int
    done: bool


class Truncated(_Event, frozen=True):
    """Everything up to an id was made unreadable; `at` is when it was asked for. Not `done`: it
    failed, and may be so or not."""

    place: Place
    upto: str
    ended: int
    done: bool


class Stored(_Event, frozen=True):
    """Messages whose bytes the store still had at the end, though no reader was shown them."""

    values: tuple[str, ...]


class Done(_Event, frozen=True):
    """Where a group stood at the end, that makes messages of `output` of those it consumes."""

    group: str
    place: Place
    id: str
    output: str


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A message that a queue handed out, with the number of the delivery."""

    value: str
    deliveries: int


class Taken(_Event, frozen=True):
    """A worker got messages of a queue; `at` is when it asked. By the service's clock that was at
    `clock_ms`, and nobody else gets them before `lease_ms` later, unless they are given back. Each
    crash of the service, and each jump of its clock, begins another era."""

    worker: str
    queue: str
    jobs: tuple[Job, ...]
    ended: int
    clock_ms: int
    lease_ms: int
    era: int


class Handled(_Event, frozen=True):
    """A worker was told what became of messages: `ack`, `reject`, `nack`, `release`, `extend`, or
    `made`, a commit. `at` is when it asked for the first time; `done` and `late` are what it was
    told. Without either it was never told."""

    worker: str
    queue: str
    how: str
    asked: tuple[Job, ...]
    done: tuple[str, ...]
    late: tuple[str, ...]
    ended: int


class Drained(_Event, frozen=True):
    """At the end a queue had nothing left: each message of `place` was settled, or is in
    `dead`. `by_key`: it hands out the messages of a key one after another."""

    queue: str
    place: Place
    dead: Place
    by_key: bool = False


class Clock(_Event, frozen=True):
    """From now on the service's clock shows this, until the next of these events. The clocks of
    some of its instances are ahead, by `ahead_ms` at most."""

    wall_ms: int
    ahead_ms: int = 0


class Deferred(_Event, frozen=True):
    """Messages that are to wait were acknowledged, each with its due and its sequence. `synced`: as
    with `Acknowledged`."""

    place: Place
    messages: tuple[tuple[int, int, str], ...]
    synced: bool


class Cancelled(_Event, frozen=True):
    """A message that waits was to be cancelled; `at` is when that was asked. `done` is the answer,
    None: there was none, it may be so or not. `synced`: the answer survives a power loss."""

    place: Place
    value: str
    done: bool | None
    ended: int
    synced: bool


class Listed(_Event, frozen=True):
    """All messages of a topic that waited, and how many it said these are; `at` is when that was
    asked. `owned`: by who had read what was moved; in a store of several one may look before."""

    topic: str
    values: tuple[str, ...]
    waiting: int
    ended: int
    owned: bool = True


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
