"""Bugs of instances that share a store; a part of `bugs`. Each undoes what keeps one of them from
believing what others have changed.
"""

from collections.abc import Callable, Collection

from sim.bugs.following import FOLLOWING
from sim.replacing import Replacement
from tms.cluster import cluster
from tms.cluster.cluster import Cluster
from tms.cluster.decisions import AskedDecisions
from tms.cluster.standing import Standing
from tms.engine import Engine
from tms.groups.group_positions import GroupPositions
from tms.log.partition import PartitionState
from tms.log.records import BlockKey
from tms.log.segments import SegmentChain
from tms.model.snapshot import Fate
from tms.queues.settling import Settling


def _no_epoch() -> list[Replacement]:
    """Who takes a partition over does not say so in its record."""
    return [(SegmentChain, "take_over", lambda self: None)]


def _scan_before_fence() -> list[Replacement]:
    """Who takes a partition over looks for its end while the owner before may still write."""
    take_over, seal = SegmentChain.take_over, SegmentChain.seal

    def late(self: SegmentChain, end_offset: int, last: BlockKey, stored_bytes: int) -> None:
        self.refresh()
        take_over(self)
        seal(self, end_offset, last, stored_bytes)

    return [(SegmentChain, "take_over", lambda self: None), (SegmentChain, "seal", late)]


def _journal_in_any_term() -> list[Replacement]:
    """Who had a journal before another one had it appends to it without reading it again."""
    return [(PartitionState, "is_in", lambda self, term: True)]


def _acknowledge_before_verify() -> list[Replacement]:
    """What was written is acknowledged, whoever owns the partition by then."""
    return [(SegmentChain, "require_owned", lambda self: None)]


def _trust_the_session() -> list[Replacement]:
    """Whoever was a member of the cluster believes that it still owns what it did."""
    return [(Cluster, "confirm", lambda self: None)]


def _follow_without_asking() -> list[Replacement]:
    """An instance that has not heard of a transaction takes it for one that never commits."""

    def learn(self: AskedDecisions, pointers: Collection[int]) -> Callable[[int, bool], Fate]:
        return lambda pointer, issued: Fate.SKIPPED

    return [(AskedDecisions, "learn", learn)]


def _two_coordinators() -> list[Replacement]:
    """Whose journals were taken over goes on coordinating."""

    def recheck(self: Engine, cluster: Cluster) -> None:
        self.topics.recheck(cluster.not_owner)

    return [(Engine, "recheck", recheck)]


def _tell_nobody() -> list[Replacement]:
    """Who takes a partition over does not tell the owner before."""
    return [(Standing, "fence", lambda self, names: None)]


def _never_ask_for_the_end() -> list[Replacement]:
    """Who keeps a shard waits until somebody tells it how a transaction has ended."""
    return [
        (GroupPositions, "_learn", lambda self, ids: set(ids)),
        (Settling, "learn", lambda self, queue: None),
        (Settling, "follow", lambda self, pointer: None),
    ]


def _keep_without_the_store() -> list[Replacement]:
    """Who does not reach the store keeps what it owns for as long as ZooKeeper sees it."""
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
