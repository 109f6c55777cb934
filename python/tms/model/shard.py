"""In which shard of a store the state of a group, of a queue, or of a topic's delayed messages is
kept.

A shard is what one instance keeps as a whole: a partition of each of the journals `system:_groups`,
`system:_positions` and `system:_queues`, and the maps of delayed messages of some topics.

Invariants

* How many there are is chosen when a store is made, and stays.
* A position that a queue or the delayed messages of a topic move is in the shard of these.
"""

from functools import lru_cache

import google_crc32c

from tms.model.queue import redrive_group
from tms.model.topic import TopicName
from tms.model.transaction import SYSTEM_GROUPS

SHARDS = 16  # of a store that is made now


@lru_cache(4_096)
def of_group(group: str, shards: int) -> int:
    """The shard of a log group, and of its positions."""
    return int(google_crc32c.value(group.encode())) % shards


@lru_cache(4_096)
def of_queue(group: str, topic: TopicName, shards: int) -> int:
    """The shard of a queue."""
    return of_group(redrive_group(group, topic), shards)


@lru_cache(4_096)
def of_delayed(topic: TopicName, shards: int) -> int:
    """The shard of a topic's delayed messages."""
    return of_group(f"{topic.namespace}:{topic.topic}", shards)


def of_position(group: str, topic: TopicName, shards: int) -> int:
    """The shard of a group's positions in a topic."""
    if group.startswith(SYSTEM_GROUPS):
        return of_delayed(topic, shards)
    return of_group(group, shards)
