"""HTTP/1.1 without I/O: calls to bytes, bytes to answers. Shared by the synchronous and the asyncio
client.

    Calls ──▶ Call(chunks to send, how to read the answer)
    bytes as they arrive ──▶ AnswerReader ──▶ Answer

* `AnswerReader` offers the buffer to receive into, so that a big body is written where it stays:
  first a small buffer for heads, then one of exactly the body's length. Answers come out in order;
  several may share one read.
* What is not HTTP is recognised by its first bytes, and the error names what it probably is.
* The request's head is built once per topic and durability; publishing adds only its length.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from tms.errors import ConfigError, Malformed, TMSError, Unavailable
from tms.errors import Kind as ErrorKind
from tms.model.inspection import PartitionInspection
from tms.model.log import Appended, Buffer, Fetched, NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.topic import Durability, TopicInfo, TopicName, TopicSettings
from tms.wire import bodies, routes

T = TypeVar("T")

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 1 << 30
BODIES_KEPT = 3  # by a lane: one being received, one handed out, one that was just done with
_CONTENT_TYPE, _CONTENT_LENGTH = b"content-type", b"content-length"
_TRANSFER_ENCODING, _CONNECTION = b"transfer-encoding", b"connection"
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,8}")
_GOOD = frozenset((routes.OK, routes.CREATED, routes.NO_CONTENT))
_UNAVAILABLE = frozenset(
    routes.STATUS[kind] for kind in (ErrorKind.UNAVAILABLE, ErrorKind.TIMED_OUT)
)
_SPEAKERS = (
    (b"\x15\x03", "it speaks TLS; write https:// instead of http://"),
    (b"\x16\x03", "it speaks TLS; write https:// instead of http://"),
    (b"SSH-", "it is an SSH server"),
    (b"-ERR", "it looks like Redis"),
    (b"INFO {", "it looks like NATS"),
    (b"AMQP", "it looks like RabbitMQ"),
    (b"220", "it looks like a mail or FTP server"),
)


class Answer(NamedTuple):
    """One HTTP response; header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: Buffer

    @property
    def keeps_open(self) -> bool:
        """Whether the connection may carry further requests."""
        return self.headers.get(_CONNECTION, b"").lower() != b"close"


class Call(NamedTuple, Generic[T]):
    """A request as bytes, and how its answer is read."""

    chunks: list[Buffer]
    read: Callable[[Answer], T]


class Calls:
    """Builds the calls to one service. `peer` names it in errors."""

    def __init__(self, authority: str, peer: str) -> None:
        self._peer = peer
        self._common = f" HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: tms-python\r\n"
        self._append_head = lru_cache(1_024)(self._make_append_head)

    def create_topic(self, name: TopicName, settings: TopicSettings) -> Call[TopicInfo]:
        return self._json(
            "PUT", routes.topic_path(name), bodies.settings_body(settings), self._info
        )

    def describe_topic(self, name: TopicName) -> Call[TopicInfo]:
        return self._json("GET", routes.topic_path(name), None, self._info)

    def list_topics(self, namespace: str, after: str | None, limit: int) -> Call[list[TopicInfo]]:
        query = f"?limit={limit}" + ("" if after is None else f"&after={after}")
        return self._json(
            "GET",
            routes.topics_path(namespace) + query,
            None,
            lambda answer: bodies.decode(self._good(answer), bodies.TopicsBody).topics,
        )

    def update_topic(self, name: TopicName, changes: Mapping[str, object]) -> Call[TopicInfo]:
        return self._json(
            "PATCH", routes.topic_path(name), bodies.changes_body(changes), self._info
        )

    def truncate_topic(self, name: TopicName, before: Position) -> Call[TopicInfo]:
        body = bodies.encode(bodies.TruncateBody(str(before)))
        return self._json("POST", routes.truncate_path(name), body, self._info)

    def delete_topic(self, name: TopicName) -> Call[None]:
        return self._json("DELETE", routes.topic_path(name), None, self._nothing)

    def inspect(self, name: TopicName, partition: int, limit: int) -> Call[PartitionInspection]:
        return self._json(
            "GET",
            routes.inspect_path(name, partition, limit),
            None,
            lambda answer: bodies.decode(self._good(answer), PartitionInspection),
        )

    def append(
        self, name: TopicName, blocks: Sequence[NewBlock], durability: Durability | None
    ) -> Call[list[Appended]]:
        chunks = bodies.frame(blocks)
        head = self._append_head(name, durability) + b"%d\r\n\r\n" % sum(map(len, chunks))
        return Call([head, *chunks], self._appended)

    def fetch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        bytes_max: int,
        wait_s: float,
    ) -> Call[Fetched]:
        start = bodies.positions_text(dict(positions))
        path = routes.fetch_path(
            name, start, bytes_max=bytes_max, wait_ms=max(0, round(wait_s * 1_000))
        )
        head = f"GET {path}{self._common}Accept: {routes.BLOCKS}, {routes.PROBLEM}\r\n\r\n"
        return Call([head.encode("ascii")], self._fetched)

    def _make_append_head(self, name: TopicName, durability: Durability | None) -> bytes:
        path = routes.messages_path(name, durability)
        return (
            f"POST {path}{self._common}Content-Type: {routes.BLOCKS}\r\n"
            f"Accept: {routes.JSON}, {routes.PROBLEM}\r\nContent-Length: "
        ).encode("ascii")

    def _json(
        self, method: str, path: str, body: bytes | None, read: Callable[[Answer], T]
    ) -> Call[T]:
        head = f"{method} {path}{self._common}Accept: {routes.JSON}, {routes.PROBLEM}\r\n"
        if body is None:
            return Call([f"{head}\r\n".encode("ascii")], read)
        head += f"Content-Type: {routes.JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
        return Call([head.encode("ascii"), body], read)

    def _good(self, answer: Answer) -> Buffer:
        """The body of a success. Raises the error that the answer carries."""
        if answer.status in _GOOD:
            return answer.body
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

    def _info(self, answer: Answer) -> TopicInfo:
        return bodies.decode(self._good(answer), TopicInfo)

    def _nothing(self, answer: Answer) -> None:
        self._good(answer)

    def _appended(self, answer: Answer) -> list[Appended]:
        return bodies.decode(self._good(answer), bodies.AppendedBody).appended

    def _fetched(self, answer: Answer) -> Fetched:
        body = self._good(answer)
        following = answer.headers.get(routes.NEXT_HEADER.lower().encode())
        ends = answer.headers.get(routes.END_HEADER.lower().encode())
        if following is None or ends is None:
            raise self._stranger("answered a fetch without the headers TMS-Next and TMS-End")
        places = bodies.parse_positions(following.decode("ascii"))
        if isinstance(places, Position):
            raise Malformed(f"The header TMS-Next names no partitions: {following[:64]!r}.")
        return Fetched(bodies.unframe(body), dict(places), bodies.parse_ends(ends.decode("ascii")))


class AnswerReader:
    """Turns what one connection receives into answers.

    Receive into `get_buffer()`, then say how much came with `buffer_updated`; asyncio's
    `BufferedProtocol` has the same two methods.
    """

    def __init__(self, peer: str, bodies_kept: int = 0) -> None:
        self._peer = peer
        self._kept: deque[bytearray] = deque(maxlen=bodies_kept)
        self._small = bytearray(HEAD_BYTES_MAX)
        self._filled = 0
        self._head: tuple[int, dict[bytes, bytes]] | None = None  # of the body being received
        self._body: bytearray | None = None  # of exactly the body's length, when it is known
        self._got = 0
        self._chunks: bytearray | None = (
            None  # of a chunked body, or one that ends with the connection
        )
        self._chunked = False
        self._chunk_left = 0

    @property
    def idle(self) -> bool:
        """Whether no answer has begun."""
        return self._head is None and not self._filled

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._body is not None:
            return memoryview(self._body)[self._got :]
        return memoryview(self._small)[self._filled :]

    def buffer_updated(self, count: int) -> list[Answer]:
        """`count` bytes were received; the answers that are complete now. Raises `ConfigError`,
        `Malformed`."""
        if self._body is not None:
            self._got += count
            return [self._finish_body(self._body)] if self._got == len(self._body) else []
        self._filled += count
        answers: list[Answer] = []
        at = 0
        while (step := self._step(at)) is not None:
            at, answer = step
            if answer is not None:
                answers.append(answer)
        self._filled -= at
        if at and self._filled:
            self._small[: self._filled] = self._small[at : at + self._filled]
        return answers

    def end(self) -> Answer | None:
        """The connection ended; the answer that this completes, if any."""
        if self._head is not None and self._chunks is not None and not self._chunked:
            return self._finish(self._chunks)
        return None

    def _step(self, at: int) -> tuple[int, Answer | None] | None:
        """One step from `at` in the small buffer: a head, a chunk or a body; None when more bytes
        are needed."""
        if self._head is None:
            return self._read_head(at)
        if self._chunks is None:
            return None
        if self._chunked:
            return self._read_chunk(at)
        if at == self._filled:
            return None
        self._chunks += self._small[at : self._filled]
        return self._filled, None

    def _read_head(self, at: int) -> tuple[int, Answer | None] | None:
        small, filled = self._small, self._filled
        if filled - at >= 5 and not small.startswith(b"HTTP/", at):
            raise self._not_http(bytes(small[at : min(filled, at + 32)]))
        end = small.find(b"\r\n\r\n", at, filled)
        if end < 0:
            if at == 0 and filled == HEAD_BYTES_MAX:
                raise Malformed(f"{self._peer} sent a response head over {HEAD_BYTES_MAX} bytes.")
            return None
        status, headers = self._parse_head(bytes(small[at:end]))
        at = end + 4
        self._head = (status, headers)
        if status == routes.NO_CONTENT:
            return at, self._finish(b"")
        if (coding := headers.get(_TRANSFER_ENCODING)) is not None:
            if coding.lower() != b"chunked":
                raise Malformed(f"{self._peer} uses the transfer encoding {coding[:40]!r}.")
            self._chunks, self._chunked = bytearray(), True
            return at, None
        if (given := headers.get(_CONTENT_LENGTH)) is None:
            self._chunks, self._chunked = bytearray(), False
            return at, None
        return self._begin_body(at, given)

    def _begin_body(self, at: int, given: bytes) -> tuple[int, Answer | None]:
        length = int(given) if given.isdigit() and len(given) < 12 else -1
        if not 0 <= length <= BODY_BYTES_MAX:
            raise Malformed(f"{self._peer} sent a body of {given[:40]!r} bytes.")
        here = self._filled - at
        if here >= length:
            return at + length, self._finish(bytes(self._small[at : at + length]))
        self._body = self._room_for(length)
        self._body[:here] = self._small[at : self._filled]
        self._got = here
        return self._filled, None

    def _read_chunk(self, at: int) -> tuple[int, Answer | None] | None:
        assert self._chunks is not None
        if self._chunk_left:
            here = min(self._chunk_left, self._filled - at)
            self._chunks += self._small[at : at + here]
            self._chunk_left -= here
            return (at + here, None) if here else None
        line = self._small.find(b"\r\n", at, self._filled)
        if line < 0:
            return None
        if line == at:  # the end of the chunk before
            return at + 2, None
        digits = bytes(self._small[at:line]).partition(b";")[0].strip()
        size = int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else -1
        if size < 0 or len(self._chunks) + size > BODY_BYTES_MAX:
            raise Malformed(f"{self._peer} sent a chunk of {digits[:40]!r} bytes.")
        if size:
            self._chunk_left = size
            return line + 2, None
        end = self._small.find(b"\r\n\r\n", line, self._filled)
        return None if end < 0 else (end + 4, self._finish(self._chunks))

    def _room_for(self, length: int) -> bytearray:
        """The body of an earlier answer that nobody looks at any more, or a new one: fresh memory
        costs as much as filling it."""
        for _ in range(len(self._kept)):
            body = self._kept.popleft()
            try:
                body.pop()
            except BufferError:  # a view of it is still alive
                self._kept.append(body)
            else:
                body += bytes(max(0, length - len(body)))
                del body[length:]
                return body
        return bytearray(length)

    def _finish_body(self, body: bytearray) -> Answer:
        answer = self._finish(memoryview(body))  # while the view lives, the body is not used again
        self._kept.append(body)
        return answer

    def _finish(self, body: Buffer) -> Answer:
        assert self._head is not None
        answer = Answer(*self._head, body)
        self._head = self._body = self._chunks = None
        self._got = 0
        return answer

    def _parse_head(self, head: bytes) -> tuple[int, dict[bytes, bytes]]:
        first, *lines = head.split(b"\r\n")
        status = first[9:12]
        if not first.startswith(b"HTTP/1.") or not status.isdigit():
            raise self._not_http(first[:32])
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return int(status), headers

    def _not_http(self, begin: bytes) -> TMSError:
        for first, meaning in _SPEAKERS:
            if begin.startswith(first):
                return ConfigError(f"{self._peer} is no TMS service: {meaning}.")
        return ConfigError(
            f"{self._peer} is no TMS service: it answered with {begin!r}, which is not HTTP/1.1."
        )
