"""The answers of `/v1`: 200, or an error in one sentence of plain text, with CDAP's status codes.

* Success is always 200, also with an empty body: the client accepts no other status.
* 400 a wrong request · 404 no such topic · 409 it exists · 503 try again, which its clients do.
  They take every other status for a failure.
"""

from tms.api import routes
from tms.errors import ErrorKind, TMSError
from tms.server.http.exchange import Exchange

AVRO = "avro/binary"
SENTENCE_CHARS_MAX = 500
_TEXT = b"content-type: text/plain; charset=utf-8\r\n"
_RETRY = f"retry-after: {routes.RETRY_AFTER_S}\r\n".encode()
_JSON = f"content-type: {routes.JSON}\r\n".encode()
_AVRO = f"content-type: {AVRO}\r\n".encode()
_WRONG = frozenset(
    (ErrorKind.MALFORMED, ErrorKind.INVALID, ErrorKind.UNSUPPORTED_MEDIA, ErrorKind.TOO_LARGE)
)
_LATER = frozenset(
    (
        ErrorKind.OVERLOADED,
        ErrorKind.UNAVAILABLE,
        ErrorKind.STORAGE_FULL,
        ErrorKind.CLOSED,
        ErrorKind.TIMED_OUT,
    )
)


class Refusal(TMSError):
    """An answer that is an error: a status, and a sentence."""

    kind = ErrorKind.INVALID

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def wrong(sentence: str) -> Refusal:
    """The refusal of a request that is wrong."""
    return Refusal(routes.BAD_REQUEST, sentence)


def refuse(exchange: Exchange, error: TMSError) -> None:
    """Answer with an error."""
    if isinstance(error, Refusal):
        status = error.status
    elif error.kind in _WRONG:
        status = routes.BAD_REQUEST
    else:
        status = routes.NOT_READY if error.kind in _LATER else routes.status_of(error)
    head = _TEXT + _RETRY if status == routes.NOT_READY else _TEXT
    sentence = error.message[:SENTENCE_CHARS_MAX].encode("utf-8", "backslashreplace")
    exchange.respond(status, head, sentence)


def nothing(exchange: Exchange) -> None:
    """Answer with an empty body."""
    exchange.respond(routes.OK, b"")


def json(exchange: Exchange, body: bytes) -> None:
    """Answer with JSON."""
    exchange.respond(routes.OK, _JSON, body)


def avro(exchange: Exchange, body: bytes) -> None:
    """Answer with Avro."""
    exchange.respond(routes.OK, _AVRO, body)


def nowhere(exchange: Exchange) -> None:
    """Answer a path that does not exist."""
    exchange.keep_alive = False
    path = exchange.path.decode("ascii")[:SENTENCE_CHARS_MAX]
    sentence = f"Problem accessing: {path}. Reason: Not Found"
    exchange.respond(routes.NOT_FOUND, _TEXT, sentence.encode())


def not_so(exchange: Exchange) -> None:
    """Answer a method that the path does not have."""
    exchange.keep_alive = False
    path = exchange.path.decode("ascii")[:SENTENCE_CHARS_MAX]
    exchange.respond(routes.METHOD_NOT_ALLOWED, _TEXT, path.encode())
