"""Bugs of instances that share a store. Each undoes a check by which an instance notices changes by
others."""

from collections.abc import Callable, Collection

from sim.bugs.following import FOLLOWING
from sim.replacing import Replacement
from tms.cluster import cluster
from tms.cluster.cluster import Cluster
from tms.cluster.fence import InstanceFence
from tms.cluster.remote_decisions import RemoteDecisions
from tms.engine.held_roles import HeldRoles
from tms.groups.group_positions import GroupPositions
from tms.log.partition import PartitionState
from tms.log.records import BlockKey
from tms.log.segments import SegmentChain
from tms.model.snapshot import Fate
from tms.queues.settling import Settling


def _no_epoch() -> list[Replacement]:
    """A new owner of a partition does not write its epoch into the record."""
    return [(SegmentChain, "take_over", lambda self: None)]


def _scan_before_fence() -> list[Replacement]:
    """A new owner of a partition looks for its end while the previous owner may still write."""
    take_over, seal = SegmentChain.take_over, SegmentChain.seal

    def late(self: SegmentChain, end_offset: int, last: BlockKey, stored_bytes: int) -> None:
        self.refresh()
        take_over(self)
        seal(self, end_offset, last, stored_bytes)

    return [(SegmentChain, "take_over", lambda self: None), (SegmentChain, "seal", late)]


def _journal_in_any_term() -> list[Replacement]:
    """An instance appends to a journal that another one has had meanwhile, without reading it
    again."""
    return [(PartitionState, "is_in", lambda self, term: True)]


def _acknowledge_before_verify() -> list[Replacement]:
    """A written block is acknowledged, whoever owns the partition by then."""
    return [(SegmentChain, "require_owned", lambda self: None)]


def _trust_the_session() -> list[Replacement]:
    """An instance that has been a member of the cluster believes that it still owns its
    partitions."""
    return [(Cluster, "confirm", lambda self: None)]


def _follow_without_asking() -> list[Replacement]:
    """An instance that has not heard of a transaction takes it for one that never commits."""

    def learn(self: RemoteDecisions, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        return lambda pointer, issued: Fate.SKIPPED

    return [(RemoteDecisions, "learn", learn)]


def _two_coordinators() -> list[Replacement]:
    """An instance whose journals were taken over goes on coordinating."""

    def recheck(self: HeldRoles, cluster: Cluster) -> None:
        self._topics.recheck(cluster.not_owner, lambda journal, number: None)

    return [(HeldRoles, "recheck", recheck)]


def _tell_nobody() -> list[Replacement]:
    """A new owner of a partition does not tell the previous one."""
    return [(InstanceFence, "fence", lambda self, names: None)]


def _never_ask_for_the_end() -> list[Replacement]:
    """The keeper of a shard never asks for the outcome of a transaction, it only waits to be
    told."""
    return [
        (GroupPositions, "_learn", lambda self, ids: set(ids)),
        (Settling, "learn", lambda self, queue: None),
        (Settling, "follow", lambda self, pointer: None),
    ]


def _keep_without_the_store() -> list[Replacement]:
    """An instance that cannot reach the store keeps its partitions for as long as ZooKeeper sees
    it."""
    return [(cluster, "unfit", lambda view: frozenset())]


OF_INSTANCES: dict[str, Callable[[], list[Replacement]]] = {
    "go-on-from-where-it-waits": FOLLOWING["go-on-from-where-it-waits"],
    "acknowledge-before-verify": _acknowledge_before_verify,
    "follow-without-asking": _follow_without_asking,
    "journal-in-any-term": _journal_in_any_term,
    "keep-without-the-store": _keep_without_the_store,
    "never-ask-for-the-end": _never_ask_for_the_end,
    "no-epoch": _no_epoch,
    "scan-before-fence": _scan_before_fence,
    "tell-nobody": _tell_nobody,
    "trust-the-session": _trust_the_session,
    "two-coordinators": _two_coordinators,
}
