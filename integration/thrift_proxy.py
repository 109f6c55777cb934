"""A TCP proxy between TMS and HBase's Thrift server that loses what passes through it, on purpose.

    with ThriftProxy(port) as proxy:
        proxy.script("putMultiple", Fault.LOSE_ANSWER)     # of the next call of this method
        HBaseStore(f"hbase://127.0.0.1:{proxy.port}/tms")

A call begins with `80 01 00 01`, the length of its method's name in 4 bytes, the name; a client
sends nothing more until it has its answer.
"""

import contextlib
import socket
import threading
from collections import Counter
from enum import Enum, auto
from types import TracebackType
from typing import Self

WAIT_S = 60
_CALL = b"\x80\x01\x00\x01"
_CHUNK = 1 << 16


class Fault(Enum):
    """What happens to one call."""

    LOSE_REQUEST = auto()  # the connection ends before HBase sees it
    LOSE_ANSWER = auto()  # HBase does it, then the connection ends without an answer
    HALF_ANSWER = auto()  # … in the middle of the answer
    SWALLOW_ANSWER = auto()  # … and the connection stays open, silent
    TRICKLE = auto()  # the answer comes byte by byte, and never all of it
    LATER = auto()  # the connection ends; HBase sees the call with the next `deliver`


class ThriftProxy:
    """Listens on a free port of this machine; ends with its `with` block."""

    def __init__(self, port: int, listen_at: int = 0) -> None:
        self.calls: Counter[str] = Counter()  # that arrived here, by method
        self.connections = 0
        self._target = port
        self._faults: list[tuple[str, Fault]] = []
        self._held: list[bytes] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", listen_at))
        self.port: int = self._listener.getsockname()[1]

    def script(self, method: str, *faults: Fault) -> None:
        """The faults of the next calls of a method."""
        with self._lock:
            self._faults.extend((method, fault) for fault in faults)

    def forget(self) -> None:
        """Let everything through from now on."""
        with self._lock:
            self._faults.clear()

    @property
    def done(self) -> bool:
        """Whether every scripted fault has happened."""
        return not self._faults

    def deliver(self) -> None:
        """Let HBase see the calls that were held back; their answers are dropped."""
        for raw in self._held:
            with socket.create_connection(("127.0.0.1", self._target), WAIT_S) as server:
                server.sendall(raw)
                assert server.recv(_CHUNK)
        self._held.clear()

    def end_connections(self) -> None:
        """End every connection, as a Thrift server does with idle ones."""
        with self._lock:
            ended, self._sockets = self._sockets, set()
        for one in ended:
            _end(one)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        _end(self._listener)
        self.end_connections()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._target), WAIT_S)
            with self._lock:
                self._sockets |= {client, server}
            _Relay(self, client, server).start(self._start)

    def fault(self, method: str) -> Fault | None:
        """What happens to a call that has just arrived."""
        with self._lock:
            self.calls[method] += 1
            found = next((one for one in self._faults if one[0] == method), None)
            if found is not None:
                self._faults.remove(found)
            return None if found is None else found[1]

    def hold(self, raw: bytes) -> None:
        """Keep a call for `deliver`."""
        self._held.append(raw)

    def pause(self, seconds: float) -> bool:
        """Let time pass; whether the proxy ended meanwhile."""
        return self._ended.wait(seconds)


class _Relay:
    """One connection, with a thread for each direction."""

    def __init__(self, proxy: ThriftProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._fault: Fault | None = None

    def start(self, start: object) -> None:
        assert callable(start)
        start(self._requests)
        start(self._answers)

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while raw := self._client.recv(_CHUNK):
                if raw.startswith(_CALL):
                    length = int.from_bytes(raw[4:8], "big")
                    self._fault = self._proxy.fault(raw[8 : 8 + length].decode())
                if self._fault is Fault.LATER:
                    self._proxy.hold(raw)
                if self._fault in (Fault.LOSE_REQUEST, Fault.LATER):
                    break
                self._server.sendall(raw)
        _end(self._client)
        _end(self._server)

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while raw := self._server.recv(_CHUNK):
                if self._fault is None:
                    self._client.sendall(raw)
                elif self._fault is Fault.HALF_ANSWER:
                    self._client.sendall(raw[: len(raw) // 2])
                    break
                elif self._fault is Fault.LOSE_ANSWER:
                    break
                elif self._fault is Fault.TRICKLE:
                    for at in range(len(raw) - 1):
                        self._client.sendall(raw[at : at + 1])
                        if self._proxy.pause(0.2):
                            break
                    break
        _end(self._client)
        _end(self._server)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        one.shutdown(socket.SHUT_RDWR)
    one.close()
