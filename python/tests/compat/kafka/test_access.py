"""Access control of Kafka's requests: each kind has rows here that say which grant it takes. A kind
without a row fails."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

from tests.access_kit import People, until_polling
from tests.kafka_kit import (
    ENDED,
    Broker,
    KafkaConnection,
    batch,
    create_topic,
    fetched,
    fetching,
    kafka_serving,
    metadata,
    producing,
)
from tests.waiting import PATIENCE_S
from tms.compat.kafka import codec, requests
from tms.compat.kafka.errors import ErrorCode
from tms.errors import Forbidden
from tms.model.access import VERBS, Access
from tms.server.service import AccessLimits
from tms.store.leveldb import LevelDBStore
from tms.store.memory import MemoryStore

TOPIC, GROUP, CLUSTER, ID = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
OPEN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}  # before there is a principal
KNOWN = {  # for every principal: nothing depends on what it may
    "DescribeAcls",
    "DescribeCluster",
    "ListPartitionReassignments",
}
LISTS = {"DescribeLogDirs", "ListGroups", "ListTransactions"}  # of what the principal may see
OF_ID = {"EndTxn"}  # for the principal of the transactional id; others learn nothing of it


class Row(NamedTuple):
    """A request, the grant that it takes, the code without it, grants on something else, and those
    that the principal always has, so that the first one decides."""

    name: str
    version: int
    fields: dict[str, Any]
    verb: Access
    on: str
    code: ErrorCode
    elsewhere: tuple[str, ...] = ("topic:other", "group:orders/desks")
    beside: tuple[str, ...] = ()


def made(path: str, **fields: Any) -> Any:
    """A part of a message, by its path."""
    name, *rest = path.split(".")
    found = codec.class_of(name)
    for one in rest:
        found = getattr(found, one)
    return found(**fields)


def topics(path: str, **fields: Any) -> list[Any]:
    return [made(path, **fields)]


OTHER_GROUP = ("namespace:other", "group:orders/others", "queue:orders/desks", "topic:other:orders")
MEMBER = {"group_id": "desks", "member_id": "m", "generation_id": 1}
COMMITTED = "OffsetCommitRequest.OffsetCommitRequestTopic"
OF_GROUP = {"verb": Access.CONSUME, "on": "topic:some", "code": GROUP, "elsewhere": OTHER_GROUP}
IN_TOPIC = {
    "on": "group:orders/desks",
    "code": TOPIC,
    "elsewhere": ("topic:other",),
    "beside": ("all topic:some",),
}


def rows() -> Iterator[Row]:
    yield Row(
        "Metadata",
        12,
        {"topics": topics("MetadataRequest.MetadataRequestTopic", name="orders")},
        Access.OBSERVE,
        "topic:orders",
        TOPIC,
        ("topic:other",),
    )
    yield Row(
        "Metadata",
        12,
        {"topics": topics("MetadataRequest.MetadataRequestTopic", name="new")},
        Access.MANAGE,
        "topic:new",
        TOPIC,
        beside=("observe topic:new",),
    )
    yield Row(
        "CreateTopics",
        7,
        {
            "topics": topics(
                "CreateTopicsRequest.CreatableTopic",
                name="orders",
                num_partitions=1,
                replication_factor=1,
            )
        },
        Access.MANAGE,
        "topic:orders",
        TOPIC,
    )
    for version, name in ((5, {"topic_names": ["absent"]}), (6, _by_name("absent"))):
        yield Row("DeleteTopics", version, name, Access.MANAGE, "topic:absent", TOPIC)
    for kind, on, code in ((2, "topic:orders", TOPIC), (4, "cluster", CLUSTER)):
        name = "orders" if kind == 2 else "0"
        resource = "DescribeConfigsRequest.DescribeConfigsResource"
        fields = topics(resource, resource_type=kind, resource_name=name, configuration_keys=None)
        yield Row(
            "DescribeConfigs", 4, {"resources": fields}, Access.OBSERVE, on, code, ("topic:other",)
        )
    for request in ("AlterConfigs", "IncrementalAlterConfigs"):
        resource = f"{request}Request.AlterConfigsResource"
        fields = topics(resource, resource_type=2, resource_name="orders")
        yield Row(request, 1, {"resources": fields}, Access.MANAGE, "topic:orders", TOPIC)
    yield from _of_messages()
    yield from _of_partitions()
    yield from _of_groups()
    yield from _of_transactions()


def _by_name(name: str) -> dict[str, Any]:
    return {"topics": topics("DeleteTopicsRequest.DeleteTopicState", name=name)}


def _of_messages() -> Iterator[Row]:
    sent = producing("orders", {0: batch([(b"k", b"v")])})
    yield Row("Produce", 9, sent, Access.PUBLISH, "topic:orders", TOPIC)
    yield Row("Fetch", 12, fetching("orders"), Access.CONSUME, "topic:orders", TOPIC)
    parts = topics("ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition", timestamp=-1)
    asked = topics("ListOffsetsRequest.ListOffsetsTopic", name="orders", partitions=parts)
    on = "topic:orders"
    yield Row("ListOffsets", 7, {"topics": asked}, Access.OBSERVE, on, TOPIC, ("topic:other",))
    elsewhere = ("topic:other:orders", "group:orders/desks", "transactions")
    yield Row("InitProducerId", 4, {}, Access.PUBLISH, "topic:some", CLUSTER, elsewhere)


def _of_partitions() -> Iterator[Row]:
    wanted = topics("CreatePartitionsRequest.CreatePartitionsTopic", name="orders", count=1)
    grown = {"topics": wanted}
    yield Row("CreatePartitions", 3, grown, Access.MANAGE, "topic:orders", TOPIC)
    name = "DeleteRecordsRequest.DeleteRecordsTopic"
    parts = topics(f"{name}.DeleteRecordsPartition", offset=0)
    deleted = {"topics": topics(name, name="orders", partitions=parts)}
    yield Row("DeleteRecords", 2, deleted, Access.MANAGE, "topic:orders", TOPIC)
    name = "DescribeProducersRequest.TopicRequest"
    described = {"topics": topics(name, name="orders", partition_indexes=[0])}
    name = "OffsetForLeaderEpochRequest.OffsetForLeaderTopic"
    parts = topics(f"{name}.OffsetForLeaderPartition")
    asked = {"topics": topics(name, topic="orders", partitions=parts)}
    for request, version, fields in (
        ("DescribeProducers", 0, described),
        ("OffsetForLeaderEpoch", 4, asked),
    ):
        on, elsewhere = "topic:orders", ("topic:other",)
        yield Row(request, version, fields, Access.OBSERVE, on, TOPIC, elsewhere)


def _of_groups() -> Iterator[Row]:
    desks = {"key": "desks", "key_type": 0}
    observes: dict[str, Any] = {**OF_GROUP, "verb": Access.OBSERVE}
    yield Row("FindCoordinator", 3, desks, **observes)
    yield Row("FindCoordinator", 4, {"coordinator_keys": ["desks"], "key_type": 0}, **observes)
    join = {"group_id": "desks", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    yield Row("JoinGroup", 4, {**join, "protocol_type": "consumer"}, **OF_GROUP)
    yield Row("SyncGroup", 4, MEMBER, **OF_GROUP)
    yield Row("Heartbeat", 4, MEMBER, **OF_GROUP)
    yield Row("LeaveGroup", 2, {"group_id": "desks", "member_id": "m"}, **OF_GROUP)
    yield Row("DescribeGroups", 5, {"groups": ["desks"]}, **observes)
    parts = topics(f"{COMMITTED}.OffsetCommitRequestPartition", partition_index=0)
    at = {"group_id": "desks", "topics": topics(COMMITTED, name="orders", partitions=parts)}
    yield Row("OffsetCommit", 8, at, **OF_GROUP)
    yield Row("OffsetCommit", 8, at, Access.CONSUME, **IN_TOPIC)
    asked = topics(
        "OffsetFetchRequest.OffsetFetchRequestTopic", name="orders", partition_indexes=[0]
    )
    for version in (1, 7):
        fields = {"group_id": "desks", "topics": asked}
        yield Row("OffsetFetch", version, fields, **observes)
        yield Row("OffsetFetch", version, fields, Access.OBSERVE, **IN_TOPIC)
    forgotten = topics(
        "OffsetDeleteRequest.OffsetDeleteRequestTopic",
        name="orders",
        partitions=topics(
            "OffsetDeleteRequest.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition"
        ),
    )
    fields = {"group_id": "absent", "topics": forgotten}
    yield Row("OffsetDelete", 0, fields, **{**OF_GROUP, "verb": Access.MANAGE})
    absent = {**IN_TOPIC, "on": "group:orders/absent"}
    yield Row("OffsetDelete", 0, fields, Access.MANAGE, **absent)
    manages = {**OF_GROUP, "verb": Access.MANAGE}
    yield Row("DeleteGroups", 2, {"groups_names": ["absent"]}, **manages)
    seen = (*IN_TOPIC["beside"], "observe group:orders/doomed")
    doomed = {**IN_TOPIC, "on": "group:orders/doomed", "code": GROUP, "beside": seen}
    yield Row("DeleteGroups", 2, {"groups_names": ["doomed"]}, Access.MANAGE, **doomed)


def _of_transactions() -> Iterator[Row]:
    named = {"transactional_id": "free", "producer_id": 1, "producer_epoch": 0}
    group = {**named, "group_id": "desks"}
    yield Row("AddOffsetsToTxn", 3, group, **OF_GROUP)
    parts = "TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic"
    moved = topics(
        parts, name="orders", partitions=topics(f"{parts}.TxnOffsetCommitRequestPartition")
    )
    fields = {**group, "topics": moved}
    yield Row("TxnOffsetCommit", 3, fields, **OF_GROUP)
    yield Row("TxnOffsetCommit", 3, fields, Access.CONSUME, **IN_TOPIC)
    wanted = topics(
        "AddPartitionsToTxnRequest.AddPartitionsToTxnTopic", name="orders", partitions=[0]
    )
    fields = {
        "v3_and_below_transactional_id": "free",
        "v3_and_below_producer_id": 1,
        "v3_and_below_topics": wanted,
    }
    yield Row("AddPartitionsToTxn", 3, fields, Access.PUBLISH, "topic:orders", TOPIC)
    begun = {"transactional_id": "owned", "transaction_timeout_ms": 9_000}
    seen = {"transactional_ids": ["owned"]}
    operates: dict[str, Any] = {
        "verb": Access.OPERATE,
        "on": "transactions",
        "elsewhere": ("cluster", "service"),
        "beside": ("all topic:orders",),
    }
    yield Row("InitProducerId", 4, begun, code=ID, **operates)
    not_found = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    yield Row("DescribeTransactions", 0, seen, code=not_found, **operates)


def _of_id(id: str, producer: tuple[int, int]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Requests for a transactional id by a producer. The id does not become the caller's own."""
    named = dict(zip(("producer_id", "producer_epoch"), producer, strict=True))
    named["transactional_id"] = id
    yield "EndTxn", 3, named
    yield "AddOffsetsToTxn", 3, {**named, "group_id": "desks"}
    parts = "TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic"
    moved = topics(
        parts, name="orders", partitions=topics(f"{parts}.TxnOffsetCommitRequestPartition")
    )
    yield "TxnOffsetCommit", 3, {**named, "group_id": "desks", "topics": moved}
    wanted = topics(
        "AddPartitionsToTxnRequest.AddPartitionsToTxnTopic", name="orders", partitions=[0]
    )
    fields = {
        "v3_and_below_transactional_id": id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": wanted,
    }
    yield "AddPartitionsToTxn", 3, fields
    records = batch([(b"k", b"v")], (*producer, 0), transactional=True)
    yield "Produce", 9, producing("orders", {0: records}, transactional_id=id)
    yield "InitProducerId", 4, {"transactional_id": id, "transaction_timeout_ms": 0}
    yield "DescribeTransactions", 0, {"transactional_ids": [id]}


ROWS = list(rows())


class Known(NamedTuple):
    broker: Broker
    people: People

    def principal(self, name: str, *grants: str) -> KafkaConnection:
        name = re.sub("[^a-z0-9]+", "-", name.lower())
        return self.broker.connect(name, self.people.token(name, *grants))


@pytest.fixture(scope="module")
def known(prompt_refusals: None) -> Iterator[Known]:
    with kafka_serving(MemoryStore(shared=True), access=AccessLimits()) as broker:
        found = Known(broker, People(broker.served))
        with found.principal("owner", "all namespace:default") as owner:
            create_topic(owner, "orders", 1)
            owner.ask("InitProducerId", 4, transactional_id="owned", transaction_timeout_ms=9_000)
            for group in ("desks", "doomed"):
                assert codes(owner.ask("OffsetCommit", 8, **_commit(group))) == {0}
        yield found


def _commit(group: str) -> dict[str, Any]:
    parts = topics(f"{COMMITTED}.OffsetCommitRequestPartition", partition_index=0)
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": topics(COMMITTED, name="orders", partitions=parts),
    }


def codes(message: Any) -> set[int]:
    """All error codes in a message."""
    found = set()
    for name in getattr(message, "__struct_fields__", ()):
        value = getattr(message, name)
        if name.endswith("error_code"):
            found.add(value)
        for part in value if isinstance(value, list) else ():
            found |= codes(part)
    return found


def test_each_kind_of_request_has_a_row() -> None:
    have = {row.name for row in ROWS} | OPEN | KNOWN | LISTS | OF_ID
    assert have == {one.name for one in requests.load().values()}


def test_requests_get_names_by_a_verb_only() -> None:
    """Methods that take a verb are the only way from a request to a name of the engine, and from
    the engine to names that a request does not have."""
    ways = r"broker\.(?:topic|with_id|group)\(|TopicName\.of\(|ClassicKey\(|list_topics\("
    allowed = {
        "broker.py": 2,  # names that those methods make
        "requests/__init__.py": 4,  # those methods
        "requests/describe_log_dirs.py": 1,  # lists what the principal may see, as does
        "requests/metadata.py": 1,
        "requests/offset_fetch.py": 2,  # after the decision
    }
    folder = Path(requests.__file__).parent.parent
    for module in folder.rglob("*.py"):
        found = re.findall(ways, module.read_text())
        name = module.relative_to(folder).as_posix()
        assert len(found) == allowed.get(name, 0), f"{name}: {found}"


@pytest.mark.parametrize("row", ROWS, ids=[f"{n}-{row.name}" for n, row in enumerate(ROWS)])
def test_a_request_takes_a_grant_of_its_verb_on_what_it_concerns(known: Known, row: Row) -> None:
    number = ROWS.index(row)
    others = [verb for verb in VERBS if verb not in (row.verb, Access.ALL)]
    denied: list[tuple[str, ...]] = [(), tuple(f"all {one}" for one in row.elsewhere)]
    if row.verb is not Access.OBSERVE:  # which every verb includes
        denied.append(tuple(f"{verb} {row.on}" for verb in others))
    for index, grants in enumerate(denied):
        with known.principal(f"denied-{number}-{index}", *row.beside, *grants) as connection:
            answer = connection.ask(row.name, row.version, **row.fields)
            assert row.code in codes(answer), grants
    for verb in (row.verb, Access.ALL):
        grant = f"{verb} {row.on}"
        with known.principal(f"granted-{number}-{verb}", *row.beside, grant) as connection:
            answer = connection.ask(row.name, row.version, **row.fields)
            assert row.code not in codes(answer)


def test_a_transactional_id_belongs_to_the_principal_that_began_with_it(known: Known) -> None:
    begin = {"transactional_id": "mine", "transaction_timeout_ms": 9_000}
    with (
        known.principal("first", "publish topic:orders") as first,
        known.principal("second", "publish topic:orders") as second,
        known.principal("operator", "publish topic:orders", "operate transactions") as operator,
    ):
        assert codes(first.ask("InitProducerId", 4, **begin)) == {0}
        assert codes(second.ask("InitProducerId", 4, **begin)) == {ID}
        assert _ids(first) == ["mine"] and not _ids(second) and "mine" in _ids(operator)
        assert codes(operator.ask("InitProducerId", 4, **begin)) == {0}
        assert codes(first.ask("InitProducerId", 4, **begin)) == {ID}  # it is the operator's now
        assert codes(operator.ask("EndTxn", 3, transactional_id="mine")) != {ID}


def test_an_id_of_another_principal_looks_like_one_that_does_not_exist(known: Known) -> None:
    """Only a request that would make the id the caller's own tells that it is taken."""
    with (
        known.principal("begins-an-id", "publish topic:orders") as owner,
        known.principal("looks", "all topic:orders") as looks,
        known.principal("looks-too", "all topic:orders", "operate transactions") as operator,
    ):
        fields = {"transactional_id": "taken", "transaction_timeout_ms": 9_000}
        begun = owner.ask("InitProducerId", 4, **fields)
        producer = begun.producer_id, begun.producer_epoch
        taken, absent = _of_id("taken", producer), _of_id("absent", producer)
        differ = []
        for (name, version, asked), (_, _, other) in zip(taken, absent, strict=True):
            found = codes(looks.ask(name, version, **asked))
            assert found == codes(looks.ask(name, version, **other)), name
            assert found & {*ErrorCode} - {ErrorCode.NONE}, name
            if codes(operator.ask(name, version, **asked)) != found:
                differ.append(name)
        others = {"EndTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "Produce"}
        assert {*differ} == {*others, "DescribeTransactions"}
    with known.principal("may-nothing") as nobody:
        for id in ("taken", "absent"):
            fields = {"transactional_id": id, "transaction_timeout_ms": 9_000}
            assert codes(nobody.ask("InitProducerId", 4, **fields)) == {CLUSTER}


def test_a_group_that_one_may_not_see_is_not_found_to_delete(known: Known) -> None:
    def delete(connection: KafkaConnection, group: str) -> set[int]:
        return codes(connection.ask("DeleteGroups", 2, groups_names=[group]))

    with known.principal("deletes", "all topic:some") as connection:
        assert delete(connection, "doomed") == delete(connection, "absent")
        assert delete(connection, "absent") == {ErrorCode.GROUP_ID_NOT_FOUND}
    with known.principal("sees", "all topic:some", "observe topic:orders") as connection:
        assert delete(connection, "desks") == {GROUP}
        join = {"group_id": "desks", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    with known.principal("joins", "all topic:some") as connection:
        protocol = made("JoinGroupRequest.JoinGroupRequestProtocol", name="range", metadata=b"")
        fields = {**join, "protocol_type": "consumer", "protocols": [protocol]}
        for group in ("desks", "not-yet"):
            joined = connection.ask("JoinGroup", 3, **{**fields, "group_id": group})
            assert delete(connection, group) == {ErrorCode.NON_EMPTY_GROUP}
            connection.ask("LeaveGroup", 2, group_id=group, member_id=joined.member_id)


def test_a_transaction_shows_topics_that_a_principal_may_see(known: Known) -> None:
    wanted = topics(
        "AddPartitionsToTxnRequest.AddPartitionsToTxnTopic", name="orders", partitions=[0]
    )
    with known.principal("shown", "publish topic:orders") as owner:
        begun = owner.ask(
            "InitProducerId", 4, transactional_id="shown", transaction_timeout_ms=9_000
        )
        added = owner.ask(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id="shown",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=wanted,
        )
        assert codes(added) == {0}
        assert _topics_of(owner) == ["orders"]
    with known.principal("sees-ids", "operate transactions") as operator:
        assert _topics_of(operator) == []


def _topics_of(connection: KafkaConnection) -> list[str]:
    fields = {"transactional_ids": ["shown"]}
    [state] = connection.ask("DescribeTransactions", 0, **fields).transaction_states
    assert not state.error_code
    return [one.topic for one in state.topics]


def test_a_refused_part_of_a_request_does_not_end_it_with_the_next_change(known: Known) -> None:
    guard = known.broker.served.service.guard
    assert guard is not None
    decisions = guard.decisions
    request = MagicMock(principal="partly", instance="", operation="x", peer_address="here")
    known.people.token("partly", "consume topic:orders")
    decisions.begin(request, lambda: True)
    decisions.require(request, Access.CONSUME, "topic:default:orders")
    with pytest.raises(Forbidden):
        decisions.require(request, Access.CONSUME, "topic:default:other")
    decisions.changed()
    request.abort.assert_not_called()
    known.people.access.remove_grant("partly", "consume", "topic:orders")
    decisions.changed()
    request.abort.assert_called()  # by both: the guard is told of the change, too
    decisions.leave(request)


def _ids(connection: KafkaConnection) -> list[str]:
    return [
        one.transactional_id for one in connection.ask("ListTransactions", 0).transaction_states
    ]


def test_lists_have_what_a_principal_may_see(known: Known) -> None:
    with known.principal("sees-orders", "observe topic:orders") as connection:
        assert [one.name for one in connection.ask("Metadata", 12, topics=None).topics] == [
            "orders"
        ]
        groups = [one.group_id for one in connection.ask("ListGroups", 4).groups]
        assert "desks" in groups
        everything = {"group_id": "desks", "topics": None}
        [topic] = connection.ask("OffsetFetch", 7, **everything).topics
        assert topic.name == "orders"
    with known.principal("sees-others", "observe topic:others") as connection:
        assert not connection.ask("Metadata", 12, topics=None).topics
        assert "desks" not in [one.group_id for one in connection.ask("ListGroups", 4).groups]
        assert not connection.ask("OffsetFetch", 7, **everything).topics


def test_a_group_is_there_for_those_who_may_see_positions_of_it(known: Known) -> None:
    with known.principal("commits", "consume topic:orders") as connection:
        assert codes(connection.ask("OffsetCommit", 8, **_commit("seen"))) == {0}
    for grant, state in (("observe topic:orders", "Empty"), ("observe topic:others", "Dead")):
        with known.principal(f"sees-a-group-{state}", grant) as connection:
            [group] = connection.ask("DescribeGroups", 5, groups=["seen"]).groups
            assert (group.error_code, group.group_state) == (0, state)


def test_sizes_are_those_of_topics_that_a_principal_may_see(known: Known) -> None:
    named = topics("DescribeLogDirsRequest.DescribableLogDirTopic", topic="orders", partitions=[0])
    for grant, seen in (("observe topic:orders", ["orders"]), ("observe topic:others", [])):
        with known.principal(f"sizes-{len(seen)}", grant) as connection:
            for wanted in (None, named):
                [found] = connection.ask("DescribeLogDirs", 4, topics=wanted).results
                assert [one.name for one in found.topics] == seen
                assert found.total_bytes == -1  # which takes `observe cluster`


def test_a_topic_that_is_not_there_looks_like_one_that_one_may_not_see(known: Known) -> None:
    wanted = [made("MetadataRequest.MetadataRequestTopic", name=name) for name in ("orders", "no")]
    with known.principal("blind") as connection:
        there, absent = connection.ask("Metadata", 12, topics=wanted).topics
        assert there.error_code == absent.error_code == TOPIC
        assert there.topic_id == absent.topic_id == codec.NO_ID
        assert not there.partitions


def test_an_id_does_not_tell_the_name_of_its_topic(known: Known) -> None:
    with known.principal("tells-ids", "observe topic:orders") as connection:
        there = metadata(connection, "orders")
        named = topics("DeleteTopicsRequest.DeleteTopicState", name=None, topic_id=there.topic_id)
        [refused] = connection.ask("DeleteTopics", 6, topics=named).responses
        assert refused.error_code == TOPIC and "orders" in refused.error_message
    with known.principal("has-an-id") as connection:
        [refused] = connection.ask("DeleteTopics", 6, topics=named).responses
        assert refused.error_code == TOPIC and refused.name is None
        assert "orders" not in refused.error_message


def test_unknown_ids_are_looked_for_together_and_not_by_the_event_loop(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = known.broker.served.service.engine.topics.registry
    looked: list[str] = []
    every = registry.all

    def all() -> Any:
        looked.append(threading.current_thread().name)
        return every()

    monkeypatch.setattr(registry, "all", all)
    with known.principal("asks-for-ids", "observe topic:orders") as connection:
        there = metadata(connection, "orders")
        parts = topics("FetchRequest.FetchTopic.FetchPartition", partition=0)
        unknown = [there.topic_id[:8] + number.to_bytes(8, "big") for number in range(10_000)]
        fields = [made("FetchRequest.FetchTopic", topic_id=id, partitions=parts) for id in unknown]
        began = time.monotonic()
        assert codes(connection.ask("Fetch", 13, topics=fields)) == {0, ErrorCode.UNKNOWN_TOPIC_ID}
        assert 1 <= len(looked) <= 2 + time.monotonic() - began, "one a second"
        assert known.broker.served.thread.name not in looked


def test_a_topic_is_found_by_its_id_also_by_a_broker_that_has_not_told_it(fast_path: Path) -> None:
    parts = topics("FetchRequest.FetchTopic.FetchPartition", partition=0)
    ids: list[bytes] = []
    for life in (1, 2):
        store = LevelDBStore(fast_path / "data", create=life == 1)
        with kafka_serving(store) as broker, broker.connect() as kafka:
            for id in ids:
                fields = topics("FetchRequest.FetchTopic", topic_id=id, partitions=parts)
                assert codes(kafka.ask("Fetch", 13, topics=fields)) == {0}
            for number in range(3):  # also after a look that did not find it
                created = made(
                    "CreateTopicsRequest.CreatableTopic",
                    name=f"topic-{life}-{number}",
                    num_partitions=1,
                    replication_factor=1,
                )
                [topic] = kafka.ask("CreateTopics", 7, topics=[created]).topics
                ids.append(topic.topic_id)
                fields = topics("FetchRequest.FetchTopic", topic_id=ids[-1], partitions=parts)
                assert codes(kafka.ask("Fetch", 13, topics=fields)) == {0}
                gone = topics("FetchRequest.FetchTopic", topic_id=ids[0][:8] + b"\xff" * 8)
                gone[0].partitions = parts
                assert codes(kafka.ask("Fetch", 13, topics=gone)) > {0}


def test_a_fetch_is_decided_for_each_partition(known: Known) -> None:
    known.people.access.add_grant("*", "observe", "topic:nothing")  # for everybody: no harm
    name = "FetchRequest.FetchTopic"
    wanted = [
        made(name, topic=topic, partitions=topics(f"{name}.FetchPartition", partition_max_bytes=9))
        for topic in ("orders", "secret")
    ]
    with known.principal("half", "consume topic:orders") as connection:
        answer = connection.ask("Fetch", 12, topics=wanted, max_wait_ms=60_000, min_bytes=1 << 20)
        found = {one.topic: one.partitions[0].error_code for one in answer.responses}
        assert found == {"orders": 0, "secret": TOPIC}


def test_a_long_poll_of_kafka_ends_with_what_allowed_it(known: Known) -> None:
    known.people.access.add_grant("owner", "all", "topic:empty")
    with known.principal("waits", "all topic:empty") as connection:
        create_topic(connection, "empty")
        ended: list[BaseException | object] = []

        def poll() -> None:
            try:
                ended.append(fetched(connection, "empty", max_wait_ms=30_000))
            except (*ENDED, TimeoutError) as error:
                ended.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        until_polling(known.people, "waits")
        known.people.access.remove_grant("waits", "all", "topic:empty")
        thread.join(PATIENCE_S)
        assert isinstance(ended[0], ENDED)


def test_a_long_poll_ends_when_its_token_expires(known: Known) -> None:
    token = known.people.access.create_token("brief", expires_s=2).token
    known.people.access.add_grant("brief", "all", "topic:quiet")
    with known.broker.connect("brief", token) as connection:
        create_topic(connection, "quiet")
        began = time.monotonic()
        with pytest.raises(ENDED):
            fetched(connection, "quiet", max_wait_ms=30_000)
        assert time.monotonic() - began < 9


def test_a_revoked_token_ends_its_connection_at_the_next_request(known: Known) -> None:
    access = known.people.access
    made_one = access.create_token("leaver")
    with known.broker.connect("leaver", made_one.token) as connection:
        connection.ask("DescribeCluster", 0)
        access.revoke_token(made_one.id)
        with pytest.raises(ENDED):
            connection.ask("DescribeCluster", 0)


def test_a_grant_that_is_taken_away_counts_from_the_next_request(known: Known) -> None:
    row = next(one for one in ROWS if one.name == "Produce")
    with known.principal("publisher", "publish topic:orders") as connection:
        assert codes(connection.ask("Produce", 9, **row.fields)) == {0}
        known.people.access.remove_grant("publisher", "publish", "topic:orders")
        assert codes(connection.ask("Produce", 9, **row.fields)) == {TOPIC}


def test_a_request_writes_few_refusals_to_the_audit_log(
    known: Known, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [made("MetadataRequest.MetadataRequestTopic", name=f"t{n}") for n in range(1_000)]
    with known.principal("curious") as connection:
        answer = connection.ask("Metadata", 12, topics=wanted)
        assert {one.error_code for one in answer.topics} == {TOPIC}
    denied = [one for one in caplog.messages if "access_denied" in one]
    assert len(denied) == 5 and "operation='kafka.Metadata'" in denied[0]


def test_a_principal_above_its_quota_is_told_to_wait_and_waits(known: Known) -> None:
    with known.principal("hasty", "observe topic:orders") as connection:
        known.people.access.set_quota("hasty", requests_s=2)
        began = time.monotonic()
        told = [connection.ask("ListGroups", 4).throttle_time_ms for _ in range(6)]
        assert told[0] == 0 and 0 < max(told) <= 1_000
        assert time.monotonic() - began > 1.0  # 2 at once, then 2 a second
        with known.principal("other-one") as other:  # which has no quota
            assert other.ask("ListGroups", 4).throttle_time_ms == 0


def test_requests_about_the_connection_count_once_there_is_a_session(known: Known) -> None:
    with known.principal("asks-versions") as connection:
        known.people.access.set_quota("asks-versions", requests_s=2)
        told = [connection.ask("ApiVersions", 3).throttle_time_ms for _ in range(6)]
        assert told[0] == 0 and 0 < max(told) <= 1_000
    with known.principal("shakes-hands") as connection:
        known.people.access.set_quota("shakes-hands", requests_s=2)
        began = time.monotonic()
        for _ in range(6):  # its session does not expire: none of them is taken
            code = connection.ask("SaslHandshake", 1, mechanism="PLAIN").error_code
            assert code == ErrorCode.ILLEGAL_SASL_STATE
        assert time.monotonic() - began > 1.0
