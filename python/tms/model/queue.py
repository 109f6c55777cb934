"""Queues: values that engine, wire and client share, except messages (`block.received`).

A queue is a group that takes messages one by one: each is leased to one worker, who acknowledges it
by the token that came with it. A token names one delivery:

    PARTITION.OFFSET.DELIVERIES.EPOCH          hexadecimal, no leading signs or spaces
    PARTITION.OFFSET.DELIVERIES.EPOCH.COUNT    for COUNT messages from that offset on

Invariants

* A token is valid until its message is released, delivered again, settled, or part of a commit
  under way: the number of the delivery is never used twice, the epoch changes when the queue is
  created again.
* The number of a delivery is releases << 20 | deliveries, and a released delivery is not among the
  deliveries. Each release and each delivery increases the number.
* A default never hides a limit: every bound of a queue is one of its settings.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, NamedTuple, TypedDict, TypeVar

from tms.errors import Conflict, Invalid
from tms.model.ids import MessageId
from tms.model.lag import Lag
from tms.model.message import MESSAGES_MAX, Headers
from tms.model.position import POSITION, Position
from tms.model.quantity import Duration, seconds, whole
from tms.model.serializer import Decoder, decoded
from tms.model.spelling import one_of, spelled, within
from tms.model.topic import TOPIC_NAME, Durability, TopicName, parse_durability

T = TypeVar("T")
DEAD_PREFIX = "tms-dead-"  # of the headers of dead letters
DEAD_ORIGIN, DEAD_GROUP = DEAD_PREFIX + "origin", DEAD_PREFIX + "group"
DEAD_CAUSE, DEAD_DELIVERIES = DEAD_PREFIX + "cause", DEAD_PREFIX + "deliveries"
LEASE_S_MIN, LEASE_S_MAX = 0.001, 12 * 3_600.0
DELAY_S_MAX = 12 * 3_600.0
DELIVERIES_MAX = 255
OUTSTANDING_MAX = 10_000_000
RECEIVE_MAX = 10_000  # messages of one receive
RECEIVE_BYTES = 4 << 20
TOKENS_MAX = 100_000  # of one call
CAUSE_CHARS_MAX = 1_000
PEEK_MAX = 1_000  # messages of one peek
PEEK_BYTES = 4 << 20
_NAME_CHARS_MAX = 255  # of a group
_DIGITS_MAX = 19  # of a number in a header
_DEAD_CHARS_MAX = 128  # of TOPIC-GROUP-dead; more would rename the topics of existing queues
ORDERS = ("", "key")
_FIXED = ("ordered_by", "start")  # settings that cannot be changed later
_PLAIN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
DELIVERY_TOKEN = (  # how one is spelled
    r"([0-9a-f]{1,4})\.([0-9a-f]{1,15})\.([0-9a-f]{1,9})\.([0-9a-f]{1,8})"
    r"(?:\.([1-9a-f][0-9a-f]{0,3}|10000))?"
)
_TOKEN = re.compile(DELIVERY_TOKEN)
DELIVERIES_BITS = 20  # of the number of a delivery
DELIVERIES_MASK = (1 << DELIVERIES_BITS) - 1
RELEASES_MAX = (1 << 16) - 1  # of one message that are not counted as deliveries
RELEASED = (1 << DELIVERIES_BITS) - 1  # one release more, one delivery less


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue. Checked when built; raises `Invalid`.

    A message is leased for `lease_s`; after `deliveries_max` deliveries (0: no limit) it goes to
    the topic `dead_letter` (`""`: one named after topic and group). After a nack a message waits
    `backoff_first_s`, doubled with each delivery, never more than `backoff_max_s`, plus or minus
    the share `jitter`. `ordered_by="key"`: of the messages with one key only the first is with a
    worker. `start` is the first position of a new queue, as text. `durability` None is the topic's.
    """

    lease_s: Annotated[float, within(LEASE_S_MIN, LEASE_S_MAX)] = 30.0
    deliveries_max: Annotated[int, within(0, DELIVERIES_MAX)] = 16
    backoff_first_s: Annotated[float, within(0, DELAY_S_MAX)] = 1.0
    backoff_max_s: Annotated[float, within(0, DELAY_S_MAX)] = 600.0
    jitter: Annotated[float, within(0, 1)] = 0.2
    dead_letter: Annotated[str, spelled(f"(?:{TOPIC_NAME})?")] = ""
    ordered_by: Annotated[str, one_of(*ORDERS)] = ""
    start: Annotated[str, spelled(POSITION)] = "earliest"
    outstanding_max: Annotated[int, within(1, OUTSTANDING_MAX)] = 1_000_000
    durability: Durability | None = None

    def __post_init__(self) -> None:
        check_seconds("lease_s", self.lease_s, LEASE_S_MIN, LEASE_S_MAX)
        whole("deliveries_max", self.deliveries_max, 0, DELIVERIES_MAX)
        check_seconds("backoff_first_s", self.backoff_first_s, 0, DELAY_S_MAX)
        check_seconds("backoff_max_s", self.backoff_max_s, 0, DELAY_S_MAX)
        check_seconds("jitter", self.jitter, 0, 1)
        if self.dead_letter:
            TopicName.parse(self.dead_letter).require_writable()
        if self.ordered_by not in ORDERS:
            raise Invalid(
                f"ordered_by is `key` or empty, got {self.ordered_by!r:.40}.", field="ordered_by"
            )
        Position.parse(self.start)
        whole("outstanding_max", self.outstanding_max, 1, OUTSTANDING_MAX)
        if self.durability is not None and not isinstance(self.durability, Durability):
            object.__setattr__(self, "durability", parse_durability(self.durability))

    @classmethod
    def of(cls, chosen: Mapping[str, object]) -> "QueueSettings":
        """These settings, the others at their defaults. Raises `Invalid`."""
        _require_known(chosen)
        return cls(**chosen)  # type: ignore[arg-type]  # checked when built

    def changed(self, changes: Mapping[str, object]) -> "QueueSettings":
        """The settings with these fields changed. Raises `Invalid`, `Conflict`."""
        _require_known(changes)
        changed = replace(self, **changes)  # type: ignore[arg-type]  # checked when built
        for name in _FIXED:
            if getattr(changed, name) != getattr(self, name):
                raise Conflict(
                    f"{name} is fixed when a queue is made. Make another one, under another name.",
                    field=name,
                )
        return changed


class QueueOptions(TypedDict, total=False):
    """The settings of a queue as a caller passes them; `QueueSettings` describes them."""

    lease_s: Duration
    deliveries_max: int
    backoff_first_s: Duration
    backoff_max_s: Duration
    jitter: float
    dead_letter: str
    ordered_by: str
    start: str
    outstanding_max: int
    durability: Durability | str | None


def in_seconds(chosen: QueueOptions) -> dict[str, object]:
    """The settings with durations in seconds. Raises `Invalid`."""
    return {
        name: seconds(name, value) if name.endswith("_s") else value  # type: ignore[arg-type]
        for name, value in chosen.items()
    }


def deliveries_of(number: int) -> int:
    """The number of a message's deliveries, from the number of its last one; releases do not
    count."""
    return number & DELIVERIES_MASK


def released(number: int) -> int:
    """The number of a delivery after its release; unchanged after `RELEASES_MAX` releases."""
    return number + RELEASED if number >> DELIVERIES_BITS < RELEASES_MAX else number


class Token(NamedTuple):
    """A delivery of messages, `count` from `offset` on; `deliveries` is its number."""

    partition: int
    offset: int
    deliveries: int
    epoch: int
    count: int = 1  # type: ignore[assignment]  # how many messages, not tuple's method

    @classmethod
    def parse(cls, text: str) -> "Token":
        """The token in a text. Raises `Invalid`."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise Invalid(
                f"This is no token of a delivery: {text[:80]!r}. A token comes with each message "
                "that a queue hands out; send it back as it is.",
                field="tokens",
            )
        partition, offset, deliveries, epoch, count = match.groups()
        place = int(partition, 16), int(offset, 16)
        number = 1 if count is None else int(count, 16)
        # faster than calling the class, which names each field
        return tuple.__new__(cls, (*place, int(deliveries, 16), int(epoch, 16), number))

    def each(self) -> Iterator["Token"]:
        """A token for each of the messages."""
        for offset in range(self.offset, self.offset + self.count):
            yield Token(self.partition, offset, self.deliveries, self.epoch)

    def __str__(self) -> str:
        text = f"{self.partition:x}.{self.offset:x}.{self.deliveries:x}.{self.epoch:x}"
        return text if self.count == 1 else f"{text}.{self.count:x}"


class TokenResult(NamedTuple):
    """The outcome for tokens: the number of settled messages, and the tokens that came too late:
    the message was released, its lease had ended and it was delivered again or settled, or a commit
    with it is under way."""

    done: int
    fenced: tuple[str, ...] = ()


class Settlement(NamedTuple):
    """Messages of a queue that a transaction acknowledges with its commit."""

    group: str
    topic: TopicName
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """The state of a queue in a partition: all messages before `cursor` are settled, none from
    `frontier` on was read, `end` is the offset after the last committed message."""

    partition: int
    cursor: int
    frontier: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as described by the service; counts are of messages.

    `backlog` were never read; `leased` are with workers; `ready` could be delivered again at once,
    `delayed` only later; `blocked` wait for an earlier message of their key; `dying` are on their
    way to the dead letters, where `dead` are, as many as `redrive` may move. `redelivered` and
    `died` count since the engine was started.
    """

    group: str
    topic: TopicName
    settings: QueueSettings
    created_ms: int
    backlog: int = 0
    leased: int = 0
    ready: int = 0
    delayed: int = 0
    blocked: int = 0
    dying: int = 0
    dead: int = 0
    redelivered: int = 0
    died: int = 0
    partitions: tuple[QueuePartition, ...] = ()

    @property
    def dead_letter(self) -> TopicName:
        """The topic of its dead letters."""
        return dead_letter_topic(self.group, self.topic, self.settings.dead_letter)

    def summary(self, oldest: Iterable[Lag | None]) -> "QueueSummary":
        """The totals of the queue; `oldest` are the lags of the first unsettled messages of its
        partitions."""
        waiting = self.backlog + self.ready + self.delayed + self.blocked
        known = [lag.ms for lag in oldest if lag is not None]
        age_ms = max(known, default=0 if not waiting + self.leased + self.dying else None)
        dead = self.dead + self.dying
        return QueueSummary(self.group, str(self.topic), waiting, self.leased, dead, age_ms)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The number of a queue's waiting messages, with those that wait for a time or for their key;
    the number of leased ones; the number of dead letters, with those on their way there; and the
    age of the oldest unsettled message, None if that is unknown."""

    group: str
    topic: str
    waiting: int
    leased: int
    dead: int
    oldest_ms: int | None


def join_tokens(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens with neighbours joined, in the given order."""
    run: Token | None = None
    for token in tokens:
        if run is not None:
            stop = run.offset + run.count
            if (
                token.offset == stop
                and token.partition == run.partition
                and token.deliveries == run.deliveries
                and token.epoch == run.epoch
                and run.count + token.count <= MESSAGES_MAX
            ):
                run = run._replace(count=run.count + token.count)
                continue
            yield run
        run = token
    if run is not None:
        yield run


def dead_letter_topic(group: str, topic: TopicName, chosen: str = "") -> TopicName:
    """The chosen topic, or TOPIC-GROUP-dead in the namespace of the topic. If that has more than
    128 characters, or the group others than A-Z a-z 0-9 _ -, it is the first 90 characters of the
    topic and a digest of topic and group: TOPIC-DIGEST-dead."""
    if chosen:
        return TopicName.parse(chosen)
    name = f"{topic.topic}-{group}-dead"
    if not _PLAIN.fullmatch(group) or len(name) > _DEAD_CHARS_MAX:
        name = f"{topic.topic[:90]}-{_digest(f'{topic.topic}/{group}')}-dead"
    return TopicName.of(topic.namespace, name)


def redrive_group(group: str, topic: TopicName) -> str:
    """The group whose positions in the dead letters say how far they were redriven."""
    name = f"redrive:{topic.namespace}:{topic.topic}:{group}"
    return name if len(name) <= _NAME_CHARS_MAX else f"redrive:{_digest(name)}"


def partition_of_origin(headers: Headers, topic: TopicName, group: str) -> int | None:
    """The partition from which a dead letter of this queue came; None for one of another queue,
    with which it may share the topic of its dead letters."""
    if headers.get(DEAD_GROUP) != group.encode():
        return None
    name, _, rest = (headers.get(DEAD_ORIGIN) or b"").partition(b"/")
    if name != f"{topic.namespace}:{topic.topic}".encode():
        return None
    return _number(rest.partition(b"/")[0])


def check_seconds(name: str, value: float, low: float, high: float) -> float:
    """The seconds (or share) themselves. Raises `Invalid`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise Invalid(f"{name} is a number from {low:g} to {high:g}, got {value!r}.", field=name)
    return value


class QueuedState(StrEnum):
    """The state of a message of a queue."""

    NEW = "new"  # never delivered
    READY = "ready"  # to be delivered again at once
    DELAYED = "delayed"  # later
    LEASED = "leased"
    BLOCKED = "blocked"  # behind an earlier one of its key
    DYING = "dying"  # on its way to the dead letters


class QueuedMessage(NamedTuple):
    """A message of a queue, seen without a lease, delivered `deliveries` times so far. `value` is
    None for a tombstone, `key` for a message without one. `left_s` are the seconds until the
    lease of a leased message ends, or until a delayed one may be delivered; None for others.
    `token` names the last delivery of a leased, ready or delayed message, for `reject` and the
    like; empty for others."""

    topic: str
    partition: int
    offset: int
    id: MessageId
    key: bytes | None
    value: bytes | None
    headers: Headers
    deliveries: int
    state: QueuedState
    event_time_ms: int | None = None
    left_s: float | None = None
    token: str = ""

    def decode(self, decoder: Decoder[T]) -> T:
        """The object in the value, read by a serializer of `tms.serializers` or one's own. Raises
        `Undecodable` for a value that does not fit, and for a tombstone."""
        return decoded(self.value, decoder, self.id, self.topic)

    @property
    def timestamp_ms(self) -> int:
        """Publish time, in ms since 1970-01-01T00:00Z."""
        return self.id.time_ms


class DeadOrigin(NamedTuple):
    """The cause of a dead letter, the number of its deliveries, and its origin."""

    cause: str
    deliveries: int
    partition: int
    offset: int
    id: str


def dead_origin(headers: Headers, topic: TopicName, group: str) -> DeadOrigin | None:
    """The origin in the headers of a dead letter of this queue; None for one of another queue, with
    which it may share the topic of its dead letters."""
    partition = partition_of_origin(headers, topic, group)
    rest = (headers.get(DEAD_ORIGIN) or b"").split(b"/")
    offset = _number(rest[2]) if len(rest) == 4 else None
    if partition is None or offset is None:
        return None
    return DeadOrigin(
        (headers.get(DEAD_CAUSE) or b"").decode(errors="replace"),
        _number(headers.get(DEAD_DELIVERIES) or b"") or 0,
        partition,
        offset,
        rest[3].decode(errors="replace"),
    )


def _number(digits: bytes) -> int | None:
    """The number in a header that anybody may have written; None if it is none."""
    return int(digits) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def error_text(error: BaseException) -> str:
    """The cause of a dead letter whose handler has raised this error."""
    return f"{type(error).__name__}: {error}"[:CAUSE_CHARS_MAX]


def check_cause(cause: str) -> str:
    """The cause of a rejection itself. Raises `Invalid`."""
    if not isinstance(cause, str) or len(cause) > CAUSE_CHARS_MAX:
        raise Invalid(f"A cause is text of up to {CAUSE_CHARS_MAX} characters.", field="cause")
    return cause


def _require_known(names: Iterable[str]) -> None:
    known = {field.name for field in fields(QueueSettings)}
    for name in names:
        if name not in known:
            raise Invalid(f"A queue has no setting {name[:40]!r}.", field=name[:40])


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
