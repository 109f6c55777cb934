"""Groups of Kafka's clients on a running service: members, positions, and TMS's own groups."""

import threading
import time
from typing import Any

import pytest

import tms
from tests.cli_kit import tms_command
from tests.kafka_kit import Broker, KafkaConnection, batch, create_topic, kafka_serving, produced
from tests.waiting import until
from tms.compat.kafka import codec
from tms.compat.kafka.errors import ErrorCode
from tms.errors import Conflict

SESSION_MS = 10_000

BROKERS = ("alone", "three")


@pytest.fixture(scope="module", autouse=True)
def orders(broker: Broker) -> None:
    with tms.connect(broker.url) as bus:
        bus.create_topic("orders", partitions=2)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group of its own for each test."""
    name: str = request.node.name
    return name.translate({ord("["): "-", ord("]"): None})


def joining(group: str, member: str = "", version: int = 5, **fields: Any) -> dict[str, Any]:
    protocol = codec.class_of("JoinGroupRequest").JoinGroupRequestProtocol
    return {
        "group_id": group,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [protocol(name="range", metadata=b"topics of " + member.encode())],
    } | fields


def join(kafka: KafkaConnection, group: str) -> Any:
    """A new member's answer, once it has joined with the id that it was given."""
    first = kafka.ask("JoinGroup", 5, **joining(group))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return kafka.ask("JoinGroup", 5, **joining(group, first.member_id))


def sync(kafka: KafkaConnection, group: str, joined: Any, **assignments: bytes) -> Any:
    made = codec.class_of("SyncGroupRequest").SyncGroupRequestAssignment
    given = [made(member_id=id, assignment=one) for id, one in assignments.items()]
    return kafka.ask(
        "SyncGroup",
        3,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=given,
    )


def heartbeat(kafka: KafkaConnection, group: str, joined: Any) -> ErrorCode:
    answer = kafka.ask(
        "Heartbeat",
        3,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
    )
    return ErrorCode(answer.error_code)


def until_rebalancing(kafka: KafkaConnection, group: str, joined: Any) -> None:
    rebalances = ErrorCode.REBALANCE_IN_PROGRESS
    until(lambda: heartbeat(kafka, group, joined) is rebalances, "it rebalances", 10)


def commit(
    kafka: KafkaConnection, group: str, offset: int, joined: Any = None, **fields: Any
) -> ErrorCode:
    made = codec.class_of("OffsetCommitRequest").OffsetCommitRequestTopic
    part = made.OffsetCommitRequestPartition(
        partition_index=fields.pop("partition", 0),
        committed_offset=offset,
        committed_metadata=fields.pop("metadata", None),
    )
    caller = {"generation_id_or_member_epoch": -1, "member_id": ""}
    if joined is not None:
        caller = {
            "generation_id_or_member_epoch": joined.generation_id,
            "member_id": joined.member_id,
        }
    topics = [made(name=fields.pop("topic", "orders"), partitions=[part])]
    answer = kafka.ask("OffsetCommit", 8, group_id=group, topics=topics, **caller, **fields)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def positions(kafka: KafkaConnection, group: str, version: int = 7) -> dict[int, tuple[int, str]]:
    """The positions in `orders`, asked for by name."""
    made = codec.class_of("OffsetFetchRequest")
    if version < 8:
        topic = made.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
        topics = kafka.ask("OffsetFetch", version, group_id=group, topics=[topic]).topics
    else:
        one = made.OffsetFetchRequestGroup
        topic = one.OffsetFetchRequestTopics(name="orders", partition_indexes=[0, 1])
        asked = [one(group_id=group, topics=[topic])]
        topics = kafka.ask("OffsetFetch", version, groups=asked).groups[0].topics
    return {
        part.partition_index: (part.committed_offset, part.metadata)
        for part in topics[0].partitions
    }


def describe(kafka: KafkaConnection, group: str) -> Any:
    return kafka.ask("DescribeGroups", 5, groups=[group]).groups[0]


def listed(kafka: KafkaConnection, **fields: Any) -> dict[str, str]:
    groups = kafka.ask("ListGroups", 5, **fields).groups
    return {one.group_id: one.group_state for one in groups}


def test_all_groups_with_positions_are_listed(broker: Broker, kafka: KafkaConnection) -> None:
    """Also those behind the groups of a topic that is deleted, and whose positions are kept."""
    names = {f"listed-{number}" for number in range(3)}
    with tms.connect(broker.url) as bus:
        for topic in ("a-deleted", "listed"):
            bus.create_topic(topic, partitions=1)
        assert commit(kafka, "listed-nowhere", 0, topic="a-deleted") is ErrorCode.NONE
        for group in names:
            assert commit(kafka, group, 0, topic="listed") is ErrorCode.NONE
        bus.delete_topic("a-deleted")
    assert {one for one in listed(kafka) if one.startswith("listed-")} == names


# -- members ---------------------------------------------------------------------------------------


def test_a_member_joins_syncs_lives_and_leaves(kafka: KafkaConnection, group: str) -> None:
    joined = join(kafka, group)
    assert (joined.error_code, joined.leader, joined.generation_id) == (0, joined.member_id, 1)
    assert [one.member_id for one in joined.members] == [joined.member_id]
    synced = sync(kafka, group, joined, **{joined.member_id: b"everything"})
    assert (synced.error_code, synced.assignment) == (0, b"everything")
    assert heartbeat(kafka, group, joined) is ErrorCode.NONE
    told = describe(kafka, group)
    [member] = told.members
    assert (told.group_state, told.protocol_type, told.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
    assert member.member_assignment == b"everything"
    assert listed(kafka)[group] == "Stable"
    assert group not in listed(kafka, states_filter=["Empty"])
    assert not kafka.ask("LeaveGroup", 2, group_id=group, member_id=joined.member_id).error_code
    assert heartbeat(kafka, group, joined) is ErrorCode.UNKNOWN_MEMBER_ID
    assert describe(kafka, group).group_state == "Dead"
    assert group not in listed(kafka)


def test_two_members_share_what_their_leader_decides(broker: Broker, group: str) -> None:
    with broker.connect() as one, broker.connect() as two:
        first = join(one, group)
        sync(one, group, first, **{first.member_id: b"all"})
        id = two.ask("JoinGroup", 5, **joining(group)).member_id
        two.send("JoinGroup", 5, **joining(group, id))
        until_rebalancing(one, group, first)
        leader = one.ask("JoinGroup", 5, **joining(group, first.member_id))
        follower = two.answer()
        assert leader.generation_id == follower.generation_id == 2
        assert {member.member_id for member in leader.members} == {first.member_id, id}
        assert follower.members == []
        two.send(
            "SyncGroup", 3, group_id=group, generation_id=2, member_id=id
        )  # waits for the leader
        synced = sync(one, group, leader, **{first.member_id: b"half", id: b"rest"})
        assert (synced.assignment, two.answer().assignment) == (b"half", b"rest")


def test_a_member_that_goes_while_it_waits_is_not_waited_for(broker: Broker, group: str) -> None:
    with broker.connect() as one, broker.connect() as two:
        first = join(one, group)
        sync(one, group, first, **{first.member_id: b"all"})
        fields = joining(group, session_timeout_ms=6_000, rebalance_timeout_ms=6_000)
        two.send("JoinGroup", 3, **fields)  # old: it gets its id with the answer only
        until_rebalancing(one, group, first)
        two.socket.close()
        until(lambda: len(describe(one, group).members) == 1, "it is gone", 10)
        began = time.monotonic()
        again = one.ask("JoinGroup", 5, **joining(group, first.member_id))
        assert time.monotonic() - began < 5
        assert [member.member_id for member in again.members] == [first.member_id]


def test_a_static_member_keeps_its_place(broker: Broker, group: str) -> None:
    with broker.connect() as one, broker.connect() as two:
        joined = one.ask("JoinGroup", 5, **joining(group, group_instance_id="i1"))
        made = codec.class_of("SyncGroupRequest").SyncGroupRequestAssignment
        fields = {"group_id": group, "generation_id": 1, "group_instance_id": "i1"}
        synced = one.ask(
            "SyncGroup",
            3,
            member_id=joined.member_id,
            assignments=[made(member_id=joined.member_id, assignment=b"mine")],
            **fields,
        )
        assert synced.assignment == b"mine"
        again = two.ask("JoinGroup", 5, **joining(group, group_instance_id="i1"))
        assert (again.error_code, again.generation_id) == (0, 1), "no rebalance"
        assert two.ask("SyncGroup", 3, member_id=again.member_id, **fields).assignment == b"mine"
        fenced = one.ask("Heartbeat", 3, member_id=joined.member_id, **fields)
        assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
        member = codec.class_of("LeaveGroupRequest").MemberIdentity
        leaving = member(member_id="", group_instance_id="i1")
        left = two.ask("LeaveGroup", 4, group_id=group, members=[leaving])
        assert [one.error_code for one in left.members] == [0]


def test_strangers_are_told_what_is_wrong(kafka: KafkaConnection, group: str) -> None:
    short = kafka.ask("JoinGroup", 5, **joining(group, session_timeout_ms=1))
    assert short.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    unknown = kafka.ask("JoinGroup", 5, **joining(group, "nobody"))
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    nameless = kafka.ask("JoinGroup", 5, **joining(""))
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    joined = join(kafka, group)
    sync(kafka, group, joined, **{joined.member_id: b""})
    joined.generation_id += 1
    assert heartbeat(kafka, group, joined) is ErrorCode.ILLEGAL_GENERATION
    assert sync(kafka, group, joined).error_code == ErrorCode.ILLEGAL_GENERATION
    other = codec.class_of("JoinGroupRequest").JoinGroupRequestProtocol(name="other", metadata=b"")
    odd = kafka.ask("JoinGroup", 3, **joining(group, protocols=[other]))
    assert odd.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_silent_member_is_removed_and_the_other_goes_on(broker: Broker, group: str) -> None:
    with broker.connect() as one, broker.connect() as two:
        fields = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 6_000}
        one.send("JoinGroup", 3, **joining(group, **fields))
        silent = one.answer()
        id = two.ask("JoinGroup", 5, **joining(group)).member_id
        began = time.monotonic()
        joined = two.ask("JoinGroup", 5, **joining(group, id))
        assert 3 < time.monotonic() - began < 20
        assert [member.member_id for member in joined.members] == [id]
        assert heartbeat(one, group, silent) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_drain_ends_waits(group: str) -> None:
    with kafka_serving() as broker, broker.connect() as one, broker.connect() as two:
        first = join(one, group)
        id = two.ask("JoinGroup", 5, **joining(group)).member_id
        two.send("JoinGroup", 5, **joining(group, id))
        time.sleep(0.2)
        threading.Thread(target=broker.served.stop).start()
        assert two.answer().error_code == ErrorCode.NOT_COORDINATOR
        assert first.generation_id == 1


# -- positions -------------------------------------------------------------------------------------


def test_positions_carry_their_metadata(kafka: KafkaConnection, group: str) -> None:
    assert positions(kafka, group) == {0: (-1, ""), 1: (-1, "")}
    joined = join(kafka, group)
    sync(kafka, group, joined, **{joined.member_id: b""})
    assert commit(kafka, group, 7, joined, metadata="state") is ErrorCode.NONE
    for version in (1, 2, 5, 7, 8, 9):
        assert positions(kafka, group, version) == {0: (7, "state"), 1: (-1, "")}
    everything = kafka.ask("OffsetFetch", 7, group_id=group, topics=None).topics
    assert [(one.name, len(one.partitions)) for one in everything] == [("orders", 1)]


def test_only_members_of_the_generation_commit(kafka: KafkaConnection, group: str) -> None:
    assert commit(kafka, group, 3) is ErrorCode.NONE, "a group without members"
    joined = join(kafka, group)
    assert commit(kafka, group, 4, joined) is ErrorCode.REBALANCE_IN_PROGRESS
    sync(kafka, group, joined, **{joined.member_id: b""})
    assert commit(kafka, group, 4) is ErrorCode.UNKNOWN_MEMBER_ID
    joined.generation_id += 1
    assert commit(kafka, group, 4, joined) is ErrorCode.ILLEGAL_GENERATION
    joined.generation_id -= 1
    assert commit(kafka, group, 5, joined) is ErrorCode.NONE
    assert positions(kafka, group)[0] == (5, "")


def test_positions_that_cannot_be_are_refused_alone(kafka: KafkaConnection, group: str) -> None:
    assert commit(kafka, group, 1, topic="nowhere") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(kafka, group, 1, partition=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(kafka, group, 1, metadata="x" * 4_097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(kafka, "", 1) is ErrorCode.INVALID_GROUP_ID
    assert positions(kafka, group)[0] == (-1, "")


def test_a_group_is_reset_to_an_end_of_each_partition(broker: Broker, group: str) -> None:
    """As KafkaJS does; other numbers below zero are no offset."""
    with broker.connect() as kafka, tms.connect(broker.url) as bus:
        bus.create_topic(group)
        bus.publish_many(group, [b"0", b"1", b"2"])
        made = codec.class_of("OffsetFetchRequest").OffsetFetchRequestTopic
        for offset, told in ((2, 2), (-2, 0), (-1, 3)):
            assert commit(kafka, group, offset, topic=group) is ErrorCode.NONE
            topics = [made(name=group, partition_indexes=[0])]
            [found] = kafka.ask("OffsetFetch", 7, group_id=group, topics=topics).topics
            assert found.partitions[0].committed_offset == told
        assert commit(kafka, group, -3, topic=group) is ErrorCode.INVALID_REQUEST
        with bus.consumer(group, group=group) as consumer:
            assert consumer.poll(0.5) is None  # it begins at the end
            bus.publish(group, b"3")
            found = consumer.poll(10)
            assert found is not None and found.value == b"3"


def test_a_group_is_deleted_once_it_has_no_members(kafka: KafkaConnection, group: str) -> None:
    def delete() -> ErrorCode:
        return ErrorCode(kafka.ask("DeleteGroups", 2, groups_names=[group]).results[0].error_code)

    assert delete() is ErrorCode.GROUP_ID_NOT_FOUND
    joined = join(kafka, group)
    sync(kafka, group, joined, **{joined.member_id: b""})
    commit(kafka, group, 2, joined)
    assert delete() is ErrorCode.NON_EMPTY_GROUP
    kafka.ask("LeaveGroup", 2, group_id=group, member_id=joined.member_id)
    assert describe(kafka, group).group_state == "Empty", "it has positions"
    assert listed(kafka, states_filter=["empty"])[group] == "Empty"
    assert delete() is ErrorCode.NONE
    assert positions(kafka, group)[0] == (-1, "")
    assert describe(kafka, group).group_state == "Dead"


def test_positions_go_with_their_topic(kafka: KafkaConnection, group: str) -> None:
    create_topic(kafka, "again")
    assert commit(kafka, group, 7, topic="again") is ErrorCode.NONE
    kafka.ask("DeleteTopics", 5, topic_names=["again"])
    create_topic(kafka, "again")
    assert kafka.ask("OffsetFetch", 7, group_id=group, topics=None).topics == []


def test_single_positions_are_forgotten(kafka: KafkaConnection, group: str) -> None:
    commit(kafka, group, 2)
    commit(kafka, group, 3, partition=1)
    assert forget(kafka, group, "orders") == (0, [0])
    assert positions(kafka, group) == {0: (-1, ""), 1: (3, "")}


def forget(kafka: KafkaConnection, group: str, *topics: str) -> Any:
    """The code of the whole request, and those of the topics."""
    made = codec.class_of("OffsetDeleteRequest").OffsetDeleteRequestTopic
    part = made.OffsetDeleteRequestPartition(partition_index=0)
    wanted = [made(name=name, partitions=[part]) for name in topics]
    answer = kafka.ask("OffsetDelete", 0, group_id=group, topics=wanted)
    return answer.error_code, [one.partitions[0].error_code for one in answer.topics]


def subscribed(*topics: bytes) -> bytes:
    """A consumer's metadata, as Kafka's clients spell them."""
    names = b"".join(len(name).to_bytes(2, "big") + name for name in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff" * 4


@pytest.mark.parametrize(
    ("metadata", "is_read"),
    [
        (subscribed(b"orders"), [True, False]),
        (subscribed(b"other", b"orders"), [True, True]),
        (subscribed(), [False, False]),
        (b"", [True, True]),  # unknown, so perhaps all
        (b"\0\1\x7f\xff\xff\xff", [True, True]),
        (b"\0\1\x7f\xff\xff\xff\xff\xfe", [True, True]),
        (b"\0\1\0\0\0\1\0\x09other", [True, True]),
        (subscribed(b"\xff"), [True, True]),
    ],
)
def test_positions_of_topics_that_members_read_stay(
    kafka: KafkaConnection, broker: Broker, group: str, metadata: bytes, is_read: list[bool]
) -> None:
    with tms.connect(broker.url) as bus:
        bus.create_topic("other")
    for topic in ("orders", "other"):
        assert commit(kafka, group, 2, topic=topic) is ErrorCode.NONE
    protocol = codec.class_of("JoinGroupRequest").JoinGroupRequestProtocol
    protocols = [protocol(name="range", metadata=metadata)]
    first = kafka.ask("JoinGroup", 5, **joining(group, protocols=protocols))
    joined = kafka.ask("JoinGroup", 5, **joining(group, first.member_id, protocols=protocols))
    reads = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert forget(kafka, group, "orders", "other") == (0, [reads, reads]), "it rebalances"
    sync(kafka, group, joined, **{joined.member_id: b""})
    codes = [reads if one else 0 for one in is_read]
    assert forget(kafka, group, "orders", "other") == (0, codes)
    left = kafka.ask("OffsetFetch", 7, group_id=group, topics=None).topics
    assert len(left) == sum(is_read)
    kafka.ask("LeaveGroup", 2, group_id=group, member_id=joined.member_id)
    assert forget(kafka, group, "orders", "other") == (0, [0, 0])
    assert kafka.ask("OffsetFetch", 7, group_id=group, topics=None).topics == []


def test_positions_of_members_that_are_no_consumers_stay(
    kafka: KafkaConnection, group: str
) -> None:
    commit(kafka, group, 2)
    first = kafka.ask("JoinGroup", 5, **joining(group, protocol_type="connect"))
    member = joining(group, first.member_id, protocol_type="connect")
    joined = kafka.ask("JoinGroup", 5, **member)
    sync(kafka, group, joined, **{joined.member_id: b""})
    assert forget(kafka, group, "orders") == (ErrorCode.NON_EMPTY_GROUP, [])
    assert positions(kafka, group)[0] == (2, "")


# -- both worlds -----------------------------------------------------------------------------------


def test_a_group_has_members_of_one_protocol_at_a_time(broker: Broker, group: str) -> None:
    with broker.connect() as kafka, tms.connect(broker.url) as bus:
        with bus.consumer("orders", group=group) as consumer:
            consumer.poll(0.1)
            refused = kafka.ask("JoinGroup", 3, **joining(group))
            assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        joined = join(kafka, group)
        sync(kafka, group, joined, **{joined.member_id: b""})
        consumer = bus.consumer("orders", group=group)
        with consumer, pytest.raises(Conflict, match="Kafka"):
            consumer.poll(5)


def test_operators_see_that_a_group_has_members_of_kafka(broker: Broker, group: str) -> None:
    with broker.connect() as kafka, tms.connect(broker.url) as bus:
        joined = join(kafka, group)
        sync(kafka, group, joined, **{joined.member_id: b""})
        commit(kafka, group, 3, joined)
        assert bus.describe_group("orders", group=group).kind is tms.GroupKind.CLASSIC
        [seen] = [one for one in bus.list_groups("orders") if one.group == group]
        assert (seen.kind, seen.members) == (tms.GroupKind.CLASSIC, 0)
        at = ("--url", broker.url, "--yes")
        refused = tms_command("group", "reset", "orders", group, *at)
        assert refused.returncode != 0
        assert "has members of Kafka's protocol" in refused.stderr
        assert positions(kafka, group)[0] == (3, "")
        kafka.ask("LeaveGroup", 2, group_id=group, member_id=joined.member_id)
        assert bus.describe_group("orders", group=group).kind is None
        assert tms_command("group", "reset", "orders", group, *at).returncode == 0
        assert positions(kafka, group)[0] == (-1, "")


def test_positions_are_for_both_protocols(broker: Broker, group: str) -> None:
    with broker.connect() as kafka, tms.connect(broker.url) as bus:
        bus.create_topic(group)
        produced(kafka, group, batch([(None, b"%d" % number) for number in range(4)]))
        with bus.consumer(group, group=group) as consumer:
            assert [next(iter(consumer)).value for _ in range(2)] == [b"0", b"1"]
            consumer.ack()
        everything = kafka.ask("OffsetFetch", 7, group_id=group, topics=None).topics
        assert everything[0].partitions[0].committed_offset == 2
        assert commit(kafka, group, 3, topic=group) is ErrorCode.NONE
        with bus.consumer(group, group=group) as consumer:
            assert next(iter(consumer)).value == b"3"
