"""Several instances over one store: any of them answers any request, and what each owns is moved,
lost and taken over without losing anything acknowledged."""

import gzip
import json
import threading

import pytest

from tests.cluster_kit import instances
from tests.http_kit import Client
from tests.waiting import PATIENCE_S, until
from tms.block import encode
from tms.client.client import Bus
from tms.cluster.cluster import COORDINATOR
from tms.cluster.membership import MembershipState
from tms.errors import NotOwner, StorageUnavailable, TMSError, TopicNotFound, Unavailable
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import Settlement
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, PositionChange, PositionKey
from tms.server.http.cors import Cors
from tms.topics.internal_topic import InternalTopic
from tms.topics.sharding import POSITIONS, QUEUES

TOPIC, PARTITIONS = "orders", 8
SYNCED = Durability.SYNCED


def read(bus: Bus, topic: str = TOPIC) -> list[tuple[int, int, bytes | None]]:
    """All messages, in the order of partitions."""
    consumer = bus.consumer(topic, stop_at_end=True)
    return sorted((m.partition, m.offset, m.value) for m in consumer)


def values(bus: Bus, topic: str = TOPIC) -> set[bytes | None]:
    return {value for _, _, value in read(bus, topic)}


def spread(bus: Bus, tag: str, topic: str = TOPIC) -> set[bytes | None]:
    """Publish one message to each partition."""
    sent: set[bytes | None] = set()
    for partition in range(PARTITIONS):
        value = f"{tag}{partition}".encode()
        bus.publish(topic, value, partition=partition)
        sent.add(value)
    return sent


def test_any_instance_answers_publishes_and_fetches() -> None:
    with instances("a", "b", "c") as all, all.connect("a") as first:
        first.create_topic(TOPIC, partitions=PARTITIONS)
        sent: set[bytes | None] = set()
        for id in "abc":
            with all.connect(id) as bus:
                sent |= spread(bus, id)
        assert set(all.owners(TOPIC)) == {"a", "b", "c"}
        seen = []
        for id in "abc":
            with all.connect(id) as bus:
                seen.append(read(bus))
        assert {value for _, _, value in seen[0]} == sent
        assert seen[0] == seen[1] == seen[2]


def test_an_instance_of_an_earlier_version_is_asked_where_access_is_open() -> None:
    """It shows no key to which a request could be proven."""
    with instances("a", "b") as both, both.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        coordinator = both.coordinator()
        (other,) = {"a", "b"} - {coordinator}
        both.member[other].shows_keys = False
        both.member[other].show(both.member[other].record)
        assert set(both.owners(TOPIC)) == {"a", "b"}
        with bus.transaction() as tx:
            for partition in range(PARTITIONS):
                tx.send(TOPIC, b"%d" % partition, partition=partition)
        assert values(bus) == {b"%d" % partition for partition in range(PARTITIONS)}


def test_a_forwarded_answer_is_compressed_by_its_owner_and_is_for_pages_once() -> None:
    page = "https://console.example"
    with instances("a", "b", "c") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=1)
        bus.publish_many(TOPIC, [b"clicked"] * 500)
        for served in all.served.values():
            served.service.cors = Cors([page])
        for id in "abc":
            with Client(all.served[id].address) as client:
                path = f"/v2/namespaces/default/topics/{TOPIC}/messages"
                answer = client.request("GET", path, Accept_Encoding="gzip", Origin=page)
            assert len(json.loads(gzip.decompress(answer.body))["messages"]) == 500
            assert answer.headers["access-control-allow-origin"] == page
            assert answer.lines["access-control-allow-origin"] == 1
            assert answer.lines["content-encoding"] == 1
        assert sum(served.service.metrics.forwarded for served in all.served.values()) >= 2


def test_a_transaction_over_partitions_of_several_owners_is_seen_everywhere() -> None:
    with instances("a", "b", "c") as all, all.connect("a") as first:
        first.create_topic(TOPIC, partitions=PARTITIONS)
        for id in "abc":
            with all.connect(id) as bus, bus.transaction() as tx:
                for partition in range(PARTITIONS):
                    tx.send(TOPIC, f"{id}{partition}".encode(), partition=partition)
            expected = {f"{id}{p}".encode() for p in range(PARTITIONS)}
            for other in "abc":
                with all.connect(other) as bus:
                    assert expected <= values(bus)


def test_rolled_back_is_hidden_and_open_blocks_readers_on_every_owner() -> None:
    with instances("a", "b", "c") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        with pytest.raises(RuntimeError), bus.transaction() as tx:
            for partition in range(PARTITIONS):
                tx.send(TOPIC, b"never", partition=partition)
            raise RuntimeError
        sent = spread(bus, "plain")
        for id in "abc":
            with all.connect(id) as other:
                assert values(other) == sent


def test_groups_queues_and_delayed_messages_are_reached_through_any_instance() -> None:
    with instances("a", "b", "c") as all, all.connect("a") as first:
        first.create_topic(TOPIC, partitions=PARTITIONS)
        sent = spread(first, "x")
        got: list[bytes | None] = []
        with (
            all.connect("b") as bus,
            bus.consumer(TOPIC, group="g", start="earliest") as consumer,
        ):
            for message in consumer:
                got.append(message.value)
                if len(got) == PARTITIONS:
                    break
            consumer.ack()
        assert set(got) == sent
        for id in "abc":
            with all.connect(id) as bus:
                [group] = bus.list_groups(TOPIC)
                assert group.group == "g" and group.lag == 0
        for id in "abc":
            with all.connect(id) as bus:
                bus.publish_later(TOPIC, f"late {id}".encode(), delay=0.05)
        with all.connect("c") as bus:
            until(lambda: {b"late a", b"late b", b"late c"} <= values(bus), "delayed messages")
            queue = bus.queue(TOPIC, group="work", start="earliest")
            done: list[bytes | None] = []
            while len(done) < PARTITIONS + 3:
                messages = queue.receive(limit=4, wait_s=1)
                done += [message.value for message in messages]
                queue.ack(messages)
            assert set(done) == values(bus)


def test_topics_that_one_instance_changes_are_changed_for_all_at_once() -> None:
    with instances("a", "b") as all, all.connect("a") as a, all.connect("b") as b:
        a.create_topic(TOPIC, partitions=2)
        for bus in (a, b):
            for partition in range(2):
                bus.publish(TOPIC, b"old", partition=partition)
        a.update_topic(TOPIC, partitions=4)
        for partition in range(4):
            b.publish(TOPIC, b"new", partition=partition)
        assert len(read(a)) == len(read(b)) == 8
        b.delete_topic(TOPIC)
        for bus in (a, b):
            with pytest.raises(TopicNotFound):
                read(bus)
        a.create_topic(TOPIC, partitions=2)
        assert read(b) == [] == read(a)
        b.publish(TOPIC, b"again", partition=0)
        assert values(a) == {b"again"} == values(b)


def test_what_concerns_all_partitions_is_done_by_all_owners() -> None:
    with instances("a", "b", "c") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        for round in range(3):
            for partition in range(PARTITIONS):
                bus.publish(TOPIC, f"{round}".encode(), key=b"k%d" % partition, partition=partition)
        info = bus.describe_topic(TOPIC)
        assert [one.partition for one in info.partition_infos] == list(range(PARTITIONS))
        assert {one.end_offset for one in info.partition_infos} == {3}
        assert bus.offsets(TOPIC) == dict.fromkeys(range(PARTITIONS), 3)
        assert bus.erase(TOPIC, key=b"k5") == 3
        assert len(read(bus)) == 3 * (PARTITIONS - 1)
        bus.truncate_topic(TOPIC)
        assert read(bus) == []


def test_an_instance_that_ends_leaves_everything_to_the_others() -> None:
    with instances("a", "b", "c") as all:
        coordinator = all.coordinator()
        rest = [id for id in "abc" if id != coordinator]
        with all.connect(rest[0]) as bus:
            bus.create_topic(TOPIC, partitions=PARTITIONS)
            sent = spread(bus, "before")
            all.stop(coordinator)
            sent |= spread(bus, "after")
            with bus.transaction() as tx:
                for partition in range(PARTITIONS):
                    tx.send(TOPIC, b"tx", partition=partition)
            assert values(bus) == sent | {b"tx"}
        assert all.coordinator() in rest
        assert set(all.owners(TOPIC, rest[0])) == set(rest)


def test_fault_12_a_replaced_instance_answers_nothing_even_if_unaware() -> None:
    with instances("a", "b", "c") as all:
        coordinator = all.coordinator()
        rest = [id for id in "abc" if id != coordinator]
        with all.connect(rest[0]) as bus, all.connect(coordinator) as old:
            bus.create_topic(TOPIC, partitions=PARTITIONS)
            sent = spread(old, "before")
            mine = [p for p, id in enumerate(all.owners(TOPIC)) if id == coordinator]
            assert mine and values(old) == sent
            all.member[coordinator].expire(blind=True)
            sent |= spread(bus, "after")
            with bus.transaction() as tx:
                tx.send(TOPIC, b"tx", partition=mine[0])
            assert values(bus) == sent | {b"tx"}
            with Client(all.served[coordinator].address) as client:
                path = f"/v2/namespaces/default/topics/{TOPIC}/messages"
                for partition in mine:
                    at = f"{path}?start={partition}:earliest"
                    answer = client.request("GET", at)
                    if answer.status == 200:  # it has taken the partition back, and read it
                        texts = {m["value"] for m in answer.json["messages"]}
                        assert f"after{partition}" in texts


def test_fault_13_while_suspended_an_instance_reads_and_does_not_write() -> None:
    with instances("a", "b") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        sent = spread(bus, "x")
        mine = [p for p, id in enumerate(all.owners(TOPIC)) if id == "a"]
        assert mine
        all.member["a"].suspend()
        with Client(all.served["a"].address) as client:
            path = f"/v2/namespaces/default/topics/{TOPIC}/messages"
            answer = client.request("GET", f"{path}?start={mine[0]}:earliest")
            assert answer.status == 200 and len(answer.json["messages"]) == 1
            body = b'{"messages": [{"value": "no", "partition": %d}]}' % mine[0]
            answer = client.request("POST", path, body, media="application/json")
            assert answer.status == 503, answer
        all.members.tell()
        sent |= spread(bus, "y")
        assert values(bus) == sent


def test_fault_13_once_lost_an_instance_owns_nothing_until_it_is_seen_again() -> None:
    with instances("a", "b") as all, all.connect("b") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        sent = spread(bus, "x")
        all.member["a"].expire()
        with Client(all.served["a"].address) as client:
            path = f"/v2/namespaces/default/topics/{TOPIC}/messages"
            assert client.request("GET", f"{path}?start=earliest").status == 503
            assert client.request("GET", "/readyz").status == 503
        sent |= spread(bus, "y")
        assert values(bus) == sent
        all.member["a"].join(all.cluster["a"].settle_again)
        with all.connect("a") as again:
            sent |= spread(again, "z")
            assert values(again) == sent == values(bus)


def test_a_move_is_noticed_by_nobody() -> None:
    with instances("a", "b") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        stop, sent, errors = threading.Event(), [], []

        def publish() -> None:
            with all.connect("b") as own, own.producer(TOPIC) as producer:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        producer.send(b"%d" % number, partition=number % PARTITIONS)
                        producer.flush()
                    except TMSError as error:
                        errors.append(error)
                    sent.append(b"%d" % number)

        thread = threading.Thread(target=publish)
        thread.start()
        for to in ("a", "b"):
            for partition in range(PARTITIONS):
                with Client(all.served["a"].address) as client:
                    path = f"/v2/namespaces/default/topics/{TOPIC}/owners/{partition}"
                    body = b'{"to": "%s"}' % to.encode()
                    answer = client.request("PUT", path, body, media="application/json")
                    assert answer.status == 204, answer
                assert all.owners(TOPIC)[partition] == to
                threading.Event().wait(0.05)
        stop.set()
        thread.join()
        assert not errors
        assert [value for _, _, value in sorted(read(bus), key=_number)] == sent


def _number(row: tuple[int, int, bytes | None]) -> int:
    return int(row[2] or b"0")


BODIES = [
    b"Content-Length: 0\r\n\r\n",
    b"Content-Length: 2\r\n\r\n{}",
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("body", BODIES)
def test_an_instance_that_drains_hands_everything_over(body: bytes) -> None:
    with instances("a", "b") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        sent = spread(bus, "x")
        with Client(all.served["b"].address) as client:  # it lets the owner do it
            head = b"POST /v2/cluster/instances/a/drain HTTP/1.1\r\nHost: test\r\n"
            client.send(head + b"Content-Type: application/json\r\n" + body)
            assert client.answer("POST").status == 204
        until(lambda: set(all.owners(TOPIC)) == {"b"}, "b owns everything")
        until(lambda: all.coordinator() == "b", "b coordinates")
        sent |= spread(bus, "y")
        assert values(bus) == sent


def test_who_waits_at_an_instance_that_hands_over_gets_what_comes_back() -> None:
    with instances("a", "b") as all:
        first = all.coordinator()
        rest = "b" if first == "a" else "a"
        with all.connect(first) as waiting, all.connect(rest) as bus:
            bus.create_topic(TOPIC, partitions=1)
            queue = waiting.queue(TOPIC, group="work", start="earliest")
            got: list[bytes | None] = []

            def receive() -> None:
                got.extend(
                    message.value for message in queue.receive(limit=1, wait_s=2 * PATIENCE_S)
                )

            thread = threading.Thread(target=receive)
            thread.start()
            until(lambda: all.served[first].service.metrics.long_polls, "it waits")
            with Client(all.served[first].address) as client:
                path = f"/v2/cluster/instances/{first}/drain"
                assert client.request("POST", path).status == 204
            until(lambda: all.coordinator() == rest, "the other one coordinates")
            bus.publish(TOPIC, b"work")
            thread.join(PATIENCE_S)
            assert got == [b"work"]


JOURNAL = TopicName("system", "_test")


def entries(journal: InternalTopic) -> list[bytes | None]:
    return [entry.value for entry in journal.replay()]


def test_who_replayed_a_journal_last_is_the_only_one_that_appends_to_it() -> None:
    with instances("a", "b") as all:
        first = all.coordinator()
        rest = "b" if first == "a" else "a"
        one = all.served[first].service.engine.topics.journal(JOURNAL)
        assert entries(one) == []
        one.write([(None, b"1")], SYNCED)
        again = all.served[first].service.engine.topics.journal(JOURNAL)
        assert entries(again) == [b"1"]
        with pytest.raises(StorageUnavailable, match="another reader"):
            one.write([(None, b"behind its back")], SYNCED)
        again.write([(None, b"2")], SYNCED)
        all.member[first].expire()
        until(lambda: all.coordinator() == rest, "the other one coordinates")
        other = all.served[rest].service.engine.topics.journal(JOURNAL)
        assert entries(other) == [b"1", b"2"]
        other.write([(None, b"3")], SYNCED)
        with pytest.raises(TMSError):
            again.write([(None, b"behind its back")], SYNCED)
        all.member[first].join(all.cluster[first].settle_again)
        all.stop(rest)
        until(lambda: all.coordinator() == first, "the first one coordinates again")
        with pytest.raises(StorageUnavailable, match="or owner"):
            again.write([(None, b"behind its back")], SYNCED)
        assert entries(again) == [b"1", b"2", b"3"]
        again.write([(None, b"4")], SYNCED)
        assert entries(one) == [b"1", b"2", b"3", b"4"]


def test_the_fate_of_a_later_foreign_transaction_is_unknown() -> None:
    with instances("a") as all:
        manager = all.served[all.coordinator()].service.engine.transactions.manager
        with pytest.raises(StorageUnavailable, match="begun at another instance"):
            manager.fate(manager.begin().id + 1, True)


def test_a_transaction_begun_elsewhere_is_ended_in_the_partitions_of_every_instance() -> None:
    with instances("a", "b") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        assert set(all.owners(TOPIC)) == {"a", "b"}
        engine = all.served[all.coordinator()].service.engine
        name, pointer = TopicName("default", TOPIC), engine.topics.clock.now_ms() * 1_000_000
        for partition in range(PARTITIONS):
            new = NewBlock(partition, encode([b"never"]))
            engine.transactions.submit(name, [new], pointer).result(PATIENCE_S)
        sent = spread(bus, "plain")
        [listed] = bus.admin.transactions.open()
        assert [one.partition for one in listed.held] == [*range(PARTITIONS)]
        bus.fetch(TOPIC, dict.fromkeys(range(PARTITIONS), Position.earliest()))
        engines = [served.service.engine for served in all.served.values()]
        assert sum(engine.stats().partitions_held for engine in engines) == PARTITIONS
        assert bus.admin.transactions.invalidate(pointer).outcome == "invalid"
        assert values(bus) == sent and bus.admin.transactions.open() == []


def test_a_service_of_another_kind_is_refused_by_the_cluster_and_the_other_way_round() -> None:
    from tests.cluster_kit import LIMITS
    from tms.cluster.ownership import own
    from tms.errors import AlreadyRunning
    from tms.runtime.clock import SystemClock

    with instances("a") as all, all.connect("a") as bus:
        bus.create_topic(TOPIC)
        with pytest.raises(AlreadyRunning, match="the cluster at test"):
            own(all.store, SystemClock(), "alone", LIMITS)
        bus.publish(TOPIC, b"1")
        alone = own(all.store, SystemClock(), "alone", LIMITS, take_over=True)
        assert alone is not None
        with pytest.raises((NotOwner, Unavailable)), all.connect("a", timeout_s=1) as late:
            late.publish(TOPIC, b"2")
        alone.release()


def test_a_commit_that_comes_behind_another_reader_of_a_journal_may_be_repeated() -> None:
    with instances("a") as all, all.connect("a") as bus:
        engine = all.served["a"].service.engine
        bus.create_topic(TOPIC)
        bus.publish(TOPIC, b"work")
        queue = bus.queue(TOPIC, group="work", start="earliest")
        orders = TopicName("default", TOPIC)
        place = PositionChange(PositionKey("g", orders, 0), Position.offset(1))
        work = Settlement("work", orders, (str(queue.receive(limit=1)[0].token),))
        shards = engine.topics.shards
        for journal, number, request in (
            (POSITIONS, shards.of_group("g"), Commit(positions=(place,))),
            (QUEUES, shards.of_queue(orders, "work"), Commit(settlements=(work,))),
        ):
            entries(engine.topics.journal_of_shard(journal, number))
            with pytest.raises(StorageUnavailable, match="another reader"):
                engine.transactions.commit(request)
            engine.transactions.commit(request)
        assert engine.groups.positions(orders, "g") == {0: Position.offset(1)}
        assert queue.receive(limit=1) == []


def test_a_failed_takeover_shows_no_outdated_messages() -> None:
    with instances("a", "b") as all, all.connect("b") as bus:
        bus.create_topic(TOPIC, partitions=PARTITIONS)
        spread(bus, "x")
        mine = all.owners(TOPIC).index("a")
        topics = all.served["a"].service.engine.topics
        name = TopicName("default", TOPIC)
        log = topics.partitions.get(name, topics.registry.find(name), mine)
        all.member["a"].expire(blind=True)
        other = all.served["b"].service.engine
        other.append(name, [NewBlock(mine, encode([b"y"]))])  # "b" takes it over
        log.state.invalidate()  # as after a write of "a" that failed
        all.member["a"].state = MembershipState.SUSPENDED
        with pytest.raises(StorageUnavailable):
            log.load()
        with Client(all.served["a"].address) as client:
            path = f"/v2/namespaces/default/topics/{TOPIC}/messages?start={mine}:earliest"
            answer = client.request("GET", path)
            if answer.status == 200:
                assert [m["value"] for m in answer.json["messages"]] == [f"x{mine}", "y"]
        assert log.state.retired is not None


def test_transactions_are_lost_before_their_journal_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members may change between two looks of one settling. An instance that keeps the state and
    has released the journal would not learn that others write to it."""
    with instances("a", "b") as all:
        first = all.coordinator()
        rest = "b" if first == "a" else "a"
        engine = all.served[first].service.engine
        monkeypatch.setattr(engine.roles, "resign", lambda cluster: None)
        all.cluster[first].pin(f"{COORDINATOR[0]}/0", rest)
        until(lambda: not engine.coordinates, "the first one does not keep transactions")
        until(lambda: all.coordinator() == rest, "the other one coordinates")
