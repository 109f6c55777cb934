"""The other instances of a cluster, as an instance calls them."""

from typing import Protocol

from tms.cluster.identity import InstanceIdentity
from tms.cluster.membership import InstanceRecord
from tms.topics.owners import Peer


class ClusterPeer(Peer, Protocol):
    """Another instance, and the end of asking it."""

    def answers(self, timeout_s: float) -> None:
        """Return if it answers in time. Raises `Unavailable`, `TimedOut`."""
        ...

    def ask_once(self) -> None:
        """From now on repeat no request that fails."""
        ...

    def give_up(self) -> None:
        """Fail all requests to it with `Unavailable`, also those under way, because it has left the
        cluster. Never waits."""
        ...


class PeerConnector(Protocol):
    """Makes peers of the records of other instances. Requests carry a proof of this instance's
    identity."""

    @property
    def identity(self) -> InstanceIdentity: ...

    def __call__(self, record: InstanceRecord) -> ClusterPeer: ...
