"""Kafka's protocol on one port: a frame in, the answer of its request out.

    frame ─▶ the connection's session ─▶ the request, for its principal ─▶ answer ─▶ quota

Invariants

* Where access is controlled, a connection that is not authenticated within `frame_timeout_s` ends,
  and its frames are small until then.
* Every request of a connection with a session counts for the quota of its principal. A principal
  above its quota is answered, and told how long to wait. Its connection is not read until then.
"""

import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from tms.compat.kafka import codec, requests
from tms.compat.kafka.authentication import (
    WITHOUT_SESSION,
    Authentication,
    AuthenticationFailed,
    KafkaCaller,
)
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.brokers import KAFKA
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.primitives import plain_string_size, require_left, varint
from tms.compat.kafka.requests import API_VERSIONS, KafkaCall, RequestType
from tms.errors import Malformed, TMSError
from tms.model.message import Buffer
from tms.runtime.events import EventLog
from tms.server.framed import FramedConnection, FramedLimits, FramedServer

_log = EventLog(__name__)
_HEAD = struct.Struct(">hhi")  # API key, version, correlation id
_CORRELATION = struct.Struct(">i")
_THROTTLE_MS_MAX = 2**31 - 1


class _Head(NamedTuple):
    """The beginning of a request."""

    key: int
    version: int
    correlation: int


class KafkaServer(FramedServer):
    """Answers Kafka's clients, one request of a connection at a time. Used by the event loop's
    thread."""

    def __init__(
        self,
        broker: Broker,
        listener: socket.socket,
        limits: FramedLimits,
        newest: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._broker = broker
        self._guard = broker.service.guard
        self._requests: Mapping[int, RequestType] = requests.load()
        self._authentications: dict[FramedConnection, Authentication] = {}
        super().__init__(KAFKA, listener, self._answer_frame, limits, newest)
        self._metrics = broker.service.metrics
        self._metrics.front_connections[KAFKA] = lambda: len(self.connections)

    async def drain(self, timeout_s: float) -> None:
        """End the waits of consumers and groups, then answer what was received."""
        self._broker.drain()
        await super().drain(timeout_s)

    def admit(self, connection: FramedConnection, peer: tuple[Any, ...]) -> bool:
        """Count a new connection, which has to authenticate itself; False if it may not stay."""
        admitted = super().admit(connection, peer)
        if admitted and self._guard is not None:
            engine = self._broker.engine
            clock = engine.topics.clock
            authentication = Authentication(self._guard, engine.access, clock, connection)
            authentication.begin(self.limits.frame_timeout_s)
            self._authentications[connection] = authentication
        return admitted

    def forget(self, connection: FramedConnection) -> None:
        """Uncount a connection, and forget its session."""
        authentication = self._authentications.pop(connection, None)
        if authentication is not None:
            authentication.end()
        super().forget(connection)

    async def _answer_frame(
        self, connection: FramedConnection, frame: bytes
    ) -> bytes | Sequence[Buffer] | None:
        # Without one there is no access control: a connection that has lost it gets an error.
        authentication = None if self._guard is None else self._authentications[connection]
        if authentication is not None and authentication.takes_raw:
            return await self._answer_raw(authentication, connection, frame)
        head = _head(frame)
        request = self._requests.get(head.key)
        if request is None:
            raise Malformed(
                f"The client asks for the API {head.key} of Kafka's protocol, which is not spoken "
                "here; docs/kafka.md has those that are."
            )
        doubt = await self._broker.doubt() if self._confirms(request) else None
        session = None if authentication is None else await authentication.admit(request.name)
        if head.version not in request.versions:
            return self._unknown_version(head, request)
        client, at = _client(frame, request.is_flexible(head.version))
        message = codec.reader(request.name + "Request", head.version)(frame, at)
        caller = None
        if self._guard is not None:
            caller = KafkaCaller(self._guard, connection, request.name, head.correlation)
            if session is not None:
                caller.begin(session, len(frame))
        call = KafkaCall(
            self._broker,
            message,
            head.version,
            client,
            connection,
            self._requests,
            authentication,
            caller,
            doubt,
        )
        return await self._charged(call, request, head, is_session=session is not None)

    async def _charged(
        self, call: KafkaCall, request: RequestType, head: _Head, is_session: bool
    ) -> list[Buffer] | None:
        """The answer to a request, written. That of a session is charged to its principal, and the
        connection rests until the quota allows the next request."""
        caller = call.caller
        chunks: list[Buffer] | None = None
        owed_s = 0.0
        try:
            answer = await self._answer(call, request)
            if answer is not None:
                chunks = _written(answer, head, request)
        finally:
            if caller is not None and is_session:
                owed_s = caller.leave(sum(map(len, chunks or ())))
        if owed_s > 0 and caller is not None:
            call.connection.rest(caller.owed_s)
            if answer is not None and hasattr(answer, "throttle_time_ms"):
                answer.throttle_time_ms = min(ceil(owed_s * 1_000), _THROTTLE_MS_MAX)
                chunks = _written(answer, head, request)
        return chunks

    def _confirms(self, request: RequestType) -> bool:
        """True if ownership is confirmed before a request. Access is decided by the newest tokens
        and grants, except of requests for which there is no session yet."""
        is_decided = self._guard is not None and request.name not in WITHOUT_SESSION
        return request.confirms or is_decided

    async def _answer(self, call: KafkaCall, request: RequestType) -> KafkaMessage | None:
        """The response to a request, which may be a refusal. Raises an error that it has no place
        for."""
        try:
            answer = await request.answer(call)
        except TMSError as error:
            answer = request.refusal(error)
        except Exception as exc:  # a fault of ours: the client gets an answer, the log has the rest
            _log.exception("kafka_request_failed", request=request.name, error=repr(exc))
            fault = TMSError(f"The service failed to answer {request.name}; its log says more.")
            answer = request.refusal(fault, ErrorCode.UNKNOWN_SERVER_ERROR)
        outcome = ErrorCode(getattr(answer, "error_code", ErrorCode.NONE)).name
        self._metrics.front_answers[KAFKA, request.name, outcome] += 1
        return answer

    async def _answer_raw(
        self, authentication: Authentication, connection: FramedConnection, frame: bytes
    ) -> bytes:
        """The answer to a message of SASL without a header. Raises `Malformed`, and an error if the
        tokens may be out of date."""
        assert self._guard is not None
        doubt = await self._broker.doubt()
        if doubt is not None:
            raise doubt
        caller = KafkaCaller(self._guard, connection, "SaslAuthenticate", 0)
        renewed = authentication.session
        if renewed is not None:
            caller.begin(renewed, len(frame))
        answer = b""
        try:
            answer = await authentication.step(caller, frame)
        except AuthenticationFailed as failed:
            self._metrics.front_answers[KAFKA, "SaslAuthenticate", failed.code.name] += 1
            raise Malformed(failed.message) from None
        finally:
            if renewed is not None and caller.leave(len(answer)) > 0:
                connection.rest(caller.owed_s)
        self._metrics.front_answers[KAFKA, "SaslAuthenticate", ErrorCode.NONE.name] += 1
        return answer

    def _unknown_version(self, head: _Head, request: RequestType) -> Sequence[Buffer]:
        """The answer that tells a client the versions. Raises `Malformed` for another request."""
        if head.key != API_VERSIONS:
            raise Malformed(
                f"The client asks for version {head.version} of {request.name}; versions "
                f"{request.versions.first} to {request.versions.last} are spoken here."
            )
        answer = codec.class_of("ApiVersionsResponse")(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=requests.api_keys(self._requests)
        )
        written = codec.writer("ApiVersionsResponse", 0)(answer)
        return [_CORRELATION.pack(head.correlation), *written]


def _written(answer: KafkaMessage, head: _Head, request: RequestType) -> list[Buffer]:
    """A response with its header."""
    chunks: list[Buffer] = [_CORRELATION.pack(head.correlation)]
    if request.is_flexible(head.version) and head.key != API_VERSIONS:
        chunks.append(b"\0")  # no tagged fields of the header
    return chunks + codec.writer(request.name + "Response", head.version)(answer)


def _head(frame: bytes) -> _Head:
    try:
        return _Head(*_HEAD.unpack_from(frame))
    except struct.error as exc:
        raise Malformed(f"A request of Kafka's protocol has {len(frame)} bytes only.") from exc


def _client(frame: bytes, flexible: bool) -> tuple[str, int]:
    """The client's name, and the offset behind the header."""
    try:
        size, at = plain_string_size(frame, _HEAD.size)
        end = at + (size or 0)
        require_left(frame, end)
        client = frame[at:end].decode("utf-8", "replace")
        if flexible:
            tags, end = varint(frame, end)
            for _ in range(tags):
                _, end = varint(frame, end)
                skipped, end = varint(frame, end)
                end += skipped
                require_left(frame, end)
    except (struct.error, IndexError) as exc:
        raise Malformed("The header of a request of Kafka's protocol is cut off.") from exc
    return client, end
