"""The roles that this process holds: coordinating transactions, and shards. Alone it holds all of
them; in a cluster those that the cluster gives it.

Invariants

* Exactly one object decides the outcomes of transactions for the topics: the transactions of this
  process while it coordinates, else the coordinator's answers (`Cluster.decisions`).
* A role is closed before its journal is released (`Topics.release_foreign`, `Topics.recheck`):
  state without its journal would not notice that another instance takes the journal over.
"""

from random import Random

from tms.access.records import AccessRecords
from tms.cluster.cluster import Cluster
from tms.engine.coordination import Commits, Coordination
from tms.engine.roles import Role
from tms.engine.shards import ShardRoles
from tms.errors import TMSError, Unavailable
from tms.model.topic import TopicName
from tms.topics.sharding import PRODUCERS, SHARD_JOURNALS, TRANSACTIONS
from tms.topics.topics import Topics
from tms.transactions.tables import Tables
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactions import Transactions


class HeldRoles:
    """The roles of one engine; to a cluster, its `RolePlayer`. Thread-safe. `lifetime_ms`: of a
    transaction that was begun elsewhere."""

    def __init__(
        self,
        topics: Topics,
        access: AccessRecords,
        lifetime_ms: int,
        random: Random,
        cluster: Cluster | None,
    ) -> None:
        self._topics = topics
        self._access = access
        self._lifetime_ms = lifetime_ms
        self._cluster = cluster
        missing = _begins if cluster is None else cluster.not_coordinator
        self.coordination = Role("transactions", self._begin, self._end, missing)
        self.commits = Commits(self.coordination, cluster)
        self.shards = ShardRoles(topics, self.commits, random, cluster)
        if cluster is not None:
            topics.decide_by(cluster.decisions)

    @property
    def coordinates(self) -> bool:
        """True if this process coordinates transactions."""
        return self.coordination.held is not None

    def open_all(self) -> None:
        """Hold every role. Raises the error of the first that cannot be opened."""
        self.coordination.open()
        for role in self.shards.roles.values():
            role.open()

    def failures(self) -> list[str]:
        """The roles that this process should hold and could not open, and why, in sentences."""
        roles = (self.coordination, *self.shards.roles.values())
        failed = ((role.name, role.failure) for role in roles)
        return [f"Not open yet: {name}. {why.message}" for name, why in failed if why is not None]

    def resign(self, cluster: Cluster, reason: TMSError | None = None) -> None:
        """Close the roles that others should hold; with a reason all roles, and then all
        partitions. Asks no store."""
        if reason is None:
            self._close_but(cluster.coordinates, cluster.shards())
            return
        self._close_but(False, frozenset())
        cluster.count_released(self._topics.partitions.abandon(reason))
        self._close_but(False, frozenset())  # one that was opened meanwhile has no journal now

    def _close_but(self, coordination: bool, shards: frozenset[int]) -> None:
        """Close all roles but these."""
        if not coordination:
            self.coordination.close()
        for number, role in self.shards.roles.items():
            if number not in shards:
                role.close()

    def settle_roles(self, cluster: Cluster) -> None:
        """Open the roles that this process should hold, and close the roles and partitions that
        others should. One thread at a time calls it. Raises the first error that kept a role from
        being opened; it may be called again."""
        self._access.refresh()
        wanted = [self.shards.roles[number] for number in sorted(cluster.shards())]
        self.resign(cluster)
        failed: list[TMSError] = []
        for role in (*([self.coordination] if cluster.coordinates else ()), *wanted):
            try:
                role.open()
            except TMSError as error:
                failed.append(error)
        cluster.count_released(self._topics.release_foreign(cluster.not_owner, self._lose))
        if failed:
            raise failed[0]

    def recheck(self, cluster: Cluster) -> None:
        """Forget everything that other instances have changed or taken over. Raises
        `StorageUnavailable`."""
        self._access.refresh()

        def lose(journal: TopicName, number: int) -> None:
            self._lose(journal, number)
            cluster.settle_again()

        self._topics.recheck(cluster.not_owner, lose)

    def _lose(self, journal: TopicName, number: int) -> None:
        """Close the role whose journal another instance takes over."""
        if journal in (TRANSACTIONS, PRODUCERS):
            self.coordination.close()
        elif journal in SHARD_JOURNALS:
            self.shards.close(number)

    def _begin(self) -> Coordination:
        shards = self.shards
        transactions = Transactions(
            self._topics, self._lifetime_ms, shards.participants, shards.invalidate
        )
        return Coordination(
            transactions,
            Tables(self._topics.store, transactions.manager),
            TransactionalIds(self._topics, transactions),
        )

    def _end(self, coordination: Coordination | None) -> None:
        if self._cluster is not None:
            self._topics.decide_by(self._cluster.decisions)
        if coordination is not None:
            coordination.tables.close()
            coordination.transactions.manager.wake_all()


def _begins() -> TMSError:
    return Unavailable("The transactions of this store are being opened. Try again.")
