"""Messages between a supervisor and its workers: MessagePack behind its length, over a socket."""

import socket
import struct
from typing import Any

import msgspec

from tms.errors import Unavailable
from tms.runtime.decoding import from_msgpack

_LENGTH = struct.Struct(">I")
_GONE = "The supervisor of the workers is gone, and this worker with it."
# A value as a message.
encode = msgspec.msgpack.Encoder().encode


class Frames:
    """Sends and receives messages on a connection. One thread at a time sends, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: object) -> None:
        """Raises `Unavailable`."""
        body = encode(message)
        try:
            self.connection.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as exc:
            raise Unavailable(_GONE) from exc

    def receive(self, shape: type[Any] = object) -> Any:
        """The next message. Raises `Unavailable` when there is none, `TimeoutError` when there is
        none yet and the socket has a time-out."""
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            return from_msgpack(self._read(length), shape)
        except TimeoutError:
            raise
        except OSError as exc:
            raise Unavailable(_GONE) from exc

    def _read(self, size: int) -> bytearray:
        body = bytearray(size)
        view = memoryview(body)
        while view:
            count = self.connection.recv_into(view)
            if not count:
                raise Unavailable(_GONE)
            view = view[count:]
        return body

    def close(self) -> None:
        """Release the connection."""
        self.connection.close()
