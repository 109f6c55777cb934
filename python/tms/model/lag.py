"""Lags of readers, sizes of topics and loads of instances: the values of an overview."""

from dataclasses import dataclass
from typing import NamedTuple

from tms.model.position import Position
from tms.model.topic import TopicName

PAGE = 1_000  # entries of a list, by default


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
