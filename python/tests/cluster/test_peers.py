"""The peers of an instance, after one of them has gone."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.cluster_kit import Instances, MemoryMember, instances
from tests.http_kit import Answer, Client
from tests.waiting import PATIENCE_S, until
from tms.client.http.peer import HttpPeer
from tms.cluster.membership import InstanceRecord
from tms.errors import TMSError, Unavailable
from tms.model.message import PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicName, TopicSettings

NAME = TopicName.parse("orders")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A machine that accepts connections and answers nothing, like one whose process is stopped.
    Its requests take longer than a test waits."""
    monkeypatch.setattr("tms.client.http.peer.TIMEOUT_S", 10 * PATIENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def _peer(listener: socket.socket) -> HttpPeer:
    return HttpPeer("b", f"http://127.0.0.1:{listener.getsockname()[1]}")


def _asking(question: Callable[[], object]) -> tuple[threading.Thread, list[TMSError]]:
    errors: list[TMSError] = []

    def ask() -> None:
        try:
            question()
        except TMSError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, errors


def test_a_question_under_way_ends_when_the_peer_is_given_up(silent: socket.socket) -> None:
    peer = _peer(silent)
    asking, errors = _asking(lambda: peer.fates([1]))
    connection, _ = silent.accept()
    with connection:
        connection.recv(1)
        peer.give_up()
        asking.join(PATIENCE_S)
    assert [type(error) for error in errors] == [Unavailable]


@pytest.mark.parametrize("end", [HttpPeer.give_up, HttpPeer.ask_once])
def test_a_question_that_is_repeated_is_not_repeated_any_more(
    silent: socket.socket, end: Callable[[HttpPeer], None]
) -> None:
    peer = _peer(silent)
    silent.close()
    asking, errors = _asking(lambda: peer.fates([1]))
    asking.join(0.5)
    assert asking.is_alive()
    end(peer)
    asking.join(PATIENCE_S)
    assert [type(error) for error in errors] == [Unavailable]


def test_what_is_asked_of_a_peer_that_was_given_up_may_be_tried_again_elsewhere(
    silent: socket.socket,
) -> None:
    peer = _peer(silent)
    peer.give_up()
    with pytest.raises(Unavailable, match="b is not among the others"):
        peer.fates([1])


def test_who_waits_for_news_of_a_peer_that_is_given_up_looks_again(silent: socket.socket) -> None:
    peer, told = _peer(silent), threading.Event()
    at = [PartitionPosition(0, Position.earliest())]
    peer.watch(NAME, at, told.set)
    connection, _ = silent.accept()
    with connection:
        connection.recv(1)
        peer.give_up()
        assert told.wait(PATIENCE_S)


def test_a_stopping_instance_repeats_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers of a service stop together: a request from one worker to another, for a client
    whose answer it still owes, would be repeated for as long as no process listens there."""
    once: list[str] = []
    monkeypatch.setattr(HttpPeer, "ask_once", lambda peer: once.append(peer.name))
    with instances("a", "b") as all:
        all.coordinator()
        a = all.cluster["a"]
        assert [peer.name for peer in a.others()] == ["b"]
        a.drain()
        assert once == [], "it goes on, and others take over meanwhile"
        a.drain(ends=True)
        assert once == ["b"]
        all.start("c")
        until(lambda: len(a.others()) == 2)
        assert once == ["b", "c"]
        once.clear()
        all.stop("b")
        assert once, "it stops"


def test_nobody_waits_for_an_instance_that_is_not_in_the_view() -> None:
    with instances("a", "b") as cluster:
        engine = cluster.served["a"].service.engine
        cluster.coordinator()
        engine.create_topic(NAME, TopicSettings(partitions=4))
        engine.describe_topic(NAME)
        (peer,) = cluster.cluster["a"].others()
        cluster.member["b"].expire(blind=True)
        with pytest.raises(Unavailable, match="not among the others"):
            peer.events()
        assert cluster.cluster["a"].others() == []
        with suppress(TMSError):
            engine.describe_topic(NAME)


class Stopped:
    """An instance `a`, and `z`, whose process is stopped; a publish of a message of `z` at `a`."""

    def __init__(self, all: Instances, listener: socket.socket) -> None:
        self._listener = listener
        served = all.served["a"]
        served.service.engine.create_topic(NAME, TopicSettings(partitions=8))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.member = MemoryMember(all.members, InstanceRecord("z", url, "0"))
        self.member.join(lambda: None)
        until(lambda: len(all.cluster["a"].view.instances) == 2)
        partition = all.owners(str(NAME)).index("z")
        self.answers: list[Answer] = []

        def publish() -> None:
            with Client(served.address) as client:
                path = f"/v2/namespaces/default/topics/{NAME}/messages"
                body = b'{"messages": [{"value": "v", "partition": %d}]}' % partition
                self.answers.append(client.request("POST", path, body))

        self.publishing = threading.Thread(target=publish, daemon=True)
        self.publishing.start()

    def received(self) -> socket.socket:
        """The connection on which the publish has arrived at `z`; others ask there, too."""
        while True:
            connection, _ = self._listener.accept()
            if b"/messages" in connection.recv(1 << 10):
                return connection
            connection.close()


@pytest.fixture
def stopped(silent: socket.socket) -> Iterator[tuple[Instances, Stopped]]:
    with instances("a") as all:
        yield all, Stopped(all, silent)


def test_a_forwarded_publish_does_not_wait_for_an_instance_that_has_left(
    stopped: tuple[Instances, Stopped],
) -> None:
    _, z = stopped
    with z.received():
        z.member.leave()
        z.publishing.join(PATIENCE_S)
    [answer] = z.answers
    assert answer.problem == "unavailable" and "has left the cluster" in answer.json["detail"]
    assert answer.json["details"]["outcome"] == "unknown"


def test_a_forwarded_publish_is_answered_while_the_service_drains(
    stopped: tuple[Instances, Stopped],
) -> None:
    all, z = stopped
    service = all.served["a"].service
    with z.received() as connection:
        stopping = threading.Thread(target=all.stop, args=("a",))
        stopping.start()
        until(lambda: service.draining)
        z.publishing.join(0.5)
        assert z.publishing.is_alive()
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        z.publishing.join(PATIENCE_S)
    [answer] = z.answers
    assert (answer.status, answer.body) == (200, b"{}")
    z.member.leave()
    stopping.join(PATIENCE_S)
