"""Requests that the service makes of itself: a front end asks for a declared operation as a client
would over HTTP, and gets its result.

    operation and arguments ─▶ AskedExchange ─▶ App: access, quotas, routing, audit ─▶ result

* A question has the principal that its authorization names, and the client's address and
  certificate.
* An error of the operation is raised as the client of HTTP would get it.
* A question is sent on to other instances as it is: its authorization is a word or several, and no
  further header.
* The answer is collected, so that only answers of bounded size may be asked for.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tms.api import bodies, routes
from tms.api.operation import Operation
from tms.errors import Unauthenticated
from tms.model.message import Buffer
from tms.server.http.exchange import Exchange

OK_STATUSES = range(200, 300)
_CREDENTIAL = re.compile(rb"[!-~]+(?: [!-~]+)*")
AnswerRequest = Callable[[Exchange], Awaitable[None]]  # answers a request


class AskedExchange(Exchange):
    """A request that the service makes of itself, for one of a client; the answer stays here."""

    asker: Exchange
    answer: bytearray = msgspec.field(default_factory=bytearray)

    async def sleep(self, woken: "asyncio.Future[None]", timeout_s: float) -> None:
        """Wait as the client's request would: no longer than the client does."""
        await self.asker.sleep(woken, timeout_s)
        self.disconnected = self.asker.disconnected
        self.hurried = self.asker.hurried

    def respond(self, status: int, head: bytes, body: Buffer = b"") -> None:
        """Keep an answer."""
        self._begin(status)
        self.answer += body
        self.response_complete = True

    async def stream(self, status: int, head: bytes, length: int, chunks: Iterable[Buffer]) -> None:
        """Collect an answer."""
        self._begin(status)
        for chunk in chunks:
            self.answer += chunk
        self.response_complete = True

    async def relay(
        self, status: int, head: bytes, length: int, chunks: AsyncIterator[bytes]
    ) -> None:
        """Collect the answer of another instance."""
        await self.stream_chunks(status, head, chunks)

    async def stream_chunks(self, status: int, head: bytes, chunks: AsyncIterator[bytes]) -> None:
        """Collect an answer without a known length."""
        self._begin(status)
        async for chunk in chunks:
            self.answer += chunk
        self.response_complete = True

    def begin_chunks(self, status: int, head: bytes) -> None:
        """Begin to collect one."""
        self._begin(status)

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Collect a part of it."""
        for piece in pieces:
            self.answer += piece

    def end_chunks(self) -> None:
        """End it."""
        self.response_complete = True

    def abort(self) -> None:
        """End the client's request, for which this one was made: access has changed."""
        self.asker.abort()

    def _begin(self, status: int) -> None:
        self.response_started = True
        self.status = status


class AskedOperation(NamedTuple):
    """A request for an operation with these arguments, by name. One with a `Form` takes the
    arguments of its query as they are sent, and its `body` of a `content_type`. `headers`: further
    ones, by their names in lower case."""

    operation: Operation
    arguments: Mapping[str, Any]
    body: bytes | None = None
    content_type: str = routes.JSON
    headers: Mapping[bytes, bytes] = {}

    @property
    def target(self) -> str:
        """Path and query."""
        return self.operation.target(self.arguments)

    @property
    def payload(self) -> bytes:
        """The body as it is sent; empty if there is none."""
        if self.body is not None or self.operation.by_hand:
            return self.body or b""
        return self.operation.body(self.arguments) or b""


async def ask(
    app: AnswerRequest, asker: Exchange, authorization: bytes, question: AskedOperation
) -> Any:
    """The result of an operation. `authorization`: the header's value, empty: none. Raises the
    operation's errors."""
    exchange = _exchange(asker, authorization, question)
    await app(exchange)
    is_answer = exchange.status in OK_STATUSES or exchange.status in question.operation.statuses
    if not (is_answer and exchange.response_complete):
        raise routes.from_problem(exchange.status, exchange.answer)
    return _result(question.operation, exchange.answer)


def _exchange(asker: Exchange, authorization: bytes, question: AskedOperation) -> AskedExchange:
    path, _, query = question.target.encode().partition(b"?")
    asked = asked_as(asker, path, query)
    asked.method = question.operation.method
    asked.headers |= question.headers
    if authorization:
        if not _CREDENTIAL.fullmatch(authorization):
            raise Unauthenticated(
                "The session or token has characters that none has. Sign in again, or paste the "
                "token again."
            )
        asked.headers[b"authorization"] = authorization
    if payload := question.payload:
        asked.headers[b"content-type"] = question.content_type.encode()
        asked.headers[b"content-length"] = b"%d" % len(payload)  # another instance reads so much
        asked.body = bytearray(payload)
        asked.content_length = asked.received = len(payload)
    return asked


def asked_as(asker: Exchange, path: bytes, query: bytes) -> AskedExchange:
    """A request to read what is at this path, for the client of another request."""
    return AskedExchange(
        asker=asker,
        connection=asker.connection,
        request_id=asker.request_id,
        via=asker.via,
        method="GET",
        path=path,
        query=query,
        headers={b"host": asker.headers.get(b"host", b"")},
        version="1.1",
        content_length=0,
        keep_alive=True,
        expects_continue=False,
        body=bytearray(),
        more_body=False,
    )


def _result(operation: Operation, answer: bytearray) -> Any:
    shape = operation.form.answer.get(routes.JSON)
    if shape is None or not answer:
        return None
    if isinstance(shape, tuple):  # the first answers JSON
        shape = shape[0]
    sent = bodies.decode(answer, shape)
    return sent if operation.answer is None or operation.by_hand else operation.answer.decode(sent)
