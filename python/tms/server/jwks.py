"""Reads a JWKS, the document with the keys of an issuer, from a URL or a file.

    https://… (http:// on this machine) ── GET ─▶ 200, at most DOCUMENT_BYTES_MAX, within a time
    a path                              ── a regular file of that size

* A read ends within its time, whatever the other side does; then its connection is shut down, so
  that its thread ends, too. The end of the service does not wait for that thread.
* The document is taken from the configured source: no redirect and no proxy is followed.
"""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from urllib.parse import SplitResult, urlsplit

from tms.api import routes
from tms.errors import TMSError, Unavailable
from tms.runtime.tls import ClientTls, fault_of
from tms.runtime.version import VERSION

DOCUMENT_BYTES_MAX = 256 << 10
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"accept": routes.JSON, "user-agent": f"tms/{VERSION}", "connection": "close"}
_NOT_WHOLE = "its answer is no whole one of HTTP ({})"


class _IssuerConnection(HTTPConnection):
    """A connection that another thread may shut down, from its TLS handshake on."""

    def __init__(self, url: SplitResult, tls: ClientTls, timeout_s: float) -> None:
        super().__init__(url.hostname or "", url.port or _PORTS[url.scheme], timeout=timeout_s)
        self.default_port = _PORTS[url.scheme]  # which `Host` leaves out
        self._tls = tls if url.scheme == "https" else None
        self._connected: socket.socket | None = None  # `sock` is None once the head has come
        self._over = False

    def connect(self) -> None:
        context = None if self._tls is None else self._tls.context()
        super().connect()
        self._connected = self.sock
        self._require_time()
        if context is not None:
            self.sock = self._connected = context.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._require_time()
            self._connected.do_handshake()

    def _require_time(self) -> None:
        if self._over:  # before there was a socket to shut down
            raise TimeoutError

    def shut_down(self) -> None:
        """End what waits for the other side, now or once it is connected. From any thread."""
        self._over = True
        if self._connected is not None:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(self._connected, socket.SHUT_RDWR)


async def read_jwks(source: str, tls: ClientTls, timeout_s: float) -> bytes:
    """The document at a URL, or in a file. Raises `Unavailable`."""
    try:
        if "://" not in source:
            async with asyncio.timeout(timeout_s):
                return await asyncio.to_thread(_read_file, source)
        url = urlsplit(source)
        connection = _IssuerConnection(url, tls, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await _in_daemon(partial(_fetch, connection, url))
        finally:
            connection.shut_down()
    except TMSError as exc:  # first: some are OSError or ValueError, too
        raise Unavailable(exc.message) from exc
    except TimeoutError as exc:
        raise Unavailable(f"it was not there within {timeout_s:g} s (jwt.timeout_s)") from exc
    except (IncompleteRead, RemoteDisconnected) as exc:
        raise Unavailable(_NOT_WHOLE.format("the connection ended before it")) from exc
    except OSError as exc:
        raise Unavailable(str(fault_of(exc, source) or exc)) from exc
    except (HTTPException, ValueError) as exc:
        raise Unavailable(_NOT_WHOLE.format(repr(exc))) from exc


async def _in_daemon(work: Callable[[], bytes]) -> bytes:
    """The result of work in a thread of its own, which may outlive the event loop."""
    done: Future[bytes] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="tms-jwks", daemon=True).start()
    return await asyncio.wrap_future(done)


def _fetch(connection: _IssuerConnection, url: SplitResult) -> bytes:
    with closing(connection):
        target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
        connection.request("GET", target, headers=_HEADERS)
        answer = connection.getresponse()
        if answer.status != routes.OK:
            raise Unavailable(
                f"it was answered with the status {answer.status}; jwt.jwks is the URL of the "
                "document itself"
            )
        document = answer.read(DOCUMENT_BYTES_MAX + 1)
        if len(document) > DOCUMENT_BYTES_MAX:
            raise _too_large()
        if answer.length:  # bytes that it announced, and has not sent
            raise IncompleteRead(document, answer.length)
        return document


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
