"""One connection to HBase's Thrift 2 server, and the meaning of its errors: the only file that
imports thriftpy2.

    binary protocol (strict, version 1) on a TCP stream, plain or in TLS, not framed: a framed
    server corrupts the attributes of tables and their split keys

Invariants

* Every call has a deadline, however slowly its answer arrives.
* A connection that failed in any way but a declared error is closed: its next bytes may belong to
  another call.
* Buffers live as long as a call, so a connection that once carried a large value keeps no memory.
* An error says if HBase may have made the change, or may still make it.
"""

import contextlib
import errno
import select
import socket
from functools import cache
from importlib import resources
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TCyBufferedTransport, TTransportException

from tms.errors import (
    ConfigError,
    DataCorrupt,
    Forbidden,
    StorageFull,
    StorageUnavailable,
    TMSError,
)
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.tls import ClientTls, fault_of

_PROTOCOL: Any = TCyBinaryProtocol  # it has no type hints
_BUFFER_BYTES = 64 << 10
_RECEIVE_BYTES_MAX = 1 << 20
_MESSAGE_CHARS_MAX = 500
INSTALL = "Run `tms hbase install`."

# Names of Java's exceptions, or parts of their texts, and what they mean here.
_MISSING = (
    "TableNotFoundException",
    "NamespaceNotFoundException",
    "NoSuchColumnFamilyException",
    "UnknownTableException",
)
_DENIED = ("AccessDeniedException", "InsufficientPermission", "AccessControlException")
_FULL = (
    "SpaceLimitingException",
    "No space left on device",
    "DSQuotaExceeded",
    "QuotaExceededException",
    "NoWritesViolationPolicy",
    "NoInsertsViolationPolicy",
)
_DAMAGED = ("CorruptHFileException", "ChecksumException", "CorruptedSnapshot")


class Failure(Exception):
    """A failed call: the error of TMS, and the caller's options.

    `done` is True if HBase may have done it or may do it later; `again` is True if another attempt
    may help.
    """

    def __init__(self, error: TMSError, *, done: bool, again: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.done = done
        self.again = again


@cache
def types() -> Any:
    """The module of HBase's Thrift 2 types and of its service, made from the IDL."""
    path = resources.files(__package__).joinpath("hbase.thrift")
    with resources.as_file(path) as file:
        return thriftpy2.load(str(file), module_name="tms_hbase_thrift")


class ThriftConnection:
    """An open connection. Not thread-safe. Raises `Failure`."""

    def __init__(
        self,
        host: str,
        port: int,
        clock: Clock,
        connect_s: float,
        until_s: float,
        tls: ClientTls | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._place = f"hbases://{host}:{port}"
        self.used_s = clock.monotonic_s()
        self._clock = clock
        self._service = types().THBaseService
        left_s = max(0.001, min(connect_s, until_s - clock.monotonic_s()))
        try:
            connected = socket.create_connection((host, port), timeout=left_s)
            if tls is not None:
                connected = tls.context().wrap_socket(connected, server_hostname=host)
        except OSError as exc:
            if (fault := fault_of(exc, self._place)) is not None:
                raise Failure(fault, done=False, again=False) from exc
            raise Failure(
                StorageUnavailable(
                    f"HBase's Thrift server at {host}:{port} cannot be reached: {_reason(exc)}. "
                    "See whether it runs and whether the address is right."
                ),
                done=False,
                again=True,
            ) from exc
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._stream = _Stream(connected, clock, tls is not None)
        forks.in_child(self.abandon)

    def call(self, method: str, arguments: tuple[Any, ...], until_s: float) -> Any:
        """The answer of a method of the service; None where Thrift has none. The connection is
        closed after every failure that the IDL does not declare."""
        self._stream.until_s = until_s
        self._stream.sent = False
        transport = TCyBufferedTransport(self._stream, _BUFFER_BYTES)
        client = TClient(self._service, _PROTOCOL(transport))
        answered = False
        try:
            answer = getattr(client, method)(*arguments)
            answered = True
            return answer
        except TApplicationException as exc:
            if exc.type == TApplicationException.MISSING_RESULT:
                answered = True
                return None
            raise self._failed_inside(method, exc) from exc
        except TException as exc:
            if type(exc).__name__ in ("TIOError", "TIllegalArgument"):
                answered = True
                raise _declared(method, arguments, exc) from exc
            raise self._broken(method, exc) from exc
        except Exception as exc:  # of sockets, or of bytes that are no answer
            if not self._stream.sent and not isinstance(exc, OSError | EOFError):
                raise  # ours: an argument cannot be encoded
            raise self._broken(method, exc) from exc
        finally:
            self.used_s = self._clock.monotonic_s()
            if not answered:
                self.close()

    def check(self, until_s: float) -> None:
        """Make sure that a Thrift 2 server is at the other end. Raises `Failure`."""
        hint = ""
        try:
            kind = self.call("getThriftServerType", (), until_s)
        except Failure as failure:
            if isinstance(failure.__cause__, EOFError):  # as a framed server ends it
                hint = " It ended the connection; perhaps it uses framed transport."
            elif isinstance(failure.__cause__, OSError):
                raise
            kind = None
        if kind != types().TThriftServerType.TWO:
            self.close()
            error: type[TMSError] = StorageUnavailable if hint else ConfigError
            raise Failure(
                error(
                    f"What answers at {self.host}:{self.port} is not HBase's Thrift 2 server with "
                    f"the binary protocol, not framed (`hbase thrift2 start`).{hint} Correct the "
                    "address of the store, or that server's options."
                ),
                done=False,
                again=bool(hint),
            )

    @property
    def alive(self) -> bool:
        """True if nothing was received while idle: neither an end nor unexpected bytes."""
        connected = self._stream.socket
        if connected is None:
            return False
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the connection, now. A second call does nothing."""
        self._stream.close()

    def abandon(self) -> None:
        """Close this process's end of a connection that belongs to its parent."""
        self._stream.close(shared=True)

    def _broken(self, method: str, exc: BaseException) -> Failure:
        place = f"HBase's Thrift server at {self.host}:{self.port}"
        if (fault := fault_of(exc, self._place)) is not None:
            return Failure(fault, done=self._stream.sent, again=False)
        if isinstance(exc, TimeoutError):
            text = f"{place} did not answer {method} in time. See whether HBase is overloaded."
        elif isinstance(exc, OSError | EOFError | TTransportException):
            text = f"The connection to {place} ended during {method}: {_reason(exc)}. Try again."
        else:
            text = f"{place} answered {method} with bytes that are no answer. Try again."
        return Failure(StorageUnavailable(text), done=self._stream.sent, again=True)

    def _failed_inside(self, method: str, exc: Any) -> Failure:
        if exc.type == TApplicationException.UNKNOWN_METHOD:
            error: TMSError = ConfigError(
                f"{self.host}:{self.port} does not know {method}: it is not HBase's Thrift 2 "
                "server, or an old one. TMS needs HBase 2.4 or newer."
            )
            return Failure(error, done=False, again=False)
        error = StorageUnavailable(
            f"HBase's Thrift server at {self.host}:{self.port} failed at {method}: "
            f"{_shortened(exc.message)} Its log says why."
        )
        return Failure(error, done=True, again=False)


class _Stream:
    """A socket with one deadline for all reads and writes of a call, as thriftpy2 uses it."""

    def __init__(self, connected: socket.socket, clock: Clock, encrypted: bool) -> None:
        self.socket: socket.socket | None = connected
        self.until_s = 0.0
        self.sent = False
        self.encrypted = encrypted
        self._clock = clock

    def read(self, size: int) -> bytes:
        received = self._ready().recv(min(size, _RECEIVE_BYTES_MAX))
        if not received:
            raise EOFError("the server closed it")
        return received

    def write(self, raw: bytes) -> None:
        connected = self._ready()
        self.sent = True
        try:
            connected.sendall(raw)
        except OSError:
            if self.encrypted:
                connected.recv(1)  # raises the alert with the reason, if one was received
            raise

    def flush(self) -> None:
        """Nothing to do: writes are not buffered."""

    def close(self, shared: bool = False) -> None:
        connected, self.socket = self.socket, None
        if connected is not None:
            with contextlib.suppress(OSError):
                if not shared:
                    connected.shutdown(socket.SHUT_RDWR)
            connected.close()

    def _ready(self) -> socket.socket:
        if self.socket is None:
            raise EOFError("it was closed")
        left_s = self.until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "the deadline passed")
        self.socket.settimeout(left_s)
        return self.socket


def _declared(method: str, arguments: tuple[Any, ...], exc: Any) -> Failure:
    """The failure for an error that the service answered."""
    text = _shortened(exc.message)
    table = _table(arguments)
    where = f"{method} of {table}" if table else method
    error: TMSError
    done = again = False
    if any(name in text for name in _MISSING) or table == text:
        error = ConfigError(f"HBase does not have the table: {where} says {text}. {INSTALL}")
    elif any(name in text for name in _DENIED):
        error = Forbidden(f"HBase refuses {where}: {text}. Grant TMS's user the right to do so.")
    elif any(name in text for name in _FULL):
        done = True
        error = StorageFull(
            f"HBase has no space for {where}: {text}. Free some, or raise the quota."
        )
    elif any(name in text for name in _DAMAGED):
        done = True
        error = DataCorrupt(f"HBase found damaged files at {where}: {text}. Run `hbase hbck`.")
    elif isinstance(exc, types().TIllegalArgument):
        error = StorageUnavailable(f"HBase's Thrift server refuses {where}: {text}. Try again.")
    else:
        done, again = True, bool(exc.canRetry)
        error = StorageUnavailable(f"HBase could not do {where}: {text}. Its log says more.")
    return Failure(error, done=done, again=again)


def _table(arguments: tuple[Any, ...]) -> str:
    """The table of a call; empty if it has none."""
    first = arguments[0] if arguments else None
    if isinstance(first, types().TTableName):
        return f"{first.ns.decode()}:{first.qualifier.decode()}"
    return first.decode(errors="replace") if isinstance(first, bytes) else ""


def _shortened(message: object) -> str:
    """The first line of a Java exception's text."""
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message or "?")
    return text.strip().partition("\n")[0][:_MESSAGE_CHARS_MAX].rstrip(". ")


def _reason(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc) or type(exc).__name__
