"""A service in this process whose limits a test chooses, and a client that sends any bytes."""

import asyncio
import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import uvloop

from tests.waiting import PATIENCE_S
from tms.api import routes
from tms.cluster.cluster import Cluster
from tms.cluster.ownership import Ownership
from tms.compat.cdap.app import CDAP, Cdap, CdapLimits
from tms.compat.kafka.settings import KafkaSection
from tms.compat.tephra.frames import FrameLimits
from tms.compat.tephra.front import TephraServer
from tms.compat.tephra.settings import ANSWER, TEPHRA, TephraSection
from tms.console.settings import ConsoleSection
from tms.engine.config import EngineConfig
from tms.engine.engine import Engine
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.tls import ServerTls
from tms.server.certificates import Certificates
from tms.server.front import Front, FrontTerms
from tms.server.http.watchdog import ConnectionLimits
from tms.server.service import NetworkOptions, RequestLimits, Service
from tms.server.serving import Server
from tms.store.base import Store
from tms.store.memory import MemoryStore

PROBLEM = "urn:tms:problem:"


@dataclass
class Answer:
    """A received response."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)  # by header, the number of occurrences

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The code of the problem; checks the members of every problem."""
        assert self.headers["content-type"] == routes.PROBLEM, self
        assert len(self.body) <= routes.PROBLEM_BYTES_MAX
        assert b"Traceback" not in self.body
        assert b"/python" not in self.body, "a path of the server"
        said = self.json
        assert said["status"] == self.status
        assert said["request_id"] == self.headers["tms-request-id"]
        assert said["type"].startswith(PROBLEM)
        return str(said["type"].removeprefix(PROBLEM))


class Client:
    """One connection."""

    def __init__(self, address: tuple[str, int], timeout_s: float = PATIENCE_S) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        /,
        *,
        media: str | None = routes.JSON,
        **headers: str,
    ) -> Answer:
        """Send a request and read its answer; underscores in names of headers become dashes."""
        self.send(request(method, target, body, media=media, **headers))
        return self.answer(method)

    def answer(self, method: str = "GET") -> Answer:
        """The next response."""
        head = self._until(b"\r\n\r\n")
        start, *lines = head.decode("latin-1").split("\r\n")
        pairs = [line.partition(":")[::2] for line in lines]
        headers = {name.lower(): value.strip() for name, value in pairs}
        names = Counter(name.lower() for name, _ in pairs)
        status = int(start.split()[1])
        if status == 100:
            return self.answer(method)
        if headers.get("transfer-encoding") == "chunked":
            chunks = list(self._chunks())
            return Answer(status, headers, b"".join(chunks), chunks, names)
        length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        while len(self._left) < length:
            self._more()
        body, self._left = self._left[:length], self._left[length:]
        return Answer(status, headers, body, lines=names)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._until(b"\r\n"), 16):
            while len(self._left) < size + 2:
                self._more()
            chunk, end, self._left = (
                self._left[:size],
                self._left[size : size + 2],
                self._left[size + 2 :],
            )
            assert end == b"\r\n"
            yield chunk
        assert self._until(b"\r\n") == b""

    def _until(self, end: bytes) -> bytes:
        while end not in self._left:
            self._more()
        head, _, self._left = self._left.partition(end)
        return head

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the connection ended; unread: {self._left[:200]!r}")
        self._left += data

    def is_closed(self) -> bool:
        """True if the service closes the connection; waits for the socket's time-out."""
        try:
            return self._left == b"" and self.socket.recv(1) == b""
        except ConnectionError:
            return True


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    /,
    *,
    media: str | None = routes.JSON,
    **headers: str,
) -> bytes:
    """A request's bytes."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {headers.pop('Host', 'test')}"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        if media is not None:
            lines.append(f"Content-Type: {media}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")


@dataclass
class Served:
    """A running service."""

    service: Service
    server: Server
    address: tuple[str, int]
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    tephra_address: tuple[str, int] | None = None
    clients: list[Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL of the service, without TLS."""
        return "http://{}:{}".format(*self.address)

    def connect(self, timeout_s: float = PATIENCE_S) -> Client:
        """A new connection, closed with the service at the latest."""
        client = Client(self.address, timeout_s)
        self.clients.append(client)
        return client

    def create(self, topic: str, **settings: object) -> str:
        """Create a topic; returns its path."""
        path = f"/v2/namespaces/default/topics/{topic}"
        with Client(self.address) as client:
            answer = client.request("PUT", path, json.dumps(settings).encode())
        assert answer.status == routes.CREATED, answer
        return path

    def in_loop(self, do: Callable[[], object]) -> None:
        """Run work in the thread of the service."""
        done = threading.Lock()
        done.acquire()
        self.loop.call_soon_threadsafe(lambda: (do(), done.release()))
        assert done.acquire(timeout=PATIENCE_S)

    def stop(self) -> None:
        """Stop as on SIGTERM."""
        self.server.ask_to_stop()


def fronts_of(
    service: Service,
    cdap: CdapLimits | None = None,
    tephra: FrameLimits | None = None,
    listener: socket.socket | None = None,
) -> list[Front]:
    """The front ends of `tms serve`; Kafka's without a listener, Tephra's only with limits and a
    listener."""
    terms = FrontTerms(None, "127.0.0.1", is_guarded=False, clients_max=1)
    usual = [
        Front(CDAP, paths=Cdap(service, cdap or CdapLimits())),
        KafkaSection().open(service, terms),
        ConsoleSection().open(service, terms),
    ]
    if tephra is None or listener is None:
        return [*usual, TephraSection().open(service, terms)]
    thrift = TephraServer(service, listener, tephra)
    return [*usual, Front(TEPHRA, listener=thrift, works={ANSWER: thrift.answer_here})]


@contextlib.contextmanager
def serving(
    store: Store | None = None,
    limits: RequestLimits | None = None,
    connection_limits: ConnectionLimits | None = None,
    drain_s: float = 5.0,
    cdap: CdapLimits | None = None,
    tephra: FrameLimits | None = None,
    clock: Clock | None = None,
    config: EngineConfig | None = None,
    owner: Ownership | Cluster | None = None,
    listener: socket.socket | None = None,
    tls: ServerTls | None = None,
    network: NetworkOptions | None = None,
    open_fronts: Callable[[Service], list[Front]] | None = None,
) -> Iterator[Served]:
    """A service on a free port, with an engine of its own, unless given on a store that others
    could write to; with `tephra` for Tephra's clients too. `clock` and `config` are the
    engine's; with `tls` it speaks that only, and asks `peers` by TLS. `open_fronts` replaces the
    usual front ends."""
    engine = Engine(store or MemoryStore(shared=True), clock or SystemClock(), config, owner=owner)
    listener = listener or socket.create_server(("127.0.0.1", 0), backlog=2_048)
    other = None if tephra is None else socket.create_server(("127.0.0.1", 0), backlog=2_048)
    started: Future[tuple[Service, Server, asyncio.AbstractEventLoop]] = Future()

    async def run() -> None:
        service = Service(
            engine,
            SystemClock(),
            limits or RequestLimits(),
            connection_limits or ConnectionLimits(),
            network,
        )
        certificates = None if tls is None else Certificates(tls)
        fronts = (open_fronts or partial(fronts_of, cdap=cdap, tephra=tephra, listener=other))(
            service
        )
        server = Server(service, drain_s, fronts, certificates)
        started.set_result((service, server, asyncio.get_running_loop()))
        beside = [] if certificates is None else [asyncio.create_task(certificates.watch())]
        if service.issuer is not None:
            beside.append(asyncio.create_task(service.issuer.keep_fresh()))
        await server.serve(listener)
        for task in beside:
            task.cancel()

    thread = threading.Thread(target=lambda: uvloop.run(run()), name="service")
    thread.start()
    service, server, loop = started.result(PATIENCE_S)
    served = Served(service, server, listener.getsockname()[:2], thread, loop)
    if other is not None:
        served.tephra_address = other.getsockname()[:2]
    try:
        yield served
    finally:
        served.stop()
        for client in served.clients:
            client.socket.close()
        thread.join(PATIENCE_S)
        engine.close()
        listener.close()
        if other is not None:
            other.close()
        assert not thread.is_alive(), "the service did not stop"
