"""Administration by Kafka's requests on a running service: truncating, growing, settings, sizes,
producers."""

from pathlib import Path
from typing import Any

import pytest

import tms
from tests.kafka_kit import (
    EARLIEST,
    LATEST,
    NEWEST,
    Broker,
    KafkaConnection,
    batch,
    create_topic,
    fetched,
    kafka_serving,
    metadata,
    offset_at,
    produced,
    producing,
    records_in,
)
from tests.kafka_producer import TransactionalProducer
from tms.compat.kafka import codec
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import describe_producers
from tms.store.leveldb import LevelDBStore

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DYNAMIC, STATIC_BROKER, DEFAULT = 1, 4, 5
DAY_MS = 86_400_000


def publish(kafka: KafkaConnection, topic: str, *values: bytes, partition: int = 0) -> Any:
    batches = {partition: batch([(b"k", value) for value in values])}
    answer = kafka.ask("Produce", 9, **producing(topic, batches))
    return answer.responses[0].partition_responses[0]


# -- repeated names --------------------------------------------------------------------------------


def test_repeating_a_name_makes_no_answer_larger(kafka: KafkaConnection, topic: str) -> None:
    made = codec.class_of("MetadataRequest").MetadataRequestTopic
    wanted = [made(name=topic)] * 3
    assert [one.name for one in kafka.ask("Metadata", 12, topics=wanted).topics] == [topic]
    groups = kafka.ask("DescribeGroups", 5, groups=["g", "g", "h"]).groups
    assert [one.group_id for one in groups] == ["g", "h"]
    states = kafka.ask("DescribeTransactions", 0, transactional_ids=["t", "t"])
    assert [one.transactional_id for one in states.transaction_states] == ["t"]
    made = codec.class_of("OffsetFetchRequest").OffsetFetchRequestGroup
    asked = [made(group_id=name, topics=None) for name in ("g", "g", "h")]
    found = kafka.ask("OffsetFetch", 8, groups=asked).groups
    refused = ErrorCode.INVALID_REQUEST
    assert [one.error_code for one in found] == [refused, refused, ErrorCode.NONE]


# -- DeleteRecords ---------------------------------------------------------------------------------


def delete_records(
    kafka: KafkaConnection, topic: str, *places: tuple[int, int], version: int = 2
) -> list[tuple[int, int, ErrorCode]]:
    """Partition, low watermark and code for each partition and offset."""
    made = codec.class_of("DeleteRecordsRequest").DeleteRecordsTopic
    parts = [
        made.DeleteRecordsPartition(partition_index=number, offset=offset)
        for number, offset in places
    ]
    wanted = [made(name=topic, partitions=parts)]
    [answer] = kafka.ask("DeleteRecords", version, topics=wanted, timeout_ms=1_000).topics
    assert answer.name == topic
    return [
        (one.partition_index, one.low_watermark, ErrorCode(one.error_code))
        for one in answer.partitions
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_before_an_offset_are_deleted_in_one_partition(
    kafka: KafkaConnection, topic: str, version: int
) -> None:
    for partition in (0, 1):
        publish(kafka, topic, b"0", b"1", b"2", partition=partition)
    none = ErrorCode.NONE
    assert delete_records(kafka, topic, (0, 2), version=version) == [(0, 2, none)]
    assert fetched(kafka, topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [value for _, _, value in records_in(fetched(kafka, topic, 2).records)] == [b"2"]
    assert len(records_in(fetched(kafka, topic, 0, 1).records)) == 3
    for _ in range(2):  # an offset that is gone already changes nothing
        assert delete_records(kafka, topic, (0, 1), (0, 2)) == [(0, 2, none), (0, 2, none)]
    assert delete_records(kafka, topic, (1, -1), (0, 3)) == [(1, 3, none), (0, 3, none)]
    assert publish(kafka, topic, b"3").base_offset == 3


def test_records_that_are_not_there_cannot_be_deleted(kafka: KafkaConnection, topic: str) -> None:
    publish(kafka, topic, b"0", b"1")
    beyond = ErrorCode.OFFSET_OUT_OF_RANGE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    places = [(0, 3), (0, -2), (0, 2**63 - 1), (2, 0), (-1, 0), (1, 1)]
    codes = [beyond, beyond, beyond, unknown, unknown, beyond]
    wanted = [(number, -1, code) for (number, _), code in zip(places, codes, strict=True)]
    assert delete_records(kafka, topic, *places) == wanted
    assert delete_records(kafka, "nowhere", (0, 0)) == [(0, -1, unknown)]
    assert delete_records(kafka, "a b", (0, 0)) == [(0, -1, ErrorCode.INVALID_TOPIC_EXCEPTION)]
    assert len(records_in(fetched(kafka, topic, 0).records)) == 2


def end_of(kafka: KafkaConnection, topic: str, place: int, **fields: Any) -> int:
    """The offset of a place in the first partition."""
    found = offset_at(kafka, topic, place, **fields)
    assert not found.error_code
    return int(found.offset)


def test_a_truncation_may_cut_an_open_transaction(kafka: KafkaConnection, topic: str) -> None:
    publish(kafka, topic, b"0")
    producer = TransactionalProducer(kafka, f"id of {topic}")
    producer.initialise()
    producer.add(topic, 0)
    producer.produce(topic, b"1", b"2")
    delete_records(kafka, topic, (0, 2))
    assert end_of(kafka, topic, EARLIEST) == 2
    assert end_of(kafka, topic, LATEST, isolation_level=1) == 2  # where a reader may begin
    [described] = producers(kafka, topic, 0)
    assert not described.error_code, described.error_message
    assert [one.current_txn_start_offset for one in described.active_producers] == [2]
    producer.end(True)
    assert end_of(kafka, topic, LATEST, isolation_level=1) == 3


def test_an_emptied_partition_has_no_newest_time(kafka: KafkaConnection, topic: str) -> None:
    publish(kafka, topic, b"0", b"1")
    assert end_of(kafka, topic, NEWEST) == 1
    delete_records(kafka, topic, (0, -1))
    assert end_of(kafka, topic, NEWEST) == -1


def test_records_of_a_compacted_topic_stay(kafka: KafkaConnection, topic: str) -> None:
    publish(kafka, topic, b"0")
    alter(kafka, topic, ("cleanup.policy", SET, "compact"))
    refused = [(0, -1, ErrorCode.POLICY_VIOLATION)]
    assert delete_records(kafka, topic, (0, 1)) == refused
    alter(kafka, topic, ("cleanup.policy", APPEND, "delete"))
    assert delete_records(kafka, topic, (0, 1)) == [(0, 1, ErrorCode.NONE)]


def test_deleted_records_stay_deleted_after_a_restart(tmp_path: Path) -> None:
    for wanted in ([b"0", b"1"], [b"1"]):
        with (
            kafka_serving(LevelDBStore(tmp_path, create=True)) as broker,
            broker.connect() as kafka,
        ):
            if len(wanted) == 2:
                create_topic(kafka, "kept")
                publish(kafka, "kept", *wanted)
                delete_records(kafka, "kept", (0, 1))
            found = records_in(fetched(kafka, "kept", 1).records)
            assert found == [(1, b"k", b"1")]
            assert fetched(kafka, "kept", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- CreatePartitions ------------------------------------------------------------------------------


def grow(
    kafka: KafkaConnection,
    topic: str,
    count: int,
    brokers: list[list[int]] | None = None,
    version: int = 3,
    **fields: Any,
) -> ErrorCode:
    made = codec.class_of("CreatePartitionsRequest").CreatePartitionsTopic
    assigned = brokers and [made.CreatePartitionsAssignment(broker_ids=one) for one in brokers]
    wanted = [made(name=topic, count=count, assignments=assigned)]
    [result] = kafka.ask("CreatePartitions", version, topics=wanted, **fields).results
    assert bool(result.error_message) == bool(result.error_code)
    return ErrorCode(result.error_code)


def count_of(kafka: KafkaConnection, topic: str) -> int:
    return len(metadata(kafka, topic, allow_auto_topic_creation=False).partitions)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_partitions_are_added(kafka: KafkaConnection, topic: str, version: int) -> None:
    assert grow(kafka, topic, 3, validate_only=True, version=version) is ErrorCode.NONE
    assert count_of(kafka, topic) == 2
    assert grow(kafka, topic, 3, version=version) is ErrorCode.NONE
    assert grow(kafka, topic, 5, [[0], [0]], version=version) is ErrorCode.NONE
    assert count_of(kafka, topic) == 5
    assert publish(kafka, topic, b"new", partition=4).base_offset == 0


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize(
    ("count", "brokers", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (0, None, ErrorCode.INVALID_PARTITIONS),
        (-(2**31), None, ErrorCode.INVALID_PARTITIONS),
        (1_025, None, ErrorCode.INVALID_PARTITIONS),
        (2**31 - 1, None, ErrorCode.INVALID_PARTITIONS),
        (3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[0, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[0], [0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_cannot_be_are_refused(
    broker: Broker, count: int, brokers: list[list[int]] | None, code: ErrorCode, validates: bool
) -> None:
    with broker.connect() as kafka:
        create_topic(kafka, "stays")
        assert grow(kafka, "stays", count, brokers, validate_only=validates) is code
        assert count_of(kafka, "stays") == 2


def test_partitions_of_topics_that_are_not_there_are_refused(kafka: KafkaConnection) -> None:
    assert grow(kafka, "nowhere", 3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(kafka, "a b", 3) is ErrorCode.INVALID_TOPIC_EXCEPTION
    create_topic(kafka, "twice")
    made = codec.class_of("CreatePartitionsRequest").CreatePartitionsTopic
    wanted = [made(name="twice", count=count) for count in (3, 4)]
    results = kafka.ask("CreatePartitions", 3, topics=wanted).results
    assert [one.error_code for one in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert count_of(kafka, "twice") == 2


@pytest.mark.parametrize("brokers", [[1], [0, 1], []])
def test_a_topic_is_created_on_the_only_broker(kafka: KafkaConnection, brokers: list[int]) -> None:
    made = codec.class_of("CreateTopicsRequest").CreatableTopic.CreatableReplicaAssignment
    assigned = [made(partition_index=0, broker_ids=brokers)]
    refused = create_topic(kafka, "placed", -1, assignments=assigned)
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert count_of(kafka, "placed") == 0


# -- settings --------------------------------------------------------------------------------------


def alter(
    kafka: KafkaConnection,
    topic: str,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    **fields: Any,
) -> ErrorCode:
    made = codec.class_of("IncrementalAlterConfigsRequest").AlterConfigsResource
    configs = [
        made.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    wanted = [made(resource_type=kind, resource_name=topic, configs=configs)]
    version = fields.pop("version", 1)
    [result] = kafka.ask("IncrementalAlterConfigs", version, resources=wanted, **fields).responses
    assert (result.resource_type, result.resource_name) == (kind, topic)
    assert bool(result.error_message) == bool(result.error_code)
    return ErrorCode(result.error_code)


def replace(
    kafka: KafkaConnection, topic: str, configs: dict[str, str | None], **fields: Any
) -> ErrorCode:
    made = codec.class_of("AlterConfigsRequest").AlterConfigsResource
    given = [made.AlterableConfig(name=name, value=value) for name, value in configs.items()]
    wanted = [made(resource_type=TOPIC, resource_name=topic, configs=given)]
    version = fields.pop("version", 2)
    [result] = kafka.ask("AlterConfigs", version, resources=wanted, **fields).responses
    return ErrorCode(result.error_code)


def described(kafka: KafkaConnection, name: str, kind: int = TOPIC, **fields: Any) -> Any:
    made = codec.class_of("DescribeConfigsRequest").DescribeConfigsResource
    wanted = [made(resource_type=kind, resource_name=name, configuration_keys=None)]
    [result] = kafka.ask("DescribeConfigs", 4, resources=wanted, **fields).results
    assert not result.error_code
    return {one.name: one for one in result.configs}


def values_of(kafka: KafkaConnection, topic: str) -> dict[str, tuple[str, int]]:
    """Value and source of the settings that can be changed."""
    return {
        name: (one.value, one.config_source)
        for name, one in described(kafka, topic).items()
        if not one.read_only
    }


DEFAULTS = {
    "cleanup.policy": ("delete", DEFAULT),
    "delete.retention.ms": (str(DAY_MS), DEFAULT),
    "max.message.bytes": (str(8 << 20), DEFAULT),
    "retention.bytes": ("-1", DEFAULT),
    "retention.ms": (str(14 * DAY_MS), DEFAULT),
}
CHOSEN = {
    "cleanup.policy": "compact,delete",
    "delete.retention.ms": "60000",
    "max.message.bytes": "1000",
    "retention.bytes": "2000000",
    "retention.ms": str(14 * DAY_MS),  # chosen, though it is the default
}


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_set_and_deleted_one_by_one(
    kafka: KafkaConnection, broker: Broker, topic: str, version: int
) -> None:
    wanted = dict(DEFAULTS)
    for name, value in CHOSEN.items():
        assert alter(kafka, topic, (name, SET, value), version=version) is ErrorCode.NONE
        wanted[name] = (value, DYNAMIC)
        assert values_of(kafka, topic) == wanted
    with tms.connect(broker.url) as bus:
        settings = bus.describe_topic(topic).settings
    assert (settings.retention_bytes, settings.message_bytes_max) == (2_000_000, 1_000)
    assert (str(settings.cleanup), settings.tombstone_retention_ms) == ("compact,delete", 60_000)
    assert alter(kafka, topic, *((name, DELETE, None) for name in CHOSEN)) is ErrorCode.NONE
    assert values_of(kafka, topic) == DEFAULTS


@pytest.mark.parametrize("version", [0, 1, 2])
def test_settings_are_replaced_all_at_once(
    kafka: KafkaConnection, topic: str, version: int
) -> None:
    alter(kafka, topic, ("retention.bytes", SET, "2000000"), ("max.message.bytes", SET, "1000"))
    assert replace(kafka, topic, {"retention.ms": "5000"}, version=version) is ErrorCode.NONE
    assert values_of(kafka, topic) == DEFAULTS | {"retention.ms": ("5000", DYNAMIC)}
    assert replace(kafka, topic, {}) is ErrorCode.NONE
    assert values_of(kafka, topic) == DEFAULTS


def test_lists_are_added_to_and_taken_from(kafka: KafkaConnection, topic: str) -> None:
    policy = "cleanup.policy"
    for operation, value, wanted in (
        (APPEND, "compact", "compact,delete"),
        (APPEND, "compact, delete", "compact,delete"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
        (APPEND, "delete", "compact,delete"),
        (SUBTRACT, "compact", "delete"),
    ):
        assert alter(kafka, topic, (policy, operation, value)) is ErrorCode.NONE
        assert values_of(kafka, topic)[policy][0] == wanted
    for operation, value in ((SUBTRACT, "delete"), (APPEND, "burn")):
        assert alter(kafka, topic, (policy, operation, value)) is ErrorCode.INVALID_CONFIG
        assert values_of(kafka, topic)[policy][0] == "delete"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("no.such", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "-2"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "1_000"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "9" * 30), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG),
        (("segment.bytes", SUBTRACT, "5"), ErrorCode.INVALID_CONFIG),
        (("segment.bytes", SET, "many"), ErrorCode.INVALID_CONFIG),
        (("preallocate", SET, "perhaps"), ErrorCode.INVALID_CONFIG),
        (("min.cleanable.dirty.ratio", SET, "half"), ErrorCode.INVALID_CONFIG),
        (("max.message.bytes", SET, "0"), ErrorCode.INVALID_CONFIG),
        (("max.message.bytes", SET, str(1 << 30)), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", SET, ""), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.ms", 4, "5"), ErrorCode.INVALID_REQUEST),
        (("retention.ms", -1, "5"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_that_cannot_be_change_nothing(
    kafka: KafkaConnection, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    create_topic(kafka, "settled")
    for validates in (False, True):
        good = ("retention.bytes", SET, "3000000")
        assert alter(kafka, "settled", good, change, validate_only=validates) is code
    assert values_of(kafka, "settled") == DEFAULTS


def test_a_topic_that_was_compacted_keeps_its_messages_until_someone_chooses(
    kafka: KafkaConnection, topic: str
) -> None:
    alter(kafka, topic, ("cleanup.policy", SET, "compact"), ("retention.ms", SET, "5000"))
    for change in (("cleanup.policy", APPEND, "delete"), ("cleanup.policy", DELETE, None)):
        assert values_of(kafka, topic)["retention.ms"] == ("-1", DYNAMIC)
        alter(kafka, topic, change)
    assert values_of(kafka, topic)["retention.ms"] == ("-1", DYNAMIC)
    alter(kafka, topic, ("retention.ms", DELETE, None))
    assert values_of(kafka, topic) == DEFAULTS


def test_a_change_may_be_checked_only(kafka: KafkaConnection, topic: str) -> None:
    change = ("retention.ms", SET, "5000")
    assert alter(kafka, topic, change, validate_only=True) is ErrorCode.NONE
    assert replace(kafka, topic, {"retention.ms": "5000"}, validate_only=True) is ErrorCode.NONE
    assert values_of(kafka, topic) == DEFAULTS


def test_settings_without_an_effect_are_accepted_and_read_only(
    kafka: KafkaConnection, topic: str
) -> None:
    before = described(kafka, topic)
    changes = [("segment.bytes", SET, "5"), ("min.cleanable.dirty.ratio", SET, "0.1")]
    throttled = "leader.replication.throttled.replicas"
    assert alter(kafka, topic, *changes, (throttled, APPEND, "0:0")) is ErrorCode.NONE
    assert described(kafka, topic) == before
    assert before["segment.bytes"].read_only
    refused = create_topic(kafka, "typed", configs={"segment.ms": "x"})
    assert refused.error_code == ErrorCode.INVALID_CONFIG


def test_only_topics_that_are_there_are_altered(kafka: KafkaConnection, topic: str) -> None:
    change = ("retention.ms", SET, "5000")
    assert alter(kafka, "nowhere", change) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(kafka, "a b", change) is ErrorCode.INVALID_TOPIC_EXCEPTION
    for kind, name in ((BROKER, "0"), (BROKER, ""), (BROKER_LOGGER, "0"), (99, topic)):
        assert alter(kafka, name, change, kind=kind) is ErrorCode.INVALID_REQUEST
    assert alter(kafka, topic, change, change) is ErrorCode.INVALID_REQUEST
    for long in (("x" * 32_000, SET, None), ("x" * 32_000, SET, "1"), ("x" * 32_000, APPEND, "1")):
        assert alter(kafka, topic, long, version=0) is not ErrorCode.NONE
        assert alter(kafka, topic, long, long, version=0) is ErrorCode.INVALID_REQUEST
    made = codec.class_of("AlterConfigsRequest").AlterConfigsResource
    twice = [made(resource_type=TOPIC, resource_name=topic)] * 2
    results = kafka.ask("AlterConfigs", 2, resources=twice).responses
    assert [one.error_code for one in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert values_of(kafka, topic) == DEFAULTS


def test_a_setting_names_the_places_that_it_comes_from(kafka: KafkaConnection, topic: str) -> None:
    alter(kafka, topic, ("retention.ms", SET, "5000"))
    found = described(kafka, topic, include_synonyms=True)
    default = ("log.retention.ms", str(14 * DAY_MS), DEFAULT)
    told = [(one.name, one.value, one.source) for one in found["retention.ms"].synonyms]
    assert told == [("retention.ms", "5000", DYNAMIC), default]
    told = [(one.name, one.value, one.source) for one in found["max.message.bytes"].synonyms]
    assert told == [("message.max.bytes", str(8 << 20), DEFAULT)]
    assert not described(kafka, topic)["retention.ms"].synonyms
    broker = described(kafka, "0", BROKER)
    assert broker["num.partitions"].config_source == STATIC_BROKER
    assert all(one.read_only for one in broker.values())


def test_a_resource_is_described_once_a_request(kafka: KafkaConnection, topic: str) -> None:
    made = codec.class_of("DescribeConfigsRequest").DescribeConfigsResource
    twice = [made(resource_type=TOPIC, resource_name=topic)] * 2
    results = kafka.ask("DescribeConfigs", 4, resources=twice).results
    assert [(one.error_code, one.configs) for one in results] == [
        (ErrorCode.INVALID_REQUEST, [])
    ] * 2


def test_many_topics_of_one_name_are_refused_at_once(kafka: KafkaConnection) -> None:
    made = codec.class_of("CreateTopicsRequest").CreatableTopic
    many = [made(name="many", num_partitions=1, replication_factor=1)] * 50_000
    results = kafka.ask("CreateTopics", 7, topics=many).topics
    assert {one.error_code for one in results} == {ErrorCode.INVALID_REQUEST}
    assert count_of(kafka, "many") == 0


# -- sizes, producers, epochs ----------------------------------------------------------------------


def directory(kafka: KafkaConnection, version: int = 4, **fields: Any) -> Any:
    [result] = kafka.ask("DescribeLogDirs", version, **fields).results
    assert not result.error_code
    return result


def sizes_in(directory: Any) -> dict[tuple[str, int], int]:
    for topic in directory.topics:
        assert all(part.offset_lag == 0 and not part.is_future_key for part in topic.partitions)
    return {
        (topic.name, part.partition_index): part.partition_size
        for topic in directory.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_log_directory_has_the_sizes_of_partitions(
    kafka: KafkaConnection, broker: Broker, topic: str, version: int
) -> None:
    publish(kafka, topic, b"x" * 10_000)
    with tms.connect(broker.url) as bus:
        bus.create_topic("elsewhere:hidden")
        stored = [one.stored_bytes for one in bus.describe_topic(topic).partition_infos]
    found = sizes_in(directory(kafka, version, topics=None))
    assert [found[topic, 0], found[topic, 1]] == stored
    assert stored[0] >= 10_000 > stored[1]
    assert not any(name in ("hidden", "_positions") for name, _ in found)
    made = codec.class_of("DescribeLogDirsRequest").DescribableLogDirTopic
    named = [
        made(topic=topic, partitions=[1, 7, 1]),
        made(topic="nowhere", partitions=[0]),
        made(topic="a b", partitions=[0]),
    ]
    assert sizes_in(directory(kafka, version, topics=named)) == {(topic, 1): stored[1]}
    assert sizes_in(directory(kafka, version, topics=[])) == {}


def test_the_log_directory_has_the_size_of_its_volume(
    kafka: KafkaConnection, tmp_path: Path
) -> None:
    unknown = directory(kafka, topics=[])
    assert (unknown.total_bytes, unknown.usable_bytes) == (-1, -1)
    with (
        kafka_serving(LevelDBStore(tmp_path, create=True)) as broker,
        broker.connect() as connection,
    ):
        known = directory(connection, topics=[])
    assert known.total_bytes > known.usable_bytes > 0


def producers(kafka: KafkaConnection, topic: str, *partitions: int) -> list[Any]:
    made = codec.class_of("DescribeProducersRequest").TopicRequest
    wanted = [made(name=topic, partition_indexes=list(partitions))]
    [answer] = kafka.ask("DescribeProducers", 0, topics=wanted).topics
    return list(answer.partitions)


def test_partitions_know_their_producers(kafka: KafkaConnection, topic: str) -> None:
    publish(kafka, topic, b"of no producer")
    first = TransactionalProducer(kafka, f"first {topic}")
    second = TransactionalProducer(kafka, f"second {topic}")
    for one in (first, second):
        one.initialise()
        one.add(topic, 0, 1)
    first.produce(topic, b"1", b"2")
    second.produce(topic, b"3")
    first.produce(topic, b"4")
    one, other = producers(kafka, topic, 0)[0].active_producers
    assert {one.producer_id, other.producer_id} == {first.number, second.number}
    one, other = sorted((one, other), key=lambda each: each.producer_id != first.number)
    assert (one.producer_epoch, one.last_sequence, one.current_txn_start_offset) == (0, 2, 1)
    assert (other.last_sequence, other.current_txn_start_offset) == (0, 3)
    assert other.last_timestamp > 0
    assert producers(kafka, topic, 1)[0].active_producers == []
    first.end(True)
    second.end(False)
    assert [
        one.current_txn_start_offset for one in producers(kafka, topic, 0)[0].active_producers
    ] == [-1, -1]


def test_producers_of_partitions_that_are_not_there_are_refused(
    kafka: KafkaConnection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.error_code for one in producers(kafka, topic, 2, -1)] == [unknown, unknown]
    assert producers(kafka, "nowhere", 0)[0].error_code == unknown
    producer = TransactionalProducer(kafka, f"id of {topic}")
    producer.initialise()
    producer.add(topic, 0)
    producer.produce(topic, b"1")
    monkeypatch.setattr(describe_producers, "PRODUCERS_MAX", 2)
    codes = [one.error_code for one in producers(kafka, topic, *[0] * 4)]
    assert codes == [0, 0, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_only_leader_epoch_ends_where_the_partition_does(
    kafka: KafkaConnection, topic: str, version: int
) -> None:
    publish(kafka, topic, b"0", b"1")
    made = codec.class_of("OffsetForLeaderEpochRequest").OffsetForLeaderTopic
    part = made.OffsetForLeaderPartition
    wanted = [
        part(partition=0, leader_epoch=0),
        part(partition=0, leader_epoch=7),
        part(partition=0, leader_epoch=-1),
        part(partition=0, leader_epoch=0, current_leader_epoch=1),
        part(partition=9, leader_epoch=0),
    ]
    [answer] = kafka.ask(
        "OffsetForLeaderEpoch", version, topics=[made(topic=topic, partitions=wanted)]
    ).topics
    found = [(one.error_code, one.leader_epoch, one.end_offset) for one in answer.partitions]
    assert found == [
        (0, 0, 2),
        (0, 0, 2),
        (0, -1, -1),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
    ]


def test_there_are_no_acls_and_no_reassignments(kafka: KafkaConnection) -> None:
    for version in (1, 2, 3):
        answer = kafka.ask("DescribeAcls", version, resource_type_filter=1)
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        assert answer.error_message
    made = codec.class_of("ListPartitionReassignmentsRequest").ListPartitionReassignmentsTopics
    for topics in (None, [made(name="nowhere", partition_indexes=[0])]):
        answer = kafka.ask("ListPartitionReassignments", 0, topics=topics)
        assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])


# -- compacted topics ------------------------------------------------------------------------------


def test_a_compacted_topic_takes_no_message_without_a_key(
    kafka: KafkaConnection, broker: Broker, topic: str
) -> None:
    alter(kafka, topic, ("cleanup.policy", SET, "compact"))
    for rows, code in (
        ([(b"k", b"1"), (None, b"2"), (b"k", b"3")], ErrorCode.INVALID_RECORD),
        ([(b"k", b"1"), (b"", b"2"), (b"k", None)], ErrorCode.NONE),
    ):
        [result] = produced(kafka, topic, batch(rows))
        assert result.error_code == code
        assert [one.batch_index for one in result.record_errors] == [1] * bool(code)
    assert [offset for offset, _, _ in records_in(fetched(kafka, topic, 0).records)] == [0, 1, 2]
    with tms.connect(broker.url) as bus:
        bus.publish(topic, b"TMS's own producers may", partition=0)
