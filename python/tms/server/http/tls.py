"""TLS between a socket and the connection that speaks HTTP or frames over it.

    socket ◀─▶ TlsLayer ◀─▶ ClientConnection, or a connection of frames

    HELLO ──0x16──▶ HANDSHAKE ──▶ OPEN ──▶ ENDED
      └── anything else ──▶ PLAIN, answered: use https://    (a failed handshake: ENDED)

* To the socket's transport it is the protocol, to the connection it is the transport: limits,
  back-pressure, half-closed connections and the watchdog are those of a plain connection, and a
  handshake that does not get on is an idle connection that never asked for anything.
* The context is the newest when a client says hello; a connection keeps its first context.
* A failed handshake sends an alert, and further bytes of the client are read for a moment, so that
  it sees the reason.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol

from tms.errors import Malformed, TMSError
from tms.model.message import Buffer
from tms.runtime.tls import certificate_name
from tms.server.http.protocol import TLS_HANDSHAKE

RECORD_BYTES = 16 << 10  # the most that TLS encrypts as one
PIECE_BYTES = 64 << 10  # that go through OpenSSL's buffers at once: they never shrink
_PLAIN = (
    "This port speaks TLS only, and the request came without: write https:// instead of http://."
)


class _State(Enum):
    HELLO = auto()
    HANDSHAKE = auto()
    OPEN = auto()
    PLAIN = auto()
    ENDED = auto()  # nothing more is sent, and nothing that comes is read


class SecuredConnection(Protocol):
    """The connection above TLS. `peer_certificate_name` is set once a client's certificate is
    verified."""

    peer_certificate_name: str | None

    def connection_made(self, transport: asyncio.Transport, /) -> None: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...
    def data_received(self, data: bytes, /) -> None: ...
    def eof_received(self) -> bool: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def refuse(self, error: TMSError) -> None:
        """Answer a client that does not speak TLS, without it, and end the connection."""
        ...

    def handshake_failed(self, error: Exception) -> None:
        """End the connection so that the client gets the alert."""
        ...


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """TLS on one connection. Used by the event loop's thread only."""

    def __init__(self, connection: SecuredConnection, newest: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._connection: SecuredConnection | None = connection
        self._newest = newest
        self._state = _State.HELLO
        self._early: list[Buffer] = []  # an answer to a client that has not said hello yet
        self._ending = False  # after it
        self._ended = False  # the client sends no more

    # -- the socket's calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket: Any = transport  # uvloop's is no asyncio.Transport by its class
        assert self._connection is not None
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        connection, self._connection = self._connection, None
        self._state = _State.ENDED
        if connection is not None:
            connection.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._state is _State.OPEN:
            self._read(data)
        elif self._state is _State.HANDSHAKE:
            self._incoming.write(data)
            self._shake_hands()
        elif self._state is _State.HELLO:
            self._begin(data)

    def eof_received(self) -> bool:
        if self._ended:  # it has said so in TLS: the connection above closes
            return True
        self._ended = True
        return self._connection is not None and self._connection.eof_received()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    # -- TLS -----------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> None:
        if data[0] == TLS_HANDSHAKE:
            self._state = _State.HANDSHAKE
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = self._newest()
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._asks = context.verify_mode is not ssl.CERT_NONE
            self._incoming.write(data)
            self._shake_hands()
            return
        self._state = _State.PLAIN
        self._say_early()
        if self._connection is not None and not self._ending:
            self._connection.refuse(Malformed(_PLAIN))

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as exc:
            self._fail(exc)
            return
        self._flush()
        self._state = _State.OPEN
        if self._connection is not None and self._asks:
            self._connection.peer_certificate_name = certificate_name(self._tls.getpeercert())
        self._say_early()
        if self._state is _State.OPEN:
            self._read(b"")

    def _say_early(self) -> None:
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        if self._ending:
            self.write_eof()

    def _read(self, data: bytes) -> None:
        """Hand over what has come."""
        read, pieces, ended = self._tls.read, [], False
        for at in range(0, len(data) or 1, PIECE_BYTES):
            self._incoming.write(data[at : at + PIECE_BYTES])
            try:
                while piece := read(RECORD_BYTES):
                    pieces.append(piece)
                ended = True  # the client has said goodbye
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLZeroReturnError:  # and we have, too
                ended = True
            except ssl.SSLError as exc:
                self._fail(exc)
                return
            break
        if self._outgoing.pending:
            self._flush()
        connection = self._connection
        if connection is None:
            return
        if pieces:
            connection.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended and not self._ended and not self.eof_received():
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        """The alert goes out, and nothing behind it."""
        self._flush()
        shaking, self._state = self._state is _State.HANDSHAKE, _State.ENDED
        connection = self._connection
        if connection is not None and shaking:
            connection.handshake_failed(error)
        else:
            self._socket.close()

    # -- the connection's calls ----------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._state is _State.OPEN:
            left = memoryview(data)
            while left:
                left = left[self._tls.write(left[:PIECE_BYTES]) :]
                self._socket.write(self._outgoing.read())
        elif self._state is _State.PLAIN:
            self._socket.write(data)
        elif self._state is not _State.ENDED:
            self._early.append(data)

    def writelines(self, chunks: Iterable[Buffer]) -> None:
        self.write(b"".join(chunks))

    def write_eof(self) -> None:
        if self._state in (_State.HELLO, _State.HANDSHAKE):
            self._ending = True
            return
        self._say_goodbye()
        if not self._socket.is_closing():
            self._socket.write_eof()

    def close(self) -> None:
        self._say_goodbye()
        self._socket.close()

    def _say_goodbye(self) -> None:
        state, self._state = self._state, _State.ENDED
        if state is not _State.OPEN:
            return
        with suppress(ssl.SSLError):  # the other side's goodbye is not here yet
            self._tls.unwrap()
        if not self._socket.is_closing():
            self._flush()

    def abort(self) -> None:
        self._state = _State.ENDED
        self._socket.abort()

    def is_closing(self) -> bool:
        return bool(self._socket.is_closing())

    def can_write_eof(self) -> bool:
        return True

    def is_reading(self) -> bool:
        return bool(self._socket.is_reading())

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return int(self._socket.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)
