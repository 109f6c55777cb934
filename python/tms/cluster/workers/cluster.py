"""A worker among the others, as its engine knows it."""

from tms.clock import Clock
from tms.cluster.cluster import Cluster
from tms.cluster.membership import ClusterMember
from tms.cluster.ownership import Ownership
from tms.cluster.peers import PeerConnector
from tms.cluster.workers.records import ServedRecords


class WorkerCluster(Cluster):
    """The same as of machines, but that most looks at records cost nothing. The supervisor has the
    directory, so nobody else takes it: the ownership shows nobody that it lives."""

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
        """Whether `confirm` surely has nothing to do; from any thread, without waiting."""
        return (
            self._records.remembers(self._standing.key)
            and self._ownership.lost is None
            and self._standing.look() is None
        )
