"""How far readers are behind, and how large topics are: what is seen at a glance."""

from dataclasses import dataclass
from typing import NamedTuple

from tms.model.position import Position
from tms.model.topic import TopicName

PAGE = 1_000  # of what is listed, unless somebody says how many


class LagPlace(NamedTuple):
    """Where somebody stands in a partition."""

    topic: TopicName
    partition: int
    position: Position


class Lag(NamedTuple):
    """Messages, and for how many ms the first of them has been there."""

    messages: int
    ms: int


@dataclass(frozen=True, slots=True)
class TopicSize:
    """What a topic holds, in all partitions: `messages` that can be read, `published` ever since it
    was created, and about how many bytes they take in the store. None where that cannot be told,
    because a partition is damaged, or its owner away."""

    topic: str
    partitions: int
    messages: int | None = None
    published: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """What an instance did since it was started, and what it does. `answers`: whether it could be
    asked; everything else is 0 if not. Times in ms; `now_ms` is its wall clock, 0 if it does not
    tell."""

    instance: str
    address: str
    answers: bool = True
    ready: bool = False
    uptime_ms: int = 0
    messages_in: int = 0  # stored, with what groups, queues and transactions journal
    bytes_in: int = 0  # of their blocks
    bytes_out: int = 0  # of fetched bodies; 0 without HTTP
    partitions: int = 0  # that are open
    connections: int = 0
    transactions_open: int = 0
    transactions_oldest_ms: int = 0
    transactions_invalid: int = 0
    partitions_blocked: int = 0
    now_ms: int = 0
