"""Kafka's clients at several brokers: a connection to each, and requests sent where clients send
them."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from tests.cluster_kit import Instances, instances
from tests.kafka_kit import KafkaConnection
from tests.waiting import until
from tms.compat.kafka.settings import KafkaSection
from tms.model.topic import TopicName

_OF_TRANSACTIONS = {
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "DescribeTransactions",
}
_OF_PARTITIONS = {
    "Produce",
    "Fetch",
    "ListOffsets",
    "OffsetForLeaderEpoch",
    "DeleteRecords",
    "DescribeProducers",
}
_GROUP, _TRANSACTION = 0, 1
COORDINATOR_MISSING = 15


class Brokers:
    """The brokers of a cluster, by the names of its instances."""

    def __init__(self, all: Instances) -> None:
        self.all = all
        self._connections: dict[str, KafkaConnection] = {}

    def address(self, id: str) -> tuple[str, int]:
        host, _, port = self.all.member[id].record.endpoints["kafka"].rpartition(":")
        return host, int(port)

    @property
    def servers(self) -> str:
        """The addresses as clients take them."""
        return ",".join("{}:{}".format(*self.address(id)) for id in sorted(self.all.served))

    def at(self, id: str) -> KafkaConnection:
        """A connection to one of them."""
        if id not in self._connections:
            self._connections[id] = KafkaConnection(socket.create_connection(self.address(id), 30))
        return self._connections[id]

    def numbered(self, number: int) -> str:
        """The instance that clients see as the broker of this number."""
        [id] = [id for id, one in self.all.cluster.items() if one.number == number]
        return id

    def leader(self, topic: str, partition: int) -> str:
        """The instance that owns a partition."""
        engine = self.all.served[min(self.all.served)].service.engine
        name = TopicName.of("default", topic)
        record = engine.topics.registry.find(name)
        return engine.cluster.owner(name, (record.uid, partition), record.partitions).id

    def coordinator(self, key: str, kind: int = _GROUP) -> str:
        """The instance that coordinates a group, or all transactional ids."""
        found: list[Any] = []

        def is_there() -> bool:
            asked = self.at(min(self.all.served))
            found.append(asked.ask("FindCoordinator", 3, key=key, key_type=kind))
            return found[-1].error_code != COORDINATOR_MISSING

        until(is_there, "there is a coordinator")
        assert not found[-1].error_code, found[-1].error_message
        return self.numbered(found[-1].node_id)

    def others(self, id: str) -> list[str]:
        """All but one."""
        return sorted(set(self.all.served) - {id})

    def close(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()


class RoutedConnection(KafkaConnection):
    """Sends each request to the broker that a client would send it to. The partitions of a request
    have one leader."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        return self._brokers.at(self._target(name, fields)).ask(name, version, **fields)

    def _target(self, name: str, fields: dict[str, Any]) -> str:
        brokers = self._brokers
        group = fields.get("group_id") or fields.get("groups_names") or fields.get("groups")
        if name in _OF_PARTITIONS:
            places = [*_places(fields.get("topic_data") or fields.get("topics") or [])]
            [leader] = {brokers.leader(*place) for place in places} or {min(brokers.all.served)}
            return leader
        if name in _OF_TRANSACTIONS and fields.get("transactional_id", "of others") is not None:
            return brokers.coordinator("any", _TRANSACTION)
        if group and name != "ListGroups":
            one = group if isinstance(group, str) else group[0]
            return brokers.coordinator(getattr(one, "group_id", one))
        return min(brokers.all.served)


def _places(topics: list[Any]) -> Iterator[tuple[str, int]]:
    for topic in topics:
        name = getattr(topic, "name", None) or topic.topic
        parts = getattr(topic, "partition_data", None) or getattr(topic, "partitions", None)
        for part in parts or topic.partition_indexes:
            for field in ("index", "partition", "partition_index"):
                part = getattr(part, field, part)
            yield name, part


@contextlib.contextmanager
def brokers(*ids: str, **given: Any) -> Iterator[Brokers]:
    """A cluster of brokers."""
    section = KafkaSection(port=0, rebalance_delay_ms=0, **given)
    with instances(*ids, kafka=section) as all, contextlib.closing(Brokers(all)) as found:
        all.coordinator()
        yield found
