"""Queues over HTTP: declaring, receiving, settling; and waiting, which takes no thread."""

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_kit import Answer, Client, Served, request, serving
from tests.waiting import PATIENCE_S, until
from tms.api import queues, routes
from tms.block.received import Received
from tms.model.queue import QueueInfo, QueueSettings, Token
from tms.model.topic import TopicName
from tms.server.metrics import QUEUES_SHOWN, of_queues
from tms.server.service import RequestLimits

_topics = itertools.count()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(limits=RequestLimits(threads=2)) as running:
        running.service.engine.queues.start()  # leases end, and dead letters move, by themselves
        yield running


@pytest.fixture
def topic(served: Served) -> str:
    return served.create(f"t{next(_topics)}", durability="written")


@pytest.fixture
def queue(client: Client, topic: str) -> str:
    path = f"{topic}/queues/workers"
    assert client.request("PUT", path, b"{}").status == routes.CREATED
    return path


def post(client: Client, path: str, body: object, **more: str) -> Answer:
    return client.request("POST", path, json.dumps(body).encode(), **more)


def publish(client: Client, queue: str, *values: str) -> None:
    topic = queue.rpartition("/queues/")[0]
    body = {"messages": [{"value": value} for value in values]}
    assert post(client, f"{topic}/messages", body).status == routes.OK


def receive(client: Client, queue: str, **asked: Any) -> Any:
    answer = post(client, f"{queue}/receive", {"limit": 10, **asked})
    assert answer.status == routes.OK, answer
    return answer.json


def values(found: Any) -> list[tuple[str, int]]:
    return [(one["value"], one["deliveries"]) for one in found["messages"]]


# -- queues ------------------------------------------------------------------------------------


def test_a_queue_is_declared_once_and_shown_with_what_it_was_asked_for(
    client: Client, topic: str
) -> None:
    path = f"{topic}/queues/w%C3%B6rk%20ers"
    body = b'{"lease_s": 2.5, "deliveries_max": 3, "ordered_by": "key"}'
    made = client.request("PUT", path, body)
    again = client.request("PUT", path, body)
    assert (made.status, again.status) == (routes.CREATED, routes.OK)
    assert made.json == again.json == client.request("GET", path).json
    found = made.json
    assert (found["group"], found["namespace"]) == ("wörk ers", "default")
    assert found["settings"]["lease_s"] == 2.5
    assert found["settings"]["backoff_max_s"] == 600.0
    assert found["dead_letter"].startswith(found["topic"])
    other = client.request("PUT", path, b"{}")
    assert (other.status, other.problem) == (409, "conflict")


def test_settings_are_changed_one_by_one(client: Client, queue: str) -> None:
    answer = client.request("PATCH", queue, b'{"lease_s": 5}')
    assert answer.status == routes.OK
    settings = client.request("GET", queue).json["settings"]
    assert (settings["lease_s"], settings["deliveries_max"]) == (5.0, 16)


def test_queues_are_listed_and_deleted(client: Client, topic: str) -> None:
    for group in ("b", "a"):
        client.request("PUT", f"{topic}/queues/{group}", b"{}")
    listed = client.request("GET", f"{topic}/queues").json["queues"]
    assert [one["group"] for one in listed] == ["a", "b"]
    assert client.request("DELETE", f"{topic}/queues/a").status == routes.NO_CONTENT
    assert client.request("GET", f"{topic}/queues/a").problem == "queue-not-found"
    listed = client.request("GET", f"{topic}/queues").json["queues"]
    assert [one["group"] for one in listed] == ["b"]


# -- messages ----------------------------------------------------------------------------------


def test_messages_are_leased_with_tokens_and_acknowledged(client: Client, queue: str) -> None:
    publish(client, queue, "a", "b", "c")
    found = receive(client, queue, limit=2)
    assert values(found) == [("a", 1), ("b", 1)]
    assert values(receive(client, queue)) == [("c", 1)]
    assert [Token.parse(token).count for token in found["tokens"]] == [2]
    one = found["messages"][0]["token"]
    assert post(client, f"{queue}/ack", {"tokens": [one]}).json == {"done": 1, "fenced": []}
    described = client.request("GET", queue).json
    assert (described["leased"], described["backlog"]) == (2, 0)
    assert described["partitions"] == [{"partition": 0, "cursor": 1, "frontier": 3, "end": 3}]
    answer = post(client, f"{queue}/ack", {"tokens": [found["messages"][1]["token"]]})
    assert answer.json["done"] == 1


def test_what_is_given_back_comes_again_and_its_old_token_is_too_late(
    client: Client, queue: str
) -> None:
    publish(client, queue, "a", "b")
    tokens = receive(client, queue)["tokens"]
    answer = post(client, f"{queue}/nack", {"tokens": tokens, "delay_s": 0})
    assert answer.json == {"done": 2, "fenced": []}
    assert values(receive(client, queue)) == [("a", 2), ("b", 2)]
    late = post(client, f"{queue}/ack", {"tokens": tokens}).json
    assert late["done"] == 0
    assert sum(Token.parse(token).count for token in late["fenced"]) == 2


def test_an_ack_that_is_repeated_counts_as_done(client: Client, queue: str) -> None:
    publish(client, queue, "a")
    tokens = receive(client, queue)["tokens"]
    for _ in range(2):
        answer = post(client, f"{queue}/ack", {"tokens": tokens})
        assert answer.json == {"done": 1, "fenced": []}


def test_a_lease_can_be_made_longer_and_ends_by_itself(client: Client, topic: str) -> None:
    queue = f"{topic}/queues/short"
    client.request("PUT", queue, b'{"lease_s": 0.3}')
    publish(client, queue, "kept", "lost")
    kept, lost = receive(client, queue)["messages"]
    answer = post(client, f"{queue}/extend", {"tokens": [kept["token"]], "lease_s": 60})
    assert answer.json["done"] == 1
    assert values(receive(client, queue, wait_s=PATIENCE_S)) == [("lost", 2)]
    assert post(client, f"{queue}/ack", {"tokens": [kept["token"]]}).json["done"] == 1
    assert post(client, f"{queue}/ack", {"tokens": [lost["token"]]}).json["done"] == 0


def test_what_is_rejected_goes_to_the_dead_letters_and_back(client: Client, queue: str) -> None:
    publish(client, queue, "bad", "good")
    bad = receive(client, queue, limit=1)["tokens"]
    answer = post(client, f"{queue}/reject", {"tokens": bad, "cause": "no such file"})
    assert answer.json["done"] == 1
    until(lambda: dead(client, queue) == 1)
    letters = client.request("GET", queue).json["dead_letter"]
    path = f"/v2/namespaces/default/topics/{letters}/messages"
    [letter] = client.request("GET", path).json["messages"]
    assert (letter["value"], letter["headers"]["tms-dead-cause"]) == ("bad", "no such file")
    assert letter["headers"]["tms-dead-deliveries"] == "1"
    assert post(client, f"{queue}/redrive", {"limit": 10}).json == {"moved": 1}
    assert values(receive(client, queue, limit=1)) == [("good", 1)]
    assert values(receive(client, queue, limit=1)) == [("bad", 1)]
    assert dead(client, queue) == 0


def dead(client: Client, queue: str) -> int:
    return int(client.request("GET", queue).json["dead"])


def test_clients_get_blocks_as_they_are(client: Client, queue: str) -> None:
    publish(client, queue, *"abcdef")
    answer = post(client, f"{queue}/receive", {"limit": 4}, Accept=routes.BLOCKS)
    assert answer.headers["content-type"] == routes.BLOCKS
    found = queues.decode_received(answer.body)
    assert [one.value for one in found.messages("t")] == [b"a", b"b", b"c", b"d"]
    assert post(client, f"{queue}/ack", {"tokens": found.tokens()}).json["done"] == 4


def test_an_answer_is_as_large_as_was_asked_but_at_least_one_message(
    client: Client, queue: str
) -> None:
    publish(client, queue, *("x" * 1_000 for _ in range(10)))
    assert len(receive(client, queue, bytes_max=3_500)["messages"]) in (2, 3)
    assert len(receive(client, queue, bytes_max=1)["messages"]) == 1


def test_an_answer_is_never_larger_than_the_service_allows() -> None:
    limits = RequestLimits(fetch_bytes_max=3_000)
    with serving(limits=limits) as served, served.connect() as client:
        queue = f"{served.create('t')}/queues/g"
        assert client.request("PUT", queue, b"{}", media=routes.JSON).status == routes.CREATED
        publish(client, queue, *("x" * 1_000 for _ in range(10)))
        assert len(receive(client, queue, limit=10)["messages"]) in (2, 3)


def test_without_memory_nothing_is_leased(served: Served, client: Client, queue: str) -> None:
    publish(client, queue, "a")
    budget = served.service.fetching
    budget.bytes += budget.bytes_max
    try:
        answer = post(client, f"{queue}/receive", {})
    finally:
        budget.bytes -= budget.bytes_max
    assert (answer.status, answer.problem) == (429, "overloaded")
    assert values(receive(client, queue)) == [("a", 1)]


# -- waiting -----------------------------------------------------------------------------------


def waiting(served: Served, queue: str, count: int = 1, **asked: object) -> list[Client]:
    """Clients that wait for a message."""
    before = served.service.metrics.long_polls
    body = json.dumps({"limit": 1, "wait_s": PATIENCE_S, **asked}).encode()
    clients = [served.connect() for _ in range(count)]
    for one in clients:
        one.send(request("POST", f"{queue}/receive", body))
    until(lambda: served.service.metrics.long_polls == before + count)
    return clients


def test_a_receive_waits_for_the_first_message(
    served: Served, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.queues.queues.LOOK_S", PATIENCE_S)  # it is woken
    [waiter] = waiting(served, queue)
    started = time.monotonic()
    publish(client, queue, "a")
    assert values(waiter.answer("POST").json) == [("a", 1)]
    assert time.monotonic() - started < PATIENCE_S / 2
    assert served.service.metrics.long_polls == 0


def test_a_receive_ends_with_its_time(client: Client, queue: str) -> None:
    assert receive(client, queue, wait_s=0.05) == {"messages": [], "tokens": []}


def test_those_who_wait_keep_no_thread_and_each_gets_one_message(
    served: Served, client: Client, queue: str
) -> None:
    waiters = waiting(served, queue, 40)
    publish(client, queue, *(str(n) for n in range(40)))
    got = [values(one.answer("POST").json) for one in waiters]
    assert sorted(int(value) for [(value, _)] in got) == list(range(40))


def test_a_message_wakes_one_who_waits_and_not_all(
    served: Served, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters = waiting(served, queue, 30)
    right, looks = served.service.engine.queues.receive, itertools.count(1)
    monkeypatch.setattr(
        served.service.engine.queues, "receive", lambda *args: (next(looks), right(*args))[1]
    )
    publish(client, queue, "a")
    assert values(waiters[0].answer("POST").json) == [("a", 1)]  # first come, first served
    publish(client, queue, "b")
    assert values(waiters[1].answer("POST").json) == [("b", 1)]
    assert next(looks) <= 8
    for one in waiters:
        one.socket.close()
    until(lambda: served.service.metrics.long_polls == 0)


def test_what_is_given_back_wakes_who_waits(served: Served, client: Client, queue: str) -> None:
    publish(client, queue, "a")
    tokens = receive(client, queue)["tokens"]
    [waiter] = waiting(served, queue)
    post(client, f"{queue}/nack", {"tokens": tokens, "delay_s": 0.2})
    assert values(waiter.answer("POST").json) == [("a", 2)]


def test_a_client_that_leaves_while_it_waits_leases_nothing(
    served: Served, client: Client, queue: str
) -> None:
    first, second = waiting(served, queue, 2)
    first.socket.close()
    until(lambda: served.service.metrics.long_polls == 1)
    publish(client, queue, "a")
    assert values(second.answer("POST").json) == [("a", 1)]


def test_what_was_leased_for_a_client_that_left_is_given_back_at_once(
    served: Served, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, queue, "a")
    here, there = threading.Event(), threading.Event()
    right = served.service.engine.queues.receive

    def slowly(*args: Any) -> Received:
        found = right(*args)
        here.set()
        assert there.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(served.service.engine.queues, "receive", slowly)
    before = set(served.service.watchdog.connections)
    gone = served.connect()
    gone.send(request("POST", f"{queue}/receive", b"{}"))
    assert here.wait(PATIENCE_S)
    gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.socket.close()  # with a reset: it will not read the rest
    until(lambda: set(served.service.watchdog.connections) <= before)
    there.set()
    monkeypatch.undo()
    assert values(receive(client, queue, wait_s=PATIENCE_S)) == [("a", 1)]


def test_a_queue_that_is_deleted_ends_the_wait_for_it(
    served: Served, client: Client, queue: str
) -> None:
    waiters = waiting(served, queue, 3)
    assert client.request("DELETE", queue).status == routes.NO_CONTENT
    assert {one.answer("POST").problem for one in waiters} == {"queue-not-found"}


def test_a_service_that_drains_ends_every_wait() -> None:
    with serving() as own:
        queue = own.create("jobs") + "/queues/workers"
        with own.connect() as client:
            client.request("PUT", queue, b"{}")
        waiters = waiting(own, queue, 3)
        own.stop()
        assert [one.answer("POST").json["messages"] for one in waiters] == [[], [], []]


# -- metrics -----------------------------------------------------------------------------------


def test_metrics_tell_how_queues_stand(client: Client, topic: str) -> None:
    queue = f"{topic}/queues/measured"
    client.request("PUT", queue, b'{"deliveries_max": 0}')
    publish(client, queue, "a", "b", "c")
    tokens = receive(client, queue, limit=2)["tokens"]
    post(client, f"{queue}/nack", {"tokens": tokens, "delay_s": 0})
    receive(client, queue, limit=1)
    text = client.request("GET", "/metrics").body.decode()
    labels = f'{{group="measured",topic="{topic.rpartition("/")[2]}"}}'
    assert f"tms_queue_leased{labels} 1.0" in text
    assert f"tms_queue_ready{labels} 1.0" in text
    assert f"tms_queue_redelivered_total{labels} 1.0" in text
    assert f"tms_queue_dead_total{labels} 0.0" in text


def test_the_number_of_series_is_bounded() -> None:
    infos = [
        QueueInfo(f"g{n}", TopicName.parse("jobs"), QueueSettings(), n, leased=n, died=1)
        for n in range(QUEUES_SHOWN + 7)
    ]
    found = {metric.name: metric.samples for metric in of_queues(infos[::-1])}
    assert set(map(len, found.values())) == {QUEUES_SHOWN + 1}
    leased = {sample.labels["group"]: sample.value for sample in found["tms_queue_leased"]}
    assert (leased["g0"], leased["g99"]) == (0, 99)  # the oldest have series of their own
    assert leased["(others)"] == sum(range(QUEUES_SHOWN, QUEUES_SHOWN + 7))
    assert sum(sample.value for sample in found["tms_queue_dead"]) == QUEUES_SHOWN + 7
