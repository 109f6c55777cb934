"""Topics: their names, their settings and the limits of both.

A topic is `namespace:topic`; the namespace `default` may be left out and `system` is TMS's own.
Names are compared byte by byte, so `Orders` and `orders` are two topics.

Invariants

* A topic's name has none of the characters `/`, `:`, `,`, `#`, `*` and `%`, which separate names
  in keys, paths, resources and options.
* Every name that Kafka allows is one, except names that begin with `.` or `-`: `.` and `..` are
  path segments, and a command takes `-a` for an option.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple, Self

from tms.errors import Forbidden, Invalid
from tms.model.keys import Partitioner
from tms.model.quantity import Duration, seconds, whole

NAMESPACE = "[A-Za-z0-9_]{1,128}"  # the spelling of a namespace,
TOPIC_CHARS_MAX = 249  # as in Kafka
TOPIC = f"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{TOPIC_CHARS_MAX - 1}}}"  # of a topic in it,
TOPIC_PREFIX = f"(?:[A-Za-z0-9_][A-Za-z0-9._-]{{0,{TOPIC_CHARS_MAX - 2}}})?"  # of its beginning,
TOPIC_NAME = f"(?:{NAMESPACE}:)?{TOPIC}"  # and of both
TOPIC_NAME_CHARS_MAX = 128 + len(":") + TOPIC_CHARS_MAX
_NAMESPACE, _TOPIC = re.compile(NAMESPACE), re.compile(TOPIC)

DEFAULT_NAMESPACE = "default"
SYSTEM_NAMESPACE = "system"
PARTITIONS_MAX = 1_024
RETENTION_DEFAULT = "default"  # the retention of a topic without its own
RETENTION_MS_DEFAULT = 14 * 86_400_000  # unless the store says otherwise
RETENTION_MS_MIN = 1_000
RETENTION_MS_MAX = 36_525 * 86_400_000  # 100 years
RETENTION_BYTES_MIN = 1 << 20
TOMBSTONE_RETENTION_MS_DEFAULT = 86_400_000
MESSAGE_BYTES_DEFAULT = 8 << 20
MESSAGE_BYTES_MAX = 8 << 20


class Durability(StrEnum):
    """The failures that an acknowledged message survives."""

    rank: int  # 0, 1, 2 from weakest to strongest

    NONE = "none", 0  # acknowledged before it is stored: a crash of the process may lose it
    WRITTEN = "written", 1  # survives a crash of the process, not of the machine
    SYNCED = "synced", 2  # survives power loss: fsynced

    def __new__(cls, text: str, rank: int) -> Self:
        member = str.__new__(cls, text)
        member._value_ = text
        member.rank = rank
        return member


def strongest(*levels: Durability) -> Durability:
    """The durability that satisfies all of these."""
    return max(levels, key=attrgetter("rank"))


class Cleanup(StrEnum):
    """The treatment of a topic's older messages."""

    DELETE = "delete"  # retention drops them
    COMPACT = "compact"  # compaction keeps the newest of each key; no retention
    BOTH = "compact,delete"

    @property
    def compacts(self) -> bool:
        """True if the topic is compacted."""
        return self is not Cleanup.DELETE


class TopicName(NamedTuple):
    """A topic's full name. `str(name)` leaves the namespace `default` out."""

    namespace: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`namespace:topic` or `topic`. Raises `Invalid`."""
        if not isinstance(text, str):
            raise Invalid(f"A topic is text such as `orders`, got {text!r:.80}.", field="topic")
        namespace, colon, topic = text.partition(":")
        if not colon:
            namespace, topic = DEFAULT_NAMESPACE, text
        return cls.of(namespace, topic)

    @classmethod
    def of(cls, namespace: str, topic: str) -> Self:
        """The name with both parts checked. Raises `Invalid`."""
        check_namespace(namespace)
        if not _TOPIC.fullmatch(topic):
            raise Invalid(
                f"A topic name is 1 to {TOPIC_CHARS_MAX} of A-Z a-z 0-9 . _ - and begins with a "
                f"letter, a digit or _, got {topic[: TOPIC_CHARS_MAX + 1]!r}.",
                field="topic",
            )
        return cls(namespace, topic)

    def require_writable(self) -> None:
        """Raises `Forbidden` for the namespace `system`, which only TMS itself writes."""
        if self.namespace == SYSTEM_NAMESPACE:
            raise Forbidden("The namespace `system` belongs to TMS; choose another one.")

    def __str__(self) -> str:
        return (
            self.topic if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}:{self.topic}"
        )


def check_namespace(namespace: str) -> str:
    """The namespace itself. Raises `Invalid`."""
    if not _NAMESPACE.fullmatch(namespace):
        raise Invalid(f"A namespace is 1 to 128 of A-Z a-z 0-9 _, got {namespace[:140]!r}.")
    return namespace


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic. Checked when built; raises `Invalid`.

    `retention_ms` and `retention_bytes` are None for "no limit"; the byte limit is per partition.
    With `retention_is_default` the topic has no retention of its own and `retention_ms` is the
    store's default. With the cleanup `compact` there is no limit, whatever was given.
    `tombstone_retention_ms` is the shortest time for which compaction keeps a tombstone, None: for
    ever. `partitioner` is fixed when the topic is created.
    """

    partitions: int = 1
    retention_ms: int | None = RETENTION_MS_DEFAULT
    retention_bytes: int | None = None
    durability: Durability = Durability.SYNCED
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    cleanup: Cleanup = Cleanup.DELETE
    tombstone_retention_ms: int | None = TOMBSTONE_RETENTION_MS_DEFAULT
    retention_is_default: bool = False
    partitioner: Partitioner = Partitioner.CRC32C

    def __post_init__(self) -> None:
        whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        if self.retention_ms is not None:
            whole("retention_ms", self.retention_ms, RETENTION_MS_MIN, RETENTION_MS_MAX)
        if self.retention_bytes is not None:
            whole("retention_bytes", self.retention_bytes, RETENTION_BYTES_MIN, 2**63 - 1)
        whole("message_bytes_max", self.message_bytes_max, 1, MESSAGE_BYTES_MAX)
        if not isinstance(self.durability, Durability):
            object.__setattr__(self, "durability", parse_durability(self.durability))
        if not isinstance(self.cleanup, Cleanup):
            object.__setattr__(self, "cleanup", parse_cleanup(self.cleanup))
        if not isinstance(self.partitioner, Partitioner):
            object.__setattr__(self, "partitioner", parse_partitioner(self.partitioner))
        if self.cleanup is Cleanup.COMPACT:
            object.__setattr__(self, "retention_ms", None)
            object.__setattr__(self, "retention_bytes", None)
            object.__setattr__(self, "retention_is_default", False)
        tombstones_ms = self.tombstone_retention_ms
        if tombstones_ms is not None:
            low, high = RETENTION_MS_MIN, RETENTION_MS_MAX
            whole("tombstone_retention_ms", tombstones_ms, low, high)


def parse_durability(text: str) -> Durability:
    """`none`, `written` or `synced`. Raises `Invalid`."""
    durability = next((member for member in Durability if member == text), None)
    if durability is None:
        raise Invalid(
            f"Durability is none, written or synced, got {str(text)[:40]!r}.", field="durability"
        )
    return durability


def parse_cleanup(text: str) -> Cleanup:
    """`delete`, `compact`, or both with a comma between. Raises `Invalid`."""
    try:
        return Cleanup(",".join(sorted(part.strip() for part in str(text).split(","))))
    except ValueError as exc:
        raise Invalid(
            f"Cleanup is delete, compact or compact,delete, got {str(text)[:40]!r}.",
            field="cleanup",
        ) from exc


def parse_partitioner(text: str) -> Partitioner:
    """`crc32c` or `murmur2`. Raises `Invalid`."""
    partitioner = next((member for member in Partitioner if member == text), None)
    if partitioner is None:
        raise Invalid(
            f"A partitioner is {' or '.join(Partitioner)}, got {str(text)[:40]!r}.",
            field="partitioner",
        )
    return partitioner


def parse_retention(value: Duration | None, field: str = "retention") -> int | None:
    """Retention in ms from a duration; `"forever"` and None are None. Raises `Invalid`."""
    if value is None or value == "forever":
        return None
    low, high = RETENTION_MS_MIN / 1_000, RETENTION_MS_MAX / 1_000
    return round(seconds(field, value, low, high) * 1_000)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The present state of a partition: readable offsets are `start_offset` (inclusive) to
    `end_offset` (exclusive)."""

    partition: int
    epoch: int
    segments: int
    stored_bytes: int
    start_offset: int
    end_offset: int
    first_id: str | None
    last_id: str | None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as described by the service. `partition_infos` is empty in listings."""

    namespace: str
    topic: str
    generation: int
    created_ms: int
    settings: TopicSettings
    partition_infos: tuple[PartitionInfo, ...] = ()

    @property
    def name(self) -> TopicName:
        """The topic's full name."""
        return TopicName(self.namespace, self.topic)
