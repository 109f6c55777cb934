"""The shard of a store that holds the state of a group, of a queue, or of a topic's delayed
messages, and the number of shards.

A shard is held by one instance as a whole: a partition of each of the journals `system:_groups`,
`system:_positions` and `system:_queues`, and the maps of delayed messages of some topics.

Invariants

* The number of shards is chosen when a store is made, and never changes.
* A position that a queue or the delayed messages of a topic move is in the shard of these.
"""

import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from tms.errors import DataCorrupt, TMSError, Unavailable
from tms.model import keys
from tms.model.queue import redrive_group
from tms.model.topic import SYSTEM_NAMESPACE, TopicName
from tms.model.transaction import SYSTEM_GROUPS
from tms.store.base import Map
from tms.topics.owners import Owners

SHARDS = 16  # of a new store

GROUPS = TopicName(SYSTEM_NAMESPACE, "_groups")
POSITIONS = TopicName(SYSTEM_NAMESPACE, "_positions")
QUEUES = TopicName(SYSTEM_NAMESPACE, "_queues")
TRANSACTIONS = TopicName(SYSTEM_NAMESPACE, "_transactions")
PRODUCERS = TopicName(SYSTEM_NAMESPACE, "_producers")  # with transactional ids
SHARD_JOURNALS = (GROUPS, POSITIONS, QUEUES)
COUNT_MAX = 1_024
T = TypeVar("T")


def count_shards(metadata: Map) -> int:
    """The number of the store's shards. The first call decides it: a store that has journals is
    older than shards, and has one. Raises `DataCorrupt`."""
    raw = metadata.get(keys.SHARDS)
    if raw is None:
        journals = (TRANSACTIONS, *SHARD_JOURNALS)
        is_old = any(metadata.get(keys.topic_key(*name)) is not None for name in journals)
        metadata.compare_and_set(keys.SHARDS, None, b"%d" % (1 if is_old else SHARDS))
        raw = metadata.get(keys.SHARDS) or b""  # another process may have been first
    if not raw.isdigit() or not 0 < int(raw) <= COUNT_MAX:
        raise DataCorrupt(
            f"The record `{keys.SHARDS.decode()}` of the store is damaged: {raw[:20]!r}. Restore "
            "it from a backup: the partitions of `system:_queues` are as many."
        )
    return int(raw)


class Shards:
    """The shards of a store. `owners` know the owner of a shard that this process does not hold."""

    def __init__(self, count: int, owners: Owners | None = None) -> None:
        self.count = count
        self._owners = owners

    def missing(self, number: int) -> TMSError:
        """The error that says who holds a shard which this process does not hold."""
        owners = self._owners
        return _begins(number) if owners is None else owners.not_shard_owner(number)

    def of(self, kind: str, topic: str, group: str) -> int:
        """The shard of a `group`, of a `queue`, or of the `delayed` messages of a topic."""
        if kind == "group":
            return self.of_group(group)
        name = TopicName.parse(topic)
        return self.of_queue(name, group) if kind == "queue" else self.of_delayed(name)

    def of_group(self, group: str) -> int:
        """The shard of a log group, and of its positions."""
        return _shard(group, self.count)

    def of_queue(self, topic: TopicName, group: str) -> int:
        """The shard of a queue."""
        return _shard(redrive_group(group, topic), self.count)

    def of_delayed(self, topic: TopicName) -> int:
        """The shard of a topic's delayed messages."""
        return _shard(f"{topic.namespace}:{topic.topic}", self.count)

    def of_position(self, topic: TopicName, group: str) -> int:
        """The shard of a group's positions in a topic."""
        if group.startswith(SYSTEM_GROUPS):
            return self.of_delayed(topic)
        return self.of_group(group)


class OpenShards(Generic[T]):
    """A room's parts of the shards that are open in this process. Thread-safe. `parts` has them by
    shard; each change replaces it."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._lock = threading.Lock()  # guards changes
        self.parts: Mapping[int, T] = {}

    def open(self, number: int, part: T) -> None:
        """Add the part of a shard."""
        with self._lock:
            self.parts = {**self.parts, number: part}

    def close(self, number: int) -> T | None:
        """Remove the part of a shard, and return it if there is one."""
        with self._lock:
            part = self.parts.get(number)
            self.parts = {n: other for n, other in self.parts.items() if n != number}
        return part

    def at(self, number: int) -> T:
        """The part of an open shard. Raises `NotOwner`, `Unavailable`."""
        part = self.parts.get(number)
        if part is None:
            raise self._shards.missing(number)
        return part

    def some(self, numbers: Iterable[int] | None) -> list[T]:
        """The parts of some shards, or of all shards of the store. Raises like `at`."""
        wanted = range(self._shards.count) if numbers is None else numbers
        return [self.at(number) for number in wanted]


@lru_cache(4_096)
def _shard(name: str, count: int) -> int:
    return keys.Partitioner.CRC32C.partition_of(name.encode(), count)


def _begins(number: int) -> TMSError:
    return Unavailable(f"The shard {number} is being opened. Try again.")
