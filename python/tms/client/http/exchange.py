"""HTTP/1.1 without I/O: calls to bytes, and what an answer means. Shared by the synchronous and the
asyncio client.

    Calls ──▶ Call(chunks to send, how to read the answer)

* The request's head is built once per topic and durability; publishing adds only its length.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from tms.api import bodies, queues, routes
from tms.api.operation import Operation
from tms.api.operations import OPERATIONS, ShardKey, kept_with
from tms.block.received import Received
from tms.client.http.addresses import OwnerKey
from tms.client.http.forms import FORMS, nothing
from tms.client.transport import FetchRequest
from tms.errors import (
    ConfigError,
    ErrorKind,
    Malformed,
    StorageUnavailable,
    TimedOut,
    TMSError,
    Unavailable,
    from_code,
)
from tms.model.ids import MessageId
from tms.model.message import Appended, Buffer, Fetched, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.preconditions import expected_text
from tms.model.snapshot import Isolation, Snapshot, encode_snapshot
from tms.model.topic import Durability, TopicName
from tms.runtime.retrying import is_retriable

WAIT_S_MAX = 20.0  # of one request; who waits for longer asks again
T = TypeVar("T")

_FETCH = OPERATIONS["fetch"]
_CONTENT_TYPE = b"content-type"
_NEXT, _END, _REACHED = (
    name.lower().encode() for name in (routes.NEXT_HEADER, routes.END_HEADER, routes.REACHED_HEADER)
)
_GOOD = frozenset((routes.OK, routes.CREATED, routes.NO_CONTENT))
_UNSURE = (TimedOut, StorageUnavailable)  # also said by the service: it may have been done
_UNAVAILABLE = frozenset(
    (
        routes.BAD_GATEWAY,
        *(routes.STATUS[kind] for kind in (ErrorKind.UNAVAILABLE, ErrorKind.TIMED_OUT)),
    )
)


class Response(msgspec.Struct):
    """One HTTP response; header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: Buffer
    keeps_open: bool = True  # whether the connection may carry further requests


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A request as bytes, and how its answer is read. Several requests may share it."""

    chunks: Sequence[Buffer]
    read: Callable[[Response], T]
    topic: TopicName | None = None
    parts: Sequence[NewBlock | PartitionPosition] = ()  # what it says of partitions of the topic
    kept: ShardKey | None = None  # with what it is kept that it is about
    operation: str = "request"  # as the log calls it

    @property
    def places(self) -> list[OwnerKey]:
        """The partitions or shards that the request concerns; see `ServiceAddresses`."""
        if self.kept is not None:
            return [self.kept]
        return [] if self.topic is None else [(self.topic, part.partition) for part in self.parts]


class Calls:
    """Builds the calls to one service. `peer` names it in errors; a `token`, printable ASCII, goes
    with every request, for what guards the service, and so do `fields`, each with its CRLF."""

    def __init__(self, authority: str, peer: str, token: str = "", fields: str = "") -> None:
        self._peer = peer
        self._common = f" HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: tms-python\r\n"
        if token:
            self._common += f"Authorization: Bearer {token}\r\n"
        self._common += fields
        self._append_head = lru_cache(1_024)(self._make_append_head)
        # by the types of the place, too: 1 and True are equal, and not the same path
        self._head = lru_cache(1_024, typed=True)(
            lambda of, *place: self._start(of, of.placed(place))
        )
        self.receive = lru_cache(1_024)(self._make_receive)

    def of(self, operation: Operation, given: Mapping[str, Any]) -> Call[Any]:
        """A declared operation; its arguments by their names."""
        if operation.by_hand:
            sent = FORMS[operation.name](given)
            return self._request(operation, *sent)
        body, answer = operation.body(given), operation.answer
        return self._request(
            operation,
            given,
            () if body is None else (body,),
            nothing
            if answer is None
            else lambda body: answer.decode(bodies.decode(body, answer.shape)),
        )

    def _make_receive(
        self, topic: TopicName, group: str, limit: int, wait_s: float, bytes_max: int
    ) -> Call[Received]:
        body = bodies.encode(queues.ReceiveBody(limit, wait_s, bytes_max))
        given = {"group": group, "topic": topic}
        decode = queues.decode_received
        return self._request(OPERATIONS["receive"], given, [body], decode, accept=routes.BLOCKS)

    def append(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> Call[list[Appended]]:
        chunks = list(bodies.frames(blocks))
        expect = blocks[0].expect if blocks else None
        common = self._append_head if expect is None else self._make_append_head
        head = common(name, durability, expect) + b"%d\r\n\r\n" % sum(map(len, chunks))
        return Call([head, *chunks], self._appended, name, blocks, operation="publish")

    def fetch(self, request: FetchRequest, follow: bool = False) -> Call[Fetched]:
        """A fetch; `follow`: what is appended behind it comes, too."""
        view, where = request.isolation, request.where
        query = {
            "name": request.name,
            "start": bodies.positions_text(dict(request.positions)),
            "bytes_max": request.bytes_max,
            "wait_s": max(0.0, round(request.wait_s, 3)),
            "isolation": None if view is Isolation.COMMITTED else view,
            "where": None if where is None else where.text,
            "follow": "true" if follow else None,
        }
        if isinstance(view, Snapshot):
            snapshot = urlsafe_b64encode(encode_snapshot(view)).decode()
            query |= {"isolation": Isolation.SNAPSHOT, "snapshot": snapshot}
        path = _FETCH.target(query)
        head = f"GET {path}{self._common}Accept: {routes.BLOCKS}, {routes.PROBLEM}\r\n\r\n"
        head_bytes = head.encode("ascii")
        return Call([head_bytes], self._fetched, request.name, request.positions, operation="fetch")

    def _make_append_head(
        self, name: TopicName, durability: Durability | None, expect: MessageId | None
    ) -> bytes:
        text = None if expect is None else expected_text(expect)
        given = {"name": name, "durability": durability, "expect": text}
        path = OPERATIONS["publish"].target(given)
        return (
            f"POST {path}{self._common}Content-Type: {routes.BLOCKS}\r\nContent-Length: "
        ).encode("ascii")

    def _request(
        self,
        operation: Operation,
        given: Mapping[str, Any],
        chunks: Sequence[Buffer],
        read: Callable[[Buffer], T],
        kind: str = routes.JSON,
        accept: str = routes.JSON,
        fields: str = "",
    ) -> Call[T]:
        """A request with a body of this kind, if any; `read` takes the body of its success."""
        if operation.form.query is None:
            head, kept = self._head(operation, *operation.place_of(given))
        else:
            head, kept = self._start(operation, given)
        head += f"Accept: {accept}, {routes.PROBLEM}\r\n{fields}"
        if chunks:
            head += f"Content-Type: {kind}\r\nContent-Length: {sum(map(len, chunks))}\r\n"
        return Call(
            [f"{head}\r\n".encode("ascii"), *chunks],
            lambda answer: read(answer.body if answer.status in _GOOD else self._failed(answer)),
            kept=kept,
            operation=operation.name,
        )

    def _start(self, operation: Operation, given: Mapping[str, Any]) -> tuple[str, ShardKey | None]:
        """The lines of a head that the place of a request decides, and the owner of that place."""
        head = f"{operation.method} {operation.target(given)}{self._common}"
        return head, kept_with(operation, given)

    def _failed(self, answer: Response) -> NoReturn:
        """Raises the error that the answer carries."""
        if answer.headers.get(_CONTENT_TYPE, b"").startswith(routes.PROBLEM.encode()):
            error = routes.from_problem(answer.status, answer.body)
            asked = answer.headers.get(b"retry-after", b"")
            if asked.isdigit():
                error.details.setdefault("retry_after_s", int(asked))
            raise error
        if answer.status in _UNAVAILABLE:
            raise Unavailable(
                f"Something in front of {self._peer} answered with status {answer.status}: the "
                "service behind it cannot be reached.",
                outcome="unknown",
            )
        raise self._stranger(f"answered with status {answer.status}")

    def _stranger(self, what: str) -> TMSError:
        return ConfigError(
            f"{self._peer} {what} and not as a TMS service does. Check the URL: is another HTTP "
            "server at this port?"
        )

    def _appended(self, answer: Response) -> list[Appended]:
        body = answer.body if answer.status in _GOOD else self._failed(answer)
        return bodies.decode(body, bodies.AppendedBody).appended

    def _fetched(self, answer: Response) -> Fetched:
        body = answer.body if answer.status in _GOOD else self._failed(answer)
        following = answer.headers.get(_NEXT)
        ends = answer.headers.get(_END)
        reached = answer.headers.get(_REACHED)
        if following is None or ends is None or reached is None:
            raise self._stranger(
                "answered a fetch without the headers TMS-Next, TMS-End and TMS-Reached"
            )
        places = bodies.parse_positions(following.decode("ascii"))
        if isinstance(places, Position):
            raise Malformed(f"The header TMS-Next names no partitions: {following[:64]!r}.")
        return Fetched(
            bodies.unframe(body),
            dict(places),
            bodies.parse_ends(ends.decode("ascii")),
            bodies.parse_ends(reached.decode("ascii")),
        )


def explained(error: TMSError) -> TMSError:
    """The error of a receive; it says so if messages may have been leased that nobody saw."""
    if surely_not_done(error) or not is_retriable(error):
        return error
    text = f"{error.message} What it may have leased comes again when the leases have ended."
    return from_code(error.code, text, {**error.details, "outcome": "unknown"})


def surely_not_done(error: BaseException) -> bool:
    """True if a request that failed like this was surely not carried out, and may be repeated."""
    return (
        isinstance(error, TMSError)
        and is_retriable(error)
        and not isinstance(error, _UNSURE)
        and error.details.get("outcome") != "unknown"
    )
