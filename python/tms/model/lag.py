"""Lags of readers, sizes of topics and loads of instances: the values of an overview."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from tms.errors import NotFound
from tms.model.position import Position
from tms.model.topic import TopicName

PAGE = 1_000  # entries of a list, by default
ALL = 1 << 62  # entries of a list
SEARCH_CHARS_MAX = 256
T = TypeVar("T")


class TopicOrder(StrEnum):
    """The order of a list of topics: by name, or the largest number first."""

    NAME = "name"
    MESSAGES = "messages"
    PUBLISHED = "published"
    STORED_BYTES = "stored_bytes"


class GroupOrder(StrEnum):
    """The order of a list of groups: by topic and name, or the largest number first."""

    NAME = "name"
    MEMBERS = "members"
    LAG = "lag"
    LAG_MS = "lag_ms"


class QueueOrder(StrEnum):
    """The order of a list of queues: by topic and group, or the largest number first."""

    NAME = "name"
    WAITING = "waiting"
    LEASED = "leased"
    DEAD = "dead"
    OLDEST_MS = "oldest_ms"


ListOrder = TopicOrder | GroupOrder | QueueOrder


def named_like(search: str | None) -> Callable[[str], bool]:
    """Returns a function that is true of names that contain a text, in upper or lower case."""
    if not search:
        return lambda name: True
    wanted = search.lower()
    return lambda name: wanted in name.lower()


def in_order(
    entries: Iterable[T], order: ListOrder, name: Callable[[T], str], after: str | None
) -> list[T]:
    """The entries after the one of this name, those with the largest numbers first; unknown numbers
    come last, equal ones by name. Raises `NotFound` if there is no such entry."""

    def key(one: T) -> tuple[bool, int, str]:
        number = getattr(one, order)
        return number is None, -(number or 0), name(one)

    ranked = sorted(entries, key=key)
    if after is None:
        return ranked
    start = next((at for at, one in enumerate(ranked) if name(one) == after), None)
    if start is None:
        raise NotFound(
            f"The list has no {after!r:.200} any more, behind which its next page begins. Begin "
            "at its first page."
        )
    return ranked[start + 1 :]


class LagPlace(NamedTuple):
    """The position of a reader in a partition."""

    topic: TopicName
    partition: int
    position: Position


class Lag(NamedTuple):
    """The number of messages, and the age of the first of them in ms."""

    messages: int
    ms: int


@dataclass(frozen=True, slots=True)
class TopicSize:
    """The size of a topic, over all partitions: `messages` that are readable, `published` since it
    was created, and about how many bytes they take in the store. None if it is unknown, because a
    partition is damaged, or its owner does not answer."""

    topic: str
    partitions: int
    messages: int | None = None
    published: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """The work of an instance since it was started, and its present state. `answers` is True if it
    could be reached; all other fields are 0 if not. Times in ms; `now_ms` is its wall clock, 0 if
    unknown."""

    instance: str
    address: str
    answers: bool = True
    ready: bool = False
    uptime_ms: int = 0
    messages_in: int = 0  # stored, with the journals of groups, queues and transactions
    bytes_in: int = 0  # of their blocks
    bytes_out: int = 0  # of fetched bodies; 0 without HTTP
    partitions: int = 0  # open ones
    connections: int = 0
    transactions_open: int = 0
    transactions_oldest_ms: int = 0
    transactions_invalid: int = 0
    partitions_blocked: int = 0
    now_ms: int = 0
