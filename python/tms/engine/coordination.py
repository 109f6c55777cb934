"""The coordination of transactions as a role, and commits that go to the instance that holds it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from tms.cluster.cluster import Cluster
from tms.engine.roles import Role
from tms.errors import TimedOut, TMSError
from tms.log.pending import Pending
from tms.model.topic import Durability
from tms.model.transaction import Commit, CommitResult
from tms.topics.owners import At, Here
from tms.transactions.tables import Tables
from tms.transactions.transactional_ids import TransactionalIds
from tms.transactions.transactions import Transactions

T = TypeVar("T")


class Coordination(NamedTuple):
    """The open parts of the coordinator."""

    transactions: Transactions
    tables: Tables
    transactional_ids: TransactionalIds


class Commits:
    """The coordinator, for the shards of this process: its own, or with a `cluster` that of another
    instance."""

    def __init__(self, coordination: Role[Coordination], cluster: Cluster | None) -> None:
        self._coordination = coordination
        self._cluster = cluster

    def route(self) -> Here | At:
        """The route to the coordinator. Raises `Unavailable` while there is none."""
        if self._cluster is None or self._coordination.held is not None:
            return Here()
        return At(self._cluster.coordinator())

    def submit_internal(self, request: Commit, begun: Callable[[], None]) -> Pending[CommitResult]:
        """Begin a commit of blocks that this process made; as in `InternalCommits`."""
        route = self.route()
        if isinstance(route, Here) or self._cluster is None:
            transactions = self._coordination.get().transactions
            return transactions.submit_commit(request, Durability.SYNCED, begun)
        begun()
        answer: Pending[CommitResult] = Pending(1)
        self._cluster.ask(lambda: settle(answer, lambda: route.peer.commit_own(request)))
        return answer

    @contextmanager
    def durable(self) -> Iterator[None]:
        """Make every commit so far durable; as in `InternalCommits`."""
        route = self.route()
        if isinstance(route, Here):
            with self._coordination.get().transactions.manager.alone(durable=True):
                yield
        else:
            route.peer.sync_commits()
            yield


def settle(answer: Pending[T], ask: Callable[[], T]) -> None:
    """Ask a peer, and settle `answer` with the result or the error."""
    try:
        found = ask()
    except TMSError as error:
        answer.fail(1, error)
    except BaseException:
        answer.fail(1, TimedOut("It was not asked; whether it is done nobody knows."))
        raise
    else:
        answer.settle(0, found)
