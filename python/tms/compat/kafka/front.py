"""Kafka's protocol on one port: a frame in, the answer of its request out."""

import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence

from tms.compat.kafka import codec, requests
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.compat.kafka.primitives import plain_string_size, require_left, varint
from tms.compat.kafka.requests import API_VERSIONS, KafkaCall, RequestType
from tms.errors import Malformed, TMSError
from tms.model.message import Buffer
from tms.runtime.events import EventLog
from tms.server.framed import FramedConnection, FramedLimits, FramedServer

KAFKA = "kafka"
_log = EventLog(__name__)
_HEAD = struct.Struct(">hhi")  # API key, version, correlation id
_CORRELATION = struct.Struct(">i")


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
        self._requests: Mapping[int, RequestType] = requests.load()
        super().__init__(KAFKA, listener, self._answer_frame, limits, newest)
        self._metrics = broker.service.metrics
        self._metrics.front_connections[KAFKA] = lambda: len(self.connections)

    async def drain(self, timeout_s: float) -> None:
        """End the waits of consumers and groups, then answer what was received."""
        self._broker.drain()
        await super().drain(timeout_s)

    async def _answer_frame(
        self, connection: FramedConnection, frame: bytes
    ) -> Sequence[Buffer] | None:
        head = _head(frame)
        request = self._requests.get(head[0])
        if request is None:
            raise Malformed(
                f"The client asks for the API {head[0]} of Kafka's protocol, which is not spoken "
                "here; docs/kafka.md has those that are."
            )
        key, version, correlation = head
        if version not in request.versions:
            if key != API_VERSIONS:
                raise Malformed(
                    f"The client asks for version {version} of {request.name}; versions "
                    f"{request.versions.first} to {request.versions.last} are spoken here."
                )
            answer = codec.class_of("ApiVersionsResponse")(
                error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=requests.api_keys(self._requests)
            )
            return [_CORRELATION.pack(correlation), *codec.writer("ApiVersionsResponse", 0)(answer)]
        client, at = _client(frame, request.is_flexible(version))
        message = codec.reader(request.name + "Request", version)(frame, at)
        call = KafkaCall(self._broker, message, version, client, connection, self._requests)
        try:
            answer = await request.answer(call)
        except TMSError as error:
            answer = request.refusal(error, code_of(error))
        except Exception as exc:  # a fault of ours: the client gets an answer, the log has the rest
            _log.exception("kafka_request_failed", request=request.name, error=repr(exc))
            fault = TMSError(f"The service failed to answer {request.name}; its log says more.")
            answer = request.refusal(fault, ErrorCode.UNKNOWN_SERVER_ERROR)
        outcome = ErrorCode(getattr(answer, "error_code", ErrorCode.NONE)).name
        self._metrics.front_answers[KAFKA, request.name, outcome] += 1
        if answer is None:
            return None
        chunks: list[Buffer] = [_CORRELATION.pack(correlation)]
        if request.is_flexible(version) and key != API_VERSIONS:
            chunks.append(b"\0")  # no tagged fields of the header
        return chunks + codec.writer(request.name + "Response", version)(answer)


def _head(frame: bytes) -> tuple[int, int, int]:
    try:
        key, version, correlation = _HEAD.unpack_from(frame)
    except struct.error as exc:
        raise Malformed(f"A request of Kafka's protocol has {len(frame)} bytes only.") from exc
    return key, version, correlation


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
