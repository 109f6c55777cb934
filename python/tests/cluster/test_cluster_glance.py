"""Lists of a cluster are equal and complete, whichever instance answers."""

from collections.abc import Iterator

import pytest

import tms
from tests.cluster_kit import Instances, instances
from tms.client import overview
from tms.errors import Unavailable
from tms.model.lag import GroupOrder, QueueOrder, TopicOrder
from tms.model.topic import TopicName
from tms.topics.sharding import SHARDS

IDS = ("a", "b", "c")
TOPICS = [f"t{number}" for number in range(4)]
GROUPS = [f"g{number}" for number in range(3 * SHARDS)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Instances]:
    with instances(*IDS) as cluster:
        with cluster.connect("a") as bus:
            for topic in TOPICS:
                bus.create_topic(topic, partitions=3, durability="written")
                for partition in range(3):
                    bus.publish_many(topic, [b"x"] * (partition + 1), partition=partition)
            for number, group in enumerate(GROUPS):
                topic = TOPICS[number % len(TOPICS)]
                bus.set_positions(topic, dict.fromkeys(range(3), "offset:1"), group=group)
                bus.queue(topic, group=group)
        yield cluster


@pytest.mark.parametrize("id", IDS)
def test_each_instance_lists_everything_in_order(
    cluster: Instances, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {one: served.service.engine.shards.held for one, served in cluster.served.items()}
    assert all(kept.values()), "else nothing is asked of others"
    expected = sorted((TOPICS[number % 4], group) for number, group in enumerate(GROUPS))
    for page in (7, len(GROUPS), 5_000):
        monkeypatch.setattr(overview, "PAGE", page)
        with cluster.connect(id) as bus:
            groups, queues = list(bus.list_groups()), list(bus.list_queues())
            assert [(one.topic, one.group) for one in groups] == expected
            assert [(one.topic, one.group) for one in queues] == expected
            assert {one.lag for one in groups} == {0 + 1 + 2}
            assert {one.waiting for one in queues} == {1 + 2 + 3}
            assert all(one.lag_ms is not None and one.lag_ms > 0 for one in groups)
            assert all(one.oldest_ms is not None and one.oldest_ms > 0 for one in queues)


@pytest.mark.parametrize("id", IDS)
def test_each_instance_searches_and_sorts_what_all_keep(cluster: Instances, id: str) -> None:
    wanted = [(TOPICS[number % 4], group) for number, group in enumerate(GROUPS) if "g1" in group]
    with cluster.connect(id) as bus:
        glance = bus._transport.glance
        for order in (None, GroupOrder.LAG):
            groups = glance.groups("default", search="/G1", order=order)
            assert sorted((one.topic, one.group) for one in groups) == sorted(wanted)
        for waiting in (None, QueueOrder.WAITING):
            queues = glance.queues("default", search="/G1", order=waiting)
            assert sorted((one.topic, one.group) for one in queues) == sorted(wanted)
        for size in (None, TopicOrder.MESSAGES):
            topics = glance.topics("default", search="T2", order=size)
            assert [(one.topic, one.messages) for one in topics] == [("t2", 6)]


@pytest.mark.parametrize("id", IDS)
def test_each_instance_lists_topics_with_delayed_messages(cluster: Instances, id: str) -> None:
    topics = [f"later-{number}" for number in range(8)]
    with cluster.connect(id) as bus:
        for topic in topics:
            bus.create_topic(topic)
            if bus.describe_delayed(topic).waiting == 0:
                bus.publish_later(topic, b"x", delay="1h")
        engines = [served.service.engine for served in cluster.served.values()]
        shards = engines[0].topics.shards
        kept = [shards.of_delayed(TopicName.parse(topic)) for topic in topics]
        holders = {at for at, engine in enumerate(engines) if {*kept} & {*engine.shards.held}}
        assert len(holders) > 1, "else nothing is asked of others"
        found = bus._transport.glance.delayed("default")
        assert [(one.topic, one.waiting) for one in found] == [(topic, 1) for topic in topics]
        page = bus._transport.glance.delayed("default", "later-2", 3)
        assert [one.topic for one in page] == topics[3:6]


@pytest.mark.parametrize("id", IDS)
def test_sizes_are_of_all_partitions_whoever_owns_them(cluster: Instances, id: str) -> None:
    assert len({*cluster.owners(TOPICS[0]), *cluster.owners(TOPICS[1])}) > 1
    with cluster.connect(id) as bus:
        sizes = {size.topic: size for size in bus.list_topic_sizes()}
        for topic in TOPICS:
            parts = bus.describe_topic(topic).partition_infos
            size = sizes[topic]
            assert (size.partitions, size.messages, size.published) == (3, 6, 6)
            assert size.stored_bytes == sum(part.stored_bytes for part in parts) > 0


def test_instances_tell_what_they_do_and_one_that_is_silent_is_named(
    cluster: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect("b") as bus:
        loads = bus.list_instances()
        assert [(load.instance, load.address) for load in loads] == [
            (id, cluster.url(id)) for id in IDS
        ]
        assert all(load.answers and load.ready and load.messages_in > 0 for load in loads)

        def silent() -> None:
            raise Unavailable("It is away.")

        here = cluster.cluster["b"]
        for peer in here.others():
            if peer.name == "c":
                monkeypatch.setattr(peer, "load", silent)
                monkeypatch.setattr(peer, "sizes", lambda names: silent())
        assert [load.answers for load in bus.list_instances()] == [True, True, False]
        sizes = {size.topic: size.messages for size in bus.list_topic_sizes()}
        for topic in TOPICS:
            assert sizes[topic] == (None if "c" in cluster.owners(topic, "b") else 6)
        assert None in sizes.values()


def test_a_list_is_an_error_and_not_shorter_where_somebody_is_silent(
    cluster: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise Unavailable("It is away.")

    for peer in cluster.cluster["b"].others():
        monkeypatch.setattr(peer, "groups_of", silent)
    with cluster.connect("b", timeout_s=0.3) as bus, pytest.raises(tms.TMSError):
        list(bus.list_groups())
