"""Queues of an engine: leases, acknowledgements, order, dead letters, transactions, starts."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from sim.world import shorten
from tests.clocks import ManualClock
from tests.contracts.bus_contract import in_turn_of
from tests.waiting import until
from tms.block import encode
from tms.block.received import Delivered
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.engine.shards import ENTRIES_MAX
from tms.errors import (
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    QueueNotFound,
    StorageUnavailable,
    TMSError,
    TooLarge,
    TopicNotFound,
)
from tms.log.journaled import Cells, JournalEntry
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.queue import QueueInfo, QueuePartition, QueueSettings, Settlement, TokenResult
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock
from tms.queues import dead_letters as dead
from tms.queues.journal import QueueJournal
from tms.store.memory import MemoryStore
from tms.topics.sharding import QUEUES

JOBS, OUT = TopicName("default", "jobs"), TopicName("default", "out")
DEAD = TopicName("default", "jobs-g-dead")


class World:
    """An engine over a store that survives it, and its queue `g` over the topic `jobs`."""

    def __init__(self, partitions: int = 1, **settings: object) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.open()
        for name in (JOBS, OUT):
            self.engine.create_topic(name, TopicSettings(partitions, durability=Durability.WRITTEN))
        self.settings = QueueSettings.of({"lease_s": 10, "jitter": 0, **settings})
        self.declare()

    def open(self) -> None:
        self.engine = Engine(self.store, self.clock)
        self.queues = self.engine.queues

    @property
    def journal(self) -> QueueJournal:
        """The journal of the queue's shard."""
        return self.queues._of(JOBS, "g")._journal

    def reopen(self, down_ms: int = 1) -> None:
        """Open the store again without closing it: as after a crash of the process, and so long
        later."""
        self.engine._threads.shutdown()
        self.clock.pass_ms(down_ms)
        self.open()

    def declare(self) -> QueueInfo:
        return self.queues.declare(JOBS, "g", self.settings)

    def publish(
        self,
        *values: bytes,
        keys: list[bytes] | None = None,
        name: TopicName = JOBS,
        headers: list[Mapping[str, bytes] | None] | None = None,
        partition: int = 0,
    ) -> None:
        block = encode(list(values), keys, headers)
        self.engine.append(name, [NewBlock(partition, block)])

    def receive(self, limit: int = 100, bytes_max: int = 1 << 20) -> list[Delivered]:
        return self.queues.receive(JOBS, "g", limit, 0, bytes_max).messages("jobs")

    def values(self, limit: int = 100) -> list[bytes | None]:
        return [one.value for one in self.receive(limit)]

    def ack(self, *messages: Delivered) -> TokenResult:
        return self.queues.ack(JOBS, "g", [one.token for one in messages])

    def nack(self, *messages: Delivered, delay_s: float | None = None) -> TokenResult:
        return self.queues.nack(JOBS, "g", [one.token for one in messages], delay_s)

    def reject(self, *messages: Delivered, cause: str = "") -> TokenResult:
        return self.queues.reject(JOBS, "g", [one.token for one in messages], cause)

    def info(self) -> QueueInfo:
        return self.queues.describe(JOBS, "g")

    def read(self, name: TopicName) -> list[Delivered]:
        """All messages of a topic, through a queue of its own."""
        self.queues.declare(name, "reader", QueueSettings(deliveries_max=0))
        found = self.queues.receive(name, "reader", 1_000).messages(str(name))
        self.queues.delete(name, "reader")
        return found

    def settle(self, *messages: Delivered, out: bytes | None = None, token: str = "") -> Commit:
        blocks = () if out is None else (TopicBlock(OUT, NewBlock(0, encode([out]))),)
        tokens = tuple(one.token for one in messages)
        return Commit(token=token, blocks=blocks, settlements=(Settlement("g", JOBS, tokens),))


@pytest.fixture
def world() -> World:
    return World()


# Leases


def test_each_message_goes_to_one_worker_in_the_order_of_the_log(world: World) -> None:
    world.publish(b"1", b"2", b"3")
    world.publish(b"4")
    first = world.receive(2)
    assert [one.value for one in first] == [b"1", b"2"]
    assert [(one.offset, one.deliveries) for one in first] == [(0, 1), (1, 1)]
    assert world.values() == [b"3", b"4"] and world.values() == []


def test_partitions_are_handed_out_in_turn() -> None:
    world = World(partitions=3)
    for n in range(36):
        world.publish(b"x", partition=n // 12)
    with patch("tms.queues.reading.AHEAD_BYTES", 1):
        order = [message.partition for _ in range(36) for message in world.receive(1)]
    assert len(order) == 36 and in_turn_of(order)


def test_what_is_acknowledged_never_comes_again(world: World) -> None:
    world.publish(b"1", b"2")
    messages = world.receive()
    assert world.ack(messages[0]) == TokenResult(1)
    world.clock.pass_ms(10_200)
    assert [(one.value, one.deliveries) for one in world.receive()] == [(b"2", 2)]


def test_a_lease_ends_and_the_old_token_is_fenced(world: World) -> None:
    world.publish(b"1")
    (late,) = world.receive()
    world.clock.pass_ms(9_900)
    assert world.receive() == []
    world.clock.pass_ms(300)
    (again,) = world.receive()
    assert world.ack(late) == TokenResult(0, (late.token,))
    assert world.ack(again) == TokenResult(1)
    assert world.info().partitions[0].cursor == 1


def test_a_token_is_good_after_its_lease_until_the_message_is_delivered_again(
    world: World,
) -> None:
    world.publish(b"1")
    (message,) = world.receive()
    world.clock.pass_ms(60_000)
    assert world.info().ready == 1
    assert world.ack(message).done == 1 and world.values() == []


def test_an_acknowledgement_that_is_repeated_is_answered_like_the_first(world: World) -> None:
    world.publish(b"1", b"2")
    messages = world.receive()
    assert world.ack(messages[0]).done == 1
    assert world.ack(*messages) == TokenResult(2)
    assert world.ack(*messages) == TokenResult(2)


def test_a_lease_can_be_extended(world: World) -> None:
    world.publish(b"1")
    (message,) = world.receive()
    world.clock.pass_ms(9_000)
    assert world.queues.extend(JOBS, "g", [message.token], 60).done == 1
    world.clock.pass_ms(50_000)
    assert world.receive() == []
    world.clock.pass_ms(10_200)
    assert world.values() == [b"1"]


def test_what_is_given_back_waits_for_its_back_off(world: World) -> None:
    world.publish(b"1")
    for delay_ms in (1_000, 2_000, 4_000):
        assert world.nack(*world.receive()).done == 1
        assert world.info().delayed == 1
        world.clock.pass_ms(delay_ms - 100)
        assert world.receive() == []
        world.clock.pass_ms(200)
    assert world.nack(*world.receive(), delay_s=0).done == 1
    assert [(one.value, one.deliveries) for one in world.receive()] == [(b"1", 5)]


def test_what_is_delivered_again_comes_before_what_is_new(world: World) -> None:
    world.publish(b"1", b"2", b"3")
    world.nack(*world.receive(2), delay_s=0)
    assert world.values() == [b"1", b"2", b"3"]


def test_as_many_come_again_as_are_asked_for(world: World) -> None:
    world.publish(b"1", b"2", b"3", b"4")
    world.nack(*world.receive(), delay_s=0)
    assert world.values(3) == [b"1", b"2", b"3"] and world.values(3) == [b"4"]


def test_a_receive_takes_about_the_bytes_that_it_is_allowed_but_one_message_at_least(
    world: World,
) -> None:
    world.publish(*[bytes(1_000)] * 10)
    assert len(world.receive(bytes_max=1)) == 1
    assert 2 <= len(world.receive(bytes_max=3_500)) <= 4
    world.clock.pass_ms(20_000)
    assert len(world.receive(bytes_max=1)) == 1


def test_a_queue_with_too_much_outstanding_waits_for_acknowledgements() -> None:
    world = World(outstanding_max=3)
    world.publish(b"1", b"2", b"3", b"4")
    messages = world.receive()
    assert len(messages) == 3 and world.receive() == []
    world.ack(messages[0])
    assert world.values() == [b"4"]


def test_all_partitions_are_served_in_turn() -> None:
    world = World(partitions=3)
    for partition in range(3):
        world.publish(*[b"%d" % partition] * 4, partition=partition)
    assert sorted(v or b"" for v in world.values()) == [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4


def test_messages_with_headers_and_without_values_come_as_they_were(world: World) -> None:
    world.engine.append(
        JOBS, [NewBlock(0, encode([None, b"v"], [b"k", None], [{"h": b"1"}, None]))]
    )
    one, two = world.receive()
    assert (one.key, one.value, dict(one.headers)) == (b"k", None, {"h": b"1"})
    assert (two.key, two.value, dict(two.headers)) == (None, b"v", {})
    assert one.id.time_ms == world.clock.now_ms() and two.id.sequence == 1


# Waiting


def test_who_waits_looks_again_when_a_delay_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.queues.queues.LOOK_S", 60.0)
    world.publish(b"1")
    world.nack(*world.receive(), delay_s=0.2)
    (queue,) = world.queues.opened()
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(len(world.queues.receive(JOBS, "g", wait_s=50)))
    )
    thread.start()
    until(lambda: len(queue.waiters.waiting) == 1)
    world.clock.pass_ms(400)  # which wakes no waiter
    thread.join(20)
    assert found == [1]


def test_who_waits_is_told_when_the_background_sees_a_lease_end(world: World) -> None:
    world.publish(b"1")
    world.receive()
    told = threading.Event()
    end, due_s = world.queues.watch(JOBS, "g", told.set)
    assert due_s is not None and 10 <= due_s <= 10.1
    world.clock.pass_ms(9_900)
    world.queues.tidy()
    assert not told.is_set()
    world.clock.pass_ms(300)
    world.queues.tidy()
    assert told.is_set()
    end(True)


def test_who_waits_behind_an_open_transaction_is_told_when_it_ends(world: World) -> None:
    tx = world.engine.transactions
    id = tx.begin().transaction_id
    tx.submit(JOBS, [NewBlock(0, encode([b"1"]))], id).result(5)
    assert world.values() == []
    told = threading.Event()
    end, _ = world.queues.watch(JOBS, "g", told.set)
    assert not told.is_set()
    tx.commit(Commit(id))
    assert told.is_set() and world.values() == [b"1"]
    end(True)


def test_who_begins_to_wait_for_a_queue_that_was_just_deleted_is_told_at_once(
    world: World,
) -> None:
    (queue,) = world.queues.opened()
    world.queues.delete(JOBS, "g")
    told = threading.Event()
    waiter, _ = queue.watch(1, told.set)
    assert told.is_set()
    queue.waiters.remove(waiter, looked=True)


# Queues


def test_a_queue_that_is_declared_again_must_be_the_same(world: World) -> None:
    world.publish(b"1")
    world.receive()
    assert world.declare().leased == 1
    with pytest.raises(Conflict, match=r"lease_s is 10\.?0?, not 5"):
        world.queues.declare(JOBS, "g", QueueSettings(lease_s=5, jitter=0))


def test_settings_change_and_survive_a_start(world: World) -> None:
    world.queues.update(JOBS, "g", {"lease_s": 1})
    world.reopen()
    world.publish(b"1")
    assert world.info().settings.lease_s == 1
    world.receive()
    world.clock.pass_ms(1_200)
    assert world.values() == [b"1"]


def test_a_queue_that_is_not_there_is_named(world: World) -> None:
    for call in (
        lambda: world.queues.describe(JOBS, "other"),
        lambda: world.queues.receive(JOBS, "other"),
        lambda: world.queues.ack(JOBS, "other", ["0.0.1.0"]),
        lambda: world.queues.delete(JOBS, "other"),
    ):
        with pytest.raises(QueueNotFound, match="other"):
            call()
    with pytest.raises(TopicNotFound):
        world.queues.declare(TopicName("default", "none"), "g", QueueSettings())
    with pytest.raises(Forbidden):
        world.queues.declare(QUEUES, "g", QueueSettings())
    with pytest.raises(Invalid, match="itself"):
        world.queues.declare(JOBS, "h", QueueSettings(dead_letter="jobs"))


def test_a_deleted_queue_begins_anew_and_knows_no_old_token(world: World) -> None:
    world.publish(b"1")
    (old,) = world.receive()
    world.queues.delete(JOBS, "g")
    assert world.queues.list_queues(JOBS) == []
    world.declare()
    (new,) = world.receive()
    assert (new.value, new.deliveries) == (b"1", 1)
    assert world.ack(old).fenced == (old.token,) and world.ack(new).done == 1
    world.reopen()
    assert world.receive() == [] and len(world.queues.list_queues(JOBS)) == 1


def test_nothing_is_kept_of_a_deleted_queue(world: World) -> None:
    world.publish(b"1")
    assert world.values() == [b"1"] and world.queues._handles
    world.queues.delete(JOBS, "g")
    assert not world.queues._handles


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", [b"1", b"2", b"3"]), ("latest", [b"3"])]
)
def test_a_queue_begins_where_it_is_told(start: str, expected: list[bytes]) -> None:
    world = World()
    world.publish(b"1", b"2")
    world.queues.declare(JOBS, "h", QueueSettings(start=start))
    world.publish(b"3")
    world.reopen()
    found = world.queues.receive(JOBS, "h", 10).messages("jobs")
    assert [one.value for one in found] == expected


def test_queues_and_readers_of_a_topic_do_not_disturb_each_other(world: World) -> None:
    world.queues.declare(JOBS, "h", QueueSettings())
    world.publish(b"1", b"2")
    world.ack(*world.receive())
    assert len(world.queues.receive(JOBS, "h", 10)) == 2
    fetched = world.engine.fetch(JOBS, [PartitionPosition(0, Position.earliest())], 1 << 20)
    assert len(fetched.blocks) == 1


def test_counts_say_where_messages_are(world: World) -> None:
    world.publish(*[b"%d" % i for i in range(10)])
    messages = world.receive(6)
    world.ack(messages[0])
    world.nack(messages[1])
    world.nack(messages[2], delay_s=0)
    info = world.info()
    assert (info.backlog, info.leased, info.ready, info.delayed) == (4, 3, 1, 1)
    assert info.partitions == (QueuePartition(0, 1, 6, 10),)
    (stats,) = world.queues.stats()
    assert (stats.leased, stats.ready, stats.delayed) == (3, 1, 1)


# Messages gone from the log


def test_rolled_back_messages_are_passed(world: World) -> None:
    tx = world.engine.transactions
    id = tx.begin().transaction_id
    world.publish(b"1")
    tx.submit(JOBS, [NewBlock(0, encode([b"never"]))], id).result(5)
    world.publish(b"2")
    assert world.values() == [b"1"]  # the following messages wait for the transaction
    tx.abort(id)
    assert world.values() == [b"2"]
    assert world.info().leased == 2


def test_truncated_messages_are_neither_delivered_nor_delivered_again(world: World) -> None:
    world.publish(b"1", b"2")
    world.publish(b"3", b"4")
    world.receive(1)
    world.engine.truncate_topic(JOBS, Position.latest())
    world.publish(b"5")
    world.clock.pass_ms(12_000)
    assert world.values() == [b"5"]
    assert world.info().partitions[0].cursor == 4 and world.info().leased == 1


def test_messages_whose_retention_ended_are_passed(world: World) -> None:
    world.engine.update_topic(JOBS, {"retention": "1m"})
    world.publish(b"1")
    world.receive()
    world.clock.pass_ms(61_000)
    world.publish(b"2")
    assert world.values() == [b"2"]


def test_after_a_start_truncated_messages_are_passed(world: World) -> None:
    world.publish(b"1", b"2")
    world.publish(b"3")
    world.receive(1)
    world.reopen(20_000)
    world.engine.truncate_topic(JOBS, Position.offset(2))
    assert world.values() == [b"3"]


def test_over_a_topic_that_is_made_anew_the_queue_begins_anew(world: World) -> None:
    world.publish(b"1", b"2")
    old = world.receive()
    world.engine.delete_topic(JOBS)
    with pytest.raises(TopicNotFound):
        world.receive()
    world.engine.create_topic(JOBS, TopicSettings(1, durability=Durability.WRITTEN))
    world.publish(b"3")
    assert world.values() == [b"3"]
    assert world.ack(*old).done == 0
    world.reopen(20_000)
    assert world.values() == [b"3"]


def test_new_partitions_are_served(world: World) -> None:
    world.receive()
    world.engine.update_topic(JOBS, {"partitions": 2})
    world.publish(b"1", partition=1)
    assert world.values() == [b"1"]


# Starts


def test_leases_and_acknowledgements_survive_a_start(world: World) -> None:
    world.publish(b"1", b"2", b"3")
    one, two, _ = world.receive()
    world.ack(one)
    world.clock.pass_ms(4_000)
    world.reopen(1_000)
    assert world.values() == []  # 5 s are left
    assert world.ack(two).done == 1
    world.clock.pass_ms(5_200)
    assert [(m.value, m.deliveries) for m in world.receive()] == [(b"3", 2)]


def test_the_journal_is_shortened_and_says_the_same() -> None:
    world = World(ordered_by="key")
    world.publish(*[b"%d" % i for i in range(50)], keys=[b"%d" % (i % 7) for i in range(50)])
    messages = world.receive()
    world.ack(*messages[:2])
    world.nack(messages[2])
    world.reject(messages[3], cause="no good")
    world.queues.tidy()
    before = world.info()
    shorten(world.queues)
    assert world.journal._topic.length < 5
    world.ack(messages[4])
    world.reopen(0)
    after = world.info()
    assert (before.leased, before.ready, before.blocked, before.delayed) == (3, 3, 40, 1)
    assert (after.leased, after.ready, after.blocked, after.delayed) == (2, 4, 39, 1)
    assert world.values() == [b"7", b"8", b"10", b"11"]


def test_a_lease_is_counted_although_its_answer_was_lost(world: World) -> None:
    world.publish(b"poison")
    for number in range(1, 4):
        assert [one.deliveries for one in world.receive()] == [number]
        world.reopen(20_000)


# Order by key


def test_of_a_key_the_next_comes_when_the_first_is_done() -> None:
    world = World(ordered_by="key")
    world.publish(b"a1", b"a2", b"b1", b"-", b"a3", keys=[b"a", b"a", b"b", b"", b"a"])
    first = world.receive()
    assert [one.value for one in first] == [b"a1", b"b1", b"-"]
    assert world.info().blocked == 2 and world.receive() == []
    world.ack(first[1])
    assert world.receive() == []
    world.nack(first[0], delay_s=0)
    (again,) = world.receive()
    assert (again.value, again.deliveries) == (b"a1", 2)
    world.ack(again)
    (second,) = world.receive()
    assert (second.value, second.deliveries) == (b"a2", 1)
    world.reopen()
    assert world.receive() == []
    world.ack(second)
    assert world.values() == [b"a3"]


def test_messages_without_a_key_wait_for_nobody() -> None:
    world = World(ordered_by="key")
    world.publish(b"1", b"2")
    assert world.values() == [b"1", b"2"]


def test_a_rejected_message_lets_the_next_of_its_key_go_when_it_is_moved() -> None:
    world = World(ordered_by="key")
    world.publish(b"a1", b"a2", keys=[b"a", b"a"])
    (first,) = world.receive()
    world.reject(first)
    world.queues.tidy()
    assert world.values() == [b"a2"]


def test_one_looks_ahead_a_bounded_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tms.queues.partition", "tms.queues.delivering"):
        monkeypatch.setattr(f"{module}.BLOCKED_MAX", 5)
    world = World(ordered_by="key", partitions=2)
    world.publish(*[b"%d" % i for i in range(20)], keys=[b"a"] * 20)
    world.publish(b"z", keys=[b"z"])
    first = world.receive()
    assert [one.value for one in first] == [b"0"] and world.info().blocked == 5
    world.publish(b"other", partition=1, keys=[b"o"])
    assert world.values() == [b"other"]
    expected = [b"%d" % i for i in range(1, 20)] + [b"z"]
    found: list[bytes | None] = []
    while first:
        world.ack(*first)
        first = world.receive()
        found += [one.value for one in first]
    assert sorted(v or b"" for v in found) == sorted(expected)
    assert [v for v in found if v != b"z"] == expected[:-1]


# Dead letters


def test_what_is_rejected_goes_to_the_dead_letters_with_cause_and_origin(world: World) -> None:
    world.publish(b"1", b"bad", keys=[b"k", b"k"], headers=[None, {"h": b"x"}])
    _, bad = world.receive()
    world.reject(bad, cause="no such user")
    world.queues.tidy()
    (letter,) = world.read(DEAD)
    assert (letter.key, letter.value) == (b"k", b"bad")
    assert letter.headers == {
        "h": b"x",
        "tms-dead-cause": b"no such user",
        "tms-dead-deliveries": b"1",
        "tms-dead-origin": f"default:jobs/0/1/{bad.id}".encode(),
        "tms-dead-group": b"g",
    }
    info = world.info()
    assert (info.leased, info.dying, info.dead, info.died) == (1, 0, 1, 1)
    assert world.ack(bad).fenced == (bad.token,)


def test_a_message_dies_after_its_last_delivery(world: World) -> None:
    world.queues.update(JOBS, "g", {"deliveries_max": 2})
    world.publish(b"slow", b"failing")
    for _ in range(2):
        slow, failing = world.receive()
        world.nack(failing, delay_s=0)
        world.clock.pass_ms(10_200)
    assert world.receive() == []
    world.queues.tidy()
    causes = {one.value: one.headers["tms-dead-cause"] for one in world.read(DEAD)}
    assert causes == {
        b"slow": b"its lease ended after 2 deliveries",
        b"failing": b"it was given back after 2 deliveries",
    }
    assert slow.deliveries == 2


def test_dead_letters_are_moved_without_being_asked_for(world: World) -> None:
    world.publish(b"1")
    world.queues.start()
    world.reject(*world.receive())
    until(lambda: world.info().dead == 1)
    world.engine.close()


def test_dead_letters_move_although_every_thread_of_the_engine_is_needed() -> None:
    world = World()
    world.engine.close()
    world.engine = Engine(MemoryStore(shared=True), world.clock, EngineConfig(threads=1))
    world.queues = world.engine.queues
    world.engine.create_topic(JOBS, TopicSettings(1, durability=Durability.SYNCED))
    world.declare()
    world.publish(*(b"%d" % n for n in range(20)))
    world.queues.start()
    for message in world.receive():
        world.reject(message)
    until(lambda: world.info().dead == 20)
    world.engine.close()


def test_a_late_acknowledgement_saves_a_dying_message(world: World) -> None:
    world.queues.update(JOBS, "g", {"deliveries_max": 1})
    world.publish(b"1")
    messages = world.receive()
    world.clock.pass_ms(10_200)
    (queue,) = world.queues.opened()
    assert len(queue.take_dying(10)) == 1
    assert world.ack(*messages).done == 1
    assert world.queues.tidy() == 0 and world.info().dead == 0


def test_a_message_that_cannot_be_copied_does_not_keep_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(b"large", b"small")
    world.reject(*world.receive())
    right = dead.encode

    def fail(values: list[bytes], *others: object) -> bytearray:
        if b"large" in values:
            raise Invalid("It cannot be copied.")
        return right(values, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(dead, "encode", fail)
    world.queues.tidy()
    info = world.info()
    assert (info.dying, info.dead) == (1, 1)
    monkeypatch.undo()
    world.queues.tidy()
    assert (world.info().dying, world.info().dead) == (0, 2)


def test_dead_letters_whose_message_is_gone_are_settled(world: World) -> None:
    world.publish(b"1")
    messages = world.receive()
    world.engine.truncate_topic(JOBS, Position.latest())
    world.reject(*messages)
    world.queues.tidy()
    assert (world.info().dying, world.info().dead) == (0, 0)


def test_a_topic_of_dead_letters_that_somebody_else_makes_first_is_taken_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = world.engine.topics.registry
    create = registry.create

    def late(name: TopicName, settings: TopicSettings) -> object:
        if name == DEAD:
            create(name, TopicSettings(3))
        return create(name, settings)

    monkeypatch.setattr(registry, "create", late)
    world.publish(*[b"%d" % n for n in range(20)], keys=[b"%d" % n for n in range(20)])
    world.reject(*world.receive())
    assert world.queues.tidy() == 20
    assert {one.partition for one in world.read(DEAD)} == {0, 1, 2}


def test_redrive_publishes_dead_letters_again_each_once(world: World) -> None:
    world.publish(*[b"%d" % i for i in range(5)], headers=[{"h": b"x"}] * 5)
    world.reject(*world.receive())
    world.queues.tidy()
    assert world.queues.redrive(JOBS, "g", 2) == 2
    assert world.info().dead == 3
    world.reopen()
    assert world.queues.redrive(JOBS, "g") == 3 and world.queues.redrive(JOBS, "g") == 0
    found = world.receive()
    assert [one.value for one in found] == [b"%d" % i for i in range(5)]
    assert {tuple(one.headers) for one in found} == {("h",)}
    assert world.info().dead == 0


def test_queues_that_share_dead_letters_redrive_their_own() -> None:
    world = World(dead_letter="bin")
    world.queues.declare(JOBS, "h", QueueSettings(dead_letter="bin"))
    world.publish(b"1")
    world.reject(*world.receive())
    other = world.queues.receive(JOBS, "h", 1)
    world.queues.reject(JOBS, "h", other.tokens())
    world.queues.tidy()
    assert world.queues.redrive(JOBS, "g") == 1 and world.queues.redrive(JOBS, "h") == 1
    assert len(world.receive()) == 2


# Transactions


def test_a_transaction_settles_with_its_output_or_not_at_all(world: World) -> None:
    world.publish(b"1", b"2")
    one, two = world.receive()
    world.engine.transactions.commit(world.settle(one, out=b"done"))
    assert [m.value for m in world.read(OUT)] == [b"done"]
    assert world.ack(one).fenced and world.info().leased == 1
    world.clock.pass_ms(10_200)
    world.receive()
    with pytest.raises(Fenced, match=f"queue g of jobs.*{two.token}"):
        world.engine.transactions.commit(world.settle(two, out=b"twice"))
    assert [m.value for m in world.read(OUT)] == [b"done"]
    world.reopen(20_000)
    assert world.values() == [b"2"]


def test_of_two_transactions_that_settle_the_same_one_commits(world: World) -> None:
    world.publish(b"1")
    messages = world.receive()
    world.engine.transactions.commit(world.settle(*messages, out=b"a"))
    with pytest.raises(Fenced):
        world.engine.transactions.commit(world.settle(*messages, out=b"b"))
    assert [m.value for m in world.read(OUT)] == [b"a"]


def test_a_commit_that_is_repeated_is_answered_like_the_first(world: World) -> None:
    world.publish(b"1")
    request = world.settle(*world.receive(), out=b"a", token="t")
    first = world.engine.transactions.commit(request)
    assert world.engine.transactions.commit(request) == first
    assert len(world.read(OUT)) == 1


@contextmanager
def under_way(world: World, request: Commit) -> Iterator[None]:
    """Within, this commit is about to be journaled; afterwards it is done."""
    held = threading.Event()
    go_on = threading.Event()
    commits = world.engine.transactions.manager.commits
    commit = commits.submit

    def late(*args: object) -> None:
        held.set()
        go_on.wait(5)
        commit(*args)  # type: ignore[arg-type]

    commits.submit = late  # type: ignore[assignment, method-assign]
    thread = threading.Thread(target=lambda: world.engine.transactions.commit(request))
    thread.start()
    assert held.wait(5)
    yield
    go_on.set()
    thread.join()


def test_what_a_commit_under_way_settles_is_held(world: World) -> None:
    world.publish(b"1", b"2")
    one, _ = world.receive()
    with under_way(world, world.settle(one, out=b"done")):
        world.clock.pass_ms(30_000)
        assert world.values() == [b"2"]  # the other lease has ended, this one waits for its commit
        assert world.ack(one).fenced == (one.token,)
        shorten(world.queues)
    assert world.info().leased == 1
    world.reopen(20_000)
    assert world.values() == [b"2"]


def test_what_a_commit_under_way_settles_is_held_though_the_journal_is_read_again(
    world: World,
) -> None:
    world.publish(b"1", b"2")
    one, _ = world.receive()
    with under_way(world, world.settle(one, out=b"done")):
        world.journal.journaled.invalidate()
        world.clock.pass_ms(30_000)
        assert world.values() == [b"2"] and world.info().leased == 2
    assert [m.value for m in world.read(OUT)] == [b"done"] and world.info().leased == 1


def test_when_a_commit_fails_its_messages_are_let_go(world: World) -> None:
    world.publish(b"1")
    (message,) = world.receive()
    gone = TopicBlock(TopicName("default", "gone"), NewBlock(0, encode([b"x"])))
    settlement = Settlement("g", JOBS, (message.token,))
    with pytest.raises(TopicNotFound):
        world.engine.transactions.commit(Commit(blocks=(gone,), settlements=(settlement,)))
    assert world.ack(message).done == 1


def test_a_commit_settles_in_several_queues(world: World) -> None:
    world.queues.declare(JOBS, "h", QueueSettings())
    world.publish(b"1")
    (mine,) = world.receive()
    other = world.queues.receive(JOBS, "h")
    settlements = (
        Settlement("g", JOBS, (mine.token,)),
        Settlement("h", JOBS, tuple(other.tokens())),
    )
    world.engine.transactions.commit(Commit(settlements=settlements))
    assert [info.leased for info in world.queues.list_queues(JOBS)] == [0, 0]


# Failures


def test_tokens_that_are_none_are_refused(world: World) -> None:
    for tokens in ([], "0.0.1.0", ["nothing"]):
        with pytest.raises(Invalid):
            world.queues.ack(JOBS, "g", tokens)
    assert world.queues.ack(JOBS, "g", ["ffff.0.1.0", "0.0.0.0"]).done == 0
    with pytest.raises(Invalid):
        world.queues.receive(JOBS, "g", 0)
    with pytest.raises(Invalid):
        world.queues.nack(JOBS, "g", ["0.0.1.0"], -1)


def test_what_could_not_be_read_is_delivered_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(b"1", b"2")
    world.nack(*world.receive(), delay_s=0)
    (queue,) = world.queues.opened()

    def fail(*args: object) -> object:
        raise StorageUnavailable("The store cannot be read.")

    for what in ("find", "read"):
        monkeypatch.setattr(queue._scanner, what, fail)
        with pytest.raises(StorageUnavailable):
            world.receive()
        monkeypatch.undo()
    assert [(one.value, one.deliveries) for one in world.receive()] == [(b"1", 2), (b"2", 2)]


def test_one_call_is_about_a_bounded_number_of_messages(world: World) -> None:
    with pytest.raises(TooLarge, match="at most"):
        world.queues.ack(JOBS, "g", ["0.0.1.0.10000"] * 2)


def test_a_journal_of_many_bytes_is_shortened(world: World) -> None:
    world.publish(*[b"%d" % i for i in range(100)])
    world.receive()
    shorten(world.queues, ENTRIES_MAX, 10_000)
    assert 0 < world.journal._topic.bytes < 10_000
    shorten(world.queues, ENTRIES_MAX, 10)
    assert world.journal._topic.bytes == 0
    world.reopen()
    assert world.info().leased == 100


def test_a_queue_whose_snapshot_could_not_be_stored_waits_for_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(b"1")

    def fail(*args: object) -> object:
        raise TMSError("The store has failed.")

    monkeypatch.setattr(world.journal._topic, "write", fail)
    with pytest.raises(TMSError, match="store has failed") as kept:
        shorten(world.queues)
    monkeypatch.undo()
    (queue,) = world.queues.opened()
    assert not queue.lock.locked() and kept.traceback
    assert world.values() == [b"1"]


def test_the_journal_does_not_begin_anew_while_it_has_to_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(b"1")
    world.receive()
    (queue,) = world.queues.opened()
    length, snapshot = world.journal._topic.length, queue.snapshot

    def taken_meanwhile() -> Iterator[Cells]:
        yield from snapshot()
        world.journal.journaled.invalidate()

    monkeypatch.setattr(queue, "snapshot", taken_meanwhile)
    with pytest.raises(StorageUnavailable, match="read again"):
        shorten(world.queues)
    assert world.journal._topic.length > length
    assert world.info().leased == 1


def test_after_a_failed_write_the_journal_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(b"1", b"2")
    messages = world.receive()
    write = world.journal._topic.write

    def fail(entries: Sequence[Cells], durability: Durability) -> object:
        write(entries, durability)  # stored all the same
        raise TMSError("The store has failed.")

    monkeypatch.setattr(world.journal._topic, "write", fail)
    with pytest.raises(TMSError, match="store has failed"):
        world.ack(messages[0])
    monkeypatch.undo()
    assert not world.journal.journaled.known
    assert world.info().leased == 1  # it was stored, so it counts
    assert world.ack(messages[1]).done == 1


def test_a_journal_that_is_invalidated_while_it_is_read_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, replays = world.journal, list[bool]()
    replay = journal._topic.replay

    def invalidated() -> Iterator[JournalEntry]:
        for entry in replay():
            if not replays:
                journal.journaled.invalidate()
            yield entry
        replays.append(journal.journaled.known)

    monkeypatch.setattr(journal._topic, "replay", invalidated)
    journal.journaled.invalidate()
    with pytest.raises(StorageUnavailable, match="has to be read again"):
        journal.add([], Durability.WRITTEN)
    world.publish(b"1")
    assert world.values() == [b"1"] and journal.journaled.known
    assert replays == [False, False]
