"""Who answers at an address: TMS, another HTTP service, TLS where none was expected, another
protocol, nobody.

* One connection for each question, closed at once; never waits longer than the time-out it is
  given.
* Sends nothing but one HTTP request, so that it harms no foreign service.
"""

import contextlib
import errno
import json
import socket
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

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
_TLS_COMPLAINTS = (b"HTTP request was sent to HTTPS", b"HTTP request to an HTTPS server")


class Who(StrEnum):
    """Who was found at an address."""

    TMS = "tms"
    OTHER_HTTP = "other-http"
    TLS = "tls"
    PLAIN = "plain"  # no TLS although the URL says https
    BAD_CERTIFICATE = "bad-certificate"
    OTHER_PROTOCOL = "other-protocol"
    SILENT = "silent"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    UNKNOWN_HOST = "unknown-host"
    BAD_URL = "bad-url"


@dataclass(frozen=True, slots=True)
class Probed:
    """Who answered, a sentence on it, what to do next, and the answer's headers and JSON body if it
    was TMS."""

    who: Who
    found: str
    next: str
    headers: dict[str, str]
    body: object = None


def ask(url: str, path: str, timeout_s: float) -> Probed:
    """Who answers a GET of `path` at `url`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme not in ("http", "https"):
        return _answer(
            Who.BAD_URL, f"{url} is no URL of a service.", "Write it like http://127.0.0.1:7070."
        )
    place = f"{host}:{port}"
    request = f"GET {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode("ascii")
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            if parts.scheme == "https":
                import ssl  # slow to load, and rarely needed

                with ssl.create_default_context().wrap_socket(
                    connection, server_hostname=host
                ) as encrypted:
                    return _judge(place, _exchange(encrypted, request))
            return _judge(place, _exchange(connection, request))
    except OSError as error:
        return _unreached(place, error)


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
        return _answer(
            Who.SILENT,
            f"Something accepts connections at {place} but does not answer HTTP.",
            "It may be another protocol (Kafka?) or hang; check the port.",
        )
    if received.startswith(_BETRAYALS[0][0]) or any(part in received for part in _TLS_COMPLAINTS):
        return _answer(
            Who.TLS, f"What listens at {place} speaks TLS.", "Write https:// instead of http://."
        )
    if not received.startswith(b"HTTP/1."):
        name = next((name for sign, name in _BETRAYALS if received.startswith(sign)), "no HTTP")
        return _answer(
            Who.OTHER_PROTOCOL,
            f"What listens at {place} speaks {name}.",
            "That is not TMS; check host and port.",
        )
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
        return _answer(Who.TMS, f"TMS answers at {place}.", "", headers, body)
    return _answer(
        Who.OTHER_HTTP,
        f"What answers at {place} is HTTP but not TMS.",
        "Another service has this port; check host and port.",
        headers,
    )


def _unreached(place: str, error: OSError) -> Probed:
    kind = type(error).__name__  # by name, so that ssl is loaded for https only
    if kind == "SSLCertVerificationError":
        return _answer(
            Who.BAD_CERTIFICATE,
            f"The certificate of {place} is not trusted ({error}).",
            "Use the name in the certificate, or make its authority known to this machine.",
        )
    if kind.startswith("SSL"):
        return _answer(
            Who.PLAIN,
            f"What listens at {place} speaks no TLS.",
            "Write http:// instead of https://.",
        )
    if isinstance(error, socket.gaierror):
        return _answer(
            Who.UNKNOWN_HOST, f"The host of {place} is not known.", "Check the name, and DNS."
        )
    if error.errno == errno.ECONNREFUSED:
        return _answer(
            Who.REFUSED, f"Nothing listens at {place}.", "Start a service there: tms serve."
        )
    return _answer(
        Who.UNREACHABLE,
        f"{place} cannot be reached ({error}).",
        "Check host, port, network and firewall.",
    )


def _answer(
    who: Who, found: str, next: str, headers: dict[str, str] | None = None, body: object = None
) -> Probed:
    return Probed(who, found, next, headers or {}, body)
