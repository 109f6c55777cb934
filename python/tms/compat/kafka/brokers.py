"""The brokers that Kafka's clients see: this process alone, or the instances of its cluster.

* The id of a broker is the number of its instance; that of a process that is alone is `NODE`.
* The owner of a partition leads it, the holder of its shard coordinates a group, and the instance
  that coordinates transactions all transactional ids.
* An instance that does not speak Kafka's protocol is no broker: what it owns has no leader.
"""

from typing import NamedTuple

from tms.cluster.membership import InstanceRecord
from tms.engine.engine import Engine
from tms.errors import NotOwner, Unavailable
from tms.model.topic import TopicName
from tms.topics.registry import TopicRecord

KAFKA = "kafka"  # the name of the front end, and of an instance's endpoint
NODE = 0


class KnownBroker(NamedTuple):
    """A broker, with the address that clients are told."""

    id: int
    host: str
    port: int

    @classmethod
    def at(cls, id: int, endpoint: str) -> "KnownBroker":
        """A broker at HOST:PORT."""
        host, _, port = endpoint.rpartition(":")
        return cls(id, host.strip("[]"), int(port))


class Brokers:
    """The brokers of an engine's store. Thread-safe. `endpoint`: HOST:PORT of this one."""

    def __init__(self, engine: Engine, endpoint: str) -> None:
        self._engine = engine
        self._cluster = engine.cluster
        number = NODE if self._cluster is None else self._cluster.number
        self.own = KnownBroker.at(number, endpoint)

    @property
    def are_several(self) -> bool:
        """True if other instances may own what clients ask for."""
        return self._cluster is not None

    def all(self) -> list[KnownBroker]:
        """The brokers that are there, by id."""
        if self._cluster is None:
            return [self.own]
        found = (self._of(one) for one in self._cluster.view.instances)
        return sorted(one for one in found if one is not None)

    @property
    def controller(self) -> int:
        """The id of the broker that clients send changes of topics to; every broker does them."""
        return next((one.id for one in self.all()), self.own.id)

    def leader(self, name: TopicName, topic: TopicRecord, partition: int) -> KnownBroker | None:
        """The broker that leads a partition; None while there is none."""
        if self._cluster is None:
            return self.own
        try:
            owner = self._cluster.owner(name, (topic.uid, partition), topic.partitions)
        except Unavailable:
            return None
        return self._of(owner)

    def require_leader(self, name: TopicName, topic: TopicRecord, partition: int) -> None:
        """Raise `NotOwner` or `Unavailable` unless this broker leads a partition."""
        peer = self._engine.topics.partitions.peer_of(name, topic, partition)
        if peer is not None:
            raise NotOwner(
                f"Partition {partition} of {name} is owned by {peer.name}. Try again.",
                owner=peer.name,
            )

    def leads(self, name: TopicName, topic: TopicRecord, partition: int) -> bool:
        """True if this broker leads a partition; False while its leader is unknown."""
        return self._engine.topics.partitions.owns(name, topic, partition)

    def coordinator_of_group(self, group: str) -> KnownBroker:
        """The broker that coordinates a group. Raises `Unavailable` while there is none."""
        if self._cluster is None:
            return self.own
        number = self._engine.topics.shards.of_group(group)
        return self._speaking(self._cluster.role_owner(1 + number))

    def coordinator_of_transactions(self) -> KnownBroker:
        """The broker that keeps all transactional ids. Raises `Unavailable` while there is none."""
        return self.own if self._cluster is None else self._speaking(self._cluster.role_owner())

    def _of(self, record: InstanceRecord) -> KnownBroker | None:
        """The broker that an instance is; None if it does not speak Kafka's protocol."""
        endpoint = record.endpoint(KAFKA)
        return None if endpoint is None else KnownBroker.at(record.number, endpoint)

    def _speaking(self, record: InstanceRecord) -> KnownBroker:
        broker = self._of(record)
        if broker is None:
            raise Unavailable(
                f"The instance {record.id} keeps this, and does not speak Kafka's protocol. Start "
                "it with --kafka-port, or try again when another instance keeps this."
            )
        return broker
