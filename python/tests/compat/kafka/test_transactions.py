"""Transactions of Kafka's producers on a running service: all of a transaction or nothing of it,
one producer of an id at a time."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.compat.kafka.test_groups import join, sync
from tests.kafka_kit import (
    Broker,
    KafkaConnection,
    batch,
    create_topic,
    kafka_serving,
    produced,
    records_in,
)
from tests.kafka_producer import TransactionalProducer, committed, offset_of, values
from tms.compat.kafka.errors import ErrorCode
from tms.store.memory import MemoryStore

BROKERS = ("alone", "three")
CLOCKED = True
NONE, FENCED, BAD_EPOCH = (
    ErrorCode.NONE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
BAD_STATE, CONCURRENT = ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
OLDEST = {
    "InitProducerId": 3,
    "AddPartitionsToTxn": 1,
    "AddOffsetsToTxn": 1,
    "TxnOffsetCommit": 2,
    "EndTxn": 1,
}


@pytest.fixture
def producer(kafka: KafkaConnection, topic: str) -> TransactionalProducer:
    """The producer of an id of the test's own, without a number."""
    return TransactionalProducer(kafka, f"id of {topic}")


@pytest.fixture
def begun(producer: TransactionalProducer, topic: str) -> TransactionalProducer:
    """A producer with one batch in an open transaction."""
    assert producer.initialise() is NONE
    assert producer.add(topic, 0) is NONE
    assert producer.produce(topic, b"first") is NONE
    return producer


def successor(producer: TransactionalProducer) -> TransactionalProducer:
    """Another producer of the same id."""
    other = TransactionalProducer(producer.kafka, producer.id)
    assert other.initialise() is NONE
    return other


def pass_s(broker: Broker, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and the service do its regular work."""
    clock.pass_ms(int(seconds * 1_000))
    broker.engine._tidy()


# -- the way of a transaction ----------------------------------------------------------------------


@pytest.mark.parametrize("versions", [{}, OLDEST])
def test_a_transaction_is_seen_as_a_whole_once_it_commits(
    kafka: KafkaConnection, topic: str, versions: dict[str, int]
) -> None:
    producer = TransactionalProducer(kafka, f"id of {topic}", **versions)
    assert producer.initialise() is NONE
    assert producer.add(topic, 0, 1) is NONE
    assert producer.produce(topic, b"a", b"b") is NONE
    assert producer.produce(topic, b"c", partition=1) is NONE
    assert producer.add_group("group") is NONE
    assert producer.move("group", topic, 7) is NONE
    assert values(kafka, topic) == values(kafka, topic, 1) == []
    assert committed(kafka, topic).last_stable_offset == 0
    assert offset_of(kafka, "group", topic) == -1
    assert producer.end() is NONE
    assert (values(kafka, topic), values(kafka, topic, 1)) == ([b"a", b"b"], [b"c"])
    assert offset_of(kafka, "group", topic, stable=True) == 7


def test_nothing_of_an_aborted_transaction_is_seen(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    assert begun.add_group(topic) is NONE
    assert begun.move(topic, topic, 7) is NONE
    assert begun.end(committed=False) is NONE
    found = committed(kafka, topic)
    assert (records_in(found.records), found.last_stable_offset) == ([], 1)
    assert len(found.records) > 0  # an empty batch, which carries the reader on
    assert offset_of(kafka, topic, topic, stable=True) == -1


def test_sequences_go_on_through_commits_and_aborts(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    for number, outcome in enumerate((True, False, True, True)):
        assert begun.end(outcome) is NONE
        assert begun.add(topic, 0) is NONE
        assert begun.produce(topic, b"%d" % number, b"more") is NONE
    assert values(kafka, topic) == [b"first", b"1", b"more", b"2", b"more"]


def test_a_repeated_batch_of_a_transaction_is_stored_once(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    first = begun.send((topic, 0), [b"x", b"y"], 1)
    again = begun.send((topic, 0), [b"x", b"y"], 1)
    assert (first.error_code, first.base_offset) == (again.error_code, again.base_offset) == (0, 1)
    assert begun.end() is NONE
    assert values(kafka, topic) == [b"first", b"x", b"y"]


def test_the_last_offset_of_a_transaction_counts(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    assert begun.add_group(topic) is NONE
    for offset in (3, 9, 4):
        assert begun.move(topic, topic, offset, metadata=f"at {offset}") is NONE
    assert begun.move(topic, topic, 1, partition=1) is NONE
    assert begun.end() is NONE
    assert offset_of(kafka, topic, topic) == 4
    assert offset_of(kafka, topic, topic, 1) == 1


def test_overlapping_transactions_may_move_one_offset(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    other = TransactionalProducer(kafka, f"other id of {topic}")
    assert other.initialise() is NONE
    for offset, one in ((5, other), (6, begun)):
        assert one.add_group(topic) is NONE
        assert one.move(topic, topic, offset) is NONE
    assert other.end() is NONE
    assert begun.end() is NONE  # although its transaction began before the other one committed
    assert offset_of(kafka, topic, topic) == 6


# -- one producer at a time ------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [{}, OLDEST])
def test_a_later_producer_fences_the_earlier_one_and_aborts_its_transaction(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str, versions: dict[str, int]
) -> None:
    assert begun.add_group(topic) is NONE
    assert begun.move(topic, topic, 7) is NONE
    later = successor(begun)
    assert (later.number, later.epoch) == (begun.number, begun.epoch + 1)
    begun._versions = versions
    told = BAD_EPOCH if versions else FENCED
    assert begun.add(topic, 1) is told
    assert begun.add_group("another") is told
    assert begun.end() is told
    assert begun.end(committed=False) is told
    assert begun.initialise(goes_on=True) is told
    assert begun.move(topic, topic, 8) is BAD_EPOCH
    assert begun.produce(topic, b"late") is BAD_EPOCH
    assert values(kafka, topic) == []
    assert committed(kafka, topic).last_stable_offset == 1
    assert offset_of(kafka, topic, topic, stable=True) == -1
    assert later.add(topic, 0) is NONE
    assert begun.produce(topic, b"late") is BAD_EPOCH
    assert later.produce(topic, b"new") is NONE
    assert later.end() is NONE
    assert values(kafka, topic) == [b"new"]


def test_a_producer_goes_on_with_the_next_epoch_after_an_error(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    earlier = (begun.number, begun.epoch)
    assert begun.initialise(goes_on=True) is NONE
    assert (begun.number, begun.epoch) == (earlier[0], earlier[1] + 1)
    assert committed(kafka, topic).last_stable_offset == 1  # it is aborted
    begun.number, begun.epoch = earlier
    assert begun.initialise(goes_on=True) is NONE  # the answer was lost
    assert (begun.number, begun.epoch) == (earlier[0], earlier[1] + 1)
    begun.number, begun.epoch = earlier[0], earlier[1] + 5
    assert begun.initialise(goes_on=True) is FENCED
    begun.number, begun.epoch = earlier[0] + 1, earlier[1] + 1
    assert begun.initialise(goes_on=True) is FENCED


def test_a_number_without_epochs_left_is_replaced(
    begun: TransactionalProducer, broker: Broker, kafka: KafkaConnection, topic: str
) -> None:
    from msgspec.structs import replace

    from tms.transactions.transactional_state import EPOCH_MAX, ProducerEpoch

    ids = broker.engine.transactional_ids
    before = begun.number
    last = ProducerEpoch(before, EPOCH_MAX)
    ids._write(begun.id, replace(ids.find(begun.id), producer=last))
    begun.epoch = EPOCH_MAX
    assert begun.initialise(goes_on=True) is NONE
    assert (begun.number != before, begun.epoch) == (True, 0)
    assert begun.add(topic, 0) is NONE
    assert begun.produce(topic, b"new") is NONE
    assert begun.end() is NONE
    assert values(kafka, topic) == [b"new"]


@pytest.mark.parametrize("timeout_ms", [-1, 0, 3_600_001])
def test_a_time_out_is_positive_and_at_most_an_hour(
    producer: TransactionalProducer, timeout_ms: int
) -> None:
    assert producer.initialise(timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.initialise(3_600_000) is NONE


def test_an_id_is_not_empty_nor_is_half_a_producer_named(producer: TransactionalProducer) -> None:
    nameless = TransactionalProducer(producer.kafka, "")
    assert nameless.initialise() is ErrorCode.INVALID_REQUEST
    producer.number = 5
    assert producer.initialise(goes_on=True) is ErrorCode.INVALID_REQUEST


def test_an_unknown_producer_is_told_so(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    nobody = TransactionalProducer(kafka, f"nobody {topic}")
    nobody.number, nobody.epoch = begun.number, begun.epoch
    begun.number += 1
    for one in (nobody, begun):
        assert one.add(topic, 0) is mapping
        assert one.add_group("g") is mapping
        assert one.move("g", topic, 1) is mapping
        assert one.produce(topic, b"1") is mapping
        assert one.end() is mapping


# -- states ----------------------------------------------------------------------------------------


def test_the_end_may_be_repeated_but_not_changed(begun: TransactionalProducer, topic: str) -> None:
    for outcome in (True, False):
        assert begun.end(outcome) is NONE
        assert begun.end(outcome) is NONE
        assert begun.end(not outcome) is BAD_STATE
        assert begun.add(topic, 0) is NONE
    assert begun.end() is NONE


def test_a_transaction_that_has_not_begun_cannot_end(producer: TransactionalProducer) -> None:
    assert producer.initialise() is NONE
    assert producer.end() is BAD_STATE
    assert producer.end(committed=False) is BAD_STATE


def test_unknown_partitions_are_named_and_none_is_added(
    begun: TransactionalProducer, topic: str
) -> None:
    assert begun.added({topic: [1, 7], "nowhere": [0]}) == {
        (topic, 1): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (topic, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert begun.produce(topic, b"1", partition=1) is BAD_STATE


def test_a_batch_belongs_to_the_open_transaction_of_its_partition(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    assert begun.produce(topic, b"elsewhere", partition=1) is BAD_STATE
    assert begun.produce(topic, b"plain", transactional=False) is BAD_STATE
    assert begun.end() is NONE
    assert begun.produce(topic, b"late") is BAD_STATE
    assert begun.produce(topic, b"plain", transactional=False) is NONE
    assert values(kafka, topic) == [b"first", b"plain"]


def test_a_batch_of_a_transaction_names_its_id(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    records = batch([(None, b"1")], (begun.number, begun.epoch, 1), 0, True)
    [result] = produced(kafka, topic, records)
    assert result.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_offsets_need_their_group_in_the_transaction(
    begun: TransactionalProducer, topic: str
) -> None:
    assert begun.move("g", topic, 1) is BAD_STATE
    assert begun.add_group("g") is NONE
    assert begun.move("g", topic, 1) is NONE
    assert begun.move("other", topic, 1) is BAD_STATE
    assert begun.end() is NONE
    assert begun.move("g", topic, 1) is BAD_STATE


def test_each_offset_has_an_error_of_its_own(begun: TransactionalProducer, topic: str) -> None:
    assert begun.add_group(topic) is NONE
    assert begun.move(topic, "nowhere", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert begun.move(topic, topic, -5) is ErrorCode.INVALID_REQUEST
    long = "x" * 5_000
    assert begun.move(topic, topic, 1, metadata=long) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert begun.move(topic, topic, 2) is NONE


def test_only_a_member_of_the_present_generation_moves_offsets() -> None:
    with kafka_serving(MemoryStore()) as broker, broker.connect() as kafka:  # the clock runs
        create_topic(kafka, "topic")
        producer = TransactionalProducer(kafka, "id")
        assert producer.initialise() is NONE
        assert producer.add_group("group") is NONE
        stranger: dict[str, Any] = {"member_id": "stranger", "generation_id": 3}
        assert producer.move("group", "topic", 1, **stranger) is ErrorCode.ILLEGAL_GENERATION
        joined = join(kafka, "group")
        assert not sync(kafka, "group", joined).error_code
        mine = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        assert producer.move("group", "topic", 1, **stranger) is ErrorCode.UNKNOWN_MEMBER_ID
        late = mine | {"generation_id": 9}
        assert producer.move("group", "topic", 1, **late) is ErrorCode.ILLEGAL_GENERATION
        assert producer.move("group", "topic", 2, **mine) is NONE
        assert producer.end() is NONE
        assert offset_of(kafka, "group", "topic") == 2


def test_a_pending_offset_is_not_told_to_those_who_want_stable_ones(
    begun: TransactionalProducer, kafka: KafkaConnection, topic: str
) -> None:
    assert begun.add_group(topic) is NONE
    assert begun.move(topic, topic, 3) is NONE
    assert offset_of(kafka, topic, topic, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert offset_of(kafka, topic, topic) == -1
    assert offset_of(kafka, topic, topic, partition=1, stable=True) == -1
    assert offset_of(kafka, "another group", topic, stable=True) == -1
    assert begun.end() is NONE
    assert offset_of(kafka, topic, topic, stable=True) == 3


def test_the_coordinator_of_an_id_is_the_broker(kafka: KafkaConnection, broker: Broker) -> None:
    for version in (2, 6):
        answer = kafka.ask(
            "FindCoordinator", version, key="id", key_type=1, coordinator_keys=["id"]
        )
        found = answer.coordinators[0] if version == 6 else answer
        assert (found.error_code, found.host, found.port) == (0, *broker.address)


def test_transactions_are_listed_and_described(
    begun: TransactionalProducer, broker: Broker, clock: ManualClock, topic: str
) -> None:
    kafka, id = begun.kafka, begun.id
    assert begun.add(topic, 1) is NONE
    [state] = kafka.ask("DescribeTransactions", 0, transactional_ids=[id]).transaction_states
    assert (state.error_code, state.transaction_state) == (0, "Ongoing")
    assert (state.producer_id, state.producer_epoch) == (begun.number, begun.epoch)
    assert (state.transaction_timeout_ms, state.transaction_start_time_ms) == (
        60_000,
        clock.now_ms(),
    )
    [part] = state.topics
    assert (part.topic, part.partitions) == (topic, [0, 1])

    def listed(version: int = 1, **filters: Any) -> dict[str, str]:
        answer = kafka.ask("ListTransactions", version, **filters)
        assert not answer.error_code
        return {one.transactional_id: one.transaction_state for one in answer.transaction_states}

    assert listed(0)[id] == "Ongoing"
    assert listed(producer_id_filters=[begun.number]) == {id: "Ongoing"}
    assert id in listed(state_filters=["Ongoing", "Empty"])
    assert id not in listed(state_filters=["CompleteCommit"])
    assert id not in listed(duration_filter=1_000)
    clock.pass_ms(1_000)
    assert id in listed(duration_filter=1_000)
    assert begun.end() is NONE
    assert listed(producer_id_filters=[begun.number]) == {id: "CompleteCommit"}
    assert id not in listed(duration_filter=0)
    strange = kafka.ask("ListTransactions", 0, state_filters=["Strange", "PrepareCommit"])
    assert strange.unknown_state_filters == ["Strange"]
    [state] = kafka.ask("DescribeTransactions", 0, transactional_ids=["?"]).transaction_states
    assert state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [{}, OLDEST])
@pytest.mark.parametrize("outcome", [True, False])
def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced(
    producer: TransactionalProducer,
    broker: Broker,
    clock: ManualClock,
    topic: str,
    versions: dict[str, int],
    outcome: bool,
) -> None:
    kafka, producer._versions = producer.kafka, versions
    assert producer.initialise(10_000) is NONE
    assert producer.add(topic, 0) is NONE
    assert producer.produce(topic, b"late") is NONE
    pass_s(broker, clock, 9)
    assert producer.produce(topic, b"in time") is NONE
    pass_s(broker, clock, 2)
    assert committed(kafka, topic).last_stable_offset == 2
    assert producer.produce(topic, b"too late") is BAD_EPOCH
    told = BAD_EPOCH if versions else FENCED
    assert producer.end(outcome) is told
    assert producer.add(topic, 0) is told
    assert producer.initialise(goes_on=True) is told
    assert producer.initialise() is NONE
    assert producer.add(topic, 0) is NONE
    assert producer.produce(topic, b"new") is NONE
    assert producer.end() is NONE
    assert values(kafka, topic) == [b"new"]


def test_an_id_is_forgotten_a_week_after_its_last_use(
    begun: TransactionalProducer, broker: Broker, clock: ManualClock, topic: str
) -> None:
    assert begun.end() is NONE
    day_s = 86_400
    pass_s(broker, clock, 6 * day_s)
    assert begun.add(topic, 0) is NONE
    assert begun.end() is NONE
    pass_s(broker, clock, 6 * day_s)
    assert begun.end() is NONE
    pass_s(broker, clock, 2 * day_s)
    assert begun.end() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert begun.initialise() is NONE


# -- several at once -------------------------------------------------------------------------------


def elsewhere(producer: TransactionalProducer, other: KafkaConnection) -> TransactionalProducer:
    """A producer with the same id, number and epoch, on another connection."""
    crossing = TransactionalProducer(other, producer.id)
    crossing.number, crossing.epoch = producer.number, producer.epoch
    return crossing


def before_submit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, work: Callable[[KafkaConnection], None]
) -> None:
    """Do work on another connection when the next batch is about to be submitted."""
    transactions = broker.engine.transactions
    submit = transactions.submit

    def overtaken(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(transactions, "submit", submit)
        with broker.connect() as other:
            work(other)
        return submit(*given, **named)

    monkeypatch.setattr(transactions, "submit", overtaken)


def test_requests_that_cross_the_end_of_a_transaction_are_told_to_come_again(
    begun: TransactionalProducer,
    broker: Broker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = broker.engine
    monkeypatch.setattr("tms.transactions.transactional_ids.TURN_S", 0.01)
    commit, told = engine.transactions.commit, list[ErrorCode]()
    calls: list[Callable[[TransactionalProducer], ErrorCode]] = [
        lambda one: one.end(),
        lambda one: one.end(committed=False),
        lambda one: one.add(topic, 1),
        lambda one: one.add_group("g"),
        lambda one: one.move("g", topic, 1),
        lambda one: one.initialise(),
        lambda one: one.initialise(goes_on=True),
    ]

    def crossed(*given: Any, **named: Any) -> Any:
        with broker.connect() as other:
            told.extend(call(elsewhere(begun, other)) for call in calls)
        return commit(*given, **named)

    monkeypatch.setattr(engine.transactions, "commit", crossed)
    assert begun.end() is NONE
    assert told == [CONCURRENT] * len(calls)
    assert values(begun.kafka, topic) == [b"first"]


def test_a_batch_under_way_when_its_transaction_ends_is_in_it_or_refused(
    begun: TransactionalProducer, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake(other: KafkaConnection) -> None:
        crossing = elsewhere(begun, other)
        assert crossing.end() is NONE
        assert crossing.add(topic, 0) is NONE  # the next one

    before_submit(broker, monkeypatch, overtake)
    assert begun.produce(topic, b"late") is BAD_STATE
    assert begun.produce(topic, b"in the next one") is NONE
    assert begun.end() is NONE
    assert values(begun.kafka, topic) == [b"first", b"in the next one"]


def test_a_batch_under_way_when_its_producer_is_fenced_is_refused(
    begun: TransactionalProducer, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake(other: KafkaConnection) -> None:
        assert TransactionalProducer(other, begun.id).initialise() is NONE

    before_submit(broker, monkeypatch, overtake)
    assert begun.produce(topic, b"late") is BAD_EPOCH
    assert values(begun.kafka, topic) == []
