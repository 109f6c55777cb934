"""A request leaves nothing to the next one: a sequence of requests on one connection is read as if
each had a connection of its own, by a service that remembers no heads.

The connection is the service's, above a transport in memory; the application notes each exchange
and its answer. Requests are drawn: lengths, chunks, trailers, heads that repeat, bodies that look
like requests, bodies that are not read or that end too early, `Expect`, requests that are not HTTP
or could be read in two ways. The places where the bytes are cut are drawn, too.
"""

import asyncio
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.http_kit import serving
from tests.run_seed import drawn, run_seed
from tms.errors import TMSError
from tms.runtime.clock import SystemClock
from tms.server.http.exchange import Disconnected, Exchange
from tms.server.http.heads import KnownHeads
from tms.server.http.protocol import ClientConnection
from tms.server.http.watchdog import ConnectionLimits, Watchdog
from tms.store.memory import MemoryStore

LONG, PART = 20_000, 1_000  # sequences in `make test-long`, and in a test
TURNS = 40  # of the event loop, more than answers take
MESSAGES = "/v2/namespaces/default/topics/t/messages"
BODIES = (b"", b"x", b'{"messages":[{"value":"YQ=="}]}', b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n")
NAMES = (b"Idempotency-Key", b"Authorization", b"Content-Type", b"Content-Length", b"Host", b"X-A")
VALUES = (b"evil", b"Bearer evil", b"text/plain", b"3", b"chunked", b"")
EARLY = b"/early"  # it is answered before its body is read
BAD = (
    b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"Content-Length: -1\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\nGET / HTTP/1.1\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"Host: other\r\n\r\n",
    b"X-A : blank\r\n\r\n",
    b"X-A: a\0b\r\n\r\n",
    b"no header\r\n\r\n",
)
EXTRA = (b"", b"X-A: own\r\n", b"Authorization: Bearer own\r\n", b"Idempotency-Key: own\r\n")


class Seen(NamedTuple):
    """A request as the application saw it."""

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keeps: bool


class FakeTransport(asyncio.Transport):
    """A transport that drops all bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None:
        """Do nothing: no more answers follow."""

    def pause_reading(self) -> None:
        """Do nothing: all bytes are fed in one go."""

    def resume_reading(self) -> None:
        """Do nothing: all bytes are fed in one go."""

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there are no limits."""


class Reader:
    """A service that notes each request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.watchdog = Watchdog(ConnectionLimits(), SystemClock())

    async def read(self, pieces: list[bytes]) -> tuple[list[Seen], bytes]:
        """The requests that a new connection sees in these pieces, and the status lines of its
        answers."""
        seen: list[Seen] = []

        async def note(exchange: Exchange) -> None:
            headers = tuple(sorted(exchange.headers.items()))
            body = b""
            said = exchange.method, exchange.path, exchange.query, headers
            if exchange.path == EARLY:
                seen.append(Seen(*said, body, exchange.keep_alive))
                exchange.respond(413, b"")
                return
            try:
                async for piece in exchange.pieces():
                    body += piece
            except (Disconnected, TMSError) as error:
                if isinstance(error, TMSError):  # the connection ends with this error
                    exchange.respond(400, b"")
                return
            seen.append(Seen(*said, body, exchange.keep_alive))
            exchange.respond(200, b"", b"ok\r\n")

        connection = ClientConnection(note, self.watchdog, self._loop, self._tasks)
        transport = FakeTransport()
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        transport.closed = True
        connection.connection_lost(None)
        await asyncio.sleep(0)
        lines = [line for line in transport.written.split(b"\r\n") if line[:5] == b"HTTP/"]
        lines = [line for line in lines if b" 100 " not in line]  # their number depends on the cuts
        return seen, b"\n".join(lines)


def _request(random: Random) -> bytes:
    """A random request."""
    method = random.choice((b"GET", b"POST", b"POST", b"POST", b"HEAD", b"PUT"))
    target = random.choice((b"/a", b"/b?c=d", MESSAGES.encode()))
    head = b"%b %b HTTP/1.%d\r\nHost: test\r\n" % (method, target, random.random() < 0.95)
    head += random.choice(EXTRA)
    body = random.choice(BODIES)
    length = b"Content-Length: %d\r\n\r\n" % len(body) + body
    match random.randrange(12):
        case 0:
            return head + b"\r\n"
        case 1 | 2 | 3:
            return head + length
        case 4 | 5 | 6:
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunks(random, body)
        case 7:
            kept = random.choice((b"close", b"keep-alive", b"Keep-Alive, X-A", b"Upgrade"))
            return head + b"Connection: %b\r\n" % kept + length
        case 8:
            return head + b"Expect: 100-continue\r\n" + length
        case 9:
            chunks = _chunks(random, body)
            return head + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
        case 10:
            return b"POST %b HTTP/1.1\r\nHost: test\r\n" % EARLY + length
        case _:
            return head + random.choice(BAD)


def _chunks(random: Random, body: bytes) -> bytes:
    cut = random.randint(0, len(body))
    parts = [part for part in (body[:cut], body[cut:]) if part]
    trailers = b"".join(
        b"%b: %b\r\n" % (random.choice(NAMES), random.choice(VALUES))
        for _ in range(random.choice((0, 1, 1, 3)))
    )
    return (
        b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n%b\r\n" % trailers
    )


def _cut(random: Random, stream: bytes, ends: list[int]) -> list[bytes]:
    """The stream in pieces: as requests come, all at once, or cut anywhere."""
    match random.randrange(4):
        case 0:
            cuts = ends[:-1]
        case 1:
            cuts = []
        case _:
            cuts = sorted(random.sample(range(1, len(stream)), min(3, len(stream) - 1)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


async def _compare(seeds: range) -> None:
    loop = asyncio.get_running_loop()
    together, apart = Reader(loop), Reader(loop)
    apart.watchdog.heads = KnownHeads()
    apart.watchdog.heads.remember = lambda *_: None  # type: ignore[method-assign]
    for seed in seeds:
        random = Random(f"sequences {run_seed()} {seed}")
        requests = [_request(random) for _ in range(random.randint(2, 5))]
        if random.random() < 0.5:  # heads that repeat
            requests.append(random.choice(requests))
        if random.random() < 0.2:  # its client leaves in the middle of the request
            requests[-1] = requests[-1][: random.randint(1, len(requests[-1]))]
        stream = b"".join(requests)
        ends = [len(b"".join(requests[: number + 1])) for number in range(len(requests))]
        pieces = _cut(random, stream, ends)
        seen, lines = await together.read(pieces)
        alone: list[Seen] = []
        expected: list[bytes] = []
        for request in requests:
            one, line = await apart.read([request])
            alone += one
            expected += [line] if line else []
            if not one or not one[0].keeps:
                break
        assert seen == alone, f"sequence {seed}: {pieces}"
        assert lines == b"\n".join(expected), f"sequence {seed}: {pieces}"


@pytest.mark.parametrize("first", drawn("request sequences", range(0, LONG, PART), 1))
def test_a_request_leaves_nothing_to_the_next_one(first: int) -> None:
    asyncio.run(_compare(range(first, first + PART)))


def test_a_method_may_begin_behind_another_request() -> None:
    """The rest of such a head is no known head, whatever connection it comes over."""
    whole = b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n"
    rest = b"T /b HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\nx"

    async def read() -> None:
        reader = Reader(asyncio.get_running_loop())
        for begin in (b"POS", b"GE", b"PU"):
            seen, _ = await reader.read([whole + begin, rest, whole])
            assert [one.method for one in seen] == ["GET", f"{begin.decode()}T", "GET"]

    asyncio.run(read())


TRAILED = (
    b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n1f\r\n%b\r\n0\r\nIdempotency-Key: same\r\n\r\n"
)


def test_a_trailer_makes_no_two_publishes_one() -> None:
    body = b'{"messages":[{"value":"YQ=="}]}'
    trailed = TRAILED % (MESSAGES.encode(), body)
    with serving(MemoryStore()) as served:
        served.create("t")
        for _ in range(3):
            with served.connect() as client:
                client.send(trailed)
                assert client.answer().status == 200
                for _ in range(2):
                    assert client.request("POST", MESSAGES, body).status == 200
        with served.connect() as client:
            found = client.request("GET", f"{MESSAGES}?start=earliest")
    assert found.status == 200, found
    assert len(found.json["messages"]) == 9
