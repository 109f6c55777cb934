"""Several instances as Kafka's brokers: each leads the partitions that it owns, coordinates the
groups of its shards, and one of them coordinates all transactional ids."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kafka_brokers_kit import Brokers, RoutedConnection, brokers
from tests.kafka_kit import batch
from tests.kafka_producer import TransactionalProducer, values
from tests.waiting import until
from tms.compat.kafka import codec, coordinated
from tms.compat.kafka.errors import ErrorCode
from tms.errors import NotOwner, TimedOut
from tms.topics.owners import Peer
from tms.transactions import repeating

PARTITIONS = 8
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


@pytest.fixture(scope="module")
def three() -> Iterator[Brokers]:
    with brokers("a", "b", "c") as three:
        yield three


@pytest.fixture
def topic(three: Brokers, request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test, with partitions at all brokers."""
    name = request.node.name.replace("[", "-").replace("]", "")[:120]
    create(three, name)
    assert {three.leader(name, number) for number in range(PARTITIONS)} == {*three.all.served}
    return name


def create(three: Brokers, name: str) -> None:
    made = codec.class_of("CreateTopicsRequest").CreatableTopic
    one = made(name=name, num_partitions=PARTITIONS, replication_factor=-1)
    [result] = three.at("b").ask("CreateTopics", 7, topics=[one]).topics
    assert not result.error_code, result.error_message


def led_by(three: Brokers, topic: str, id: str, partitions: int = PARTITIONS) -> int:
    """A partition that this instance leads."""
    return next(number for number in range(partitions) if three.leader(topic, number) == id)


# -- who is asked ----------------------------------------------------------------------------------


def test_every_broker_tells_of_all_brokers_and_leaders(three: Brokers, topic: str) -> None:
    numbers = {id: three.all.cluster[id].number for id in "abc"}
    assert sorted(numbers.values()) == [1, 2, 3]
    for id in "abc":
        wanted = codec.class_of("MetadataRequest").MetadataRequestTopic(name=topic)
        answer = three.at(id).ask("Metadata", 12, topics=[wanted])
        assert {(one.node_id, one.host, one.port) for one in answer.brokers} == {
            (numbers[other], *three.address(other)) for other in "abc"
        }
        assert answer.controller_id == 1
        leaders = {part.partition_index: part.leader_id for part in answer.topics[0].partitions}
        assert leaders == {
            number: numbers[three.leader(topic, number)] for number in range(PARTITIONS)
        }
        cluster = three.at(id).ask("DescribeCluster", 1)
        assert [one.broker_id for one in cluster.brokers] == [1, 2, 3]
        assert cluster.cluster_id == three.at("a").ask("DescribeCluster", 1).cluster_id


def produced(three: Brokers, at: str, place: tuple[str, int], value: bytes) -> ErrorCode:
    made = codec.class_of("ProduceRequest").TopicProduceData
    part = made.PartitionProduceData(index=place[1], records=batch([(None, value)]))
    topics = [made(name=place[0], partition_data=[part])]
    answer = three.at(at).ask("Produce", 11, acks=-1, timeout_ms=5_000, topic_data=topics)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def fetch_code(three: Brokers, at: str, place: tuple[str, int]) -> ErrorCode:
    made = codec.class_of("FetchRequest").FetchTopic
    part = made.FetchPartition(partition=place[1], fetch_offset=0, partition_max_bytes=1)
    topics = [made(topic=place[0], partitions=[part])]
    answer = three.at(at).ask("Fetch", 12, topics=topics, max_wait_ms=0, min_bytes=0)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


def offset_code(three: Brokers, at: str, place: tuple[str, int]) -> ErrorCode:
    made = codec.class_of("ListOffsetsRequest").ListOffsetsTopic
    part = made.ListOffsetsPartition(partition_index=place[1], timestamp=-1)
    answer = three.at(at).ask("ListOffsets", 7, topics=[made(name=place[0], partitions=[part])])
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def epoch_code(three: Brokers, at: str, place: tuple[str, int]) -> ErrorCode:
    made = codec.class_of("OffsetForLeaderEpochRequest").OffsetForLeaderTopic
    part = made.OffsetForLeaderPartition(partition=place[1], leader_epoch=0)
    answer = three.at(at).ask(
        "OffsetForLeaderEpoch", 4, topics=[made(topic=place[0], partitions=[part])]
    )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def truncate_code(three: Brokers, at: str, place: tuple[str, int]) -> ErrorCode:
    made = codec.class_of("DeleteRecordsRequest").DeleteRecordsTopic
    part = made.DeleteRecordsPartition(partition_index=place[1], offset=0)
    answer = three.at(at).ask("DeleteRecords", 2, topics=[made(name=place[0], partitions=[part])])
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def producers_code(three: Brokers, at: str, place: tuple[str, int]) -> ErrorCode:
    made = codec.class_of("DescribeProducersRequest").TopicRequest
    answer = three.at(at).ask(
        "DescribeProducers", 0, topics=[made(name=place[0], partition_indexes=[place[1]])]
    )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    "code_of", [fetch_code, offset_code, epoch_code, truncate_code, producers_code]
)
def test_only_the_leader_of_a_partition_answers_for_it(
    three: Brokers, topic: str, code_of: Callable[[Brokers, str, tuple[str, int]], ErrorCode]
) -> None:
    for number in range(PARTITIONS):
        leader = three.leader(topic, number)
        assert code_of(three, leader, (topic, number)) is NONE
        for other in three.others(leader):
            assert code_of(three, other, (topic, number)) is NOT_LEADER


def test_a_batch_for_another_leader_is_not_stored(three: Brokers, topic: str) -> None:
    for number in range(PARTITIONS):
        leader = three.leader(topic, number)
        for other in three.others(leader):
            assert produced(three, other, (topic, number), b"astray") is NOT_LEADER
        assert produced(three, leader, (topic, number), b"at its leader") is NONE
        assert values(three.at(leader), topic, number) == [b"at its leader"]


def asked_of_group(name: str, group: str, topic: str) -> tuple[int, dict[str, Any]]:
    """Version and fields of a request about a group."""
    member = {"group_id": group, "generation_id": 1, "member_id": "m"}
    positions = codec.class_of("OffsetCommitRequest").OffsetCommitRequestTopic
    part = positions.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    moved = [positions(name=topic, partitions=[part])]
    in_transaction = codec.class_of("TxnOffsetCommitRequest").TxnOffsetCommitRequestTopic
    added = in_transaction.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    looked = codec.class_of("OffsetFetchRequest").OffsetFetchRequestTopic
    forgotten = codec.class_of("OffsetDeleteRequest").OffsetDeleteRequestTopic
    part_forgotten = forgotten.OffsetDeleteRequestPartition(partition_index=0)
    return {
        "JoinGroup": (5, {"group_id": group, "session_timeout_ms": 10_000}),
        "SyncGroup": (3, member),
        "Heartbeat": (3, member),
        "LeaveGroup": (1, {"group_id": group, "member_id": "m"}),
        "OffsetCommit": (7, {"group_id": group, "topics": moved}),
        "OffsetFetch": (
            7,
            {"group_id": group, "topics": [looked(name=topic, partition_indexes=[0])]},
        ),
        "OffsetDelete": (
            0,
            {"group_id": group, "topics": [forgotten(name=topic, partitions=[part_forgotten])]},
        ),
        "DescribeGroups": (4, {"groups": [group]}),
        "DeleteGroups": (2, {"groups_names": [group]}),
        "TxnOffsetCommit": (
            3,
            {
                "group_id": group,
                "transactional_id": "of nobody",
                "generation_id": -1,
                "topics": [in_transaction(name=topic, partitions=[added])],
            },
        ),
    }[name]


def codes_in(answer: Any) -> set[int]:
    """All error codes in an answer."""
    if isinstance(answer, list):
        return {code for one in answer for code in codes_in(one)}
    fields = getattr(answer, "__struct_fields__", ())
    found = {code for field in fields for code in codes_in(getattr(answer, field))}
    return found | ({answer.error_code} if "error_code" in fields else set())


@pytest.mark.parametrize(
    "name",
    [
        "JoinGroup",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetFetch",
        "OffsetDelete",
        "DescribeGroups",
        "DeleteGroups",
        "TxnOffsetCommit",
    ],
)
def test_only_its_coordinator_answers_for_a_group(three: Brokers, topic: str, name: str) -> None:
    for group in ("orders", "payments", "audit", "mail"):
        coordinator = three.coordinator(group)
        version, fields = asked_of_group(name, group, topic)
        for other in three.others(coordinator):
            answer = three.at(other).ask(name, version, **fields)
            assert NOT_COORDINATOR in codes_in(answer) <= {NONE, NOT_COORDINATOR}
        assert NOT_COORDINATOR not in codes_in(three.at(coordinator).ask(name, version, **fields))


def test_groups_and_transactions_are_listed_by_their_coordinator(
    three: Brokers, topic: str
) -> None:
    kafka = RoutedConnection(three)
    groups = [f"{topic}-{number}" for number in range(12)]
    for group in groups:
        version, fields = asked_of_group("OffsetCommit", group, topic)
        assert codes_in(kafka.ask("OffsetCommit", version, **fields)) == {NONE}
    found = {
        id: {one.group_id for one in three.at(id).ask("ListGroups", 4).groups} & {*groups}
        for id in "abc"
    }
    assert found == {
        id: {group for group in groups if three.coordinator(group) == id} for id in "abc"
    }
    assert all(found.values()), "the groups have three coordinators"
    producer = TransactionalProducer(kafka, topic)
    assert producer.initialise() is NONE
    coordinator = three.coordinator(topic, 1)
    for id in "abc":
        answer = three.at(id).ask("ListTransactions", 0)
        ids = {one.transactional_id for one in answer.transaction_states}
        assert (topic in ids) is (id == coordinator) and not answer.error_code


def test_only_the_coordinator_of_transactions_changes_transactional_ids(
    three: Brokers, topic: str
) -> None:
    coordinator = three.coordinator(topic, 1)
    begun = TransactionalProducer(three.at(coordinator), topic)
    assert begun.initialise() is NONE
    for other in three.others(coordinator):
        astray = TransactionalProducer(three.at(other), topic)
        assert astray.initialise() is NOT_COORDINATOR
        astray.number, astray.epoch = begun.number, begun.epoch
        assert astray.add(topic, 0) is NOT_COORDINATOR
        assert astray.add_group("group") is NOT_COORDINATOR
        assert astray.end() is NOT_COORDINATOR
    assert begun.add(topic, 0) is NONE and begun.end() is NONE


def test_sizes_are_those_of_partitions_that_the_broker_leads(three: Brokers, topic: str) -> None:
    for id in "abc":
        [directory] = three.at(id).ask("DescribeLogDirs", 4, topics=None).results
        [found] = [one for one in directory.topics if one.name == topic]
        assert {part.partition_index for part in found.partitions} == {
            number for number in range(PARTITIONS) if three.leader(topic, number) == id
        }


def test_settings_of_another_broker_are_refused(three: Brokers) -> None:
    made = codec.class_of("DescribeConfigsRequest").DescribeConfigsResource
    for id in "abc":
        for number in (1, 2, 3):
            asked = made(resource_type=4, resource_name=str(number), configuration_keys=None)
            [result] = three.at(id).ask("DescribeConfigs", 4, resources=[asked]).results
            is_own = three.numbered(number) == id
            assert (result.error_code == NONE) is is_own
            assert [one.value for one in result.configs if one.name == "broker.id"] == (
                [str(number)] if is_own else []
            )


# -- topics ----------------------------------------------------------------------------------------


def test_partitions_and_topics_are_changed_at_one_broker_and_used_at_others(
    three: Brokers, topic: str
) -> None:
    for number in range(PARTITIONS):  # all brokers know the topic now
        assert produced(three, three.leader(topic, number), (topic, number), b"old") is NONE
    made = codec.class_of("CreatePartitionsRequest").CreatePartitionsTopic
    more = made(name=topic, count=2 * PARTITIONS, assignments=None)
    [result] = three.at("a").ask("CreatePartitions", 3, topics=[more]).results
    assert result.error_code == NONE
    for number in range(2 * PARTITIONS):
        assert produced(three, three.leader(topic, number), (topic, number), b"new") is NONE
    assert three.at("c").ask("DeleteTopics", 4, topic_names=[topic]).responses[0].error_code == NONE
    create(three, topic)
    for number in range(PARTITIONS):
        leader = three.leader(topic, number)
        assert values(three.at(leader), topic, number) == []
        assert produced(three, leader, (topic, number), b"newest") is NONE
        assert values(three.at(leader), topic, number) == [b"newest"]


def test_brokers_cannot_be_chosen_for_partitions(three: Brokers) -> None:
    made = codec.class_of("CreateTopicsRequest").CreatableTopic
    assigned = made.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
    one = made(name="assigned", num_partitions=-1, replication_factor=-1, assignments=[assigned])
    [result] = three.at("a").ask("CreateTopics", 7, topics=[one]).topics
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "tms cluster move" in result.error_message


def test_a_replication_factor_is_at_most_the_number_of_brokers(three: Brokers) -> None:
    made = codec.class_of("CreateTopicsRequest").CreatableTopic
    for factor in (3, 4):
        one = made(name=f"factor-{factor}", num_partitions=1, replication_factor=factor)
        [result] = three.at("a").ask("CreateTopics", 7, topics=[one]).topics
        assert result.error_code == (
            NONE if factor == 3 else ErrorCode.INVALID_REPLICATION_FACTOR
        ), result.error_message


# -- transactions over several brokers -------------------------------------------------------------


def test_a_transaction_spans_leaders_and_coordinators(three: Brokers, topic: str) -> None:
    kafka = RoutedConnection(three)
    coordinator = three.coordinator(topic, 1)
    group = next(
        f"group-{number}"
        for number in range(100)
        if three.coordinator(f"group-{number}") != coordinator
    )
    producer = TransactionalProducer(kafka, topic)
    assert producer.initialise() is NONE
    for outcome in (True, False, True):
        before = {number: values(kafka, topic, number) for number in range(PARTITIONS)}
        at = offsets(kafka, group, topic)
        for number in range(PARTITIONS):
            assert producer.add(topic, number) is NONE
            assert producer.produce(topic, b"%d" % producer.epoch, partition=number) is NONE
        assert producer.add_group(group) is NONE
        assert producer.move(group, topic, at + 1) is NONE
        with pytest.raises(AssertionError):  # it is not stable while the transaction is open
            offsets(kafka, group, topic)
        assert {number: values(kafka, topic, number) for number in range(PARTITIONS)} == before
        assert producer.end(outcome) is NONE
        until(lambda: stable(kafka, group, topic), "the outcome is known everywhere")
        assert offsets(kafka, group, topic) == at + outcome
        for number, some in before.items():
            more = [b"%d" % producer.epoch] if outcome else []
            assert values(kafka, topic, number) == some + more


def offsets(kafka: RoutedConnection, group: str, topic: str) -> int:
    """The stable offset of a group in partition 0; 0 without one."""
    looked = codec.class_of("OffsetFetchRequest").OffsetFetchRequestTopic
    answer = kafka.ask(
        "OffsetFetch",
        7,
        group_id=group,
        topics=[looked(name=topic, partition_indexes=[0])],
        require_stable=True,
    )
    assert codes_in(answer) == {NONE}
    return max(0, answer.topics[0].partitions[0].committed_offset)


def stable(kafka: RoutedConnection, group: str, topic: str) -> bool:
    try:
        offsets(kafka, group, topic)
    except AssertionError:
        return False
    return True


def test_a_fenced_producer_stores_nothing_at_any_leader(three: Brokers, topic: str) -> None:
    kafka = RoutedConnection(three)
    zombie, heir = (TransactionalProducer(kafka, topic) for _ in range(2))
    assert zombie.initialise() is NONE
    for number in range(PARTITIONS):
        assert zombie.add(topic, number) is NONE
        assert zombie.produce(topic, b"zombie", partition=number) is NONE
    assert heir.initialise() is NONE
    for number in range(PARTITIONS):
        code = zombie.produce(topic, b"late", partition=number)
        assert code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert values(kafka, topic, number) == []
        assert heir.produce(topic, b"before it is added", partition=number) is (
            ErrorCode.INVALID_TXN_STATE
        )


def test_messages_outside_of_an_open_transaction_are_refused_at_every_leader(
    three: Brokers, topic: str
) -> None:
    kafka = RoutedConnection(three)
    producer = TransactionalProducer(kafka, topic)
    assert producer.initialise() is NONE
    for number in range(PARTITIONS):
        assert producer.add(topic, number) is NONE
        assert producer.produce(topic, b"in", partition=number) is NONE
        refused = producer.produce(topic, b"out", partition=number, transactional=False)
        assert refused is ErrorCode.INVALID_TXN_STATE
    assert producer.end() is NONE
    for number in range(PARTITIONS):
        assert values(kafka, topic, number) == [b"in"]


def test_the_coordinator_is_asked_once_for_a_producer_without_an_id(
    three: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def reply(peer: Peer, question: object, type: Any) -> Any:
        asked.append(question)
        return before(peer, question, type)

    before = coordinated._reply
    monkeypatch.setattr(coordinated, "_reply", reply)
    coordinator = three.coordinator(topic, 1)
    leader = three.others(coordinator)[0]
    partition = led_by(three, topic, leader)
    kafka = three.at(leader)
    answer = kafka.ask("InitProducerId", 4, transactional_id=None)
    producer = TransactionalProducer(kafka, "unused")
    producer.number, producer.epoch = answer.producer_id, answer.producer_epoch
    for _ in range(3):
        assert producer.produce(topic, b"x", partition=partition, transactional=False) is NONE
    assert len(asked) == 1


def test_open_transactions_of_producers_are_seen_at_their_leader(
    three: Brokers, topic: str
) -> None:
    kafka = RoutedConnection(three)
    producer = TransactionalProducer(kafka, topic)
    assert producer.initialise() is NONE
    for number in range(PARTITIONS):
        assert producer.add(topic, number) is NONE
        assert producer.produce(topic, b"a", b"b", partition=number) is NONE
    made = codec.class_of("DescribeProducersRequest").TopicRequest
    for number in range(PARTITIONS):
        asked = made(name=topic, partition_indexes=[number])
        answer = kafka.ask("DescribeProducers", 0, topics=[asked])
        [one] = answer.topics[0].partitions[0].active_producers
        assert (one.producer_id, one.current_txn_start_offset) == (producer.number, 0)
    assert producer.end(committed=False) is NONE


@pytest.mark.parametrize("is_stored", [False, True], ids=["refused", "answer-lost"])
def test_a_transaction_goes_on_when_the_owner_of_a_partition_goes(
    three: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """The coordinator repeats what an owner may have stored, and the partition stores it once."""
    coordinator = three.coordinator(topic, 1)
    leader = three.others(coordinator)[0]
    partition = led_by(three, topic, leader)
    [peer] = [one for one in three.all.cluster[coordinator].others() if one.name == leader]
    store = peer.partitions.store
    failures = iter((True, True, False))

    def failing(*given: Any) -> Any:
        if next(failures, False):
            if not is_stored:
                raise NotOwner("Another one owns it.", owner=None)
            store(*given)
            raise TimedOut("No answer came.")
        return store(*given)

    monkeypatch.setattr(peer, "partitions", SimpleNamespace(store=failing))
    producer = TransactionalProducer(RoutedConnection(three), topic)
    assert producer.initialise() is NONE and producer.add(topic, partition) is NONE
    assert producer.produce(topic, b"once", partition=partition) is NONE
    assert producer.produce(topic, b"after it", partition=partition) is NONE
    assert next(failures, None) is None, "it was repeated"
    monkeypatch.undo()
    assert producer.end() is NONE
    assert values(three.at(leader), topic, partition) == [b"once", b"after it"]


def test_a_transaction_whose_partition_has_no_owner_for_long_fails(
    three: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "REPEAT_S", 0.5)
    coordinator = three.coordinator(topic, 1)
    leader = three.others(coordinator)[0]
    partition = led_by(three, topic, leader)
    [peer] = [one for one in three.all.cluster[coordinator].others() if one.name == leader]

    def failing(*given: Any) -> Any:
        raise NotOwner("Another one owns it.", owner=None)

    producer = TransactionalProducer(RoutedConnection(three), topic)
    assert producer.initialise() is NONE and producer.add(topic, partition) is NONE
    with monkeypatch.context() as patched:
        patched.setattr(peer, "partitions", SimpleNamespace(store=failing))
        assert producer.produce(topic, b"never", partition=partition) is NOT_LEADER
    assert producer.end() is not NONE  # it cannot commit any more
    heir = TransactionalProducer(RoutedConnection(three), topic)
    assert heir.initialise() is NONE and heir.add(topic, partition) is NONE
    assert heir.produce(topic, b"next", partition=partition) is NONE and heir.end() is NONE
    assert values(three.at(leader), topic, partition) == [b"next"]
