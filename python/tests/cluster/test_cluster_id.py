"""The id of a cluster in ZooKeeper: the first instance makes it, and it outlives lost data."""

from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from tms.cluster.membership import InstanceRecord
from tms.cluster.zookeeper import ZooKeeperMember, cluster_id
from tms.errors import Unavailable

NODE = "/tms/cluster"


class Handler:
    timeout_exception = TimeoutError


class Nodes:
    """The part of a session with ZooKeeper that is used here."""

    handler = Handler()

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.closed = 0

    def start(self, timeout_s: float) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None: ...

    def close(self) -> None:
        self.closed += 1

    def ensure_path(self, path: str) -> None:
        self.values.setdefault(path, b"")

    def create(self, path: str, value: bytes, ephemeral: bool = False) -> None:
        if path in self.values:
            raise NodeExistsError
        self.values[path] = value

    def get(self, path: str) -> tuple[bytes, Any]:
        if path not in self.values:
            raise NoNodeError
        return self.values[path], None

    def set(self, path: str, value: bytes) -> None:
        self.get(path)
        self.values[path] = value


def test_the_first_instance_makes_an_id_that_all_others_find() -> None:
    nodes, other = Nodes(), Nodes()
    first = cluster_id(lambda: nodes, "/tms")
    assert len(first) == 32 and nodes.values[NODE] == first.encode()
    assert cluster_id(lambda: nodes, "/tms") == first != cluster_id(lambda: other, "/tms")
    assert nodes.closed == 2


@pytest.mark.parametrize("left", [{}, {NODE: b"of a newcomer that came first"}])
def test_an_instance_writes_the_id_again_where_zookeeper_has_lost_its_data(
    left: dict[str, bytes],
) -> None:
    nodes = Nodes()
    id = cluster_id(lambda: nodes, "/tms")
    member = ZooKeeperMember(Nodes, "/tms", InstanceRecord("a", "http://a", "1"), 10.0, id)
    nodes.values = dict(left)
    member.begin(nodes)
    assert nodes.values[NODE] == id.encode() and cluster_id(lambda: nodes, "/tms") == id


@pytest.mark.parametrize("error", [TimeoutError(), NoAuthError()])
def test_an_instance_that_cannot_find_its_id_tries_again(error: Exception) -> None:
    nodes = Nodes()
    nodes.error = error
    with pytest.raises(Unavailable, match="ZooKeeper is not reached, or refuses /tms"):
        cluster_id(lambda: nodes, "/tms")
    assert nodes.closed == 1
