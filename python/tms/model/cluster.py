"""Descriptions of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """An instance of a cluster, and its URL."""

    id: str
    address: str
    version: str
    capacity: int = 1
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The instances that one of them sees. Of two views the one with the larger number is newer.
    `answered_by` is the instance that describes it, and `coordinator` holds transactions, groups,
    queues and delayed messages. A service without a cluster has no instances."""

    number: int
    answered_by: str
    state: str
    coordinator: str
    instances: tuple[InstanceInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """An observation or action of an instance, at a time by its clock (ms since 1970)."""

    time_ms: int
    instance: str
    what: str
    details: str = ""


@dataclass(frozen=True, slots=True)
class TopicOwners:
    """The ids of the instances that own the partitions of a topic, in order, of a view. `pinned`:
    partitions for which an instance was chosen; the choice counts while that instance is live."""

    number: int
    owners: tuple[str, ...]
    pinned: tuple[int, ...] = ()
