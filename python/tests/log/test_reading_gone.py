"""Pages that erasing, truncation or a filter empties: no reader takes one for the end, and no
reader gets a message that is gone."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
import tms.aio
from tests.clocks import ManualClock
from tests.log_kit import KeptStore
from tests.reading_kit import NAME, PATH, Partition, partition
from tms.api import routes
from tms.block import encode
from tms.client.cursor import Cursor
from tms.engine.engine import Engine
from tms.errors import OffsetOutOfRange
from tms.model.filter import Filter
from tms.model.ids import MessageId
from tms.model.message import Fetched, NewBlock
from tms.model.position import Position
from tms.model.transaction import Commit, TopicStaged
from tms.queues.dead_letters import dead_letter_topic

EARLIEST = Position.earliest()
LARGE = 1 << 20


@pytest.fixture(params=[0, LARGE], ids=["uncached", "cached"])
def there(request: pytest.FixtureRequest) -> Iterator[Partition]:
    with partition(7, segment_bytes=LARGE, cache_bytes=request.param) as one:
        yield one


@pytest.fixture(params=["embedded", "http"])
def bus(request: pytest.FixtureRequest, there: Partition) -> Iterator[tms.Bus]:
    if request.param == "embedded":
        yield tms.Bus(there.engine)
    else:
        with tms.connect(there.url) as remote:
            yield remote


def publish(one: Partition, *values: bytes) -> list[MessageId]:
    ids = tms.Bus(one.engine).publish_many("t", [*values], [b"k"] * len(values))
    one.clock.pass_ms(1)
    return ids


def trimmed_to_nothing(one: Partition) -> None:
    """Erase offsets 5 to 9 of a block, and truncate before 7; 10 and 11 follow."""
    ids = publish(one, *(b"%d" % number for number in range(10)))
    publish(one, b"10", b"11")
    for id in ids[5:]:
        one.engine.erase(NAME, id=id)
    one.truncate(7)


def values(messages: Iterator[tms.Message] | list[tms.Message]) -> list[bytes | None]:
    return [message.value for message in messages]


# -- to the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 4, 9])
@pytest.mark.parametrize("where", [None, "key = k"])
def test_a_consumer_goes_on_behind_a_block_whose_tail_is_gone(
    there: Partition, bus: tms.Bus, kept: int, where: str | None
) -> None:
    ids = publish(there, *(b"%d" % number for number in range(10)))
    publish(there, b"10", b"11")
    for id in ids[kept + 1 :]:
        there.engine.erase(NAME, id=id)
    with bus.consumer("t", Position.after(ids[kept]), stop_at_end=True, where=where) as consumer:
        assert values([*consumer]) == [b"10", b"11"]
    for bytes_max in (1, 1 << 20):
        page = bus.fetch("t", Position.after(ids[kept]), bytes_max=bytes_max)
        assert values([*page.messages()]) == [b"10", b"11"]


def test_a_consumer_ends_where_the_last_messages_are_gone(there: Partition, bus: tms.Bus) -> None:
    publish(there, b"0", b"1", b"2")
    ids = publish(there, b"3", b"4", b"5")
    for gone, left in ((ids[2:], [0, 1, 2, 3, 4]), (ids[:2], [0, 1, 2])):
        for id in gone:
            there.engine.erase(NAME, id=id)
        with bus.consumer("t", stop_at_end=True) as consumer:
            assert [message.offset for message in consumer] == left
            assert list(consumer) == []


def test_a_group_is_not_stuck_behind_what_is_gone_or_does_not_match(
    there: Partition, bus: tms.Bus
) -> None:
    ids = publish(there, *(b"%d" % number for number in range(10)))
    with bus.consumer("t", group="g", stop_at_end=True, partitions="all") as consumer:
        assert next(iter(consumer)).offset == 0
        consumer.ack()
    for id in ids[1:]:
        there.engine.erase(NAME, id=id)
    publish(there, b"10", b"11")
    with bus.consumer("t", group="g", stop_at_end=True, bytes_max=1) as consumer:
        assert values([*consumer]) == [b"10", b"11"]
        consumer.ack()
    assert bus.describe_group("t", group="g").partitions[0].lag == 0


@pytest.mark.slow
def test_many_messages_of_many_pages_are_read_with_the_settings_that_everybody_has(
    tmp_path: Path,
) -> None:
    count = 120_000
    with tms.open(tmp_path) as bus:
        bus.create_topic("t", durability="written")
        keys = [b"k%d" % (number // 500) for number in range(count)]
        ids = bus.publish_many("t", [bytes(100)] * count, keys)
        with bus.consumer("t") as consumer:
            tail = (next(consumer.batches()).end_offset - 1) // 500  # of the first block
        bus.erase("t", key=b"k%d" % tail)
        at = Position.after(ids[500 * tail - 1])
        for where in (None, "key ^= k"):
            with bus.consumer("t", at, stop_at_end=True, where=where) as consumer:
                found = sum(len(batch) for batch in consumer.batches())
            assert found == count - 500 * (tail + 1)


# -- trimmed to nothing ----------------------------------------------------------------------------


def test_a_page_that_truncation_trims_to_nothing_is_not_the_end(
    there: Partition, bus: tms.Bus
) -> None:
    trimmed_to_nothing(there)
    with bus.consumer("t", stop_at_end=True) as consumer:
        assert values([*consumer]) == [b"10", b"11"]
    for bytes_max in (1, 1 << 20):
        assert values([*bus.fetch("t", bytes_max=bytes_max).messages()]) == [b"10", b"11"]

    async def consumed() -> list[bytes | None]:
        connected = tms.aio.connect(there.url)
        async with connected as remote, remote.consumer("t", stop_at_end=True) as one:
            return [message.value async for message in one]

    assert asyncio.run(consumed()) == [b"10", b"11"]
    with bus.view("t") as view:
        assert dict(view) == {b"k": b"11"}


def test_who_reads_without_owning_goes_on_behind_it(there: Partition) -> None:
    trimmed_to_nothing(there)
    assert [one.offset for one in there.beside()] == [10, 11]


def test_a_staged_block_that_is_trimmed_to_nothing_is_passed_over_by_everybody(
    there: Partition,
) -> None:
    tx = there.engine.transactions
    id = tx.begin(timeout_s=600).transaction_id
    tx.stage(NAME, [NewBlock(0, encode([b"%d" % n for n in range(10)]))], id)
    tx.commit(Commit(id, staged=(TopicStaged(NAME, 0, 1),)))
    there.clock.pass_ms(1)
    staged = [one.id for one in there.fetched(EARLIEST)]
    publish(there, b"10", b"11")
    for each in staged[5:]:
        there.engine.erase(NAME, id=each)
    after = Position.after(staged[4])
    assert [one.offset for one in there.fetched(after)] == [10, 11]
    there.truncate(7)
    assert [one.offset for one in there.fetched(EARLIEST)] == [10, 11]
    assert [one.offset for one in there.beside()] == [10, 11]


def test_a_poll_of_cdap_and_a_split_of_spark_go_on_behind_it(there: Partition) -> None:
    trimmed_to_nothing(there)
    with there.served.connect() as client:
        assert [payload for _, payload in there.polled(client, EARLIEST)] == [b"10", b"11"]
        for media in (routes.JSON, routes.ARROW_STREAM):
            assert [m.offset for m in there.over_http(client, EARLIEST, media)] == [10, 11]
    start = there.engine.describe_topic(NAME).partition_infos[0].start_offset
    assert [one.offset for one in there.split(start, 12)] == [10, 11]


def test_a_group_that_has_not_read_on_behind_it_is_behind(there: Partition, bus: tms.Bus) -> None:
    trimmed_to_nothing(there)
    bus.set_positions("t", {0: EARLIEST}, group="g")
    assert bus.describe_group("t", group="g").partitions[0].lag == 2


def test_a_lag_counts_from_the_first_message_that_is_left(there: Partition, bus: tms.Bus) -> None:
    ids = publish(there, *(b"%d" % number for number in range(10)))
    for id in ids[3:9]:
        there.engine.erase(NAME, id=id)
    bus.set_positions("t", {0: Position.after(ids[2])}, group="g")
    assert bus.describe_group("t", group="g").partitions[0].lag == 1


def test_what_was_returned_to_a_queue_is_found_behind_it_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.queues.reading.AGAIN_BYTES", 1)
    store, clock = KeptStore(), ManualClock()
    engine = Engine(store, clock)
    bus = tms.Bus(engine)
    bus.create_topic("t")
    ids = bus.publish_many("t", [b"%d" % number for number in range(10)])
    bus.publish_many("t", [b"10", b"11"])
    queue = bus.queue("t", group="g", backoff_first_s=0)
    queue.nack(queue.receive(100), delay_s=0)
    for id in ids[5:]:
        engine.erase(NAME, id=id)
    engine.truncate_topic(NAME, Position.offset(7))
    bus.close()
    clock.pass_ms(200)
    with tms.Bus(Engine(store, clock)) as again:
        found = again.queue("t", group="g", backoff_first_s=0).receive(100)
        assert [m.value for m in found] == [b"10", b"11"]


def test_dead_letters_behind_it_are_moved_back(
    there: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = tms.Bus(there.engine)
    queue = bus.queue("t", group="g")
    for some in (range(10), range(10, 12)):
        publish(there, *(b"%d" % number for number in some))
        queue.reject(queue.receive(100))
        there.engine.queues.tidy()
    monkeypatch.setattr("tms.queues.dead_letters.MOVED_BYTES", 1)
    name = dead_letter_topic("g", NAME, "")
    letters = [message.id for message in bus.consumer(str(name), stop_at_end=True)]
    assert len(letters) == 12
    for id in letters[5:10]:
        there.engine.erase(name, id=id)
    there.engine.truncate_topic(name, Position.at(letters[7]))
    assert (queue.redrive(), queue.redrive()) == (2, 0)


# -- errors and counts -----------------------------------------------------------------------------


def test_the_first_message_of_a_description_is_there(there: Partition, bus: tms.Bus) -> None:
    ids = publish(there, b"0", b"1", b"2")
    later = publish(there, b"3")
    for first in (*ids, *later):
        assert bus.describe_topic("t").partition_infos[0].first_id == str(first)
        there.engine.erase(NAME, id=first)
    assert bus.describe_topic("t").partition_infos[0].first_id is None


def test_an_offset_beyond_the_end_is_refused_and_the_end_is_named(
    there: Partition, bus: tms.Bus
) -> None:
    publish(there, b"0", b"1")
    there.engine.erase(NAME, id=publish(there, b"2")[0])
    assert bus.fetch("t", "offset:3").ended
    with pytest.raises(OffsetOutOfRange) as refused:
        bus.fetch("t", "offset:4", wait_s=20)
    assert refused.value.details == {"earliest": 0, "end": 3}
    with pytest.raises(OffsetOutOfRange), bus.consumer("t", "offset:4") as consumer:
        next(iter(consumer))
    with there.served.connect() as client:
        answer = client.request("GET", f"{PATH}/messages?start=offset:4&wait_s=20")
        assert (answer.status, answer.problem) == (410, "offset-out-of-range")
        assert answer.json["details"]["end"] == 3


def test_an_answer_in_json_says_how_far_everything_was_looked_at(there: Partition) -> None:
    publish(there, *(b"%d" % number for number in range(10)))
    with there.served.connect() as client:
        answer = client.request("GET", f"{PATH}/messages?limit=4&bytes_max=1000000")
        said = json.loads(answer.body)
        assert (said["reached"], said["ends"]) == ({"0": 4}, {"0": 10})
        assert (answer.headers["tms-reached"], answer.headers["tms-end"]) == ("0:4", "0:10")
        answer = client.request("GET", f"{PATH}/messages?where=key%20%3D%20nobody")
        assert json.loads(answer.body)["messages"] == []
        assert answer.headers["tms-reached"] == "0:10"


def test_staged_messages_have_one_id_whoever_reads_them(there: Partition, bus: tms.Bus) -> None:
    tx = there.engine.transactions
    id = tx.begin(timeout_s=600).transaction_id
    tx.stage(NAME, [NewBlock(0, encode([b"a", b"b", b"c"]))], id)
    tx.commit(Commit(id, staged=(TopicStaged(NAME, 0, 1),)))
    ids = [m.id for m in bus.consumer("t", stop_at_end=True)]
    assert [m.id for m in bus.queue("t", group="g").receive(10)] == ids
    assert bus.erase("t", id=ids[1]) == 1


# -- the cursor itself -----------------------------------------------------------------------------


def test_only_offsets_tell_a_cursor_that_it_has_read_everything() -> None:
    cursor = Cursor("t", {0: EARLIEST, 1: EARLIEST}, True, Filter.parse("key = k"))
    at = Position.after(MessageId(5, 0))
    assert cursor.accept(Fetched([], {0: at, 1: EARLIEST}, {0: 9, 1: 9}, {0: 5, 1: 0})) == []
    assert not cursor.finished
    cursor.accept(Fetched([], {0: at, 1: at}, {0: 12, 1: 9}, {0: 9, 1: 8}))
    assert not cursor.finished
    cursor.accept(Fetched([], {1: at}, {1: 11}, {1: 9}))
    assert cursor.finished


def test_a_consumer_stops_before_an_open_transaction_after_a_full_page(
    there: Partition, bus: tms.Bus
) -> None:
    """A full page does not show that the next message is open."""
    publish(there, b"1")
    id = there.engine.transactions.begin().transaction_id
    there.engine.transactions.submit(NAME, [NewBlock(0, encode([b"open"]))], id).result(5)
    publish(there, b"2")
    consumer = bus.consumer("t", start="earliest", stop_at_end=True, bytes_max=1)
    with consumer:
        assert [message.value for message in consumer] == [b"1"]
    there.engine.transactions.abort(id)
    consumer = bus.consumer("t", start="earliest", stop_at_end=True, bytes_max=1)
    with consumer:
        assert [message.value for message in consumer] == [b"1", b"2"]


def test_what_is_before_an_offset_is_truncated_though_everything_behind_it_is_erased(
    there: Partition, bus: tms.Bus
) -> None:
    publish(there, b"0", b"1")
    for id in publish(there, b"2", b"3", b"4"):
        assert bus.erase("t", id=id) == 1
    bus.truncate_topic("t", before="offset:3")
    assert list(bus.consumer("t", start="earliest", stop_at_end=True)) == []
    publish(there, b"5")
    assert [m.value for m in bus.consumer("t", start="earliest", stop_at_end=True)] == [b"5"]
