"""How `/v1` answers: 200 or an error in one sentence of plain text, with CDAP's status codes.

* Success is always 200, also for nothing: the client takes no other.
* 400 what was said is wrong · 404 no such topic · 409 it exists · 503 try again, which its clients
  do; everything else is a failure to them.
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
OURS = frozenset(
    (
        ErrorKind.UNAVAILABLE,
        ErrorKind.STORAGE_FULL,
        ErrorKind.CORRUPT,
        ErrorKind.INTERNAL,
        ErrorKind.CLOSED,
    )
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


class Said(Exception):
    """An answer that is an error: a status, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def said(error: TMSError) -> Said:
    """An error of the engine as CDAP would say it."""
    if error.kind in _WRONG:
        return Said(routes.BAD_REQUEST, error.message)
    if error.kind in _LATER:
        return Said(routes.NOT_READY, error.message)
    return Said(routes.status_of(error), error.message)


def wrong(sentence: str) -> Said:
    """What was said is wrong."""
    return Said(routes.BAD_REQUEST, sentence)


def refuse(exchange: Exchange, answer: Said) -> None:
    """Answer with an error, or end an answer that was begun."""
    if exchange.response_started:
        exchange.abort()
        return
    head = _TEXT + _RETRY if answer.status == routes.NOT_READY else _TEXT
    sentence = answer.sentence[:SENTENCE_CHARS_MAX].encode("utf-8", "backslashreplace")
    exchange.respond(answer.status, head, sentence)


def nothing(exchange: Exchange) -> None:
    """Done; there is nothing to say."""
    exchange.respond(routes.OK, b"")


def json(exchange: Exchange, body: bytes) -> None:
    """Answer with JSON."""
    exchange.respond(routes.OK, _JSON, body)


def avro(exchange: Exchange, body: bytes) -> None:
    """Answer with Avro."""
    exchange.respond(routes.OK, _AVRO, body)


def pong(exchange: Exchange) -> None:
    """Answer to a ping."""
    exchange.respond(routes.OK, b"content-type: text/plain\r\n", b"OK.\n")


def nowhere(exchange: Exchange) -> None:
    """There is no such path."""
    exchange.keep_alive = False
    path = exchange.path.decode("ascii")[:SENTENCE_CHARS_MAX]
    sentence = f"Problem accessing: {path}. Reason: Not Found"
    exchange.respond(routes.NOT_FOUND, _TEXT, sentence.encode())


def not_so(exchange: Exchange) -> None:
    """The path exists, but not with this method."""
    exchange.keep_alive = False
    path = exchange.path.decode("ascii")[:SENTENCE_CHARS_MAX]
    exchange.respond(routes.METHOD_NOT_ALLOWED, _TEXT, path.encode())
