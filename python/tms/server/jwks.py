"""Reads a JWKS, the document with the keys of an issuer, from a URL or a file.

    https://… (http:// on this machine) ── GET ─▶ 200, at most DOCUMENT_BYTES_MAX, within a time
    a path                              ── a regular file of that size

* Whatever the other side does, a read ends within its time and takes no more memory than that.
* Nothing is followed: what is read is at the place that was configured.
"""

import asyncio
import os
import ssl
import stat
from urllib.parse import SplitResult, urlsplit

import httptools

import tms
from tms.api import routes
from tms.errors import TMSError, Unavailable
from tms.tls import ClientTls, fault_of

DOCUMENT_BYTES_MAX = 256 << 10  # with the head of the answer
_PORTS = {"http": 80, "https": 443}


class _Fetched:
    """What the parser has found so far."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.headed = self.framed = self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = True


async def read_jwks(place: str, tls: ClientTls, timeout_s: float) -> bytes:
    """The document at a URL, or in a file. Raises `Unavailable`."""
    try:
        async with asyncio.timeout(timeout_s):
            if "://" in place:
                return await _fetch(urlsplit(place), tls)
            return await asyncio.to_thread(_read_file, place)
    except TimeoutError as exc:
        raise Unavailable(f"it was not there within {timeout_s:g} s (jwt.timeout_s)") from exc
    except OSError as exc:
        raise Unavailable(str(fault_of(exc, place) or exc)) from exc
    except (EOFError, ValueError, httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
        raise Unavailable(f"its answer is no whole one of HTTP ({exc})") from exc
    except TMSError as exc:
        raise Unavailable(exc.message) from exc


async def _fetch(url: SplitResult, tls: ClientTls) -> bytes:
    context: ssl.SSLContext | None = None
    if url.scheme == "https":
        context = await asyncio.to_thread(tls.context)  # which may read many certificates
    port = url.port or _PORTS[url.scheme]
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
    try:
        writer.write(
            f"GET {url.path or '/'}{'?' if url.query else ''}{url.query} HTTP/1.1\r\n"
            f"host: {url.netloc}\r\naccept: application/json\r\naccept-encoding: identity\r\n"
            f"user-agent: tms/{tms.__version__}\r\nconnection: close\r\n\r\n".encode("ascii")
        )
        fetched = _Fetched()
        parser = httptools.HttpResponseParser(fetched)
        read = 0
        while not fetched.complete:
            data = await reader.read(DOCUMENT_BYTES_MAX)
            read += len(data)
            if read > DOCUMENT_BYTES_MAX:
                raise _too_large()
            if not data:
                if fetched.framed or not fetched.headed:
                    raise EOFError("the connection ended before it")
                break  # which is how such an answer ends
            parser.feed_data(data)
    finally:
        writer.transport.abort()
    if parser.get_status_code() != routes.OK:
        raise Unavailable(
            f"it was answered with the status {parser.get_status_code()}; jwt.jwks is the URL of "
            "the document itself"
        )
    return b"".join(fetched.pieces)


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unavailable("it is no regular file")
        document = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise _too_large()
    return document


def _too_large() -> Unavailable:
    return Unavailable(f"it is larger than {DOCUMENT_BYTES_MAX} bytes")
