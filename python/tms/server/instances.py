"""Operations that other instances request of this one, and those of operators on the cluster."""

from dataclasses import replace
from typing import Any

from tms.cluster.cluster import Cluster
from tms.engine.engine import Engine
from tms.errors import Conflict, Invalid, NotFound, NotOwner, TMSError
from tms.model.cluster import ClusterEvent, ClusterView, InstanceInfo, TopicOwners
from tms.model.delayed import DelayedSummary
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad
from tms.model.queue import QueueSummary
from tms.model.setting import ConfiguredSetting
from tms.model.snapshot import Fate
from tms.model.topic import TopicName
from tms.server.service import Service


class Peers:
    """Operations for other instances, besides those on partitions; see `PeersApi`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = engine = service.engine
        self.erase_own = engine.compaction.erase_own
        self.verify_share = engine.shards.verify_share
        self.prepare_share = engine.shards.prepare_share
        self.lags, self.sizes = engine.topics.lags.here, engine.topics.own.sizes
        self.list_queues_of = engine.queues.list_queues
        self.list_groups_of = engine.groups.list_groups
        self.forget_topic = engine.groups.forget_topic
        self.set_log_level = service.log_levels.set_here
        self.own_history = service.histories.service_here
        self.own_backlogs = service.histories.backlogs_here
        self.own_topic_history = service.histories.topic_here
        self.own_group_history = service.histories.group_here

    def fates(self, pointers: list[int]) -> dict[int, Fate]:
        """The outcomes of transactions that were begun here, for their messages."""
        return self._engine.transactions.manager.fates(pointers)

    def undecided_since_ms(self, foreign: bool) -> int:
        """A time before which nothing was published by a transaction that is not decided."""
        return self._engine.transactions.undecided_since_ms(foreign)

    def sync_commits(self) -> None:
        """Make every commit so far durable."""
        with self._engine.transactions.manager.alone(durable=True):
            pass

    def queues_of(
        self,
        namespace: str,
        shards: list[int],
        after: str | None,
        limit: int,
        search: str | None = None,
    ) -> list[QueueSummary]:
        """A page of the queues of a namespace in some shards. Raises `NotOwner`."""
        return self._engine.glance.queues(namespace, after, limit, search, None, shards)

    def groups_of(
        self,
        namespace: str,
        shards: list[int],
        after: str | None,
        limit: int,
        search: str | None = None,
    ) -> list[GroupSummary]:
        """A page of the groups of a namespace in some shards. Raises `NotOwner`."""
        return self._engine.glance.groups(namespace, after, limit, search, None, shards)

    def delayed_of(
        self, namespace: str, shards: list[int], after: str | None, limit: int
    ) -> list[DelayedSummary]:
        """A page of the topics of a namespace that have delayed messages. Raises `NotOwner`."""
        return self._engine.glance.delayed(namespace, after, limit, shards)

    def load(self) -> InstanceLoad:
        """The load of this instance: totals since its start, and its present state."""
        return own_load(self._service)

    def events(self) -> list[ClusterEvent]:
        """The events of this instance, oldest first."""
        cluster = self._engine.cluster
        return [] if cluster is None else cluster.events.newest()

    def erase_delayed(self, name: TopicName, key: bytes, partition: int | None = None) -> int:
        """Erase the messages of a key that are not due yet."""
        return self._engine.delayed.erase(name, key, partition)


class Instances:
    """The cluster of an engine; see `ClusterApi`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def view(self) -> ClusterView:
        """The instances and the coordinator. A service that is alone has none."""
        cluster = self._engine.cluster
        if cluster is None:
            return ClusterView(0, "", "alone", "")
        instances = tuple(
            InstanceInfo(one.id, one.address, one.version, one.capacity, one.draining)
            for one in cluster.view.instances
        )
        number, state = cluster.view.number, cluster.state.value
        return ClusterView(number, cluster.id, state, cluster.coordinator_id(), instances)

    def events(self) -> list[ClusterEvent]:
        """The events of all instances, by time. Instances that do not answer are named at the
        end."""
        cluster = self._cluster()
        events, silent = cluster.events.newest(), list[ClusterEvent]()
        for peer in cluster.others():
            try:
                events += peer.events()
            except TMSError as error:
                now_ms = self._engine.topics.clock.now_ms()
                silent.append(ClusterEvent(now_ms, peer.name, "does not answer", error.message))
        return sorted(events, key=lambda event: event.time_ms) + silent

    def owners(self, name: TopicName) -> TopicOwners:
        """The instances that should own the partitions of a topic."""
        cluster, topic = self._cluster(), self._engine.topics.registry.find(name)
        partitions = range(topic.partitions)
        owners = [cluster.owner(name, (topic.uid, one), len(partitions)).id for one in partitions]
        places = (cluster.place_of(name, (topic.uid, one), len(partitions)) for one in partitions)
        pinned = [
            one
            for one, ((uid, number), _) in enumerate(places)
            if cluster.is_pinned(f"{uid}/{number}")
        ]
        return TopicOwners(cluster.view.number, tuple(owners), tuple(pinned))

    def drain(self, id: str) -> None:
        """Let this instance own nothing, as long as there are others."""
        cluster = self._cluster()
        if id == cluster.id:
            cluster.drain()
            return
        if cluster.route_to(id) is not None:
            raise NotOwner(f"The instance {id} drains itself. Try again.", owner=id)
        raise NotFound(f"There is no instance {id}; see `tms cluster status`.")

    def move(self, name: TopicName, partition: int, to: str) -> None:
        """Let an instance own a partition, as long as it is there."""
        cluster = self._cluster()
        if all(one.id != to for one in cluster.view.instances):
            raise Invalid(f"There is no instance {to}; see `tms cluster status`.", field="to")
        cluster.pin(self._pin_key(name, partition), to)

    def unpin(self, name: TopicName, partition: int) -> None:
        """Let placement choose the owner of a partition again."""
        self._cluster().pin(self._pin_key(name, partition), None)

    def _pin_key(self, name: TopicName, partition: int) -> str:
        topic, cluster = self._engine.topics.registry.find(name), self._cluster()
        self._engine.topics.partitions.peer_of(name, topic, partition)  # is there
        (uid, number), _ = cluster.place_of(name, (topic.uid, partition), topic.partitions)
        return f"{uid}/{number}"

    def _cluster(self) -> Cluster:
        cluster = self._engine.cluster
        if cluster is None:
            raise Conflict("This service is alone: it owns everything. See docs/cluster.md.")
        return cluster


class Configuration:
    """The configuration of a service; see `ConfigurationApi`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def settings(self) -> list[ConfiguredSetting]:
        """The settings with which it was started."""
        return self._service.settings


def own_load(service: Service) -> InstanceLoad:
    """The load of a service: totals since its start, and its present state."""
    [load], cluster = service.engine.glance.instances(), service.engine.cluster
    if cluster is not None:
        addresses = {one.id: one.address for one in cluster.view.instances}
        load = replace(load, instance=cluster.id, address=addresses.get(cluster.id, ""))
    return replace(
        load,
        ready=not service.reasons(),
        bytes_out=service.metrics.bytes_out,
        connections=len(service.watchdog.connections),
    )


def works_of(service: Service) -> dict[str, Any]:
    """The objects that do the operations, by the names of their APIs."""
    return {
        "partitions": service.engine.topics.own,
        "peers": Peers(service),
        "cluster": Instances(service.engine),
        "log": service.log_levels,
        "configuration": Configuration(service),
        "history": service.histories,
    }
