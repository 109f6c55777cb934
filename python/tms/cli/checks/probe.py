"""The kind of server behind an address: TMS, another HTTP service, TLS, another protocol, none.

* One connection for each question, closed at once; never waits longer than the time-out it is
  given.
* Sends nothing but one HTTP request, so that it harms no foreign service.
"""

import contextlib
import errno
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from tms.errors import ConfigError
from tms.runtime.tls import ClientTls, fault_of

_ANSWER_BYTES_MAX = 16_384

# How protocols betray themselves when they are sent an HTTP request.
_BETRAYALS = (
    (b"\x15\x03", "TLS"),
    (b"\x16\x03", "TLS"),
    (b"SSH-", "SSH"),
    (b"INFO {", "NATS"),
    (b"-ERR", "Redis"),
    (b"AMQP", "AMQP (RabbitMQ)"),
    (b"220 ", "SMTP or FTP"),
    (b"\x00\x00", "HTTP/2 without HTTP/1.1, as of gRPC"),
)
_TLS_COMPLAINTS = (
    b"HTTP request was sent to HTTPS",
    b"HTTP request to an HTTPS server",
    b"This port speaks TLS only",
)


class Who(Enum):
    """The kind of server behind an address, with a sentence about it and the next step."""

    def __init__(self, found: str, next: str) -> None:
        self.found, self.next = found, next

    TMS = "TMS answers at {place}.", ""
    OTHER_HTTP = "What answers at {place} is HTTP but not TMS.", "Another service has this port."
    TLS = "What listens at {place} speaks TLS.", "Write https:// instead of http://."
    PLAIN = "What listens at {place} speaks no TLS.", "Write http:// instead of https://."
    BAD_CERTIFICATE = "{detail}", "docs/security.md tells who verifies what."
    OTHER_PROTOCOL = "What listens at {place} speaks {detail}.", "That is not TMS; check the port."
    SILENT = (
        "Something accepts connections at {place} but does not answer HTTP.",
        "It may be another protocol (Kafka?) or hang; check the port.",
    )
    REFUSED = "Nothing listens at {place}.", "Start a service there: tms serve."
    UNREACHABLE = "{place} cannot be reached ({detail}).", "Check host, port, network and firewall."
    UNKNOWN_HOST = "The host of {place} is not known.", "Check the name, and DNS."
    BAD_URL = "{place} is no URL of a service.", "Write it like http://127.0.0.1:7070."


@dataclass(frozen=True, slots=True)
class Probed:
    """The kind of a server, and the headers and JSON body of its answer if it is TMS."""

    who: Who
    place: str
    detail: object = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None

    @property
    def found(self) -> str:
        """A sentence on who answered."""
        return self.who.found.format(place=self.place, detail=self.detail)

    @property
    def next(self) -> str:
        """The next step."""
        return self.who.next


def ask(url: str, path: str, timeout_s: float, tls: ClientTls | None = None) -> Probed:
    """Send a GET of `path` to `url`, and tell the kind of the server from its answer."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return Probed(Who.BAD_URL, url)
    if not host or parts.scheme not in ("http", "https"):
        return Probed(Who.BAD_URL, url)
    place = f"{host}:{port}"
    request = f"GET {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode("ascii")
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            if parts.scheme == "http":
                return _judge(place, _exchange(connection, request))
            context = (tls or ClientTls()).context()
            with context.wrap_socket(connection, server_hostname=host) as encrypted:
                return _judge(place, _exchange(encrypted, request))
    except ConfigError as error:  # of the files that are ours
        return Probed(Who.BAD_CERTIFICATE, place, error.message)
    except OSError as error:
        fault = fault_of(error, f"https://{place}")
        if fault is not None and fault.no_tls:
            return Probed(Who.PLAIN, place)
        if fault is not None:
            return Probed(Who.BAD_CERTIFICATE, place, fault.message)
        return Probed(_unreached(error), place, error)


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        connection.sendall(request)
        while len(received) < _ANSWER_BYTES_MAX:
            part = connection.recv(_ANSWER_BYTES_MAX)
            if not part:
                break
            received += part
    return received


def _judge(place: str, received: bytes) -> Probed:
    if not received:
        return Probed(Who.SILENT, place)
    if received.startswith(_BETRAYALS[0][0]) or any(part in received for part in _TLS_COMPLAINTS):
        return Probed(Who.TLS, place)
    if not received.startswith(b"HTTP/1."):
        name = next((name for sign, name in _BETRAYALS if received.startswith(sign)), "no HTTP")
        return Probed(Who.OTHER_PROTOCOL, place, name)
    head, _, rest = received.partition(b"\r\n\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head.decode("latin-1").split("\r\n"))
    }
    try:
        body = json.loads(rest)
    except ValueError:
        body = None
    if isinstance(body, dict) and (
        str(body.get("name")).lower() == "tms"
        or "reasons" in body
        or str(body.get("type")).startswith("urn:tms:")
    ):
        return Probed(Who.TMS, place, headers=headers, body=body)
    return Probed(Who.OTHER_HTTP, place)


def _unreached(error: OSError) -> Who:
    kind = type(error).__name__  # by name, so that ssl is loaded for https only
    if kind.startswith("SSL"):
        return Who.PLAIN
    if isinstance(error, socket.gaierror):
        return Who.UNKNOWN_HOST
    return Who.REFUSED if error.errno == errno.ECONNREFUSED else Who.UNREACHABLE
