"""The client while the network or the service fails: each message once, in order, in time, and
errors that name the cause.

FAULTS.md rows 20 (lost, repeated and reordered requests), and the user's expectation that no call
outlives its time-out.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tms
from tests.http_kit import Served, serving
from tests.proxy import Fault, Proxy
from tests.waiting import PATIENCE_S, until
from tms.api import routes
from tms.errors import (
    Closed,
    ConfigError,
    OutOfOrderSequence,
    Overloaded,
    TimedOut,
    TMSError,
    TopicNotFound,
    Unavailable,
)
from tms.model.position import Position

TIMEOUT_S = 3.0  # three attempts of a second
FAULTS = list(Fault)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def url(served: Served) -> str:
    return served.url


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
def bus(proxy: Proxy) -> Iterator[tms.Bus]:
    with tms.connect(proxy.url, timeout_s=TIMEOUT_S) as bus:
        yield bus


@pytest.fixture
def topic(url: str, request: pytest.FixtureRequest) -> str:
    """A topic of this test."""
    name = f"t{abs(hash(request.node.nodeid))}"
    with tms.connect(url) as bus:
        bus.create_topic(name, durability="written")
    return name


def stored(url: str, topic: str) -> list[tuple[tms.MessageId, bytes | None]]:
    with tms.connect(url) as bus:
        return [(m.id, m.value) for m in bus.consumer(topic, stop_at_end=True)]


# --- one copy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_publish_that_meets_a_fault_is_stored_once_and_gets_the_original_id(
    fault: Fault, bus: tms.Bus, proxy: Proxy, url: str, topic: str
) -> None:
    ids = [bus.publish(topic, b"0")]
    proxy.script(fault)
    ids += [bus.publish(topic, b"%d" % n) for n in range(1, 4)]
    assert stored(url, topic) == list(zip(ids, [b"0", b"1", b"2", b"3"], strict=True))
    assert proxy.done


@pytest.mark.parametrize("fault", FAULTS)
def test_a_producer_that_meets_a_fault_stores_everything_once_and_in_order(
    fault: Fault, bus: tms.Bus, proxy: Proxy, url: str, topic: str
) -> None:
    values = [b"%d" % n for n in range(400)]
    with bus.producer(topic, batch_bytes=256) as producer:
        producer.send_many(values[:100])
        proxy.script(fault)
        producer.send_many(values[100:])
    assert [value for _, value in stored(url, topic)] == values
    assert proxy.done


def test_a_producer_survives_one_fault_after_another(proxy: Proxy, url: str, topic: str) -> None:
    values = [b"%d" % n for n in range(600)]
    quick = [fault for fault in FAULTS if fault is not Fault.SWALLOW_ANSWER]
    with (
        tms.connect(proxy.url, timeout_s=30) as bus,
        bus.producer(topic, batch_bytes=100, in_flight_max=3) as producer,
    ):
        for n, value in enumerate(values):
            if n % 60 == 30:
                proxy.script(quick[n // 60 % len(quick)])
            producer.send(value)
    assert [value for _, value in stored(url, topic)] == values


def test_many_messages_whose_answer_is_lost_get_the_original_ids(
    bus: tms.Bus, proxy: Proxy, url: str, topic: str
) -> None:
    proxy.script(Fault.LOSE_ANSWER)
    ids = bus.publish_many(topic, [b"%d" % n for n in range(50)])
    assert stored(url, topic) == [(id, b"%d" % n) for n, id in enumerate(ids)]


def test_a_consumer_reads_on_after_its_answers_were_lost(url: str, topic: str) -> None:
    with tms.connect(url) as bus:
        for n in range(20):
            bus.publish(topic, b"%d" % n)
    with Proxy(url, faulty_method=b"GET") as proxy, tms.connect(proxy.url) as bus:
        consumer = bus.consumer(topic, stop_at_end=True, bytes_max=1)
        proxy.script(Fault.LOSE_ANSWER, Fault.HALF_ANSWER, Fault.LOSE_REQUEST, Fault.TRICKLE)
        assert [m.value for m in consumer] == [b"%d" % n for n in range(20)]
        assert proxy.done


def test_a_topic_whose_deletion_was_not_answered_is_deleted_without_an_error(
    url: str, topic: str
) -> None:
    with Proxy(url, faulty_method=b"DELETE") as proxy, tms.connect(proxy.url) as bus:
        proxy.script(Fault.LOSE_ANSWER)
        bus.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            bus.delete_topic(topic)


def test_truncating_to_the_moving_end_is_not_repeated_when_its_outcome_is_unknown(
    url: str, topic: str
) -> None:
    with Proxy(url) as proxy, tms.connect(proxy.url) as bus:
        id = bus.publish(topic, b"")
        assert id is not None
        proxy.script(Fault.LOSE_ANSWER)
        bus.truncate_topic(topic, id)
        proxy.script(Fault.LOSE_ANSWER)
        with pytest.raises(Unavailable):
            bus.truncate_topic(topic)


# --- scripted answers ----------------------------------------------------------------------------


Answers = Callable[[bytes], bytes | None]


@contextlib.contextmanager
def pretending(answer: Answers) -> Iterator[str]:
    """The URL of a server that answers each request, or what looks like one, with these bytes; None
    is silence."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []

    def talk(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while request := client.recv(1 << 16):
                said = answer(request)
                if said is not None:
                    client.sendall(said)
                    if not said.startswith(b"HTTP/1.1"):
                        client.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.append(client)
                threading.Thread(target=talk, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
        thread.join(PATIENCE_S)


def answered(status: int, body: bytes, media: str = routes.JSON) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def refused(error: TMSError) -> bytes:
    return answered(*routes.problem(error), routes.PROBLEM)


TOPIC = answered(
    200,
    b'{"namespace":"default","topic":"t","generation":1,"created_ms":0,"settings":{"partitions":1}}',
)
APPENDED = answered(
    200,
    b'{"appended":[{"partition":0,"time_ms":5,"sequence":7,"count":1,"base_offset":0,"duplicate":false}]}',
)


def numbers(request: bytes) -> tuple[int, int]:
    """Producer id and sequence of the block in a request."""
    block = request[request.index(b"TMSB") :]
    return int.from_bytes(block[32:40], "big"), int.from_bytes(block[40:44], "big")


def test_the_service_s_wish_to_wait_is_granted() -> None:
    times: list[float] = []

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET"):
            return TOPIC
        times.append(time.monotonic())
        return APPENDED if len(times) > 1 else refused(Overloaded("Full.", retry_after_s=0.3))

    with pretending(answer) as url, tms.connect(url) as bus:
        assert bus.publish("t", b"") == tms.MessageId(5, 7)
    assert times[1] - times[0] >= 0.3


def test_errors_that_cannot_go_away_are_not_repeated() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return refused(TopicNotFound("No such topic."))

    with pretending(answer) as url, tms.connect(url) as bus, pytest.raises(TopicNotFound):
        bus.describe_topic("t")
    assert len(requests) == 1


def forgetting(seen: list[tuple[int, int]]) -> Callable[[bytes], bytes]:
    """A service that stores one block of the first producer and then forgets it; `seen` grows by
    the numbers of each block."""

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET"):
            return TOPIC
        seen.append(numbers(request))
        forgotten = len(seen) > 1 and seen[-1][0] == seen[0][0]
        return refused(OutOfOrderSequence("0 is next.")) if forgotten else APPENDED

    return answer


def test_a_service_that_forgot_the_producer_gets_the_block_under_a_new_id() -> None:
    seen: list[tuple[int, int]] = []
    with pretending(forgetting(seen)) as url, tms.connect(url) as bus:
        bus.publish("t", b"")
        bus.publish("t", b"")
        bus.publish("t", b"")
    first, second = seen[0][0], seen[-1][0]
    assert first != second
    assert seen == [(first, 0), (first, 1), (first, 1), (second, 0), (second, 1)]


def test_a_block_that_is_refused_twice_as_out_of_order_is_an_error() -> None:
    def answer(request: bytes) -> bytes:
        return TOPIC if request.startswith(b"GET") else refused(OutOfOrderSequence("Never."))

    with pretending(answer) as url, tms.connect(url) as bus, pytest.raises(OutOfOrderSequence):
        bus.publish("t", b"")


def test_after_a_failed_publish_its_number_is_not_used_for_another_message() -> None:
    seen: list[tuple[int, int]] = []

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET"):
            return TOPIC
        seen.append(numbers(request))
        return APPENDED if len(seen) > 1 else refused(TMSError("Broken."))

    with pretending(answer) as url, tms.connect(url) as bus:
        with pytest.raises(TMSError, match="Broken"):
            bus.publish("t", b"a")
        bus.publish("t", b"b")
    assert seen[0][0] != seen[1][0]


# --- in time -------------------------------------------------------------------------------------


def every_call(bus: tms.Bus) -> list[Callable[[], Any]]:
    return [
        lambda: bus.create_topic("t"),
        lambda: bus.describe_topic("t"),
        lambda: list(bus.list_topics()),
        lambda: bus.update_topic("t", partitions=2),
        lambda: bus.truncate_topic("t"),
        lambda: bus.delete_topic("t"),
        lambda: bus.inspect("t"),
        lambda: bus.publish("t", b""),
        lambda: bus.publish_many("t", [b""]),
        lambda: bus.producer("t"),
        lambda: bus.consumer("t"),
        lambda: bus.fetch("t"),
        lambda: list(bus.consumer("t", start={0: "earliest"}, stop_at_end=True)),
    ]


@pytest.mark.parametrize("number", range(13))
def test_a_service_that_never_answers_is_an_error_in_time(number: int) -> None:
    mute = pretending(lambda request: None)
    with mute as url, tms.connect(url, timeout_s=0.3, outage_s=0) as bus:
        began = time.monotonic()
        with pytest.raises(TimedOut):
            every_call(bus)[number]()
        assert time.monotonic() - began < 3  # on a loaded machine


def test_a_producer_s_flush_ends_in_time_when_the_service_falls_silent() -> None:
    def answer(request: bytes) -> bytes | None:
        return TOPIC if request.startswith(b"GET") else None

    with pretending(answer) as url, tms.connect(url, timeout_s=0.5) as bus:
        producer = bus.producer("t")
        producer.send(b"x")
        with pytest.raises(TimedOut) as late:
            producer.flush()
        assert late.value.details["unacknowledged"] == 1
        with pytest.raises(TimedOut):
            producer.close()
        with pytest.raises(Closed):
            producer.send(b"y")


def test_nothing_listening_is_an_error_that_says_so() -> None:
    with socket.socket() as bound:  # and does not listen, so that no other process can
        bound.bind(("127.0.0.1", 0))
        with (
            tms.connect(f"http://127.0.0.1:{bound.getsockname()[1]}", timeout_s=0.2) as bus,
            pytest.raises(Unavailable, match=r"Nothing listens .*tms serve"),
        ):
            bus.describe_topic("t")


def test_an_idle_connection_that_the_service_ended_is_not_used_again(
    bus: tms.Bus, proxy: Proxy, topic: str
) -> None:
    bus.publish(topic, b"a")
    before = proxy.requests
    proxy.end_connections()
    bus.publish(topic, b"b")
    assert proxy.requests == before + 1


# --- not a TMS service ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"-ERR unknown command\r\n", "Redis"),
        (b'INFO {"server_id":"x"}\r\n', "NATS"),
        (b"AMQP\x00\x00\x09\x01", "RabbitMQ"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "https://"),
        (b"\x00\x00\x00\x0agarbage", "not HTTP/1.1"),
        (b"", "closed the connection"),
        (answered(404, b"<h1>Not found</h1>", "text/html"), "another HTTP server"),
        (answered(200, b"<h1>Hello</h1>", "text/html"), "JSON"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
            "not HTTP/1.1: Invalid character in Content-Length",
        ),
    ],
)
def test_something_else_at_the_port_is_recognised(answer: bytes, cause: str) -> None:
    with pretending(lambda request: answer) as url, tms.connect(url, timeout_s=0.3) as bus:

        def recognised() -> bool:  # some have no time left for the last attempt
            with pytest.raises(TMSError) as caught:
                bus.describe_topic("t")
            return cause in caught.value.message

        until(recognised)


def test_https_to_a_plain_port_is_recognised(url: str) -> None:
    with (
        tms.connect(url.replace("http:", "https:"), timeout_s=0.3) as bus,
        pytest.raises(ConfigError, match="http://"),
    ):
        bus.describe_topic("t")


@pytest.mark.parametrize(
    "url", ["ftp://x:1", "http://", "http://x:port", "http://x/path", "http://u:p@x:1", ""]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        tms.connect(url)


def test_a_gateway_in_front_of_a_stopped_service_is_retriable() -> None:
    answers = [answered(503, b"<h1>no backend</h1>", "text/html"), TOPIC]
    with pretending(lambda request: answers.pop(0)) as url, tms.connect(url) as bus:
        assert bus.describe_topic("t").topic == "t"


# --- bounded -------------------------------------------------------------------------------------


def test_a_producer_waits_instead_of_collecting_without_bound() -> None:
    release = threading.Event()
    posts: list[bytes] = []

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"GET"):
            return TOPIC
        posts.append(request)
        release.wait(PATIENCE_S)
        return APPENDED * request.count(b"POST")

    with pretending(answer) as url, tms.connect(url) as bus:
        producer = bus.producer("t", batch_bytes=10_000, in_flight_max=2)
        sent = 0

        def send() -> None:
            nonlocal sent
            for _ in range(100):
                producer.send(b"x" * 1_000)
                sent += 1

        thread = threading.Thread(target=send)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive() and sent < 40
        release.set()
        thread.join(PATIENCE_S)
        producer.close()
    assert sent == 100


def test_closing_the_bus_ends_a_consumer_that_waits(url: str, topic: str) -> None:
    bus = tms.connect(url)
    consumer = bus.consumer(topic, wait_s=30)
    ended: list[object] = []
    thread = threading.Thread(target=lambda: ended.append(list(consumer)))
    thread.start()
    bus.close()
    thread.join(PATIENCE_S)
    assert ended == [[]]
    with pytest.raises(Closed):
        bus.fetch(topic, Position.earliest())
