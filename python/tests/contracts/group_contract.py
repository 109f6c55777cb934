"""The contract of groups, whatever is below the bus: a class of tests that every kind of bus
runs."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

import pytest

import tms
from tests.grouping import grouped
from tests.waiting import PATIENCE_S, until
from tms import Bus
from tms.client.group_reading import MemberReader
from tms.errors import Conflict, Fenced, GroupNotFound, Invalid, TopicNotFound
from tms.model.topic import TopicName
from tms.model.transaction import METADATA_CHARS_MAX, Commit, PositionChange, PositionKey

PARTITIONS = 4


class Worker:
    """A member in a thread of its own, which notes its messages until it is stopped; `handle` is
    called for each message."""

    def __init__(
        self, bus: Bus, handle: Callable[[tms.Message], None] | None = None, **more: Any
    ) -> None:
        more = {"group": "g", "delivery": "at-least-once", **more}
        self.consumer = bus.consumer("in", **grouped(**more))
        self.seen: list[tms.Message] = []
        self.error: BaseException | None = None
        self._handle = handle
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self.consumer:
                if self._handle is not None:
                    self._handle(message)
                with self._changed:
                    self.seen.append(message)
                    self._changed.notify_all()
        except BaseException as error:
            self.error = error
        with self._changed:
            self._changed.notify_all()

    @property
    def values(self) -> list[bytes | None]:
        return [message.value for message in list(self.seen)]

    @property
    def name(self) -> str:
        assert isinstance(self.consumer._reader, MemberReader)
        return self.consumer._reader.member.name

    def until(self, count: int) -> Self:
        """Wait until it has had so many messages."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.seen) >= count or self.error is not None, PATIENCE_S
            ), f"{len(self.seen)} of {count}"
        assert self.error is None, self.error
        return self

    def end(self) -> Self:
        """Wait until its iteration ends."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None, self.error
        return self

    def stop(self) -> Self:
        self.consumer.close()
        return self.end()


def owned(bus: Bus) -> dict[str, list[int]]:
    """The partitions of each member."""
    return {one.member: list(one.partitions) for one in bus.describe_group("in", group="g").members}


def shared_by(bus: Bus, *workers: Worker) -> bool:
    """True if these members have all partitions among them, in balance."""
    try:
        found = owned(bus)
    except GroupNotFound:
        return False
    sizes = sorted(map(len, found.values()))
    return (
        sorted(found) == sorted(one.name for one in workers)
        and sum(sizes) == PARTITIONS
        and sizes[-1] - sizes[0] <= 1
    )


def publish(bus: Bus, first: int, count: int) -> list[bytes]:
    """Numbered messages, in turns over the partitions."""
    values = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(values, first):
        bus.publish("in", value, partition=number % PARTITIONS)
    return values


def once(values: list[bytes], *workers: Worker) -> bool:
    """True if these members had each value once, and no other."""
    return Counter(v for one in workers for v in one.values) == Counter(values)


@contextmanager
def closing(*workers: Worker) -> Iterator[None]:
    """End them all afterwards."""
    try:
        yield
    finally:
        for one in workers:
            one.consumer.close()


@contextmanager
def caught_up(bus: Bus) -> Iterator[Worker]:
    """A worker that has read eight messages, and moved its positions behind them."""
    worker = Worker(bus)
    with closing(worker):
        publish(bus, 0, 8)
        worker.until(8)
        until(lambda: bus.describe_group("in", group="g").summary().lag == 0)
        yield worker


class GroupContract:
    """Contract of log groups."""

    @pytest.fixture(autouse=True)
    def topics(self, bus: Bus) -> None:
        bus.create_topic("in", partitions=PARTITIONS, durability="written")
        bus.create_topic("out", durability="written")

    # Sharing

    def test_members_share_the_partitions_and_each_message_goes_to_one(self, bus: Bus) -> None:
        one, other = Worker(bus), Worker(bus)
        with closing(one, other):
            until(lambda: shared_by(bus, one, other))
            values = publish(bus, 0, 40)
            until(lambda: once(values, one, other))
            assert len(one.seen) == len(other.seen) == 20
            for worker in (one, other):
                for partition in range(PARTITIONS):
                    mine = [m.offset for m in worker.seen if m.partition == partition]
                    assert mine == sorted(mine)

    def test_every_group_gets_everything(self, bus: Bus) -> None:
        values = publish(bus, 0, 10)
        workers = [Worker(bus, group=name) for name in ("g", "h", "i")]
        with closing(*workers):
            for worker in workers:
                assert sorted(worker.until(10).values) == sorted(values)  # type: ignore[type-var]

    def test_who_joins_takes_its_share_while_the_others_go_on(self, bus: Bus) -> None:
        first = Worker(bus)
        with closing(first):
            until(lambda: shared_by(bus, first))
            values = publish(bus, 0, 20)
            first.until(20)
            others = [Worker(bus) for _ in range(3)]
            with closing(*others):
                values += publish(bus, 20, 100)
                until(lambda: shared_by(bus, first, *others))
                values += publish(bus, 120, 40)
                until(lambda: once(values, first, *others))

    def test_who_leaves_is_replaced_at_once_where_it_stood(self, bus: Bus) -> None:
        stays, leaves = Worker(bus, session_s=600), Worker(bus, session_s=600)
        with closing(stays, leaves):
            until(lambda: shared_by(bus, stays, leaves))
            values = publish(bus, 0, 20)
            until(lambda: once(values, stays, leaves))
            leaves.stop()
            values += publish(bus, 20, 20)
            until(lambda: len(stays.seen) + len(leaves.seen) >= 40)
            again = Counter(stays.values + leaves.values) - Counter(values)
            assert sum(again.values()) <= 1  # the last one, if no other had been requested
            assert shared_by(bus, stays)

    def test_who_is_silent_for_longer_than_its_session_is_replaced(self, bus: Bus) -> None:
        values = publish(bus, 0, 8)
        silent = bus.consumer("in", group=tms.Group("g", delivery="at-least-once", session_s=1))
        next(iter(silent))
        worker = Worker(bus, session_s=1)
        with closing(worker):
            assert sorted(worker.until(8).values) == sorted(values)  # type: ignore[type-var]
            assert shared_by(bus, worker)

    def test_partitions_that_a_topic_gets_are_read(self, bus: Bus) -> None:
        worker = Worker(bus)
        with closing(worker):
            until(lambda: shared_by(bus, worker))
            bus.update_topic("in", partitions=PARTITIONS + 1)
            bus.publish("in", b"new", partition=PARTITIONS)
            assert worker.until(1).values == [b"new"]

    def test_a_consumer_that_names_its_partitions_is_no_member(self, bus: Bus) -> None:
        values = publish(bus, 0, 8)
        worker = Worker(bus)
        with closing(worker):
            worker.until(8)
            for partitions in ("all", range(PARTITIONS)):
                found = bus.consumer(
                    "in",
                    group="h",
                    partitions=partitions,  # type: ignore[arg-type]
                    stop_at_end=True,
                )
                assert sorted(m.value for m in found) == sorted(values)  # type: ignore[type-var]
            found.ack()
            assert list(bus.consumer("in", group="h", partitions="all", stop_at_end=True)) == []
            assert bus.describe_group("in", group="h").members == ()

    # Delivery

    def test_at_least_once_commits_what_was_handled_and_repeats_what_was_not(
        self, bus: Bus
    ) -> None:
        values = publish(bus, 0, 4 * PARTITIONS)
        with bus.consumer("in", group=tms.Group("g", delivery="at-least-once")) as consumer:
            first = [message.value for message in islice(consumer, 6)]
        worker = Worker(bus)
        with closing(worker):
            worker.until(len(values) - 5)
            assert sorted(first[:5] + worker.values) == sorted(values)  # type: ignore[type-var]
            assert first[5] in worker.values  # it is unknown whether it was handled

    def test_at_least_once_does_not_skip_the_message_that_failed(self, bus: Bus) -> None:
        publish(bus, 0, 1)

        def fail(consumer: tms.Consumer) -> None:
            with consumer:
                for _ in consumer:
                    raise RuntimeError("failed")

        for _ in range(2):
            with pytest.raises(RuntimeError):
                fail(bus.consumer("in", group=tms.Group("g", delivery="at-least-once")))
        with bus.consumer(
            "in", group=tms.Group("g", delivery="at-least-once"), stop_at_end=True
        ) as consumer:
            assert [message.value for message in consumer] == [b"0"]
        assert bus.describe_group("in", group="g").summary().lag == 0

    def test_at_least_once_commits_by_itself_while_it_goes_on(self, bus: Bus) -> None:
        with caught_up(bus):
            pass

    def test_at_most_once_hands_nothing_out_twice_even_if_it_dies(self, bus: Bus) -> None:
        values = publish(bus, 0, 16)
        died = bus.consumer("in", group=tms.Group("g", delivery="at-most-once", session_s=1))
        first = [message.value for message in islice(died, 3)]
        worker = Worker(bus, delivery="at-most-once", session_s=1)
        with closing(worker):
            until(lambda: shared_by(bus, worker))
            values += publish(bus, 16, 4)
            until(lambda: set(values[16:]) <= set(worker.values))
            assert not set(first) & set(worker.values)
            assert max(Counter(worker.values).values()) == 1

    def test_at_most_once_leaves_to_others_what_it_has_not_handed_out(self, bus: Bus) -> None:
        values = publish(bus, 0, 16)
        with bus.consumer("in", group=tms.Group("g", delivery="at-most-once")) as consumer:
            first = [message.value for message in islice(consumer, 3)]
            with pytest.raises(Invalid):
                consumer.ack()
        with bus.consumer(
            "in", group=tms.Group("g", delivery="at-most-once"), stop_at_end=True
        ) as consumer:
            rest = [message.value for message in consumer]
        assert sorted(first + rest) == sorted(values)  # type: ignore[type-var]

    @pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once"])
    def test_a_consumer_that_is_closed_hands_nothing_more_out(
        self, bus: Bus, delivery: str
    ) -> None:
        """Another thread may close it; its fetched messages belong to others then."""
        values = publish(bus, 0, 16)
        with bus.consumer("in", group=tms.Group("g", delivery=delivery)) as consumer:
            messages = iter(consumer)
            first = [next(messages).value for _ in range(3)]
            consumer.close()
            assert [message.value for message in messages] == []
        rest = [
            m.value
            for m in bus.consumer("in", group=tms.Group("g", delivery=delivery), stop_at_end=True)
        ]
        assert set(first + rest) == set(values)
        if delivery == "at-most-once":
            assert len(first + rest) == len(values)

    def test_exactly_once_moves_with_the_transaction_only(self, bus: Bus) -> None:
        values = publish(bus, 0, 12)
        workers = []

        def transform(number: int) -> Callable[[tms.Message], None]:
            def handle(message: tms.Message) -> None:
                with bus.transaction() as tx:
                    tx.send("out", message.value)
                    tx.ack(workers[number].consumer)

            return handle

        for number in range(3):
            workers.append(Worker(bus, transform(number), delivery="exactly-once"))
        with closing(*workers):
            values += publish(bus, 12, 40)
            until(lambda: bus.describe_group("in", group="g").summary().lag == 0)
            with pytest.raises(Invalid, match="transaction"):
                workers[0].consumer.ack()
        found = [message.value for message in bus.consumer("out", stop_at_end=True)]
        assert sorted(found) == sorted(values)  # type: ignore[type-var]

    def test_a_delivery_needs_a_group_that_shares(self, bus: Bus) -> None:
        for wrong in (
            {"delivery": "at-least-once"},
            {"delivery": "at-least-once", "group": "g", "partitions": [0]},
            {"delivery": "twice", "group": "g"},
            {"group": "g", "session_s": 0.5},
            {"group": "g", "session_s": 1_801},
            {"group": "a/b"},
            {"group": "g", "partitions": "some"},
        ):
            with pytest.raises(Invalid):
                bus.consumer("in", **wrong)  # type: ignore[arg-type]

    # The fence

    def test_a_late_commit_of_a_member_that_was_replaced_is_refused(self, bus: Bus) -> None:
        values = publish(bus, 0, 8)
        late = bus.consumer("in", group=tms.Group("g", session_s=1))
        messages = iter(late)
        next(messages)
        worker = Worker(bus, session_s=1)
        with closing(worker):
            until(lambda: shared_by(bus, worker))
            with pytest.raises(Fenced) as caught:
                late.ack()
            assert isinstance(caught.value, Conflict) and caught.value.details["group"] == "g"
            tx = bus.transaction()
            tx.send("out", b"late")
            tx.ack(late)
            with pytest.raises(Fenced):
                tx.commit()
            assert list(bus.consumer("out", stop_at_end=True)) == []
            assert sorted(worker.until(8).values) == sorted(values)  # type: ignore[type-var]
            go = threading.Event()
            more = threading.Thread(target=lambda: [publish(bus, 8, 4) for _ in iter(go.is_set, 1)])
            more.start()
            next(messages)  # it is a member again, and has lost what it did not acknowledge
            go.set()
            more.join()
            with pytest.raises(Fenced):
                late.ack()
        late.close()

    def test_at_least_once_goes_on_after_it_was_replaced(self, bus: Bus) -> None:
        values = publish(bus, 0, 8)
        lost: list[int] = []
        late = bus.consumer(
            "in",
            group=tms.Group("g", session_s=1, delivery="at-least-once", on_revoked=lost.extend),
        )
        messages = iter(late)
        next(messages)
        worker = Worker(bus, session_s=1)
        with closing(worker):
            assert sorted(worker.until(8).values) == sorted(values)  # type: ignore[type-var]
            go = threading.Event()
            more = threading.Thread(target=lambda: [publish(bus, 8, 4) for _ in iter(go.is_set, 1)])
            more.start()
            found = next(messages)
            go.set()
            more.join()
            assert found.value not in values and sorted(lost) == list(range(PARTITIONS))
        late.close()

    def test_a_position_that_is_set_by_hand_is_where_members_go_on(self, bus: Bus) -> None:
        with caught_up(bus) as worker:
            bus.set_positions("in", {0: "earliest"}, group="g")
            publish(bus, 8, 4)
            until(lambda: worker.values.count(b"4") == 2)
            until(lambda: bus.describe_group("in", group="g").summary().lag == 0)
            again = {m.partition for m in worker.seen if worker.values.count(m.value) > 1}
            assert again == {0} and set(worker.values) == {b"%d" % n for n in range(12)}

    # Answers to a member

    def test_callbacks_tell_which_partitions_come_and_go(self, bus: Bus) -> None:
        told: list[tuple[str, list[int]]] = []
        first = Worker(
            bus,
            on_assigned=lambda partitions: told.append(("got", sorted(partitions))),
            on_revoked=lambda partitions: told.append(("lost", sorted(partitions))),
        )
        with closing(first):
            until(lambda: told == [("got", [0, 1, 2, 3])])
            second = Worker(bus)
            with closing(second):
                until(lambda: told[1:] == [("lost", [2, 3])])
                until(lambda: shared_by(bus, first, second))
            until(lambda: told[2:] == [("got", [2, 3])])

    def test_an_explicit_member_may_acknowledge_what_it_has_to_let_go(self, bus: Bus) -> None:
        values = publish(bus, 0, 8)
        first = Worker(
            bus,
            delivery="explicit",
            session_s=600,
            on_revoked=lambda _: first.consumer.ack(),
        )
        with closing(first):
            first.until(8)
            second = Worker(bus, session_s=600)
            with closing(second):
                until(lambda: shared_by(bus, first, second))
                values += publish(bus, 8, 8)
                until(lambda: once(values, first, second))

    # Up to the end

    def test_members_that_read_up_to_the_end_do_it_together(self, bus: Bus) -> None:
        values = publish(bus, 0, 400)
        go = threading.Barrier(3)

        def wait(message: tms.Message) -> None:
            if not go.broken and message.offset == 0:
                try:
                    go.wait(0.5)
                except threading.BrokenBarrierError:
                    return

        workers = [Worker(bus, wait, stop_at_end=True, bytes_max=200) for _ in range(3)]
        for worker in workers:
            worker.end()
        assert set(values) == {v for one in workers for v in one.values}
        assert bus.describe_group("in", group="g").summary().lag == 0
        assert bus.describe_group("in", group="g").members == ()

    def test_who_reads_up_to_the_end_takes_over_from_one_that_died(self, bus: Bus) -> None:
        values = publish(bus, 0, 8)
        dies = bus.consumer("in", group=tms.Group("g", session_s=1), stop_at_end=True)
        messages = iter(dies)
        next(messages)
        lives = Worker(bus, stop_at_end=True, session_s=1)
        assert sorted(lives.end().values) == sorted(values)  # type: ignore[type-var]

    def test_an_iteration_up_to_the_end_that_is_given_up_makes_room(self, bus: Bus) -> None:
        publish(bus, 0, 8)
        given_up = bus.consumer("in", group=tms.Group("g", session_s=600), stop_at_end=True)
        for _ in given_up:
            break
        assert len(list(bus.consumer("in", group="g", stop_at_end=True))) == 8

    def test_a_second_iteration_goes_on_behind_the_first(self, bus: Bus) -> None:
        consumer = bus.consumer("in", group="g", stop_at_end=True)
        for first in (0, 8):
            values = publish(bus, first, 8)
            found = [message.value for message in consumer]
            assert sorted(found) == sorted(values)  # type: ignore[type-var]
        consumer.ack()
        assert bus.describe_group("in", group="g").summary().lag == 0

    # Descriptions of a group

    def test_groups_of_all_topics_are_listed_by_topic_and_name(self, bus: Bus) -> None:
        assert list(bus.list_groups()) == []
        publish(bus, 0, 8)
        for topic in ("other", "far:in"):
            bus.create_topic(topic, durability="written")
        for topic, group in (("in", "ü b"), ("in", "g"), ("other", "g"), ("far:in", "g")):
            bus.set_positions(topic, {0: "offset:0"}, group=group)
        bus.set_positions("in", {1: "latest"}, group="g")
        listed = [(one.topic, one.group, one.members, one.lag) for one in bus.list_groups()]
        assert listed == [("in", "g", 0, 6), ("in", "ü b", 0, 8), ("other", "g", 0, 0)]
        assert [(one.topic, one.lag_ms) for one in bus.list_groups(namespace="far")] == [
            ("far:in", 0)
        ]
        sizes = {one.topic: (one.partitions, one.messages) for one in bus.list_topic_sizes()}
        assert sizes["in"] == (4, 8) and sizes["other"] == (1, 0)
        (load,) = bus.list_instances()
        assert load.answers and load.ready and load.messages_in >= 8
        for call in (bus.list_groups, bus.list_queues, bus.list_topic_sizes):
            with pytest.raises(Invalid):
                list(call(namespace="no namespace"))

    def test_a_group_shows_members_owners_positions_and_lag(self, bus: Bus) -> None:
        assert list(bus.list_groups("in")) == []
        with pytest.raises(GroupNotFound):
            bus.describe_group("in", group="g")
        for call in (
            lambda: bus.list_groups("nowhere"),
            lambda: bus.describe_group("nowhere", group="g"),
        ):
            with pytest.raises(TopicNotFound):
                call()
        publish(bus, 0, 8)
        bus.set_positions("in", {0: "offset:1", 1: "latest"}, group="g")
        info = bus.describe_group("in", group="g")
        assert (info.group, info.topic, info.members) == ("g", "in", ())
        assert [one.lag for one in info.partitions] == [1, 0, 2, 2]
        assert [one.position for one in info.partitions] == ["offset:1", "latest", None, None]
        assert info.partitions[1].lag_ms == 0 <= info.partitions[0].lag_ms < 60_000
        worker = Worker(bus)
        with closing(worker):
            until(lambda: bus.describe_group("in", group="g").summary().lag == 0)
            info = bus.describe_group("in", group="g")
            assert {one.owner for one in info.partitions} == {worker.name}
            (member,) = info.members
            assert (member.partitions, member.session_s) == ((0, 1, 2, 3), 10)
            assert 0 < member.left_s <= 10
            (summary,) = bus.list_groups("in")
            assert (summary.group, summary.members, summary.lag, summary.lag_ms) == ("g", 1, 0, 0)
            publish(bus, 8, 4)
            until(lambda: bus.describe_group("in", group="g").summary().lag == 0)

    # Positions with metadata

    def test_metadata_of_positions_come_back(self, bus: Bus) -> None:
        publish(bus, 0, 8)
        at = {
            0: tms.CommittedPosition(tms.Position.offset(1), "line 1\nü", 7),
            1: tms.CommittedPosition(tms.Position.latest(), "x" * METADATA_CHARS_MAX),
            2: "offset:2",
        }
        bus.set_positions("in", at, group="g")
        found = bus.describe_group("in", group="g").partitions
        assert [(one.position, one.metadata, one.leader_epoch, one.lag) for one in found] == [
            ("offset:1", "line 1\nü", 7, 1),
            ("latest", "x" * METADATA_CHARS_MAX, -1, 0),
            ("offset:2", "", -1, 0),
            (None, "", -1, 2),
        ]
        assert {p: str(one) for p, one in bus.positions("in", group="g").items()} == {
            0: "offset:1",
            1: "latest",
            2: "offset:2",
        }
        consumer = bus.consumer("in", group="g", partitions=[0], stop_at_end=True)
        assert [message.value for message in consumer] == [b"4"]
        consumer.ack()  # from where the group stands, whatever its metadata
        (one, *_) = bus.describe_group("in", group="g").partitions
        assert (one.lag, one.metadata, one.leader_epoch) == (0, "", -1)

    def test_a_commit_moves_positions_of_several_topics_with_metadata(self, bus: Bus) -> None:
        bus.create_topic("other", durability="written")
        port = bus._transport.transactions
        keys = [PositionKey("g", TopicName.parse(topic), 0) for topic in ("in", "other")]
        changes = tuple(
            PositionChange(key, tms.Position.offset(10**15 + n), "", None, f"of {n}", n)
            for n, key in enumerate(keys)
        )
        port.commit(Commit(positions=changes))
        with pytest.raises(Conflict):
            port.commit(Commit(positions=changes))
        for n, key in enumerate(keys):
            one = bus.describe_group(str(key.topic), group="g").partitions[0]
            assert (one.position, one.metadata, one.leader_epoch) == (
                f"offset:{10**15 + n}",
                f"of {n}",
                n,
            )

    def test_positions_of_some_partitions_are_forgotten(self, bus: Bus) -> None:
        bus.set_positions("in", dict.fromkeys(range(4), "offset:0"), group="g")
        with pytest.raises(Conflict):
            bus.forget_positions("in", group="g", expected={0: "offset:99"})
        with pytest.raises(Conflict):
            bus.forget_positions("in", group="g", partitions=[1], expected={1: ""})
        bus.forget_positions("in", group="g", partitions=[])
        bus.forget_positions("in", group="g", partitions=[1, 3, 9])
        assert set(bus.positions("in", group="g")) == {0, 2}
        bus.forget_positions("in", group="g")
        assert bus.positions("in", group="g") == {}
        with pytest.raises(TopicNotFound):
            bus.forget_positions("nowhere", group="g", partitions=[0])
        with pytest.raises(Invalid):
            bus.forget_positions("in", group="g", partitions=[-1])
