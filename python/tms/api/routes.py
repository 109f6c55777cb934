"""Paths, names, media types and status numbers of `/v2`; errors as RFC 9457 problem documents.

* HTTP status numbers stand only in this file.
* `problem` and `from_problem` are inverse: the client meets the class, message and details that
  the service raised.
* A problem document is at most 2 KiB, whatever the error says.

    {"type": "urn:tms:problem:topic-exists", "title": "Topic exists", "status": 409,
     "detail": "…", "retriable": false, "details": {…}, "request_id": "…"}
"""

from http import HTTPStatus
from typing import Any

import msgspec

from tms.errors import ErrorKind, TMSError, TooLarge, from_code
from tms.runtime.decoding import json_decoder

ROOT = "/v2"
CONSOLE = "/console"
PREFIX = f"{ROOT}/namespaces"
NEW_TRANSACTION = "new"  # in place of an id: the transaction begins with its commit
LIVEZ, STARTUPZ, READYZ = "/livez", "/startupz", "/readyz"
METRICS, OPENAPI = "/metrics", "/openapi.json"

JSON = "application/json"
BLOCKS = "application/vnd.tms.blocks"
COMMIT = "application/vnd.tms.commit"
CLOUD_EVENT = "application/cloudevents+json"
CLOUD_EVENTS = "application/cloudevents-batch+json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
PROBLEM = "application/problem+json"
TEXT = "text/plain"

NEXT_HEADER = "TMS-Next"  # where to go on: usable as `start` of the next fetch
END_HEADER = "TMS-End"  # `0:123,1:456`: the offset after the last message, by partition
REACHED_HEADER = "TMS-Reached"  # the same of before which everything was looked at
OWNER_HEADER = "TMS-Owner"  # `URL` keeps this, or `URL 0 1, URL 2` these partitions: ask there
HOP_HEADER = "TMS-Hop"  # another instance asks: do it here, or refuse
PEER_HEADER = "TMS-Peer"  # proves that an instance asks; see `cluster/identity`
REQUEST_ID_HEADER = "TMS-Request-Id"
PRINCIPAL_HEADER = "TMS-Principal"  # for whom, as that instance knows

PROBLEM_BYTES_MAX = 2_048
_TYPE = "urn:tms:problem:"
_DETAIL_CHARS_MAX = 1_000
_DETAIL_CHARS_SURE = 200  # fits however much JSON escapes it (6 bytes each)
RETRY_AFTER_S = 1

OK, CREATED, NO_CONTENT = 200, 201, 204
NOT_READY, METHOD_NOT_ALLOWED, BAD_GATEWAY = 503, 405, 502
BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, INTERNAL = 400, 403, 404, 409, 500  # of `/v1`
STATUS_LINES = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus
}

STATUS: dict[ErrorKind, int] = {
    ErrorKind.MALFORMED: 400,
    ErrorKind.INVALID: 422,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.UNSUPPORTED_MEDIA: 415,
    ErrorKind.NOT_ACCEPTABLE: 406,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.GONE: 410,
    ErrorKind.SLOW: 408,
    ErrorKind.OVERLOADED: 429,
    ErrorKind.STORAGE_FULL: 507,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.CORRUPT: 500,
    ErrorKind.INTERNAL: 500,
    ErrorKind.ALREADY_RUNNING: 503,
    ErrorKind.CONFIG: 500,
    ErrorKind.TIMED_OUT: 504,
    ErrorKind.CLOSED: 503,
}
_STATUS_OF_CODE = {
    "method-not-allowed": METHOD_NOT_ALLOWED,
    "uri-too-long": 414,
    "headers-too-large": 431,
    "not-implemented": 501,
}


class MethodNotAllowed(TMSError):
    """The path exists, but not with this method; details carry `allowed`."""

    code, kind = "method-not-allowed", ErrorKind.INVALID


class UriTooLong(TooLarge):
    """The request's URL is over the limit."""

    code = "uri-too-long"


class HeadersTooLarge(TooLarge):
    """The request's headers are too many or too large."""

    code = "headers-too-large"


class NotImplementedMethod(TMSError):
    """The method is none of HTTP's."""

    code, kind = "not-implemented", ErrorKind.INVALID


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    retriable: bool = False
    details: dict[str, Any] = {}
    request_id: str = ""


_problem_decoder = json_decoder(ProblemBody)


def status_of(error: TMSError | type[TMSError]) -> int:
    """The HTTP status of an error, or of a kind of errors."""
    return _STATUS_OF_CODE.get(error.code) or STATUS[error.kind]


def problem(error: TMSError, request_id: str = "") -> tuple[int, bytes]:
    """Status and body of the answer that carries this error, at most 2 KiB."""
    status = status_of(error)
    document = ProblemBody(
        type=_TYPE + error.code,
        title=error.code.replace("-", " ").capitalize(),
        status=status,
        detail=_clipped(error.message, _DETAIL_CHARS_MAX),
        retriable=error.retriable,
        details=error.details,
        request_id=request_id,
    )
    try:
        body = msgspec.json.encode(document)
    except (TypeError, ValueError):  # details that are no JSON are for logs only
        document.details = {}
        body = msgspec.json.encode(document)
    if len(body) > PROBLEM_BYTES_MAX:
        document.details, document.detail = {}, _clipped(error.message, _DETAIL_CHARS_SURE)
        body = msgspec.json.encode(document)
    return status, body


def _clipped(message: str, chars_max: int) -> str:
    clean = message.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= chars_max else clean[: chars_max - 1] + "…"


def from_problem(status: int, body: bytes | bytearray | memoryview) -> TMSError:
    """The error in this answer; a plain `TMSError` with the status when it is none of TMS's."""
    try:
        document = _problem_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        document = None
    if document is None or not document.type.startswith(_TYPE):
        return TMSError(
            f"The answer has status {status} and no TMS problem document; is this a TMS service?",
            status=status,
        )
    return from_code(document.type.removeprefix(_TYPE), document.detail, document.details)
