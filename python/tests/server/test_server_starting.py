"""The answers of a service before it has opened its store, and the three health checks
afterwards."""

import contextlib
import socket
import threading

import pytest

from integration.cluster.site import free_ports
from tests.http_kit import Client, serving
from tests.server.test_server_main import Process
from tests.waiting import until
from tms.api import routes
from tms.runtime.clock import SystemClock
from tms.server import starting
from tms.server.http.watchdog import ConnectionLimits
from tms.store.memory import MemoryStore

TOPICS = "/v2/namespaces/default/topics"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "PATIENCE_S", 0.0)


def test_before_the_store_is_open_a_service_is_alive_and_not_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        with starting.answering([listener], ConnectionLimits(), SystemClock(), lambda: None):
            answers = {}
            for path in ("/livez", "/startupz", "/readyz", TOPICS):
                with Client(address) as client:
                    answers[path] = client.request("GET", path)
                    assert client.is_closed()
            assert answers["/livez"].json == {"alive": True}
            assert answers["/startupz"].status == routes.NOT_READY
            assert answers["/startupz"].json == {"started": False, "reasons": [starting.STARTING]}
            assert answers["/readyz"].status == routes.NOT_READY
            assert answers["/readyz"].json["reasons"] == [starting.STARTING]
            assert answers[TOPICS].problem == "unavailable"
            assert "retry-after" in answers[TOPICS].headers
            with Client(address) as client:
                body = b'{"partitions": 1}'
                assert client.request("PUT", f"{TOPICS}/a", body).problem == "unavailable"
        with serving(MemoryStore(), listener=listener.dup()) as served, served.connect() as client:
            assert served.address == address  # no other process takes connections there
            for _ in range(20):
                with Client(address) as other:
                    assert other.request("GET", "/startupz").json["started"] is True


def test_a_start_that_is_short_or_fails_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for patience_s in (60.0, 0.0, 0.0, 0.0):
            monkeypatch.setattr(starting, "PATIENCE_S", patience_s)
            before = threading.active_count()
            with (
                pytest.raises(ZeroDivisionError),
                starting.answering([listener], ConnectionLimits(), SystemClock(), lambda: None),
            ):
                raise ZeroDivisionError
            assert threading.active_count() == before
        assert listener.fileno() >= 0


def reached(address: tuple[str, int]) -> Client:
    """A connection to a process that is about to listen."""
    found: list[Client] = []

    def listens() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            found.append(Client(address))
        return bool(found)

    until(listens)
    return found[0]


def test_a_service_whose_store_is_away_is_alive() -> None:
    address = "127.0.0.1", free_ports(1)[0]
    flags = "store=hbase://127.0.0.1:1", f"server.port={address[1]}"
    with Process(*flags) as process:
        with reached(address) as client:  # waits as long as the service allows
            assert client.request("GET", "/livez").json == {"alive": True}
        with Client(address) as client:
            assert client.request("GET", "/startupz").status == routes.NOT_READY
        assert process.end() != 0


def test_a_service_that_serves_is_alive_and_started_whatever_its_store_does() -> None:
    with serving(MemoryStore()) as served:
        engine = served.service.engine
        engine._store.healthy = lambda: "the disk is full"  # type: ignore[method-assign]

        def ask(path: str) -> tuple[int, object]:
            with served.connect() as client:
                answer = client.request("GET", path)
            body = answer.json
            body.pop("warnings", None)
            return answer.status, body

        assert ask("/readyz") == (503, {"ready": False, "reasons": ["the disk is full"]})
        assert ask("/livez") == (200, {"alive": True})
        assert ask("/startupz") == (200, {"started": True, "reasons": []})
        served.service.draining = True
        assert ask("/livez")[0] == ask("/startupz")[0] == 200
