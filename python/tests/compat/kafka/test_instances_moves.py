"""Kafka's brokers while instances come, go and lose what they own: nothing acknowledged is lost or
stored twice, no call waits for ever, and no answer comes from a broker that is not the owner."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import admin

from tests.compat.kafka.test_instances import codes_in, fetch_code, led_by, produced
from tests.kafka_brokers_kit import COORDINATOR_MISSING, Brokers, RoutedConnection, brokers
from tests.kafka_load import KafkaLoad
from tests.kafka_member import GroupMember
from tests.kafka_producer import TransactionalProducer, values
from tests.waiting import PATIENCE_S, until
from tms.compat.kafka import codec
from tms.compat.kafka.errors import ErrorCode
from tms.errors import TMSError
from tms.model.topic import TopicName
from tms.topics.sharding import QUEUES

PARTITIONS = 6
NONE = ErrorCode.NONE
TOPIC = "orders"


@pytest.fixture
def three() -> Iterator[Brokers]:
    with brokers("a", "b", "c") as three:
        client = admin.AdminClient({"bootstrap.servers": three.servers})
        [made] = client.create_topics([admin.NewTopic(TOPIC, PARTITIONS)]).values()
        made.result(PATIENCE_S)
        yield three


def test_clients_go_on_when_an_instance_leaves(three: Brokers) -> None:
    load = KafkaLoad(three.servers, "load")
    with load.running():
        load.get_on()
        three.all.stop(three.coordinator("any", 1))
        load.get_on()
    assert load.check() > 500


def values_or_refusal(three: Brokers, id: str, place: tuple[str, int]) -> list[bytes | None] | None:
    """The values that a broker returns; None if it is not the leader."""
    if fetch_code(three, id, place) is not NONE:
        return None
    return values(three.at(id), *place)


def move(three: Brokers, id: str, group: str, offset: int) -> set[int]:
    """The codes of a commit of an offset in partition 0."""
    positions = codec.class_of("OffsetCommitRequest").OffsetCommitRequestTopic
    part = positions.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [positions(name=TOPIC, partitions=[part])]
    return codes_in(three.at(id).ask("OffsetCommit", 7, group_id=group, topics=topics))


def offset_at(three: Brokers, id: str, group: str) -> int | None:
    """The offset of a group in partition 0 as a broker tells it; None if it does not coordinate."""
    looked = codec.class_of("OffsetFetchRequest").OffsetFetchRequestTopic
    topics = [looked(name=TOPIC, partition_indexes=[0])]
    answer = three.at(id).ask("OffsetFetch", 7, group_id=group, topics=topics)
    if codes := codes_in(answer) - {NONE}:
        assert codes <= {ErrorCode.NOT_COORDINATOR, COORDINATOR_MISSING}
        return None
    found: int = answer.topics[0].partitions[0].committed_offset
    return found


def position_is_new(three: Brokers, id: str, place: tuple[str, int], group: str) -> bool:
    return offset_at(three, id, group) in (2, None)


def end_is_new(three: Brokers, id: str, place: tuple[str, int], group: str) -> bool:
    made = codec.class_of("ListOffsetsRequest").ListOffsetsTopic
    part = made.ListOffsetsPartition(partition_index=place[1], timestamp=-1)
    answer = three.at(id).ask("ListOffsets", 7, topics=[made(name=place[0], partitions=[part])])
    found = answer.topics[0].partitions[0]
    return found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER or found.offset == 2


def values_are_new(three: Brokers, id: str, place: tuple[str, int], group: str) -> bool:
    return values_or_refusal(three, id, place) in ([b"before", b"after"], None)


@pytest.mark.parametrize("look", [position_is_new, end_is_new, values_are_new])
def test_a_broker_that_others_have_replaced_answers_nothing_stale(
    three: Brokers, look: Callable[[Brokers, str, tuple[str, int], str], bool]
) -> None:
    """It does not know: it sees an old view, and has everything in memory. It may take over again
    what it believes to own; then it answers with what the others have stored."""
    gone = "b"
    place = (TOPIC, led_by(three, TOPIC, gone, PARTITIONS))
    group = next(
        name for name in map("group-{}".format, range(100)) if three.coordinator(name) == gone
    )
    assert produced(three, gone, place, b"before") is NONE
    assert values(three.at(gone), *place) == [b"before"]
    assert move(three, gone, group, 1) == {NONE}
    assert offset_at(three, gone, group) == 1
    three.all.member[gone].expire(blind=True)
    heir = three.leader(*place)
    assert heir != gone
    until(lambda: produced(three, heir, place, b"after") is NONE, "the heir leads")
    new = three.coordinator(group)
    until(lambda: move(three, new, group, 2) == {NONE}, "the heir coordinates")
    assert look(three, gone, place, group)


def test_members_that_wait_are_told_when_their_group_moves(three: Brokers) -> None:
    group = "movers"
    before = three.coordinator(group)
    kafka = three.at(before)
    protocol = codec.class_of("JoinGroupRequest").JoinGroupRequestProtocol
    joining = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [protocol(name="range", metadata=b"")],
    }
    id = kafka.ask("JoinGroup", 5, **joining).member_id
    assert kafka.ask("JoinGroup", 5, member_id=id, **joining).error_code == NONE
    # A follower's sync waits for the leader's, which never comes.
    engine = three.all.served[before].service.engine
    number = engine.topics.shards.of_group(group)
    other = RoutedConnection(three)
    second = other.ask("JoinGroup", 5, **joining).member_id
    kafka.send("JoinGroup", 5, member_id=second, **joining)
    time.sleep(0.2)  # it waits for the first member to join again
    after = three.others(before)[0]
    engine.cluster.pin(pin_key(engine, number), after)
    assert kafka.answer().error_code == ErrorCode.NOT_COORDINATOR
    until(lambda: three.coordinator(group) == after, "the group has moved")


@pytest.mark.parametrize("how", ["moved", "stopped", "cut off"])
def test_members_go_on_at_the_next_coordinator(three: Brokers, how: str) -> None:
    """In the same generation, without a rebalance. The former one does not answer from what it
    remembers: it may take over again what it believes to own, with what the others have stored."""
    members = [GroupMember("movers", TOPIC, instance) for instance in (None, "static")]
    before = three.coordinator("movers")
    for member in members:
        member.kafka = RoutedConnection(three)
        while (code := member.join()) is ErrorCode.MEMBER_ID_REQUIRED:
            pass
        assert code is NONE and member.sync() is NONE and member.commit() is NONE
        if member is members[0]:
            assert member.leave() is NONE
    member = members[1]
    engine = three.all.served[before].service.engine
    if how == "moved":
        number = engine.topics.shards.of_group("movers")
        engine.cluster.pin(pin_key(engine, number), three.others(before)[0])
    elif how == "stopped":
        three.all.stop(before)
    else:
        three.all.member[before].expire(blind=True)
    until(lambda: three.coordinator("movers") != before, "the group has moved")
    away = {ErrorCode.NOT_COORDINATOR, ErrorCode(COORDINATOR_MISSING)}
    until(lambda: member.beat() not in away, "the next coordinator has opened the shard")
    assert member.beat() is NONE and member.commit() is NONE
    assert member.sync() is NONE and member.assignment == b"for " + member.id.encode()
    stale, id, member.id = member.generation, member.id, "c-another"
    assert member.beat() is ErrorCode.FENCED_INSTANCE_ID
    member.id = id
    assert member.join() is NONE and member.sync() is NONE
    assert member.generation == stale + 1
    if how != "stopped":
        member.kafka = three.at(before)
        assert member.beat() in {*away, NONE}
        member.generation = stale
        assert member.beat() in {*away, ErrorCode.ILLEGAL_GENERATION}


def pin_key(engine: object, shard: int) -> str:
    """The place by which operators move a shard."""
    topic = engine.topics.registry.find(QUEUES)
    (uid, number), _ = engine.cluster.place_of(QUEUES, (topic.uid, shard), topic.partitions)
    return f"{uid}/{number}"


def test_a_transaction_is_ended_at_the_next_coordinator(three: Brokers) -> None:
    kafka = RoutedConnection(three)
    producer = TransactionalProducer(kafka, "id")
    assert producer.initialise() is NONE
    for outcome in (True, False):
        for number in range(PARTITIONS):
            assert producer.add(TOPIC, number) is NONE
            assert producer.produce(TOPIC, b"%d" % outcome, partition=number) is NONE
        coordinator = three.coordinator("id", 1)
        three.close()
        three.all.stop(coordinator)
        until(partial(ended, three, producer, outcome), "the transaction has ended")
        for number in range(PARTITIONS):
            assert values(kafka, TOPIC, number) == [b"1"]


def ended(three: Brokers, producer: TransactionalProducer, outcome: bool) -> bool:
    """End the transaction; False while there is no coordinator."""
    code = producer.end(outcome)
    assert code in (NONE, ErrorCode.NOT_COORDINATOR, COORDINATOR_MISSING)
    return code is NONE


def test_an_instance_that_does_not_speak_kafka_is_no_broker(three: Brokers) -> None:
    section, three.all.kafka = three.all.kafka, None
    try:
        three.all.start("d")
    finally:
        three.all.kafka = section
    engine = three.all.served["a"].service.engine
    record = engine.topics.registry.find(TopicName.of("default", TOPIC))
    until(
        lambda: "d" in {three.leader(TOPIC, number) for number in range(record.partitions)},
        "the instance owns a partition",
    )
    wanted = codec.class_of("MetadataRequest").MetadataRequestTopic(name=TOPIC)
    answer = three.at("a").ask("Metadata", 12, topics=[wanted])
    assert [one.node_id for one in answer.brokers] == [1, 2, 3]
    for part in answer.topics[0].partitions:
        is_led = three.leader(TOPIC, part.partition_index) != "d"
        assert (part.leader_id > 0) is is_led
        assert (part.error_code == ErrorCode.LEADER_NOT_AVAILABLE) is not is_led
    cluster = engine.cluster
    group = next(
        name
        for name in map("group-{}".format, range(200))
        if cluster.role_owner(1 + engine.topics.shards.of_group(name)).id == "d"
    )
    found = three.at("a").ask("FindCoordinator", 3, key=group, key_type=0)
    assert found.error_code == COORDINATOR_MISSING and "--kafka-port" in found.error_message
    three.all.stop("d")
    until(
        lambda: three.at("a").ask("FindCoordinator", 3, key=group, key_type=0).error_code == NONE,
        "another instance keeps the group",
    )


def test_a_coordinator_without_kafka_answers_other_brokers(three: Brokers) -> None:
    """Transactional ids are of the engine: brokers ask whichever instance coordinates."""
    kafka = RoutedConnection(three)
    producer = TransactionalProducer(kafka, "id")
    assert producer.initialise() is NONE and producer.add(TOPIC, 0) is NONE
    section, three.all.kafka = three.all.kafka, None
    try:
        three.all.start("d")
    finally:
        three.all.kafka = section
    engine = three.all.served["a"].service.engine
    coordinator = next(one for one in three.all.served.values() if one.service.engine.coordinates)
    engine.cluster.pin("0/0", "d")
    until(
        lambda: (
            three.all.served["d"].service.engine.coordinates
            and not coordinator.service.engine.coordinates
        ),
        "the coordinator has moved",
    )
    with pytest.raises(TMSError):
        three.all.served["a"].service.engine.transactional_ids.all()
    until(lambda: producer.produce(TOPIC, b"by way of it") is NONE, "the leader asks it")
    engine.cluster.pin("0/0", "a")
    until(lambda: ended(three, producer, True), "the transaction has ended")
    assert values(kafka, TOPIC) == [b"by way of it"]
