"""Kafka's clients at several brokers: a connection to each, and requests sent where clients send
them."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from tests.cluster_kit import Instances, instances
from tests.kafka_kit import Broker, KafkaConnection
from tests.waiting import until
from tms.compat.kafka import codec
from tms.compat.kafka.settings import KafkaSection
from tms.engine.engine import Engine
from tms.model.topic import TopicName
from tms.runtime.clock import Clock
from tms.server.service import AccessLimits

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
_LISTS = {"ListGroups", "ListTransactions"}
_PARTS = ("partition_data", "partitions", "partition_indexes", "partition_responses")
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

    def broker(self, id: str) -> Broker:
        """One of them, for connections of a principal."""
        return Broker(self.all.served[id], self.address(id))

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
        engine.confirm_owner()  # the topic may have been created anew
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
    """Sends each request to the broker that a client would send it to, on connections of its own;
    `ask` divides a request among the leaders of its partitions, and asks all brokers for lists."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = Brokers(brokers.all)
        self._asked: list[str] = []
        self.socket = self._brokers  # type: ignore[assignment]  # to be closed

    def send(self, name: str, version: int, **fields: Any) -> None:
        [target] = self._targets(name, fields)
        self._brokers.at(target).send(name, version, **fields)
        self._asked.append(target)

    def answer(self) -> Any:
        return self._brokers.at(self._asked.pop(0)).answer()

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        targets = self._targets(name, fields)
        if len(targets) == 1:
            return super().ask(name, version, **fields)
        answers = [
            self._brokers.at(id).ask(name, version, **self._part(fields, id))
            if name in _OF_PARTITIONS
            else self._brokers.at(id).ask(name, version, **fields)
            for id in targets
        ]
        return _merged(answers)

    def _targets(self, name: str, fields: dict[str, Any]) -> list[str]:
        brokers = self._brokers
        some = min(brokers.all.served)
        group = fields.get("group_id") or fields.get("groups_names") or fields.get("groups")
        if name in _OF_PARTITIONS:
            places = [*_places(fields.get("topic_data") or fields.get("topics") or [])]
            return sorted({self._leader(*place) for place in places}) or [some]
        if name in _OF_TRANSACTIONS and fields.get("transactional_id", "of others") is not None:
            return [brokers.coordinator("any", _TRANSACTION)]
        if name in _LISTS:
            return sorted(brokers.all.served)
        if group:
            one = group if isinstance(group, str) else group[0]
            return [brokers.coordinator(getattr(one, "group_id", one))]
        return [some]

    def _leader(self, topic: str | bytes, partition: int) -> str:
        """The leader of a partition of a topic, by its name or its id; any broker if there is
        none."""
        some = min(self._brokers.all.served)
        made = codec.class_of("MetadataRequest").MetadataRequestTopic
        wanted = made(name=topic) if isinstance(topic, str) else made(name=None, topic_id=topic)
        answer = self._brokers.at(some).ask(
            "Metadata", 12, topics=[wanted], allow_auto_topic_creation=False
        )
        leaders = {part.partition_index: part.leader_id for part in answer.topics[0].partitions}
        number = leaders.get(partition)
        return some if number is None else self._brokers.numbered(number)

    def _part(self, fields: dict[str, Any], id: str) -> dict[str, Any]:
        """The fields of a request for the partitions that an instance leads."""
        name = "topic_data" if "topic_data" in fields else "topics"
        topics = []
        for topic in fields[name]:
            [parts] = [one for one in _PARTS if getattr(topic, one, None)]
            own = [
                part
                for part, place in zip(getattr(topic, parts), _places([topic]), strict=True)
                if self._leader(*place) == id
            ]
            if own:
                topics.append(structs.replace(topic, **{parts: own}))
        return fields | {name: topics}


def _places(topics: list[Any]) -> Iterator[tuple[str | bytes, int]]:
    """The places that a request names, each by the name of a topic, or by its id."""
    for topic in topics:
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        [parts] = [getattr(topic, one) for one in _PARTS if getattr(topic, one, None)]
        for part in parts:
            fields = ("index", "partition", "partition_index")
            number = next((getattr(part, one) for one in fields if hasattr(part, one)), part)
            yield name or topic.topic_id, number


def _merged(answers: list[Any]) -> Any:
    """One answer with what all of them have: lists of groups, of ids, or of the partitions of one
    topic."""
    first = answers[0]
    for name in first.__struct_fields__:
        if isinstance(getattr(first, name), list):
            rows = [row for one in answers for row in getattr(one, name)]
            parts = [one for one in _PARTS if rows and hasattr(rows[0], one)]
            if parts:
                [part] = parts
                some = [two for one in rows for two in getattr(one, part)]
                rows = [structs.replace(rows[0], **{part: sorted(some, key=_number)})]
            setattr(
                first, name, [*dict.fromkeys(rows)] if rows and isinstance(rows[0], str) else rows
            )
    return first


def _number(part: Any) -> int:
    """The number of a partition in an answer."""
    fields = ("index", "partition_index", "partition")
    return int(next(getattr(part, one) for one in fields if hasattr(part, one)))


class ThreeBrokers(Broker):
    """Three brokers in place of one, for tests that do not ask which of them does what. TMS's own
    clients are at one of them."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers.all.served["a"], brokers.address("a"))
        self._brokers = brokers

    @property
    def servers(self) -> str:
        return self._brokers.servers

    @property
    def engine(self) -> Engine:
        """The engine that coordinates transactions."""
        return self._brokers.all.served[self._brokers.all.coordinator()].service.engine

    def connect(self, principal: str = "", token: str = "") -> KafkaConnection:
        return RoutedConnection(self._brokers)


@contextlib.contextmanager
def brokers(
    *ids: str, clock: Clock | None = None, access: AccessLimits | None = None, **given: Any
) -> Iterator[Brokers]:
    """A cluster of brokers; `clock` is that of their engines. With `access` they control that."""
    section = KafkaSection(port=0, rebalance_delay_ms=0, **given)
    with (
        instances(*ids, access=access, kafka=section, engine_clock=clock) as all,
        contextlib.closing(Brokers(all)) as found,
    ):
        all.coordinator()
        yield found
