"""The cluster of the workers of one data directory, to the engine of a worker."""

from tms.cluster.cluster import Cluster
from tms.cluster.membership import ClusterMember
from tms.cluster.ownership import Ownership
from tms.cluster.peers import PeerConnector
from tms.cluster.workers.records import ServedRecords
from tms.runtime.clock import Clock


class WorkerCluster(Cluster):
    """A cluster of worker processes, in which most looks at records cost nothing. The supervisor
    holds the directory, so no other process takes it, and the ownership shows no beats."""

    def __init__(
        self,
        records: ServedRecords,
        clock: Clock,
        member: ClusterMember,
        ownership: Ownership,
        connect: PeerConnector,
        lifetime_ms: int,
    ) -> None:
        super().__init__(records, clock, member, ownership, connect, lifetime_ms)
        self._records = records

    def is_confirmed(self) -> bool:
        """True if `confirm` surely has nothing to do; from any thread, without waiting."""
        return (
            self._records.remembers(self._fence.key)
            and self._ownership.lost is None
            and self._fence.look() is None
        )
