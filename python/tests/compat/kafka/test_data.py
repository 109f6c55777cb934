"""Produce, Fetch and ListOffsets on a running service."""

import threading
import time

import pytest

import tms
from tests.kafka_kit import (
    EARLIEST,
    ENDED,
    LATEST,
    NEWEST,
    Broker,
    KafkaConnection,
    batch,
    covered,
    create_topic,
    fetched,
    fetching,
    messages_in,
    metadata,
    offset_at,
    produced,
    producing,
    records_in,
    times_in,
)
from tests.log_kit import encode
from tests.waiting import until
from tms.compat.kafka import codec
from tms.compat.kafka.codec import NO_ID
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests.produce import _is_quick
from tms.model.ids import TIME_MS_MAX
from tms.model.message import NewBlock
from tms.model.topic import TopicName

BROKERS = ("alone", "three")

# -- publishing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_batches_are_stored_in_order_at_dense_offsets(
    kafka: KafkaConnection, topic: str, acks: int
) -> None:
    first, other = produced(kafka, topic, batch([(b"a", b"1"), (None, b"")]), batch([(b"", None)]))
    assert (first.error_code, first.base_offset, other.base_offset) == (0, 0, 0)
    [second] = produced(kafka, topic, batch([(b"b", b"3")]), acks=acks)
    assert second.base_offset == 2
    assert second.log_append_time_ms >= first.log_append_time_ms > 0
    found = fetched(kafka, topic)
    assert records_in(found.records) == [(0, b"a", b"1"), (1, None, b""), (2, b"b", b"3")]
    assert (found.high_watermark, found.last_stable_offset) == (3, -1)
    assert records_in(fetched(kafka, topic, partition=1).records) == [(0, b"", None)]


@pytest.mark.one_connection
def test_a_client_that_wants_no_answer_gets_none(kafka: KafkaConnection, topic: str) -> None:
    kafka.send("Produce", 9, **producing(topic, {0: batch([(None, b"quiet")])}, acks=0))
    kafka._sent.pop()
    kafka.ask("ApiVersions", 3)  # is the next answer
    until(lambda: offset_at(kafka, topic, LATEST).offset == 1, "it is stored")


@pytest.mark.one_connection
def test_a_refused_batch_that_wants_no_answer_ends_the_connection(
    kafka: KafkaConnection, topic: str
) -> None:
    kafka.send("Produce", 9, **producing(topic, {7: batch([(None, b"nowhere")])}, acks=0))
    with pytest.raises(ENDED):
        kafka.frame()


def test_each_partition_has_an_error_of_its_own(kafka: KafkaConnection, topic: str) -> None:
    good = batch([(b"k", b"v")])
    bad = good[:-1] + bytes((good[-1] ^ 1,))
    stored, damaged, nowhere = produced(kafka, topic, good, bad, good)
    assert (stored.error_code, stored.base_offset) == (0, 0)
    assert (damaged.error_code, damaged.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert damaged.error_message
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offset_at(kafka, topic, LATEST, 1).offset == 0, "nothing of the damaged batch is stored"


def test_a_topic_that_is_not_there(kafka: KafkaConnection) -> None:
    [answer] = produced(kafka, "nowhere", batch([(None, b"")]))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(kafka, "nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offset_at(kafka, "nowhere", LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offset_at(kafka, "no such name", LATEST).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_message_beyond_the_limit_of_the_topic_is_too_large(kafka: KafkaConnection) -> None:
    create_topic(kafka, "small", configs={"max.message.bytes": "1000"})
    [answer] = produced(kafka, "small", batch([(None, bytes(900)), (None, bytes(1_001))]))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert offset_at(kafka, "small", LATEST).offset == 0


def test_batches_that_take_long_are_converted_by_a_thread() -> None:
    row = (None, b"v")
    assert _is_quick(batch([row] * 2_000, compression=1))
    assert not _is_quick(batch([row] * 2_001, compression=1)), "it may grow when it is unpacked"
    assert _is_quick(batch([(None, bytes(200_000))]))
    assert not _is_quick(batch([(None, bytes(300_000))]))


# -- idempotence -----------------------------------------------------------------------------------


def test_a_producer_stores_each_batch_once(kafka: KafkaConnection, topic: str) -> None:
    number = kafka.ask("InitProducerId", 4, transactional_id=None, producer_id=-1).producer_id
    rows = [(b"k", b"%d" % i) for i in range(3)]
    sent = batch(rows, (number, 0, 0)), batch(rows, (number, 0, 3)), batch(rows, (number, 0, 6))
    for expected, one in zip((0, 3, 6), sent, strict=True):
        [answer] = produced(kafka, topic, one)
        assert (answer.error_code, answer.base_offset) == (0, expected)
    for expected, one in zip((0, 3, 6), sent, strict=True):
        [answer] = produced(kafka, topic, one)
        assert (answer.error_code, answer.base_offset) == (0, expected), "a repetition"
    assert offset_at(kafka, topic, LATEST).offset == 9
    [gap] = produced(kafka, topic, batch(rows, (number, 0, 12)))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    bumped = kafka.ask(
        "InitProducerId", 4, transactional_id=None, producer_id=number, producer_epoch=0
    )
    assert (bumped.producer_id, bumped.producer_epoch) == (number, 1)
    [fresh] = produced(kafka, topic, batch(rows, (number, 1, 0)))
    assert (fresh.error_code, fresh.base_offset) == (0, 9)
    [zombie] = produced(kafka, topic, batch(rows, (number, 0, 9)))
    assert zombie.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_forgotten_producer_goes_on(kafka: KafkaConnection, topic: str) -> None:
    [answer] = produced(kafka, topic, batch([(None, b"x")], (1 << 40, 3, 4_711)))
    assert (answer.error_code, answer.base_offset) == (0, 0)


def test_producers_get_different_numbers(broker: Broker) -> None:
    numbers = set()
    for _ in range(3):
        with broker.connect() as kafka:
            answers = [kafka.ask("InitProducerId", 4, transactional_id=None) for _ in range(5)]
            numbers |= {one.producer_id for one in answers}
    assert len(numbers) == 15


# -- fetching --------------------------------------------------------------------------------------


def test_a_fetch_waits_until_there_are_enough_bytes(broker: Broker, topic: str) -> None:
    with broker.connect() as reader, broker.connect() as writer:
        first = batch([(None, bytes(500))])

        def write() -> None:
            for _ in range(3):
                time.sleep(0.2)
                produced(writer, topic, first)

        thread = threading.Thread(target=write)
        began = time.monotonic()
        thread.start()
        found = fetched(reader, topic, max_wait_ms=30_000, min_bytes=1_400)
        took_s = time.monotonic() - began
        thread.join()
        assert [one[0] for one in records_in(found.records)] == [0, 1, 2]
        assert 0.5 < took_s < 15


def test_a_wait_ends_at_its_time(kafka: KafkaConnection, topic: str) -> None:
    began = time.monotonic()
    found = fetched(kafka, topic, max_wait_ms=300)
    assert 0.3 <= time.monotonic() - began < 5
    assert (found.error_code, found.records, found.high_watermark) == (0, b"", 0)


@pytest.mark.one_connection
def test_a_wait_ends_with_its_client(broker: Broker, topic: str) -> None:
    front = broker.front
    others = len(front.connections)
    with broker.connect() as kafka:
        kafka.send("Fetch", 12, **fetching(topic, max_wait_ms=30_000))
        until(lambda: front._broker._waiting, "it waits")
    until(lambda: not front._broker._waiting, "the wait has ended", 15)
    until(lambda: len(front.connections) == others, "the connection is forgotten", 15)


def test_limits_of_bytes_leave_at_least_one_batch(kafka: KafkaConnection, topic: str) -> None:
    large = batch([(None, bytes(10_000))])
    for _ in range(5):
        produced(kafka, topic, large)
    assert len(records_in(fetched(kafka, topic, size=1).records)) == 1
    assert len(records_in(fetched(kafka, topic, size=25_000).records)) in (2, 3)
    assert len(records_in(fetched(kafka, topic, max_bytes=1).records)) == 1


@pytest.mark.one_connection
def test_a_full_answer_leaves_other_partitions_to_the_next_one(
    kafka: KafkaConnection, topic: str
) -> None:
    for _ in range(3):
        produced(kafka, topic, batch([(None, bytes(10_000))]), batch([(None, bytes(10_000))]))
    made = codec.class_of("FetchRequest").FetchTopic
    parts = [
        made.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in (0, 1)
    ]
    wanted = [made(topic=topic, partitions=parts)]
    began = time.monotonic()
    answer = kafka.ask(
        "Fetch", 12, topics=wanted, max_wait_ms=10_000, min_bytes=1 << 20, max_bytes=10_000
    )
    assert time.monotonic() - began < 5, "it does not wait for more than it may return"
    first, second = answer.responses[0].partitions
    assert len(records_in(first.records)) == 1
    assert (second.records, second.error_code) == (b"", 0)


def test_acks_are_none_one_or_all(kafka: KafkaConnection, topic: str) -> None:
    [answer] = produced(kafka, topic, batch([(None, b"x")]), acks=2)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert offset_at(kafka, topic, LATEST).offset == 0


def test_an_offset_that_is_not_there_is_out_of_range(kafka: KafkaConnection, topic: str) -> None:
    produced(kafka, topic, batch([(None, b"x")]))
    assert fetched(kafka, topic, offset=1).error_code == 0
    for wrong in (2, 1_000, -1):
        assert fetched(kafka, topic, offset=wrong).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_may_begin_within_a_batch(kafka: KafkaConnection, topic: str) -> None:
    produced(kafka, topic, batch([(None, b"%d" % i) for i in range(10)]))
    found = records_in(fetched(kafka, topic, offset=7).records)
    assert [one for one in found if one[0] >= 7] == [
        (7, None, b"7"),
        (8, None, b"8"),
        (9, None, b"9"),
    ]


def test_topics_are_fetched_by_id_and_not_after_they_are_gone(
    kafka: KafkaConnection, topic: str
) -> None:
    produced(kafka, topic, batch([(None, b"x")]))
    id = metadata(kafka, topic).topic_id
    made = codec.class_of("FetchRequest").FetchTopic
    part = made.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    request = {"topics": [made(topic_id=id, partitions=[part])], "max_bytes": 1_000}
    [found] = kafka.ask("Fetch", 16, **request).responses
    assert found.topic_id == id != NO_ID
    assert records_in(found.partitions[0].records) == [(0, None, b"x")]
    kafka.ask("DeleteTopics", 5, topic_names=[topic])
    [gone] = kafka.ask("Fetch", 16, **request).responses
    assert gone.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_sessions_are_not_kept(kafka: KafkaConnection) -> None:
    answer = kafka.ask("Fetch", 12, session_id=7, session_epoch=3)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert kafka.ask("Fetch", 12, session_id=0, session_epoch=0).session_id == 0


def test_empty_batches_lead_over_what_was_rolled_back(broker: Broker, topic: str) -> None:
    engine, name = broker.served.service.engine, TopicName.parse(topic)
    with tms.connect(broker.url) as bus, broker.connect() as kafka:
        bus.publish(topic, b"before", partition=0)
        began = engine.transactions.begin()
        blocks = [NewBlock(0, encode([b"a", b"b"]))]
        engine.transactions.submit(name, blocks, began.transaction_id).result(10)
        bus.publish(topic, b"after", partition=0)
        stable = fetched(kafka, topic, isolation_level=1)
        assert [one[2] for one in records_in(stable.records)] == [b"before"]
        assert (stable.last_stable_offset, stable.high_watermark) == (1, 4)
        assert offset_at(kafka, topic, LATEST).offset == 4
        engine.transactions.abort(began.transaction_id)
        committed = fetched(kafka, topic, isolation_level=1)
        assert [one[2] for one in records_in(committed.records)] == [b"before", b"after"]
        everything = fetched(kafka, topic, isolation_level=0)  # as Kafka shows it
        shown = [one[2] for one in records_in(everything.records)]
        assert shown == [b"before", b"a", b"b", b"after"]
        assert committed.high_watermark == everything.high_watermark == 4
    with broker.connect() as kafka:
        began = engine.transactions.begin()
        blocks = [NewBlock(0, encode([b"c", b"d"]))]
        engine.transactions.submit(name, blocks, began.transaction_id).result(10)
        engine.transactions.abort(began.transaction_id)
        end = fetched(kafka, topic, offset=4, isolation_level=1)
        assert (records_in(end.records), end.high_watermark) == ([], 6)
        assert covered(end.records) == (4, 6), "a reader comes to the end of the log"


# -- times -----------------------------------------------------------------------------------------


def test_records_keep_the_times_of_their_producer(kafka: KafkaConnection, topic: str) -> None:
    rows = [(None, b"%d" % number) for number in range(3)]
    [told] = produced(kafka, topic, batch(rows, times_ms=[7, 5, TIME_MS_MAX]))
    assert (told.error_code, told.log_append_time_ms) == (0, -1), "the producer's times are right"
    assert times_in(fetched(kafka, topic).records) == [(7, 0), (5, 0), (TIME_MS_MAX, 0)]
    [told] = produced(kafka, topic, batch(rows[:1]))
    assert times_in(fetched(kafka, topic, 3).records) == [(told.log_append_time_ms, 1)]


def test_times_that_are_none_are_refused(kafka: KafkaConnection, topic: str) -> None:
    for time_ms in (-2, TIME_MS_MAX + 1):
        [told] = produced(kafka, topic, batch([(None, b"1"), (None, b"2")], times_ms=[7, time_ms]))
        assert told.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [one.batch_index for one in told.record_errors] == [1]
    assert offset_at(kafka, topic, LATEST).offset == 0


def test_times_and_null_headers_are_those_of_tms(broker: Broker, topic: str) -> None:
    with tms.connect(broker.url) as bus, broker.connect() as kafka:
        produced(kafka, topic, batch([(b"k", b"1"), (b"k", b"2")], times_ms=[7, -1]))
        bus.publish(topic, b"3", headers={"a": None}, partition=0, event_time_ms=9)
        bus.publish(topic, b"4", partition=0)
        found = bus.fetch(topic, {0: "earliest"}).messages()
        assert [one.event_time_ms for one in found] == [7, None, 9, None]
        shown = times_in(fetched(kafka, topic).records)
        assert [one[1] for one in shown] == [0, 0, 0, 1]
        assert [one[0] for one in shown[::2]] == [7, 9]
        assert min(shown[1][0], shown[3][0]) > 1_600_000_000_000, "the publish time"


def test_offsets_by_event_time(kafka: KafkaConnection, topic: str) -> None:
    for times in ([1_000, 1_200], [1_100], [3_000, 2_000]):
        rows = [(None, b"v")] * len(times)
        assert not produced(kafka, topic, batch(rows, times_ms=times))[0].error_code
    for wanted, found, time_ms in [
        *((0, 0, 1_000), (1_000, 0, 1_000), (1_001, 1, 1_200), (1_201, 3, 3_000)),
        (3_000, 3, 3_000),
        (3_001, 0, 1_000),  # none is so late: from the first message that was published then
    ]:
        told = offset_at(kafka, topic, wanted)
        assert (told.offset, told.timestamp) == (found, time_ms)
    newest = offset_at(kafka, topic, NEWEST)
    assert (newest.offset, newest.timestamp) == (4, 2_000), "the last one"


# -- offsets ---------------------------------------------------------------------------------------


def test_offsets_by_time(kafka: KafkaConnection, topic: str) -> None:
    for number in range(3):
        produced(kafka, topic, batch([(None, b"%d" % number)]))
        time.sleep(0.01)
    whole = [fetched(kafka, topic, offset=number).records for number in range(3)]
    assert all(whole)
    first, newest = offset_at(kafka, topic, 0), offset_at(kafka, topic, NEWEST)
    assert (first.offset, newest.offset) == (0, 2)
    assert 0 < first.timestamp < newest.timestamp
    assert offset_at(kafka, topic, newest.timestamp).offset == 2
    assert offset_at(kafka, topic, first.timestamp + 1).offset == 1
    beyond = offset_at(kafka, topic, newest.timestamp + 1)
    assert (beyond.offset, beyond.timestamp, beyond.error_code) == (-1, -1, 0)
    assert offset_at(kafka, topic, EARLIEST).offset == 0
    assert offset_at(kafka, topic, LATEST).offset == 3
    assert (
        offset_at(kafka, topic, LATEST, partition=5).error_code
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_offsets_of_an_empty_partition(kafka: KafkaConnection, topic: str) -> None:
    told = [offset_at(kafka, topic, one).offset for one in (EARLIEST, LATEST, NEWEST, 0)]
    assert told == [0, 0, -1, -1]


@pytest.mark.parametrize("erased", [0b100000, 0b111000, 0b101101, 0b110110, 0b111111])
def test_the_newest_message_is_found_before_erased_ones(
    broker: Broker, kafka: KafkaConnection, topic: str, erased: int
) -> None:
    for number in range(6):
        key = b"erased" if erased >> number & 1 else b"kept"
        produced(kafka, topic, batch([(key, b"v")], times_ms=[1_000 + number]))
    broker.served.service.engine.erase(TopicName("default", topic), b"erased")
    kept = [number for number in range(6) if not erased >> number & 1]
    newest = offset_at(kafka, topic, NEWEST)
    expected = (kept[-1], 1_000 + kept[-1]) if kept else (-1, -1)
    assert (newest.offset, newest.timestamp, newest.error_code) == (*expected, 0)


# -- both worlds -----------------------------------------------------------------------------------


def test_messages_of_both_worlds_are_read_in_both(broker: Broker, topic: str) -> None:
    with tms.connect(broker.url) as bus, broker.connect() as kafka:
        produced(kafka, topic, batch([(b"k", b"from kafka"), (None, None)]))
        bus.publish(topic, b"from tms", key=b"q", headers={"h": b"1"}, partition=0)
        found = records_in(fetched(kafka, topic).records)
        assert found == [(0, b"k", b"from kafka"), (1, None, None), (2, b"q", b"from tms")]
        messages = messages_in(broker.url, topic)
        assert [(one.offset, one.key, one.value) for one in messages] == found
