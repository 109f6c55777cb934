"""Groups, queues and delayed messages of several instances: each shard is kept by one of them, any
of them answers for it, and a commit's changes to it count wherever the commit is decided."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cluster.test_instances import TOPIC
from tests.cluster_kit import Instances, instances
from tests.waiting import until
from tms.client.http.transport import HttpTransport
from tms.engine.engine import Engine
from tms.errors import Fenced, NotOwner, TMSError, Unavailable
from tms.groups.group_positions import GroupPositions
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Commit, CommittedPosition, PositionChange, PositionKey
from tms.runtime.clock import SystemClock
from tms.store.base import Store
from tms.store.memory import MemoryStore
from tms.topics.sharding import QUEUES
from tms.transactions.manager import TransactionManager
from tms.transactions.tables import Tables

GROUPS = [f"g{number}" for number in range(12)]


@pytest.fixture
def three() -> Iterator[Instances]:
    with instances("a", "b", "c") as all, all.connect("a") as bus:
        until(lambda: len(kept(all)) == 16, "all shards are kept")
        bus.create_topic(TOPIC, partitions=2)
        yield all


def kept(all: Instances) -> dict[int, str]:
    """The keeper of each shard."""
    return {
        number: id
        for id, served in all.served.items()
        for number in served.service.engine.shards.held
    }


def test_shards_are_spread_and_kept_by_one_each(three: Instances) -> None:
    counts = [list(kept(three).values()).count(id) for id in "abc"]
    assert sum(counts) == 16 and min(counts) >= 2 and max(counts) <= 7
    assert sum(len(one.service.engine.shards.held) for one in three.served.values()) == 16


def test_a_commit_moves_positions_and_settles_messages_wherever_they_are_kept(
    three: Instances,
) -> None:
    with three.connect("a") as bus, three.connect("b") as other:
        queues = {group: bus.queue(TOPIC, group=group, start="earliest") for group in GROUPS}
        for number in range(4):
            bus.publish(TOPIC, b"%d" % number, partition=0)
        for _ in range(3):
            with bus.transaction() as tx:
                for group in GROUPS:
                    consumer = bus.consumer(TOPIC, group=group, start="earliest", partitions=[0])
                    next(iter(consumer))
                    tx.ack(consumer)
                    tx.ack(queues[group], queues[group].receive(limit=1, wait_s=5))
                tx.send(TOPIC, b"out", partition=1)
            for reader in (bus, other):
                for group in GROUPS:
                    assert len(reader.positions(TOPIC, group=group)) == 1
        infos = {info.group: info for info in other.describe_queues(TOPIC)}
        assert list(infos) == sorted(GROUPS) and {one.leased for one in infos.values()} == {0}
        assert {one.group for one in other.list_groups(TOPIC)} == set(GROUPS)


def test_a_transaction_that_is_rolled_back_changes_no_shard(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.publish(TOPIC, b"x", partition=0)
        queues = {group: bus.queue(TOPIC, group=group, start="earliest") for group in GROUPS}
        got = {group: queue.receive(limit=1, wait_s=5) for group, queue in queues.items()}
        with pytest.raises(KeyError), bus.transaction() as tx:
            for group in GROUPS:
                tx.ack(queues[group], got[group])
            raise KeyError
        assert {one.leased for one in bus.describe_queues(TOPIC)} == {1}
        for group in GROUPS:
            queues[group].ack(got[group])
        assert {one.leased for one in bus.describe_queues(TOPIC)} == {0}


def test_what_is_settled_late_fails_as_a_whole(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.publish(TOPIC, b"x", partition=0)
        queues = {group: bus.queue(TOPIC, group=group, start="earliest") for group in GROUPS}
        got = {group: queue.receive(limit=1, wait_s=5) for group, queue in queues.items()}
        queues[GROUPS[-1]].ack(got[GROUPS[-1]])
        with pytest.raises(Fenced), bus.transaction() as tx:
            for group in GROUPS:
                tx.ack(queues[group], got[group])
        leased = {one.group: one.leased for one in bus.describe_queues(TOPIC)}
        assert leased == {group: int(group != GROUPS[-1]) for group in GROUPS}


def test_delayed_messages_of_many_topics_are_delivered_by_whoever_keeps_them(
    three: Instances,
) -> None:
    with three.connect("a") as bus:
        topics = [f"later-{number}" for number in range(12)]
        for topic in topics:
            bus.create_topic(topic, partitions=2)
            bus.publish_later(topic, b"x", delay="200ms")
            bus.publish_later(topic, b"never", delay="1h")
        for topic in topics:
            consumer = bus.consumer(topic, start="earliest")
            assert next(iter(consumer)).value == b"x"
            consumer.close()


def test_what_a_dead_keeper_kept_is_kept_by_others(three: Instances) -> None:
    with three.connect("a") as bus:
        bus.publish(TOPIC, b"x", partition=0)
        for group in GROUPS:
            bus.set_positions(TOPIC, {0: Position.offset(1)}, group=group)
            bus.queue(TOPIC, group=group, start="earliest")
        three.member["c"].expire()
        three.stop("c")
        until(lambda: len(kept(three)) == 16, "all shards are kept")
        for group in GROUPS:
            assert bus.positions(TOPIC, group=group) == {0: Position.offset(1)}
            bus.set_positions(TOPIC, {0: Position.offset(0)}, group=group)
            assert [m.value for m in bus.queue(TOPIC, group=group).receive(limit=1)] == [b"x"]


def test_a_shard_is_moved_as_people_choose(three: Instances) -> None:
    group = GROUPS[0]
    number = three.served["a"].service.engine.topics.shards.of_group(group)
    to = next(id for id in "abc" if kept(three)[number] != id)
    with three.connect("a") as bus:
        bus.set_positions(TOPIC, {0: Position.offset(0)}, group=group)
        cluster = HttpTransport(three.url("b")).cluster
        cluster.move(QUEUES, number, to)
        until(lambda: kept(three).get(number) == to, "it has moved")
        assert bus.positions(TOPIC, group=group) == {0: Position.offset(0)}
        assert cluster.owners(QUEUES).owners[number] == to
        cluster.unpin(QUEUES, number)
        until(lambda: kept(three).get(number) != to, "it is where it is placed")


def test_metadata_move_with_the_shard_wherever_they_were_committed(three: Instances) -> None:
    """The groups are those of shards of all instances, so two thirds of the changes come from other
    instances than the coordinator."""
    topics = [TopicName("default", name) for name in (TOPIC, "other")]
    wanted = {
        PositionKey(group, topic, 0): CommittedPosition(Position.offset(n), f"of {group}", n)
        for group in GROUPS
        for n, topic in enumerate(topics)
    }

    def found() -> dict[PositionKey, CommittedPosition]:
        """Each group's positions, as a front end of its instance reads them."""
        shards = three.served["a"].service.engine.topics.shards
        all: dict[PositionKey, CommittedPosition] = {}
        for group in GROUPS:
            keeper = three.served[kept(three)[shards.of_group(group)]].service.engine
            for topic, at in keeper.groups.committed(group).items():
                all |= {PositionKey(group, topic, p): one for p, one in at.items()}
        return all

    with three.connect("a") as bus:
        bus.create_topic("other")
        changes = tuple(
            PositionChange(key, at.position, "", None, at.metadata, at.leader_epoch)
            for key, at in wanted.items()
        )
        bus.admin.transactions.commit(Commit(positions=changes))
        assert found() == wanted
        for group in GROUPS:
            (info, *_) = bus.describe_group(TOPIC, group=group).partitions
            assert info.metadata == f"of {group}"
        three.member["c"].expire()
        three.stop("c")
        until(lambda: len(kept(three)) == 16, "all shards are kept")
        assert found() == wanted


def test_a_front_end_reads_positions_of_its_own_shards_only(three: Instances) -> None:
    shards = three.served["a"].service.engine.topics.shards
    keeper = kept(three)[shards.of_group("g")]
    for id, served in three.served.items():
        if id == keeper:
            assert served.service.engine.groups.committed("g") == {}
        else:
            with pytest.raises(NotOwner):
                served.service.engine.groups.committed("g")


@pytest.mark.parametrize("room", ["groups", "queues", "delayed"])
@pytest.mark.parametrize("first", [True, False])
def test_a_shard_that_is_lost_while_it_is_opened_is_not_kept_by_halves(
    monkeypatch: pytest.MonkeyPatch, room: str, first: bool
) -> None:
    with closing(Engine(MemoryStore(), SystemClock())) as engine:
        shards = engine.shards
        number = min(shards.held)
        shards.close(number)
        opening = getattr(shards, room).open

        def lost_meanwhile(number: int) -> None:
            """Stand in for another thread that comes in between."""
            if first:
                shards.close(number)
            opening(number)
            if not first:
                shards.close(number)

        with monkeypatch.context() as patched:
            patched.setattr(getattr(shards, room), "open", lost_meanwhile)
            with pytest.raises(Unavailable, match="lost while it was opened"):
                shards.open(number)
        assert not shards.holds(number)
        shards.open(number)
        assert shards.holds(number)
        assert shards.groups.at(number) and shards.queues.at(number)
        assert number in shards.delayed._shards_here


def test_a_shard_that_is_lost_while_another_is_opened_stays_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(Engine(MemoryStore(), SystemClock())) as engine:
        shards, (number, other) = engine.shards, sorted(engine.shards.held)[:2]
        shards.close(number)
        load = GroupPositions.load

        def lose_another(self: GroupPositions) -> object:
            shards.close(other)
            return load(self)

        monkeypatch.setattr(GroupPositions, "load", lose_another)
        shards.open(number)
        assert shards.holds(number) and not shards.holds(other)
        with pytest.raises(TMSError):
            shards.groups.at(other)


def test_transactions_that_are_lost_while_they_are_read_are_read_again(
    three: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [served.service.engine for served in three.served.values()]
    [engine] = [engine for engine in engines if engine.coordinates]
    cluster, once = engine.cluster, iter((1,))
    assert cluster is not None

    def lost_meanwhile(store: Store, manager: TransactionManager) -> Tables:
        for _ in once:
            engine.roles.coordination.close()
        return Tables(store, manager)

    monkeypatch.setattr("tms.engine.held_roles.Tables", lost_meanwhile)
    engine.roles.coordination.close()
    cluster.settle_again()
    until(lambda: engine.coordinates and next(once, None) is None, "it coordinates again")
    with three.connect(cluster.id) as bus:
        with bus.transaction() as tx:
            tx.send(TOPIC, b"committed", partition=0)
            tx.send(TOPIC, b"committed", partition=1)
        until(lambda: len(list(bus.consumer(TOPIC, stop_at_end=True))) == 2, "both are seen")
    assert engine.coordinates and engine.topics.decisions is engine.transactions.manager
