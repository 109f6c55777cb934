"""A cluster as people see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """An instance of a cluster, and the URL at which it is reached."""

    id: str
    address: str
    version: str
    capacity: int = 1
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The instances that one of them sees. Of two views the one with the larger number is newer.
    `answered_by` is who says it, and `coordinator` keeps transactions, groups, queues and delayed
    messages; a service that is alone has no instances."""

    number: int
    answered_by: str
    state: str
    coordinator: str
    instances: tuple[InstanceInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """What an instance noticed or did, at a time by its clock (ms since 1970)."""

    time_ms: int
    instance: str
    what: str
    details: str = ""


@dataclass(frozen=True, slots=True)
class TopicOwners:
    """The ids of the instances that own the partitions of a topic, in order, of a view."""

    number: int
    owners: tuple[str, ...]
