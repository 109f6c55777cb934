"""The registration in ZooKeeper, against a stand-in; and the service without it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.test_server_main import refusal, running
from tests.waiting import PATIENCE_S
from tms.cluster import sessions
from tms.cluster.sessions import Sessions
from tms.compat.tephra.discovery import Registration
from tms.compat.tephra.front import reachable


class Ensemble:
    """ZooKeeper in memory: nodes, each with the session with which it ends."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.nodes: dict[str, tuple[bytes, Session]] = {}
        self.sessions: list[Session] = []
        self.down = False
        self.attempts = 0

    def connect(self) -> "Session":
        return Session(self)

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S)

    def expire(self, session: "Session") -> None:
        """End the session: its nodes go, and its client hears of it."""
        with self.changed:
            self.nodes = {path: one for path, one in self.nodes.items() if one[1] is not session}
            self.changed.notify_all()
        for listener in session.listeners:
            listener("LOST")


class Session:
    """The few used calls of kazoo."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.listeners: list[Callable[[str], None]] = []
        self.stopped = self.closed = False

    def add_listener(self, listener: Callable[[str], None], /) -> None:
        self.listeners.append(listener)

    def start(self, timeout: float) -> None:
        with self.ensemble.changed:
            self.ensemble.attempts += 1
            self.ensemble.sessions.append(self)
            self.ensemble.changed.notify_all()
            if self.ensemble.down:
                raise TimeoutError("Connection time-out")
        for listener in self.listeners:
            listener("CONNECTED")

    def create(self, path: str, value: bytes, *, ephemeral: bool, makepath: bool) -> object:
        assert ephemeral and makepath
        with self.ensemble.changed:
            self.ensemble.nodes[path] = (value, self)
            self.ensemble.changed.notify_all()
        return path

    def stop(self) -> None:
        self.stopped = True
        self.ensemble.expire(self)

    def close(self) -> None:
        assert self.stopped
        self.closed = True


@contextmanager
def registered(ensemble: Ensemble) -> Iterator[Sessions]:
    found = Sessions(ensemble.connect, Registration("transaction", "here", 15_165))
    found.start()
    try:
        yield found
    finally:
        found.stop()
        found._thread.join(PATIENCE_S)
        assert not found._thread.is_alive()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PAUSE_S", 0.001)
    monkeypatch.setattr(sessions, "PAUSE_S_MAX", 0.004)


def test_the_node_is_as_tephras_clients_expect_it_and_goes_with_the_service() -> None:
    ensemble = Ensemble()
    with registered(ensemble):
        ensemble.until(lambda: bool(ensemble.nodes))
        ((path, (value, _)),) = ensemble.nodes.items()
        assert re.fullmatch("/discoverable/transaction/[0-9a-f]{32}", path)
        expected = b'{"service":"transaction","hostname":"here","port":15165,"payload":[]}'
        assert value == expected
    assert ensemble.nodes == {}
    assert all(session.closed for session in ensemble.sessions)


def test_a_new_session_gets_a_new_node(caplog: pytest.LogCaptureFixture) -> None:
    ensemble = Ensemble()
    with registered(ensemble):
        paths = set()
        for count in (1, 2, 3):
            ensemble.until(lambda: len(ensemble.nodes) == 1)
            paths |= ensemble.nodes.keys()
            assert len(ensemble.sessions) == len(paths) == count
            ensemble.expire(ensemble.sessions[-1])
        ensemble.until(lambda: len(ensemble.nodes) == 1)
    assert ensemble.nodes == {}
    assert caplog.text.count("zookeeper_session_lost") == 3


def test_a_session_that_is_only_interrupted_keeps_its_node() -> None:
    ensemble = Ensemble()
    with registered(ensemble):
        ensemble.until(lambda: bool(ensemble.nodes))
        before = dict(ensemble.nodes)
        for state in ("SUSPENDED", "CONNECTED"):
            for listener in ensemble.sessions[0].listeners:
                listener(state)
        assert ensemble.nodes == before and len(ensemble.sessions) == 1


def test_a_session_that_stays_interrupted_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ABANDON_S", 0.01)
    ensemble = Ensemble()
    with registered(ensemble):
        ensemble.until(lambda: bool(ensemble.nodes))
        (first,) = ensemble.nodes
        for listener in ensemble.sessions[0].listeners:
            listener("SUSPENDED")
        ensemble.until(lambda: bool(ensemble.nodes) and first not in ensemble.nodes)
        assert len(ensemble.nodes) == 1 and ensemble.sessions[0].closed


def test_an_outage_is_borne_logged_once_and_over_when_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ensemble = Ensemble()
    ensemble.down = True
    with registered(ensemble) as registration:
        ensemble.until(lambda: ensemble.attempts > 5)
        assert caplog.text.count("zookeeper_unreachable") == 1
        assert registration._pause_s == sessions.PAUSE_S_MAX
        ensemble.down = False
        ensemble.until(lambda: bool(ensemble.nodes))
    assert all(session.closed for session in ensemble.sessions)


def test_what_zookeeper_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, create, refused = Ensemble(), Session.create, []

    def refuse(session: Session, path: str, value: bytes, **how: bool) -> object:
        if len(refused) < 3:
            refused.append(path)
            raise PermissionError("no")
        return create(session, path, value, **how)

    monkeypatch.setattr(Session, "create", refuse)
    with registered(ensemble):
        ensemble.until(lambda: bool(ensemble.nodes))
    assert ensemble.nodes == {}


def test_a_stop_in_the_middle_of_a_connection_leaves_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble, connecting, go = Ensemble(), threading.Event(), threading.Event()
    start = Session.start

    def slow(session: Session, timeout: float) -> None:
        connecting.set()
        go.wait(PATIENCE_S)
        start(session, timeout)

    monkeypatch.setattr(Session, "start", slow)
    found = Sessions(ensemble.connect, Registration("transaction", "here", 1))
    found.start()
    connecting.wait(PATIENCE_S)
    found.stop()
    assert found._thread.is_alive()
    go.set()
    found._thread.join(PATIENCE_S)
    assert ensemble.nodes == {} and ensemble.sessions[0].closed


def test_the_name_under_which_others_reach_the_service() -> None:
    assert reachable("10.0.0.7") == "10.0.0.7"
    assert reachable("localhost") == "localhost"
    assert reachable("0.0.0.0") == reachable("::") != "0.0.0.0"


# The service


def test_it_starts_and_stops_while_zookeeper_is_away(tmp_path: Path) -> None:
    flags = ("tephra.port=0", "tephra.zookeeper=127.0.0.1:1")
    with running(tmp_path / "data", *flags) as (process, _):
        (event,) = [json.loads(line) for line in process.lines if b'"ready"' in line]
        assert event["tephra_port"] > 0
        assert process.end() == 0
    assert not [line for line in process.lines if b"Traceback" in line]


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("tephra.zookeeper=a:1", "give --tephra-port too"),
        ("tephra.zookeeper=a b", "tephra.zookeeper"),
        ("tephra.port=-1", "flag --tephra-port"),
    ],
)
def test_faults_of_its_configuration_are_told(tmp_path: Path, flag: str, text: str) -> None:
    said = refusal(f"data={tmp_path / 'data'}", "server.port=0", flag)
    assert said.startswith("config ") and text in said


def test_a_port_in_use_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with running(tmp_path / "data", "tephra.port=0") as (process, _):
        (event,) = [json.loads(line) for line in process.lines if b'"ready"' in line]
        taken = event["tephra_port"]
        said = refusal(f"data={tmp_path / 'other'}", "server.port=0", f"tephra.port={taken}")
    assert said.startswith("config ") and "--tephra-port" in said
    assert not (tmp_path / "other").exists()
