"""The promises of a queue, whatever is below the bus: a class of tests that every kind of bus runs.
`test_queue_contract.py` runs it on an engine in this process and through HTTP. A subclass gives the
fixture `bus`."""

import threading
import time
from collections import Counter, defaultdict
from itertools import islice
from typing import Any

import pytest

import tms
from tests.contracts.bus_contract import KAFKA_NAMES
from tests.waiting import PATIENCE_S, until
from tms import Bus, Delivered, Queue
from tms.errors import (
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    QueueNotFound,
    TopicNotFound,
    TransactionEnded,
)
from tms.model.queue import QueuePartition, Token, TokenResult
from tms.model.topic import TopicName


def prepared(bus: Bus, *values: bytes, partitions: int = 1, **settings: Any) -> Queue:
    """The queue `workers` on the topic `jobs`, with these messages."""
    bus.create_topic("jobs", partitions=partitions, durability="written")
    queue = bus.queue("jobs", group="workers", **{"jitter": 0.0, **settings})
    for value in values:
        bus.publish("jobs", value)
    return queue


def collect(queue: Queue, limit: int, wait_s: float = 0) -> list[Delivered]:
    """Up to `limit` of the ready messages: one receive may return fewer."""
    found: list[Delivered] = []
    while len(found) < limit and (more := queue.receive(limit - len(found), wait_s)):
        found += more
    return found


def got(messages: list[Delivered]) -> list[tuple[bytes | None, int]]:
    return [(one.value, one.deliveries) for one in messages]


def everything(bus: Bus, topic: str) -> list[tms.Message]:
    return list(bus.consumer(topic, stop_at_end=True))


def extensions(queue: Queue) -> list[TokenResult]:
    """Let a queue take its leases for short; returns a list of the answers to its extensions from
    now on."""
    results: list[TokenResult] = []
    right = queue.leases._extend

    def extend(tokens: list[str]) -> TokenResult:
        results.append(right(tokens))
        return results[-1]

    queue.leases._extend, queue.leases._lease_s = extend, lambda: 0.01
    return results


class QueueContract:
    """Contract of queues."""

    # -- queues ------------------------------------------------------------------------------------

    def test_a_queue_has_the_settings_that_were_asked_for(self, bus: Bus) -> None:
        queue = prepared(bus, lease_s=2.5, deliveries_max=3, dead_letter="morgue")
        info = queue.describe()
        assert (info.group, str(info.topic)) == ("workers", "jobs")
        assert (info.settings.lease_s, info.settings.deliveries_max) == (2.5, 3)
        assert info.settings == queue.settings
        assert str(info.dead_letter) == "morgue"
        assert bus.queue("jobs", group="workers").settings == queue.settings

    def test_making_it_again_changes_nothing_and_with_other_settings_is_refused(
        self, bus: Bus
    ) -> None:
        first = prepared(bus, lease_s=5).describe()
        again = bus.queue("jobs", group="workers", lease_s=5, jitter=0).describe()
        assert first == again
        with pytest.raises(Conflict):
            bus.queue("jobs", group="workers", lease_s=6)

    def test_settings_can_be_changed_one_by_one(self, bus: Bus) -> None:
        queue = prepared(bus, lease_s=5)
        queue.update(lease_s=7.0, durability="synced")
        settings = bus.queue("jobs", group="workers").settings
        assert (settings.lease_s, settings.durability, settings.jitter) == (7, "synced", 0)
        for changes in ({"ordered_by": "fifo"}, {"lease_s": 0}, {"leases": 1}):
            with pytest.raises(Invalid):
                queue.update(**changes)
        for fixed in ({"ordered_by": "key"}, {"start": "latest"}):
            with pytest.raises(Conflict):
                queue.update(**fixed)

    def test_queues_are_listed_by_name_and_deleted(self, bus: Bus) -> None:
        prepared(bus)
        bus.queue("jobs", group="a b:ü")
        assert [info.group for info in bus.describe_queues("jobs")] == ["a b:ü", "workers"]
        queue = bus.queue("jobs", group="workers")
        queue.delete()
        assert [info.group for info in bus.describe_queues("jobs")] == ["a b:ü"]
        for call in (queue.describe, queue.receive, queue.delete, queue.redrive):
            with pytest.raises(QueueNotFound):
                call()

    def test_queues_of_all_topics_are_listed_with_what_waits(self, bus: Bus) -> None:
        assert list(bus.list_queues()) == []
        prepared(bus)
        bus.create_topic("a", durability="written")
        bus.queue("a", group="a b:ü")
        bus.publish_many("a", [b"1", b"2", b"3"])
        assert len(list(bus.queue("a", group="a b:ü").receive(2))) == 2
        listed = list(bus.list_queues())
        assert [(one.topic, one.group) for one in listed] == [("a", "a b:ü"), ("jobs", "workers")]
        assert [(one.waiting, one.leased, one.dead) for one in listed] == [(1, 2, 0), (0, 0, 0)]
        assert listed[0].oldest_ms is not None and 0 <= listed[0].oldest_ms < 60_000
        assert listed[1].oldest_ms == 0

    def test_what_is_not_there_or_not_allowed_is_an_error(self, bus: Bus) -> None:
        with pytest.raises(TopicNotFound):
            bus.queue("nowhere", group="workers")
        with pytest.raises(TopicNotFound):
            bus.describe_queues("nowhere")
        queue = prepared(bus)
        for group in ("", "a/b", "x" * 256, "a\nb"):
            with pytest.raises(Invalid):
                bus.queue("jobs", group=group)
        with pytest.raises((Invalid, Forbidden)):
            bus.queue("jobs", group="others", dead_letter="system:mine")
        with pytest.raises(Invalid):
            bus.queue("jobs", group="others", dead_letter="jobs")
        for limit in (0, 10_001):
            with pytest.raises(Invalid):
                queue.receive(limit)
        with pytest.raises(Invalid):
            queue.ack("no token")

    # -- leases ------------------------------------------------------------------------------------

    def test_each_message_goes_to_one_worker_with_everything_it_has(self, bus: Bus) -> None:
        queue = prepared(bus)
        id = bus.publish("jobs", b"\xff\0", key=b"\xfe", headers={"h": b"\xfd", "n": b""})
        bus.publish("jobs", None)
        first, second = collect(queue, 5)
        assert (first.value, first.key) == (b"\xff\0", b"\xfe")
        assert (first.headers, first.id) == ({"h": b"\xfd", "n": b""}, id)
        assert (first.topic, first.partition, first.offset) == ("jobs", 0, 0)
        assert (second.value, second.key, second.headers) == (None, None, {})
        assert first.timestamp_ms == first.id.time_ms
        assert queue.receive(5) == []

    def test_what_is_acknowledged_never_comes_again(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b", b"c")
        messages = collect(queue, 3)
        assert queue.ack(messages[:2]) == (2, ())
        queue.extend(messages[2], 0.01)  # and this lease ends
        assert got(queue.receive(3, PATIENCE_S)) == [(b"c", 2)]

    def test_messages_tokens_and_what_was_received_are_all_taken(self, bus: Bus) -> None:
        queue = prepared(bus, *(b"%d" % n for n in range(6)))
        one, two, three = collect(queue, 3)
        assert queue.ack(one).done == 1
        assert queue.ack([two.token, three]).done == 2
        left = 3
        while rest := queue.receive_slices(10):
            assert queue.ack(rest) == (len(rest), ())
            left -= len(rest)
        assert left == 0
        assert queue.describe().partitions[0].cursor == 6

    def test_a_lease_ends_and_the_old_token_is_too_late(self, bus: Bus) -> None:
        queue = prepared(bus, b"a")
        [late] = queue.receive()
        queue.extend(late, 0.01)
        [again] = queue.receive(1, PATIENCE_S)
        assert again.deliveries == 2
        assert queue.ack(late) == (0, (late.token,))
        assert queue.ack(again) == (1, ())

    def test_an_extended_lease_lasts(self, bus: Bus) -> None:
        queue = prepared(bus, b"kept", b"lost", lease_s=1)
        kept, _ = collect(queue, 2)
        assert queue.extend(kept, 60).done == 1
        assert got(queue.receive(5, PATIENCE_S)) == [(b"lost", 2)]
        assert queue.ack(kept).done == 1

    def test_what_is_given_back_comes_after_its_delay(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b", backoff_first_s=1)
        a, b = collect(queue, 2)
        queue.nack(b)
        queue.nack(a, delay_s=0)
        assert got(queue.receive(5)) == [(b"a", 2)]
        assert queue.describe().delayed == 1
        assert got(queue.receive(5, PATIENCE_S)) == [(b"b", 2)]

    def test_a_release_does_not_count_as_a_delivery(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b", deliveries_max=1)
        for _ in range(3):
            messages = collect(queue, 2)
            assert got(messages) == [(b"a", 1), (b"b", 1)]
            assert queue.release(messages) == queue.release(messages) == (2, ())
        assert queue.describe().died == queue.describe().dying == 0

    def test_loops_that_end_bring_no_message_nearer_to_the_dead_letters(self, bus: Bus) -> None:
        queue = prepared(bus, deliveries_max=2)
        bus.publish_many("jobs", [b"%d" % n for n in range(40)])
        seen: list[tuple[bytes | None, int]] = []
        while len(seen) < 40:
            for message in queue:
                seen.append((message.value, message.deliveries))
                queue.ack(message)
                if len(seen) % 7 == 0 or len(seen) == 40:
                    break  # others are leased ahead by now
        assert sorted(seen) == sorted((b"%d" % n, 1) for n in range(40))
        assert queue.describe().died == 0

    def test_an_ack_that_is_repeated_counts_as_done(self, bus: Bus) -> None:
        queue = prepared(bus, b"a")
        messages = queue.receive()
        assert queue.ack(messages) == queue.ack(messages) == (1, ())

    def test_a_receive_waits_for_the_first_message(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tms.queues.queues.LOOK_S", PATIENCE_S)  # it is woken
        queue = prepared(bus, partitions=2)
        found: list[Delivered] = []
        waiter = threading.Thread(target=lambda: found.extend(queue.receive(5, PATIENCE_S)))
        started = time.monotonic()
        waiter.start()
        bus.publish("jobs", b"a", partition=1)
        waiter.join(PATIENCE_S)
        assert got(found) == [(b"a", 1)]
        assert time.monotonic() - started < PATIENCE_S / 2
        assert queue.receive(5, 0.05) == []

    def test_a_receive_is_bounded_in_messages_and_bytes(self, bus: Bus) -> None:
        queue = prepared(bus)
        bus.publish_many("jobs", [bytes(1_000)] * 50)
        assert len(collect(queue, 7)) == 7
        assert 1 <= len(queue.receive(50, 0, 10_000)) <= 10
        assert len(queue.receive(50, 0, 1)) == 1

    def test_a_queue_from_latest_misses_what_was_there_and_nothing_else(self, bus: Bus) -> None:
        bus.create_topic("jobs", partitions=2)
        bus.publish_many("jobs", [b"old"] * 3, partition=0)
        queue = bus.queue("jobs", group="workers", start="latest")
        bus.publish("jobs", b"new", partition=0)
        bus.publish("jobs", b"new", partition=1)
        assert [one.value for _ in range(2) for one in queue.receive(5)] == [b"new", b"new"]

    def test_queues_and_consumers_of_a_topic_do_not_disturb_each_other(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b")
        other = bus.queue("jobs", group="others")
        queue.ack(collect(queue, 5))
        assert got(collect(other, 5)) == [(b"a", 1), (b"b", 1)]
        assert [one.value for one in everything(bus, "jobs")] == [b"a", b"b"]

    def test_counts_tell_how_a_queue_stands(self, bus: Bus) -> None:
        queue = prepared(bus, *(b"%d" % n for n in range(10)))
        messages = collect(queue, 6)
        queue.ack(messages[0])
        queue.nack(messages[1], delay_s=60)
        queue.nack(messages[2], delay_s=0)
        info = queue.describe()
        assert (info.backlog, info.leased, info.ready, info.delayed) == (4, 3, 1, 1)
        assert (info.blocked, info.dying, info.dead) == (0, 0, 0)
        assert info.partitions == (QueuePartition(0, 1, 6, 10),)

    def test_many_workers_settle_each_message_once(self, bus: Bus) -> None:
        queue = prepared(bus, partitions=2, lease_s=30)
        bus.publish_many("jobs", [b"%d" % n for n in range(400)])
        seen: list[tuple[bytes | None, int]] = []
        lock = threading.Lock()

        def work() -> None:
            while messages := queue.receive(7, 0.3):
                assert queue.ack(messages).done == len(messages)
                with lock:
                    seen.extend(got(messages))

        workers = [threading.Thread(target=work) for _ in range(8)]
        for one in workers:
            one.start()
        for one in workers:
            one.join(60)
        assert sorted(seen) == sorted((b"%d" % n, 1) for n in range(400))

    # -- looking -----------------------------------------------------------------------------------

    def test_a_look_leases_nothing_and_says_how_messages_stand(self, bus: Bus) -> None:
        queue = prepared(bus, *(b"%d" % number for number in range(7)), lease_s=60)
        leased, delayed, ready, done = collect(queue, 4)
        queue.nack(delayed, delay_s=60)
        queue.nack(ready, delay_s=0)
        queue.ack(done)
        seen = queue.peek()
        assert [(one.value, one.state, one.deliveries) for one in seen] == [
            (leased.value, "leased", 1),
            (delayed.value, "delayed", 1),
            (ready.value, "ready", 1),
            *((value, "new", 0) for value in (b"4", b"5", b"6")),
        ]
        assert [one.id for one in seen[:3]] == [leased.id, delayed.id, ready.id]
        assert (seen[0].topic, seen[0].partition, seen[0].offset) == (leased.topic, 0, 0)
        left_s = [one.left_s for one in seen]
        assert left_s[0] is not None and left_s[1] is not None and left_s[2:] == [None] * 4
        assert 0 < left_s[0] <= 60 and 0 < left_s[1] <= 60
        again = [one._replace(left_s=None) for one in queue.peek()]
        assert [one._replace(left_s=None) for one in seen] == again
        info = queue.describe()
        assert (info.leased, info.delayed, info.ready, info.backlog) == (1, 1, 1, 3)
        assert got(queue.receive()) == [(ready.value, 2)]

    def test_a_look_is_bounded_and_passes_over_what_is_gone(self, bus: Bus) -> None:
        queue = prepared(bus, b"0", b"1", b"2", lease_s=60)
        [first] = queue.receive()
        assert [one.offset for one in queue.peek(2)] == [0, 1]
        bus.truncate_topic("jobs", before=f"after:{first.id}")
        assert [one.state for one in queue.peek(1_000)] == ["new", "new"]
        for limit in (0, 1_001):
            with pytest.raises(Invalid):
                queue.peek(limit)

    def test_a_look_shows_what_waits_behind_its_key_and_what_is_no_text(self, bus: Bus) -> None:
        bus.create_topic("jobs")
        bus.publish_many("jobs", [b"\xff", None], keys=[b"k", b"k"], headers=[{"h": b"1"}, None])
        queue = bus.queue("jobs", group="workers", ordered_by="key")
        assert len(queue.receive(10)) == 1
        first, second = queue.peek()
        assert (first.key, first.value, first.headers) == (b"k", b"\xff", {"h": b"1"})
        assert (second.value, second.state, second.deliveries) == (None, "blocked", 0)

    # -- dead letters ------------------------------------------------------------------------------

    def test_what_is_rejected_is_a_dead_letter_with_its_cause_and_can_come_back(
        self, bus: Bus
    ) -> None:
        queue = prepared(bus)
        bus.publish("jobs", b"bad", key=b"k", headers={"h": b"1"})
        [bad] = queue.receive()
        assert queue.reject(bad, "no such file").done == 1
        until(lambda: queue.describe().dead == 1)
        [letter] = everything(bus, str(queue.describe().dead_letter))
        assert (letter.value, letter.key) == (b"bad", b"k")
        assert letter.headers == {
            "h": b"1",
            "tms-dead-cause": b"no such file",
            "tms-dead-deliveries": b"1",
            "tms-dead-group": b"workers",
            "tms-dead-origin": f"default:jobs/0/0/{bad.id}".encode(),
        }
        assert (queue.redrive(), queue.redrive()) == (1, 0)
        [back] = queue.receive(1, PATIENCE_S)
        assert (back.value, back.headers, back.deliveries) == (b"bad", {"h": b"1"}, 1)
        assert queue.describe().dead == 0

    def test_dead_letters_are_listed_with_their_causes_until_they_are_moved_back(
        self, bus: Bus
    ) -> None:
        queue = prepared(bus, b"a", b"b")
        assert list(bus.list_dead_letters("jobs", group="workers")) == []
        found = collect(queue, 2)
        for message in found:
            queue.reject(message, f"no {message.offset}")
        until(lambda: queue.describe().dead == 2)
        letters = list(bus.list_dead_letters("jobs", group="workers"))
        assert [(one.cause, one.deliveries, one.partition, one.offset) for one in letters] == [
            ("no 0", 1, 0, 0),
            ("no 1", 1, 0, 1),
        ]
        assert [one.id for one in letters] == [str(message.id) for message in found]
        assert [one.message.value for one in letters] == [b"a", b"b"]
        assert queue.redrive(1) == 1
        [left] = bus.list_dead_letters("jobs", group="workers")
        assert left.cause == "no 1"

    def test_dead_letters_are_settled_one_by_one(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b", b"c", b"d", b"e")
        queue.reject(collect(queue, 5), "no")
        until(lambda: queue.describe().dead == 5)
        letters = list(bus.list_dead_letters("jobs", group="workers"))
        assert [one.message.value for one in letters] == [b"a", b"b", b"c", b"d", b"e"]

        def left() -> list[bytes | None]:
            found = list(bus.list_dead_letters("jobs", group="workers"))
            assert queue.describe().dead == len(found)
            return [one.message.value for one in found]

        assert queue.redrive(letters=[letters[3], letters[1]]) == 2
        assert left() == [b"a", b"c", b"e"]
        assert queue.redrive(letters=[letters[1], str(letters[3].letter)]) == 0
        assert queue.discard(letters=[str(letters[0].letter)]) == 1
        assert left() == [b"c", b"e"]
        assert queue.redrive(letters=[f"9:{letters[2].message.id}"]) == 0, "of no partition"
        assert queue.redrive(1) == 1 and left() == [b"e"]
        assert queue.discard() == 1 and left() == []
        assert [one.value for one in everything(bus, "jobs")][5:] == [b"b", b"d", b"c"]
        assert len(everything(bus, "jobs-workers-dead")) == 5, "they stay readable"
        for faulty in (["0:nothing"], ["0"], [f"x:{letters[0].message.id}"]):
            with pytest.raises(Invalid):
                queue.redrive(letters=faulty)
            with pytest.raises(Invalid):
                queue.discard(letters=faulty)
        with pytest.raises(Invalid):
            queue.discard(letters=[str(letters[0].letter)] * 1_001)

    @pytest.mark.parametrize("name", KAFKA_NAMES, ids=lambda name: name[:20])
    def test_a_topic_with_a_name_of_kafka_has_a_queue_with_dead_letters(
        self, bus: Bus, name: str
    ) -> None:
        bus.create_topic(name, durability="written")
        queue = bus.queue(name, group="mail")
        bus.publish_many(name, [b"good", b"bad"])
        good, bad = collect(queue, 2)
        assert (good.topic, good.value, bad.value) == (name, b"good", b"bad")
        queue.ack(good)
        queue.reject(bad, cause="no")
        until(lambda: queue.describe().dead == 1)
        [letter] = bus.list_dead_letters(name, group="mail")
        assert (letter.cause, letter.message.value) == ("no", b"bad")
        assert queue.redrive() == 1
        assert [one.value for one in everything(bus, name)] == [b"good", b"bad", b"bad"]
        found = bus.list_queues(TopicName.parse(name).namespace)
        assert [(one.topic, one.group) for one in found] == [(name, "mail")]
        queue.delete()
        assert list(bus.list_queues(TopicName.parse(name).namespace)) == []

    def test_a_dead_letter_has_the_error_of_its_last_handler(self, bus: Bus) -> None:
        queue = prepared(bus, b"bad", deliveries_max=1)
        [bad] = queue.receive()
        with pytest.raises(ValueError, match="no image"), queue.settling(bad):
            raise ValueError("no image")
        until(lambda: queue.describe().dead == 1)
        [letter] = everything(bus, "jobs-workers-dead")
        assert letter.headers["tms-dead-cause"] == b"ValueError: no image"

    def test_what_was_delivered_too_often_is_dead(self, bus: Bus) -> None:
        queue = prepared(bus, b"poison", b"good", deliveries_max=2)
        deliveries: Counter[bytes | None] = Counter()

        def is_dead() -> bool:
            for one in queue.receive(5, 0.1):
                deliveries[one.value] += 1
                if one.value == b"good":
                    queue.ack(one)
                else:
                    queue.extend(one, 0.01)  # and this lease ends
            return queue.describe().dead > 0

        until(is_dead)
        assert deliveries == {b"poison": 2, b"good": 1}
        [letter] = everything(bus, "jobs-workers-dead")
        assert letter.headers["tms-dead-deliveries"] == b"2"

    # -- order -------------------------------------------------------------------------------------

    def test_of_each_key_only_the_first_is_with_a_worker(self, bus: Bus) -> None:
        queue = prepared(bus, ordered_by="key", backoff_first_s=0)
        keys = [b"a", b"a", b"b", b"a", b"b"]
        bus.publish_many("jobs", [b"%d" % n for n in range(5)], keys=keys)
        first = collect(queue, 10)
        assert got(first) == [(b"0", 1), (b"2", 1)]
        assert queue.describe().blocked == 3
        queue.ack(first[1])
        queue.nack(first[0])
        assert sorted(got(collect(queue, 10))) == [(b"0", 2), (b"4", 1)]

    def test_the_order_of_each_key_is_that_of_the_log(self, bus: Bus) -> None:
        queue = prepared(bus, partitions=2, ordered_by="key", backoff_first_s=0)
        keys = [b"%d" % (n % 7) for n in range(100)]
        bus.publish_many("jobs", [b"%d" % n for n in range(100)], keys=keys)
        done: dict[bytes | None, list[int]] = defaultdict(list)
        failed: set[bytes | None] = set()
        while messages := queue.receive(5, 0.2):
            for one in messages:
                if one.offset % 3 == 0 and one.value not in failed:
                    failed.add(one.value)
                    queue.nack(one)
                else:
                    done[one.key].append(int(one.value or b""))
                    queue.ack(one)
        assert sum(map(len, done.values())) == 100
        assert all(found == sorted(found) for found in done.values())

    # -- transactions ------------------------------------------------------------------------------

    def test_an_acknowledgement_and_its_outputs_commit_together(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b")
        bus.create_topic("out", durability="written")
        a, b = collect(queue, 2)
        with bus.transaction() as tx:
            tx.send("out", b"A")
            tx.ack(queue, a)
        with pytest.raises(RuntimeError), bus.transaction() as tx:
            tx.send("out", b"B")
            tx.ack(queue, b)
            raise RuntimeError
        assert [one.value for one in everything(bus, "out")] == [b"A"]
        assert queue.describe().leased == 1
        assert queue.ack(b) == (1, ())

    def test_a_transaction_acks_a_consumer_or_messages_of_a_queue(self, bus: Bus) -> None:
        queue = prepared(bus, b"a")
        [message] = queue.receive()
        wrong: tuple[tuple[Any, ...], ...] = (
            (queue,),  # which messages?
            (message, queue),
            (queue, bus),
            (bus.consumer("jobs", group="g", stop_at_end=True), [message]),
            (bus.consumer("jobs", stop_at_end=True),),  # it has no group
        )
        for arguments in wrong:
            with pytest.raises((Invalid, TypeError)), bus.transaction() as tx:
                tx.ack(*arguments)
        assert queue.describe().leased == 1

    def test_a_commit_that_comes_too_late_leaves_nothing(self, bus: Bus) -> None:
        queue = prepared(bus, b"a")
        bus.create_topic("out", durability="written")
        [late] = queue.receive()
        queue.nack(late, delay_s=0)
        [again] = queue.receive()
        with pytest.raises((Fenced, TransactionEnded)), bus.transaction() as tx:
            tx.send("out", b"late")
            tx.ack(queue, late)
        with bus.transaction() as tx:
            tx.send("out", b"again")
            tx.ack(queue, again)
        assert [one.value for one in everything(bus, "out")] == [b"again"]
        assert queue.receive() == []

    # -- ways to use it ----------------------------------------------------------------------------

    def test_a_queue_is_iterated_and_messages_are_settled_by_blocks(self, bus: Bus) -> None:
        queue = prepared(bus, b"good", b"bad", backoff_first_s=0)
        seen = []
        for message in islice(queue, 3):
            try:
                with queue.settling(message):
                    seen.append((message.value, message.deliveries))
                    if seen[-1] == (b"bad", 1):
                        raise RuntimeError
            except RuntimeError:
                continue
        assert seen == [(b"good", 1), (b"bad", 1), (b"bad", 2)]
        assert queue.describe().partitions[0].cursor == 2

    def test_a_handler_that_has_not_shown_its_pace_leases_nothing_ahead(self, bus: Bus) -> None:
        queue = prepared(bus, *(b"%d" % n for n in range(4)))
        for message in queue:
            others = collect(bus.queue("jobs", group="workers"), 10)
            assert got(others) == [(b"1", 1), (b"2", 1), (b"3", 1)]
            queue.ack(message)
            break

    def test_leases_are_extended_while_their_handler_works(self, bus: Bus) -> None:
        queue = prepared(bus, b"slow", b"slow, too", lease_s=60)
        results = extensions(queue)
        for message in queue:
            until(lambda: len(results) >= 3)
            assert queue.ack(message) == (1, ())
            break
        seen = len(results)
        [message] = queue.receive(1, PATIENCE_S)
        with queue.settling(message):
            until(lambda: len(results) >= seen + 3)
        assert {*results} == {(1, ())}
        assert queue.describe().partitions[0].cursor == 2

    def test_a_handler_that_lost_its_lease_is_told(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", backoff_first_s=0)
        other = bus.queue("jobs", group="workers")
        [message] = queue.receive()
        with (
            pytest.raises(Fenced, match="offset 0 of partition 0 of jobs"),
            queue.settling(message),
        ):
            other.nack(message, delay_s=0)
            [again] = other.receive(1, PATIENCE_S)
        assert other.ack(again) == (1, ())

    def test_what_a_block_has_settled_itself_is_left_so(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b", backoff_first_s=0)
        bus.create_topic("out", durability="written")
        a, b = collect(queue, 2)
        with queue.settling(a):
            queue.nack(a, delay_s=60)
        with queue.settling(b), bus.transaction() as tx:
            tx.send("out", b"B")
            tx.ack(queue, b)
        assert queue.describe().delayed == 1 and len(everything(bus, "out")) == 1

    def test_what_was_leased_ahead_is_given_back_when_the_loop_ends(self, bus: Bus) -> None:
        queue = prepared(bus, *(b"%d" % n for n in range(40)))
        for done, message in enumerate(queue, 1):
            queue.ack(message)
            if done == 20:
                break
        del message
        found = bus.queue("jobs", group="workers").receive(40, PATIENCE_S)
        rest = 0
        while found:
            rest += len(found)
            found = bus.queue("jobs", group="workers").receive(40)
        assert rest == 20

    def test_tokens_are_texts_that_can_be_sent_elsewhere(self, bus: Bus) -> None:
        queue = prepared(bus, b"a", b"b")
        tokens = [one.token for one in collect(queue, 2)]
        assert all(str(Token.parse(token)) == token for token in tokens)
        assert bus.queue("jobs", group="workers").ack(tokens).done == 2
