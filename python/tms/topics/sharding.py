"""In which shard of a store the state of a group, of a queue, or of a topic's delayed messages is
kept, and how many there are.

A shard is what one instance keeps as a whole: a partition of each of the journals `system:_groups`,
`system:_positions` and `system:_queues`, and the maps of delayed messages of some topics.

Invariants

* How many there are is chosen when a store is made, and stays.
* A position that a queue or the delayed messages of a topic move is in the shard of these.
"""

from collections.abc import Callable
from functools import lru_cache

from tms.errors import DataCorrupt, TMSError, Unavailable
from tms.model import keys
from tms.model.queue import redrive_group
from tms.model.topic import SYSTEM_NAMESPACE, TopicName
from tms.model.transaction import SYSTEM_GROUPS
from tms.store.base import Map

SHARDS = 16  # of a store that is made now

GROUPS = TopicName(SYSTEM_NAMESPACE, "_groups")
POSITIONS = TopicName(SYSTEM_NAMESPACE, "_positions")
QUEUES = TopicName(SYSTEM_NAMESPACE, "_queues")
TRANSACTIONS = TopicName(SYSTEM_NAMESPACE, "_transactions")
SHARD_JOURNALS = (GROUPS, POSITIONS, QUEUES)
COUNT_MAX = 1_024


def count_shards(metadata: Map) -> int:
    """How many shards the store has; from now on, if that was never asked. What has journals
    already is older than shards, and has one. Raises `DataCorrupt`."""
    raw = metadata.get(keys.SHARDS)
    if raw is None:
        journals = (TRANSACTIONS, *SHARD_JOURNALS)
        is_old = any(metadata.get(keys.topic_key(*name)) is not None for name in journals)
        metadata.compare_and_set(keys.SHARDS, None, b"%d" % (1 if is_old else SHARDS))
        raw = metadata.get(keys.SHARDS) or b""  # others may have been first
    if not raw.isdigit() or not 0 < int(raw) <= COUNT_MAX:
        raise DataCorrupt(
            f"The record `{keys.SHARDS.decode()}` of the store is damaged: {raw[:20]!r}. Restore "
            "it from a backup: the partitions of `system:_queues` are as many."
        )
    return int(raw)


class Shards:
    """The shards of a store. `missing` says where a shard is that this process does not keep."""

    def __init__(self, count: int, missing: Callable[[int], TMSError] | None = None) -> None:
        self.count = count
        self.missing = missing or _begins

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


@lru_cache(4_096)
def _shard(name: str, count: int) -> int:
    return keys.partition_for_key(name.encode(), count)


def _begins(number: int) -> TMSError:
    return Unavailable(f"The shard {number} is being opened. Try again.")
