"""Fault 37: a second service on one store. It is refused, or takes the store over and the first one
refuses everything: no client gets a stale answer, or an acknowledgement from a topic that is
gone."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

import tms
from tests.http_kit import Client, Served, serving
from tests.log_kit import EARLIEST, NAME, KeptStore, block
from tests.owners_kit import Processes
from tms.client.client import Bus
from tms.cluster.ownership import OwnerLimits, Ownership, own
from tms.engine.engine import Engine
from tms.errors import AlreadyRunning, NotOwner, StorageUnavailable, TMSError, TopicNotFound
from tms.model import keys
from tms.model.message import NewBlock, PartitionPosition
from tms.model.topic import TopicName, TopicSettings
from tms.runtime.clock import SystemClock

QUICK = OwnerLimits(beat_s=0.02, silent_s=30.0)
SLOW = OwnerLimits(beat_s=60.0, silent_s=600.0)  # it never notices by itself
UNAVAILABLE = 503
ONE_TWO = [b"1", b"2"]


def owned(
    store: KeptStore, name: str, limits: OwnerLimits = QUICK, take_over: bool = False
) -> Ownership:
    owner = own(store, SystemClock(), name, limits, take_over)
    assert owner is not None
    return owner


@contextlib.contextmanager
def two_services(limits: OwnerLimits) -> Iterator[tuple[Served, Served]]:
    """The first one publishes 1 and 2, then the second one takes the store over."""
    store = KeptStore(shared=True)
    with serving(store, owner=owned(store, "first", limits)) as first:
        first.create("orders", partitions=2)
        with tms.connect(url(first)) as bus:
            bus.publish("orders", b"1", partition=0)
            with bus.transaction() as tx:
                tx.send("orders", b"2", partition=0)
            assert [m.value for m in bus.consumer("orders", stop_at_end=True)] == ONE_TWO
        with serving(store, owner=owned(store, "second", limits, take_over=True)) as second:
            yield first, second


def url(served: Served) -> str:
    host, port = served.address
    return f"http://{host}:{port}"


def refused(served: Served, method: str, path: str, body: bytes | None = None) -> None:
    with Client(served.address) as client:
        answer = client.request(method, path, body, media="application/json" if body else None)
    assert answer.status == UNAVAILABLE, answer
    if path.startswith("/v1/"):  # CDAP's errors are sentences
        assert b"second has taken it over" in answer.body
        return
    assert (answer.problem, answer.json["details"]["owner"]) == ("not-owner", "second")
    assert "second has taken it over" in answer.json["detail"]


TOPIC = "/v2/namespaces/default/topics/orders"
REQUESTS = [
    ("GET", f"{TOPIC}/messages?start=earliest&partition=0", None),
    ("POST", f"{TOPIC}/messages", b'{"messages": [{"value": "late"}]}'),
    ("GET", TOPIC, None),
    ("GET", "/v2/namespaces/default/topics", None),
    ("DELETE", TOPIC, None),
    ("PUT", TOPIC, b"{}"),
    ("POST", "/v2/transactions", b"{}"),
    ("GET", "/v1/namespaces/default/topics", None),
    ("POST", f"{TOPIC}/queues/q/receive", b"{}"),
]


@pytest.mark.parametrize("limits", [QUICK, SLOW], ids=["told by its beat", "told by the request"])
def test_fault_37_a_service_that_was_replaced_refuses_everything(limits: OwnerLimits) -> None:
    with two_services(limits) as (first, second):
        for method, path, body in REQUESTS:
            refused(first, method, path, body)
        with Client(first.address) as client:
            ready = client.request("GET", "/readyz")
            assert ready.status == UNAVAILABLE
            assert "second has taken it over" in str(ready.json)
            assert client.request("GET", "/livez").status == 200
        with tms.connect(url(second)) as bus:
            assert [m.value for m in bus.consumer("orders", stop_at_end=True)] == ONE_TWO
            bus.publish("orders", b"3")


def test_fault_37_the_first_request_after_a_replacement_is_refused() -> None:
    store = KeptStore(shared=True)
    with serving(store, owner=owned(store, "first", SLOW)) as first:
        path = first.create("orders")
        with tms.connect(url(first)) as bus:
            bus.publish("orders", b"1")
        with Client(first.address) as client:
            for _ in range(2):
                answer = client.request("GET", f"{path}/messages?start=earliest")
                assert answer.status == 200
        owned(store, "second", SLOW, take_over=True)
        refused(first, "GET", f"{path}/messages?start=earliest")


def test_fault_37_a_poll_that_waits_ends_when_the_store_is_taken_over() -> None:
    store = KeptStore(shared=True)
    with serving(store, owner=owned(store, "first")) as first, first.connect() as client:
        path = first.create("orders")
        client.send(f"GET {path}/messages?wait_s=15 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        while not first.service.engine.topics.partitions.opened():
            threading.Event().wait(0.01)
        with serving(store, owner=owned(store, "second", take_over=True)):
            answer = client.answer()
    assert answer.problem == "not-owner"


def test_fault_37_a_topic_recreated_elsewhere_gets_nothing_from_the_old_owner() -> None:
    with two_services(SLOW) as (first, second):
        with Client(second.address) as client:
            assert client.request("DELETE", TOPIC).status == 204
        second.create("orders", partitions=2)
        for method, path, body in REQUESTS:
            refused(first, method, path, body)
        with tms.connect(url(second)) as bus:
            bus.publish("orders", b"anew")
            assert [m.value for m in bus.consumer("orders", stop_at_end=True)] == [b"anew"]


def test_fault_37_idle_services_do_not_fight_over_the_transactions() -> None:
    with two_services(QUICK) as (first, second):
        engine = first.service.engine
        while not engine.readiness():
            threading.Event().wait(0.01)
        before = transactions_epoch(second)
        engine.transactions.tidy()
        with contextlib.suppress(TMSError):
            engine.maintenance.clean()
        assert transactions_epoch(second) == before


def transactions_epoch(served: Served) -> int:
    (partition,) = served.service.engine.describe_topic(SYSTEM).partition_infos
    return partition.epoch


SYSTEM = TopicName.parse("system:_transactions")


# -- in one process each, below the service ------------------------------------------------------


def embedded(store: KeptStore, name: str, take_over: bool = False) -> Bus:
    owner = owned(store, name, SLOW, take_over)
    return Bus(Engine(store, SystemClock(), owner=owner), timeout_s=0.2)


def test_an_embedded_engine_that_was_replaced_says_so() -> None:
    store = KeptStore(shared=True)
    with embedded(store, "first") as first:
        first.create_topic("orders")
        first.publish("orders", b"1")
        with embedded(store, "second", take_over=True) as second:
            calls = [
                lambda: first.publish("orders", b"2"),
                lambda: list(first.consumer("orders", stop_at_end=True)),
                lambda: first.describe_topic("orders"),
                lambda: first.create_topic("others"),
                lambda: first.delete_topic("orders"),
            ]
            for call in calls:
                with pytest.raises(NotOwner):
                    call()
            second.publish("orders", b"3")
            stored = [m.value for m in second.consumer("orders", stop_at_end=True)]
            assert [one for one in stored if one != b"2"] == [b"1", b"3"]  # 2 has no outcome


def test_a_store_that_was_closed_is_opened_again_at_once() -> None:
    store = KeptStore(shared=True)
    for number in range(3):
        with embedded(store, str(number)) as bus:
            bus.create_topic("orders")


def test_a_second_engine_is_refused_and_the_first_one_goes_on() -> None:
    store = KeptStore(shared=True)
    first = owned(store, "first")
    with Bus(Engine(store, SystemClock(), owner=first)) as bus:
        with pytest.raises(AlreadyRunning, match="in use by first"):
            owned(store, "second")
        bus.create_topic("orders")
        bus.publish("orders", b"1")


def test_who_does_not_own_the_store_does_not_fence_its_owner() -> None:
    store = KeptStore(shared=True)
    first = Engine(store, SystemClock(), owner=owned(store, "first", SLOW))
    first.create_topic(NAME, TopicSettings())
    second = Engine(store, SystemClock(), owner=owned(store, "second", SLOW, take_over=True))
    second.append(NAME, [NewBlock(0, block(b"1"))], None, 10)
    metadata = store.open(keys.METADATA_MAP, create=False)
    before = metadata.scan(b"partition/", b"partition0", 1 << 20)
    with pytest.raises(NotOwner):
        first.append(NAME, [NewBlock(0, block(b"2"))], None, 10)
    assert metadata.scan(b"partition/", b"partition0", 1 << 20) == before != []
    first.close()
    second.close()


# -- without an owner's record: two engines that know nothing of each other ------------------------


def test_an_instance_that_knew_a_deleted_topic_learns_that_it_is_gone() -> None:
    both = Processes()
    both.publish(0, b"1")
    both.engines[1].delete_topic(NAME)
    for expected in (StorageUnavailable, TopicNotFound, TopicNotFound):
        with pytest.raises(expected):
            both.publish(0, b"2")
    assert not partition_records(both)


def test_a_deletion_is_acknowledged_once_no_process_can_write_to_its_maps() -> None:
    both = Processes()
    both.publish(0, b"1")

    def unavailable(name: str) -> None:
        raise StorageUnavailable("The store does not answer.")

    both.stores[1].drop = unavailable  # type: ignore[method-assign]
    both.engines[1].delete_topic(NAME)
    for _ in range(2):
        with pytest.raises((StorageUnavailable, TopicNotFound)):
            both.publish(0, b"2")


def test_a_deleted_topic_that_is_read_for_the_first_time_is_not_an_empty_one() -> None:
    both = Processes()
    both.publish(0, b"1")
    both.engines[1].settings(NAME)
    both.engines[0].delete_topic(NAME)
    with pytest.raises(TopicNotFound):
        both.values(1)


def test_a_recreated_topic_gets_publishes_once_the_old_one_is_known_as_gone() -> None:
    both = Processes()
    both.publish(0, b"1")
    both.engines[1].delete_topic(NAME)
    both.engines[1].create_topic(NAME, TopicSettings())
    for expected in (StorageUnavailable, TopicNotFound):
        with pytest.raises(expected):
            both.publish(0, b"2")
    both.publish(0, b"3")
    both.start_anew(1)
    assert both.values(1) == [b"3"]


def test_a_partition_that_was_never_written_to_is_not_made_for_a_topic_that_is_gone() -> None:
    both = Processes()
    both.engines[1].fetch(NAME, [PartitionPosition(0, EARLIEST)], 1)  # it knows the topic's end
    both.engines[0].delete_topic(NAME)
    with pytest.raises(TopicNotFound):
        both.publish(1, b"1")
    assert not partition_records(both)


def test_a_partition_made_while_its_topic_goes_does_not_stay() -> None:
    both = Processes()
    metadata = both.engines[1].topics.metadata
    before = metadata.compare_and_set

    def deleted_first(key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        if key.startswith(keys.PARTITION_PREFIX) and expected is None:
            metadata.compare_and_set = before  # type: ignore[method-assign]
            both.engines[0].delete_topic(NAME)
        return before(key, expected, value)

    metadata.compare_and_set = deleted_first  # type: ignore[method-assign]
    with pytest.raises(TopicNotFound):
        both.engines[1].append(NAME, [NewBlock(0, block(b"1"))], None, 10)
    assert not partition_records(both)


def test_records_of_topics_are_remembered_for_one_pass_of_the_cleaner_only() -> None:
    both = Processes()
    both.publish(0, b"1")
    assert both.values(1) == [b"1"]
    both.engines[0].update_topic(NAME, {"retention": "1d"})
    both.engines[1].maintenance.clean()
    assert both.engines[1].settings(NAME).retention_ms == 86_400_000
    both.engines[0].delete_topic(NAME)
    both.engines[1].maintenance.clean()
    with pytest.raises(TopicNotFound):
        both.values(1)
    assert not both.engines[1].topics.partitions.opened() or all(
        log.uid != 1 for log in both.engines[1].topics.partitions.opened()
    )


def partition_records(both: Processes) -> list[bytes]:
    """The records of partitions of topics that users created."""
    metadata = both.kept.open("metadata", False)
    live = {record.uid for _, record in both.engines[0].topics.registry.all()}
    prefix = keys.PARTITION_PREFIX
    rows = metadata.scan(prefix, keys.prefix_stop(prefix), 1 << 20)
    return [key for key, _ in rows if int(key[10:18], 16) not in live]
