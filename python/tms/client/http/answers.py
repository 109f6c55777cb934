"""Bytes as they arrive to answers: HTTP/1.1 as httptools parses it, within limits.

* `AnswerReader` has the buffer to receive into. Heads and small bodies come into a small one,
  which the parser takes apart. The rest of a large body of known length is received where it stays,
  past the parser, which ends there: the next answer has a new one.
* Answers come out in order; several may share one read.
* Of a topic that is followed each part comes out as an answer, as if it were that to a fetch.
* What is not HTTP is recognised by its first bytes, and the error names what it probably is.
"""

from collections import deque

import httptools

from tms.api import routes
from tms.api.following import FollowedParts
from tms.client.http.exchange import Response
from tms.errors import ConfigError, Malformed, TMSError, Unavailable

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 1 << 30
BODIES_KEPT = 3  # by a channel: one being received, one handed out, one that was just done with
_CONTENT_LENGTH, _TRANSFER_ENCODING = b"content-length", b"transfer-encoding"
_STAND = tuple(
    name.lower().encode() for name in (routes.NEXT_HEADER, routes.END_HEADER, routes.REACHED_HEADER)
)
_INFORMATIONAL = range(100, 200)
_SPEAKERS = (
    (b"\x15\x03", "it speaks TLS; write https:// instead of http://"),
    (b"\x16\x03", "it speaks TLS; write https:// instead of http://"),
    (b"SSH-", "it is an SSH server"),
    (b"-ERR", "it looks like Redis"),
    (b"INFO {", "it looks like NATS"),
    (b"AMQP", "it looks like RabbitMQ"),
    (b"220", "it looks like a mail or FTP server"),
)


class FollowingEnded(Unavailable):
    """A topic is not followed any more: a fetch tells why."""


class AnswerReader:
    """Turns what one connection receives into answers.

    Receive into `buffer`, then say how much came with `buffer_updated`.
    """

    def __init__(self, peer: str, bodies_kept: int = 0, follows: bool = False) -> None:
        self._peer = peer
        self._kept: deque[bytearray] = deque(maxlen=bodies_kept)
        self._small = memoryview(bytearray(HEAD_BYTES_MAX))
        self.buffer = self._small  # for the next bytes
        self.parsed = _Parsed(peer, FollowedParts() if follows else None)
        self._body: bytearray | None = None  # of exactly the length of a large body

    def buffer_updated(self, count: int) -> list[Response]:
        """`count` bytes were received; the answers that are complete now. Raises `ConfigError`,
        `Malformed`."""
        if self._body is not None:
            self.buffer = self.buffer[count:]
            return [] if self.buffer else [self._finish(self._body)]
        parsed = self.parsed
        answers = parsed.feed(self._small[:count])
        if parsed.begun and parsed.length > len(parsed.body):
            received = len(parsed.body)
            self._body = self._room_for(parsed.length)
            self._body[:received] = parsed.body
            self.buffer = memoryview(self._body)[received:]
        return answers

    def end(self) -> Response | None:
        """The connection ended; the answer that this completes, if any."""
        parsed = self.parsed
        if parsed.begun and parsed.ends_with_connection:
            return Response(parsed.status, parsed.headers, parsed.body, parsed.keeps_open)
        return None

    def _finish(self, body: bytearray) -> Response:
        parsed, self.parsed = self.parsed, _Parsed(self._peer)
        # While the view lives, the body is not used again.
        answer = Response(parsed.status, parsed.headers, memoryview(body), parsed.keeps_open)
        self._kept.append(body)
        self._body = None
        self.buffer = self._small
        return answer

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


class _Parsed:
    """The callbacks of httptools: complete answers, and the one under way."""

    def __init__(self, peer: str, parts: FollowedParts | None = None) -> None:
        self._peer = peer
        self._parts = parts
        self._answers: list[Response] = []
        self._quiet_bytes = 0  # fed since anything was complete or of a body: a head, a trailer
        self._fields: dict[bytes, bytes] = {}  # as they came, of a head or a trailer
        self.begun = False  # True if the answer under way has begun
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.length = 0  # of the body; 0 when it has none or does not say
        self.ends_with_connection = False
        self.keeps_open = True
        self.body: bytes | bytearray = b""
        self.on_header = self._fields.__setitem__  # called for each header: without a Python call
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, received: memoryview) -> list[Response]:
        """The answers that are complete now."""
        self._answers = []
        self._quiet_bytes += len(received)
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            raise self._reason(exc, bytes(received[:32])) from exc
        if self._quiet_bytes > HEAD_BYTES_MAX:
            raise Malformed(f"{self._peer} sent a response head over {HEAD_BYTES_MAX} bytes.")
        return self._answers

    def on_message_begin(self) -> None:
        self.begun = True
        self.status = self.length = 0
        self.headers = {}
        self._fields.clear()
        self.ends_with_connection = False
        self.body = b""

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        values = map(bytes.strip, self._fields.values())
        self.headers = dict(zip(map(bytes.lower, self._fields), values, strict=True))
        coding = self.headers.get(_TRANSFER_ENCODING)
        length = self.headers.get(_CONTENT_LENGTH)
        self.keeps_open = self._parser.should_keep_alive()
        if coding is not None:
            if coding.lower() != b"chunked":
                raise Malformed(f"{self._peer} uses the transfer encoding {coding[:40]!r}.")
        elif length is None:
            self.ends_with_connection = True
        elif int(length) > BODY_BYTES_MAX:
            raise Malformed(f"{self._peer} sent a body of {length[:40]!r} bytes.")
        elif self.status != routes.NO_CONTENT:
            self.length = int(length)

    def on_body(self, part: bytes) -> None:
        self._quiet_bytes = 0
        if self._parts is not None and self.status == routes.OK:
            for body, lines in self._parts.feed(part):
                headers = dict(zip(_STAND, lines, strict=True))
                self._answers.append(Response(self.status, headers, body))
            return
        if not self.body:
            self.body = part
            return
        if isinstance(self.body, bytes):
            self.body = bytearray(self.body)
        self.body += part
        if len(self.body) > BODY_BYTES_MAX:
            raise Malformed(f"{self._peer} sent a body of more than {BODY_BYTES_MAX} bytes.")

    def on_message_complete(self) -> None:
        self.begun = False
        if self.status in _INFORMATIONAL:  # part of the head of the answer to come
            return
        self._quiet_bytes = 0
        if self._parts is not None and self.status == routes.OK:
            raise FollowingEnded(f"{self._peer} has nothing more for who follows.")
        self._answers.append(Response(self.status, self.headers, self.body, self.keeps_open))

    def _reason(self, exc: Exception, begin: bytes) -> TMSError:
        if isinstance(exc.__context__, TMSError):
            return exc.__context__
        if self._parser.get_status_code():
            return Malformed(f"{self._peer} sent an answer that is not HTTP/1.1: {exc}.")
        for first, meaning in _SPEAKERS:
            if begin.startswith(first):
                return ConfigError(f"{self._peer} is no TMS service: {meaning}.")
        return ConfigError(
            f"{self._peer} is no TMS service: it answered with {begin!r}, which is not HTTP/1.1."
        )
