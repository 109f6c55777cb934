"""Publishing that expects a last id: stored only if no other message came in between."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tms
import tms.aio
from tests.clocks import START_MS
from tests.contracts.buses import BOTH, bus_by
from tests.http_kit import Client, serving
from tests.log_kit import DAY_MS, HOUR_MS, NAME, Bench
from tms import Bus, MessageId
from tms.block import Flags, encode, place
from tms.engine.engine import Engine
from tms.errors import Invalid, TooLarge, WrongLastId
from tms.log.preconditions import Precondition
from tms.log.records import FIRST_KEY
from tms.log.writer import PartitionWriter
from tms.model.message import NOTHING, NewBlock, StoredBlock
from tms.model.position import Position
from tms.model.snapshot import Fate
from tms.model.topic import TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock, TopicStaged

KEY, OTHER = b"account-1", b"account-2"


@pytest.fixture(params=BOTH)
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    with bus_by(request.param, tmp_path / "data") as bus:
        bus.create_topic("events", durability="written")
        yield bus


def publish(bus: Bus, value: bytes, key: bytes | None = KEY, **more: object) -> MessageId:
    id = bus.publish("events", value, key=key, **more)  # type: ignore[arg-type]
    assert id is not None
    return id


def values(bus: Bus) -> list[bytes | None]:
    return [message.value for message in bus.consumer("events", stop_at_end=True)]


def test_it_is_stored_when_the_last_message_of_the_key_is_the_expected_one(bus: Bus) -> None:
    first = publish(bus, b"1")
    publish(bus, b"other", key=OTHER)
    second = publish(bus, b"2", expect=first)
    publish(bus, b"3", expect=str(second))
    assert values(bus) == [b"1", b"other", b"2", b"3"]


def test_it_is_refused_when_the_key_has_a_newer_message(bus: Bus) -> None:
    first = publish(bus, b"1")
    second = publish(bus, b"2")
    with pytest.raises(WrongLastId) as caught:
        publish(bus, b"3", expect=first)
    assert caught.value.details["last"] == str(second)
    assert caught.value.details["expected"] == str(first)
    assert caught.value.details["partition"] == 0
    assert values(bus) == [b"1", b"2"]


def test_nothing_is_expected_of_a_new_key(bus: Bus) -> None:
    publish(bus, b"other", key=OTHER)
    publish(bus, b"1", expect="nothing")
    with pytest.raises(WrongLastId):
        publish(bus, b"again", expect="nothing")


def test_without_a_key_it_is_about_the_whole_partition(bus: Bus) -> None:
    publish(bus, b"1", key=None, partition=0, expect="nothing")
    last = publish(bus, b"2", key=OTHER)
    publish(bus, b"3", key=None, partition=0, expect=last)
    with pytest.raises(WrongLastId):
        publish(bus, b"4", key=None, partition=0, expect=last)


def test_an_id_within_a_block_tells_which_messages_come_after_it(bus: Bus) -> None:
    ids = bus.publish_many("events", [b"1", b"2", b"3"], [KEY, OTHER, OTHER])
    publish(bus, b"4", expect=ids[0])
    with pytest.raises(WrongLastId) as caught:
        publish(bus, b"5", key=OTHER, expect=ids[1])
    assert caught.value.details["last"] == str(ids[2])


def test_several_messages_of_a_key_go_together_or_not_at_all(bus: Bus) -> None:
    first = publish(bus, b"1")
    bus.publish_many("events", [b"2", b"3"], [KEY, KEY], expect=first)
    with pytest.raises(WrongLastId):
        bus.publish_many("events", [b"4", b"5"], [OTHER, KEY], expect=first)
    assert values(bus) == [b"1", b"2", b"3"]


def test_what_cannot_be_expected_is_refused_and_nothing_is_stored(bus: Bus) -> None:
    bus.create_topic("wide", partitions=4, durability="written")
    with pytest.raises(Invalid, match="together"):
        bus.publish_many("wide", [b"v"] * 9, [b"%d" % n for n in range(9)], expect="nothing")
    with pytest.raises(Invalid, match="all of them a key, or none"):
        bus.publish_many("events", [b"1", b"2"], [KEY, None], expect="nothing")
    with pytest.raises(Invalid, match="durability"):
        publish(bus, b"1", durability="none", expect="nothing")
    for wrong in ("", "latest", "00", 7):
        with pytest.raises(Invalid):
            publish(bus, b"1", expect=wrong)
    assert values(bus) == []


def test_messages_of_transactions_count_unless_nobody_will_see_them(bus: Bus) -> None:
    first = publish(bus, b"1")
    tx = bus.transaction()
    tx.send("events", b"given up", key=KEY)
    tx.abort()
    with bus.transaction() as tx:
        tx.send("events", b"2", key=OTHER)
    second = publish(bus, b"3", expect=first)
    with bus.transaction() as tx:
        tx.send("events", b"4", key=KEY)
    with pytest.raises(WrongLastId):
        publish(bus, b"5", expect=second)


def test_a_transaction_expects_too_and_nothing_of_it_is_seen_if_it_is_wrong(bus: Bus) -> None:
    bus.create_topic("out", durability="written")
    first = publish(bus, b"1")
    with bus.transaction() as tx:
        tx.send("events", b"2", key=KEY, expect=first)
        tx.send("events", b"3", key=KEY, expect=first)  # its own messages do not count
        tx.send("events", b"4", key=OTHER, expect="nothing")
    tx = bus.transaction()
    tx.send("out", b"effect")
    tx.send("events", b"5", key=KEY, expect=first)
    with pytest.raises(WrongLastId):
        tx.commit()
    assert values(bus) == [b"1", b"2", b"3", b"4"]
    assert list(bus.consumer("out", stop_at_end=True)) == []


def test_a_large_transaction_expects_nothing(bus: Bus) -> None:
    bus.update_topic("events", message_bytes_max=8 << 20)
    tx = bus.transaction()
    tx.send("events", bytes((8 << 20) - 100), key=KEY, expect="nothing")
    with pytest.raises(TooLarge, match="expects"):
        tx.send("events", bytes((8 << 20) - 100), key=OTHER)
    tx.abort()


def test_what_came_after_the_last_dropped_message_can_be_told(bus: Bus) -> None:
    first, second = bus.publish_many("events", [b"1", b"2"], [KEY, OTHER])
    bus.truncate_topic("events", str(second))
    publish(bus, b"3", expect=first)
    with pytest.raises(WrongLastId, match="expected to be the last"):
        publish(bus, b"4", expect=first)


def test_what_was_dropped_since_cannot_be_told(bus: Bus) -> None:
    first = publish(bus, b"1")
    publish(bus, b"2", key=OTHER)
    third = publish(bus, b"3", key=OTHER)
    bus.truncate_topic("events", str(third))
    with pytest.raises(WrongLastId, match="cannot be checked") as caught:
        publish(bus, b"4", expect=first)
    assert caught.value.details["last"] == ""
    publish(bus, b"4", expect="nothing")
    publish(bus, b"5", key=OTHER, expect=third)


def test_nothing_is_there_of_a_key_whose_messages_were_truncated(bus: Bus) -> None:
    publish(bus, b"1")
    bus.truncate_topic("events", "latest")
    publish(bus, b"2", expect="nothing")
    with pytest.raises(WrongLastId):
        publish(bus, b"3", expect="nothing")
    bus.truncate_topic("events", "latest")
    publish(bus, b"3", key=None, partition=0, expect="nothing")
    bus.truncate_topic("events", "latest")
    with bus.transaction() as tx:
        tx.send("events", b"4", key=KEY, expect="nothing")
    assert values(bus) == [b"4"]


def test_of_a_block_that_a_truncation_cut_only_the_rest_is_there(bus: Bus) -> None:
    _, second = bus.publish_many("events", [b"1", b"2"], [KEY, OTHER])
    bus.truncate_topic("events", str(second))
    publish(bus, b"3", expect="nothing")
    with pytest.raises(WrongLastId):
        publish(bus, b"4", key=OTHER, expect="nothing")


def test_a_view_of_which_all_was_truncated_knows_what_to_expect(bus: Bus) -> None:
    publish(bus, b"1")
    with bus.view("events") as view:
        view.refresh()
        bus.truncate_topic("events", "latest")
        publish(bus, b"2", expect=view.expect(KEY))
    with bus.view("events") as view:
        bus.truncate_topic("events", "latest")
        view.refresh()
        publish(bus, b"3", expect=view.expect(KEY))


def one_of(many: int, bus: Bus, last: MessageId) -> MessageId:
    """Publish from many threads, all of which expect the same id; returns the id of the stored
    message."""
    ids: list[MessageId] = []
    refused: list[WrongLastId] = []
    together = threading.Barrier(many)

    def attempt() -> None:
        together.wait()
        try:
            ids.append(publish(bus, b"next", expect=last))
        except WrongLastId as error:
            refused.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ids), len(refused)) == (1, many - 1)
    return ids[0]


def test_of_many_who_expect_the_same_exactly_one_is_stored(bus: Bus) -> None:
    last = publish(bus, b"0")
    for _ in range(12):
        last = one_of(8, bus, last)
    assert len(values(bus)) == 13


@pytest.mark.usefixtures("event_loop")
def test_an_asyncio_bus_expects_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with tms.aio.open(tmp_path / "aio") as bus:
            await bus.create_topic("events", durability="written")
            first = await bus.publish("events", b"1", key=KEY, expect="nothing")
            assert first is not None
            await bus.publish_many("events", [b"2"], [KEY], expect=first)
            with pytest.raises(WrongLastId):
                await bus.publish("events", b"3", key=KEY, expect=first)

    asyncio.run(run())


def test_curl_says_it_in_the_query(tmp_path: Path) -> None:
    with serving() as served, Client(served.address) as client:
        path = "/v2/namespaces/default/topics/events"
        client.request("PUT", path, b'{"durability": "written"}')
        body = b'{"messages": [{"key": "k", "value": "1"}]}'
        stored = client.request("POST", f"{path}/messages?expect=nothing", body)
        id = stored.json["messages"][0]["id"]
        assert client.request("POST", f"{path}/messages?expect={id}", body).status == 200
        refused = client.request("POST", f"{path}/messages?expect={id}", body)
        assert (refused.status, refused.problem) == (409, "wrong-last-id")
        bad = client.request("POST", f"{path}/messages?expect=latest", body)
        assert (bad.status, bad.problem) == (422, "invalid")


def before_the_write(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something once between the check of the next block and its write."""
    submit = PartitionWriter.submit

    def late(*args: object) -> None:
        monkeypatch.setattr(PartitionWriter, "submit", submit)
        do()
        submit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionWriter, "submit", late)


class TestEngine:
    """Events between the look and the write."""

    NAME = TopicName.parse("events")

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        with tms.open(tmp_path / "engine") as bus:
            bus.create_topic("events", durability="written")
            yield bus._transport  # type: ignore[misc]

    def block(self, expect: MessageId | None, producer: int = 0, sequence: int = 0) -> NewBlock:
        block = encode([b"v"], [KEY], producer_id=producer, producer_sequence=sequence)
        return NewBlock(0, block, expect)

    def test_a_repetition_is_answered_like_the_first_one(self, engine: Engine) -> None:
        [first] = engine.append(self.NAME, [self.block(NOTHING, 7)])
        [again] = engine.append(self.NAME, [self.block(NOTHING, 7)])
        assert again.duplicate and again.base_offset == first.base_offset

    def test_a_message_between_the_check_and_the_write_is_seen(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before_the_write(monkeypatch, lambda: engine.append(self.NAME, [self.block(None)]))
        with pytest.raises(WrongLastId):
            engine.append(self.NAME, [self.block(NOTHING)])

    def test_a_message_truncated_between_the_check_and_the_write_is_gone(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def append_and_truncate() -> None:
            engine.append(self.NAME, [self.block(None)])
            engine.truncate_topic(self.NAME, Position.latest())

        before_the_write(monkeypatch, append_and_truncate)
        engine.append(self.NAME, [self.block(NOTHING)])

    def test_two_in_one_write_see_each_other(self, engine: Engine) -> None:
        with pytest.raises(WrongLastId):
            engine.append(self.NAME, [self.block(NOTHING), self.block(NOTHING)])
        assert engine.describe_topic(self.NAME).partition_infos[0].end_offset == 1

    def test_a_message_in_doubt_counts_until_it_is_rolled_back(self, engine: Engine) -> None:
        pointer = engine.transactions.begin().transaction_id
        engine.transactions.submit(self.NAME, [self.block(None)], pointer).result(10)
        with pytest.raises(WrongLastId):
            engine.append(self.NAME, [self.block(NOTHING)])
        engine.transactions.abort(pointer)
        engine.append(self.NAME, [self.block(NOTHING)])

    def test_the_keys_of_staged_messages_count(self, engine: Engine) -> None:
        id = engine.transactions.begin().transaction_id
        engine.transactions.stage(self.NAME, [NewBlock(0, encode([b"v"], [OTHER]))], id)
        engine.transactions.commit(Commit(id, staged=(TopicStaged(self.NAME, 0, 1),)))
        engine.append(self.NAME, [self.block(NOTHING)])
        with pytest.raises(WrongLastId):
            engine.append(self.NAME, [NewBlock(0, encode([b"w"], [OTHER]), NOTHING)])

    def test_a_refused_commit_leaves_no_invalid_transaction(self, engine: Engine) -> None:
        engine.append(self.NAME, [self.block(None)])
        with pytest.raises(WrongLastId):
            engine.transactions.commit(Commit(blocks=(TopicBlock(self.NAME, self.block(NOTHING)),)))
        assert engine.stats().transactions_invalid == 0


def test_a_message_that_is_not_confirmed_yet_can_be_the_expected_one() -> None:
    with Bench() as bench:
        first = MessageId(START_MS, 0)  # the id that it will get
        request = [NewBlock(0, encode([b"1"])), NewBlock(0, encode([b"2"]), first)]
        assert [place.base_offset for place in bench.engine.append(NAME, request)] == [0, 1]
        with pytest.raises(WrongLastId):
            bench.engine.append(NAME, [NewBlock(0, encode([b"3"]), first)])
        assert bench.read()[0].id == first


def test_a_message_of_a_transaction_counts_however_long_ago_it_was_committed() -> None:
    with Bench() as bench:
        bench.engine.transactions.commit(Commit(blocks=(TopicBlock(NAME, keyed(b"1")),)))
        bench.clock.pass_ms(3 * DAY_MS)
        with pytest.raises(WrongLastId):
            bench.engine.append(NAME, [keyed(b"2", NOTHING)])
        assert bench.values() == [b"1"]


def test_a_message_of_a_transaction_that_timed_out_does_not_count() -> None:
    with Bench() as bench:
        transactions = bench.engine.transactions
        id = transactions.begin(timeout_s=60).transaction_id
        transactions.submit(NAME, [keyed(b"1")], id).result(10)
        bench.clock.pass_ms(HOUR_MS)
        transactions.manager.expire()
        bench.engine.append(NAME, [keyed(b"2", NOTHING)])
        assert bench.values() == [b"2"]


def test_of_a_block_of_which_messages_are_gone_each_has_its_own_id() -> None:
    with Bench() as bench:
        (place,) = bench.engine.append(NAME, [NewBlock(0, encode([b"0", b"1"], [OTHER, KEY]))])
        first, second = place.ids()
        assert bench.engine.erase(NAME, key=OTHER) == 1
        with pytest.raises(WrongLastId) as refused:
            bench.engine.append(NAME, [keyed(b"2", first)])
        assert refused.value.details["last"] == str(second)
        bench.engine.append(NAME, [keyed(b"2", second)])


@pytest.mark.parametrize("fate", Fate)
def test_a_block_that_was_rolled_back_does_not_count_whatever_its_transaction_is(
    fate: Fate,
) -> None:
    block = encode([b"1"], [KEY])
    place(block, 0, Flags.TRANSACTIONAL | Flags.ISSUED | Flags.ROLLED_BACK, 5)
    keys = frozenset([KEY])
    precondition = Precondition(keys, NOTHING, 0, lambda *_: fate, lambda one: one, FIRST_KEY)
    precondition.look([StoredBlock(0, START_MS, 0, block)])
    assert precondition.refusal is None


@pytest.mark.parametrize("restarts", [False, True])
def test_nothing_is_there_of_what_has_expired(restarts: bool) -> None:
    def expire() -> None:
        bench.clock.pass_ms(2 * HOUR_MS)
        if restarts:
            bench.engine.maintenance.clean()
            bench.restart()

    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        bench.engine.append(NAME, [keyed(b"1")])
        expire()
        bench.engine.append(NAME, [keyed(b"2", NOTHING)])
        with pytest.raises(WrongLastId):
            bench.engine.append(NAME, [keyed(b"3", NOTHING)])
        expire()
        bench.engine.append(NAME, [NewBlock(0, encode([b"3"]), NOTHING)])
        expire()
        block = TopicBlock(NAME, keyed(b"4", NOTHING))
        bench.engine.transactions.commit(Commit(blocks=(block,)))
        assert bench.values() == [b"4"]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_expired_id_is_expected_only_if_it_is_the_last_one(restarts: bool) -> None:
    with Bench(TopicSettings(retention_ms=HOUR_MS)) as bench:
        (first,) = bench.engine.append(NAME, [keyed(b"1")])[0].ids()
        (last,) = bench.engine.append(NAME, [NewBlock(0, encode([b"2"], [OTHER]))])[0].ids()
        bench.clock.pass_ms(2 * HOUR_MS)
        if restarts:
            bench.engine.maintenance.clean()
            bench.restart()
        with pytest.raises(WrongLastId, match="cannot be checked"):
            bench.engine.append(NAME, [keyed(b"3", first)])
        bench.engine.append(NAME, [keyed(b"3", last)])
        assert bench.values() == [b"3"]


def keyed(value: bytes, expect: MessageId | None = None) -> NewBlock:
    return NewBlock(0, encode([value], [KEY]), expect)
