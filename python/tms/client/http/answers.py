"""Bytes as they arrive to answers.

* `AnswerReader` offers the buffer to receive into, so that a big body is written where it stays:
  first a small buffer for heads, then one of exactly the body's length. Answers come out in order;
  several may share one read.
* What is not HTTP is recognised by its first bytes, and the error names what it probably is.
"""

import re
from collections import deque

from tms.api import routes
from tms.client.http.exchange import Response
from tms.errors import ConfigError, Malformed, TMSError
from tms.model.message import Buffer

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 1 << 30
BODIES_KEPT = 3  # by a lane: one being received, one handed out, one that was just done with
_CONTENT_LENGTH, _TRANSFER_ENCODING = b"content-length", b"transfer-encoding"
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,8}")
_SPEAKERS = (
    (b"\x15\x03", "it speaks TLS; write https:// instead of http://"),
    (b"\x16\x03", "it speaks TLS; write https:// instead of http://"),
    (b"SSH-", "it is an SSH server"),
    (b"-ERR", "it looks like Redis"),
    (b"INFO {", "it looks like NATS"),
    (b"AMQP", "it looks like RabbitMQ"),
    (b"220", "it looks like a mail or FTP server"),
)


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

    def buffer_updated(self, count: int) -> list[Response]:
        """`count` bytes were received; the answers that are complete now. Raises `ConfigError`,
        `Malformed`."""
        if self._body is not None:
            self._got += count
            return [self._finish_body(self._body)] if self._got == len(self._body) else []
        self._filled += count
        answers: list[Response] = []
        at = 0
        while (step := self._step(at)) is not None:
            at, answer = step
            if answer is not None:
                answers.append(answer)
        self._filled -= at
        if at and self._filled:
            self._small[: self._filled] = self._small[at : at + self._filled]
        return answers

    def end(self) -> Response | None:
        """The connection ended; the answer that this completes, if any."""
        if self._head is not None and self._chunks is not None and not self._chunked:
            return self._finish(self._chunks)
        return None

    def _step(self, at: int) -> tuple[int, Response | None] | None:
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

    def _read_head(self, at: int) -> tuple[int, Response | None] | None:
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

    def _begin_body(self, at: int, given: bytes) -> tuple[int, Response | None]:
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

    def _read_chunk(self, at: int) -> tuple[int, Response | None] | None:
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

    def _finish_body(self, body: bytearray) -> Response:
        answer = self._finish(memoryview(body))  # while the view lives, the body is not used again
        self._kept.append(body)
        return answer

    def _finish(self, body: Buffer) -> Response:
        assert self._head is not None
        answer = Response(*self._head, body)
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
