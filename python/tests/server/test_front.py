"""A front end is added by its section of the settings: server and engine do not know it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_kit import Served, serving
from tests.server.echo_front import EchoSection, EchoSettings
from tests.tls_kit import Authority
from tms.api import routes
from tms.runtime.tls import ServerTls
from tms.serve.config import ServerSection
from tms.serve.listeners import bind
from tms.serve.running import open_fronts
from tms.server.certificates import Certificates
from tms.server.front import Front
from tms.server.service import Service


@contextlib.contextmanager
def echoing(data: Path, tls: ServerTls | None = None) -> Iterator[tuple[Served, tuple[str, int]]]:
    """A service with the usual front ends and the echo, and the address of the echo."""
    server, echo = ServerSection(port=0), EchoSection(port=0)
    settings = EchoSettings(data=data, server=server, echo=echo)
    certificates = None if tls is None else Certificates(tls)
    with contextlib.closing(bind(settings)) as listeners:
        address = listeners.fronts["echo"].getsockname()[:2]
        with serving(
            listener=listeners.http[0],
            tls=tls,
            open_fronts=lambda service: open_fronts(settings, service, listeners, 2, certificates),
        ) as served:
            yield served, address


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def read(connection: socket.socket, count: int) -> bytes:
    """So many bytes; fewer if the connection ends before."""
    got = b""
    while len(got) < count and (more := connection.recv(count - len(got))):
        got += more
    return got


def test_frames_on_a_port_of_its_own_are_answered_in_order(tmp_path: Path) -> None:
    with echoing(tmp_path) as (_, address), socket.create_connection(address, 10) as client:
        sent = b"".join(frame(b"x" * size) for size in (1, 1_000, 7))
        client.sendall(sent)
        assert read(client, len(sent)) == sent


def test_its_bounds_hold_and_others_go_on(tmp_path: Path) -> None:
    with echoing(tmp_path) as (_, address), socket.create_connection(address, 10) as stays:
        stays.sendall(frame(b"a"))
        assert read(stays, 5) == frame(b"a")
        with socket.create_connection(address, 10) as large:
            large.sendall(frame(bytes(1_001)))
            with contextlib.suppress(ConnectionError):
                assert not read(large, 1)
        stays.sendall(frame(b"b"))
        assert read(stays, 5) == frame(b"b")


def test_its_paths_are_answered_counted_and_refused_by_it(tmp_path: Path) -> None:
    with echoing(tmp_path) as (served, _), served.connect() as client:
        assert client.request("GET", "/echo/hello").body == b"hello"
        refused = client.request("GET", "/echo/")
        assert (refused.status, refused.body) == (routes.BAD_REQUEST, b"echo: nothing to say")
        metrics = client.request("GET", "/metrics").body
        assert b'operation="echo"' in metrics
        assert client.request("GET", "/ping").status == routes.OK, "CDAP's"
        assert client.request("GET", "/elsewhere").problem == "not-found"


def test_a_drain_answers_what_was_received_and_ends_its_connections(tmp_path: Path) -> None:
    with echoing(tmp_path) as (served, address), socket.create_connection(address, 10) as client:
        client.sendall(frame(b"a"))
        assert read(client, 5) == frame(b"a")
        served.stop()
        assert read(client, 1) == b""
        with pytest.raises(OSError):
            socket.create_connection(address, 10)


def test_it_speaks_tls_as_the_service_does(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(*authority.sign().pair)
    context = ssl.create_default_context(cafile=str(authority.ca))
    with echoing(tmp_path / "data", tls) as (_, address):
        with (
            socket.create_connection(address, 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            sent = frame(b"x" * 1_000) * 50
            client.sendall(sent)
            assert read(client, len(sent)) == sent
        with socket.create_connection(address, 10) as stranger:
            stranger.sendall(frame(b"a"))
            with contextlib.suppress(ConnectionError):
                assert not read(stranger, 1), "it does not speak TLS"


class WaitingListener:
    """A listener whose drain ends once every listener of the service was stopped."""

    port = 0

    def __init__(self, all: list["WaitingListener"]) -> None:
        self.all = all
        self.ends = asyncio.Event()
        all.append(self)

    async def start(self) -> None:
        pass

    async def drain(self, timeout_s: float) -> None:
        for one in self.all:
            await one.ends.wait()

    def stop(self) -> None:
        self.ends.set()


def test_all_front_ends_are_stopped_before_the_end_of_any_is_awaited() -> None:
    def opened(_: Service) -> list[Front]:
        all: list[WaitingListener] = []
        return [Front(name, listener=WaitingListener(all)) for name in ("one", "two")]

    with serving(drain_s=0.05, open_fronts=opened) as served, served.connect() as client:
        assert client.request("GET", "/ping").status
    assert not served.thread.is_alive()
