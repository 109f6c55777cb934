"""Routing: the instance that answers a request, as a value.

    operation, path ─▶ role or shard ─▶ Here | At(instance, address) ─▶ answered, or forwarded

* A route is computed once, from the operation and its path, before the body is read.
* Partitions have no route here: the engine asks their owners itself, or raises `NotOwner`, whose
  owner `named` finds among the instances.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tms.api.operation import Operation, Resource
from tms.api.operations import TRANSACTIONS, ShardKey, kept_with
from tms.engine.engine import Engine
from tms.errors import NotOwner, TMSError
from tms.server.http.request import path_arguments

_OF_SHARDS = ("groups", "queues", "delayed")


class Here(NamedTuple):
    """This instance answers."""


class At(NamedTuple):
    """Another instance answers."""

    instance: str
    address: str


def kept_by(operation: Operation, varying: Sequence[bytes]) -> ShardKey | None:
    """The role or shard that a request needs; None: partitions, or nothing."""
    if operation.api == "transactions":
        return TRANSACTIONS
    if operation.on is Resource.INSTANCE or operation.api not in _OF_SHARDS:
        return None
    return kept_with(operation, path_arguments(operation, tuple(varying)))


def route_to(engine: Engine, kept: ShardKey) -> Here | At:
    """The route to a role or shard. Raises `Unavailable` while no instance holds it."""
    cluster = engine.cluster
    if cluster is None:
        return Here()
    if kept == TRANSACTIONS:
        if engine.coordinates:
            return Here()
        peer = cluster.coordinator()
    else:
        number = engine.topics.shards.of(*kept)
        if engine.shards.holds(number):
            return Here()
        peer = cluster.shard_owner(number)
    return At(peer.name, peer.address)


def refusal(engine: Engine, kept: ShardKey) -> TMSError:
    """The error of a forwarded request for a role or shard that this instance does not hold."""
    assert engine.cluster is not None, "a service that is alone holds everything"
    if kept == TRANSACTIONS:
        return engine.cluster.not_coordinator()
    return engine.cluster.not_shard_owner(engine.topics.shards.of(*kept))


def named(engine: Engine, error: NotOwner) -> At | None:
    """The route to the owner that an error names; None if it names none, or is gone."""
    owner = error.details.get("owner")
    cluster = engine.cluster
    if cluster is None or owner == cluster.id:
        return None
    for one in cluster.view.instances:
        if one.id == owner:
            return At(one.id, one.address)
    return None
