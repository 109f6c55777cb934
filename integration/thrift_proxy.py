"""A TCP proxy between TMS and HBase's Thrift server that loses calls and answers on purpose.

    with ThriftProxy(port) as proxy:
        proxy.script("putMultiple", Fault.LOSE_ANSWER)     # of the next call of this method
        HBaseStore(f"hbase://127.0.0.1:{proxy.port}/tms")

A call begins with `80 01 00 01`, the length of its method's name in 4 bytes, the name; a client
sends nothing more until it has its answer.
"""

import contextlib
import socket
from collections import Counter
from enum import Enum, auto

from tests.tcp_proxy import TcpProxy, end

WAIT_S = 60
_CALL = b"\x80\x01\x00\x01"
_CHUNK = 1 << 16


class Fault(Enum):
    """A fault of one call."""

    LOSE_REQUEST = auto()  # the connection ends before HBase sees it
    LOSE_ANSWER = auto()  # HBase does it, then the connection ends without an answer
    HALF_ANSWER = auto()  # … in the middle of the answer
    SWALLOW_ANSWER = auto()  # … and the connection stays open, silent
    TRICKLE = auto()  # the answer comes byte by byte, and never all of it
    LATER = auto()  # the connection ends; HBase sees the call with the next `deliver`


class ThriftProxy(TcpProxy):
    """Between clients and the Thrift server at a port of this machine."""

    def __init__(self, port: int, listen_at: int = 0) -> None:
        super().__init__(("127.0.0.1", port), WAIT_S, listen_at)
        self.calls: Counter[str] = Counter()  # arrived calls by method
        self._faults: list[tuple[str, Fault]] = []
        self._held: list[bytes] = []

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
        """True if every scripted fault has happened."""
        return not self._faults

    def deliver(self) -> None:
        """Let HBase see the calls that were held back; their answers are dropped."""
        for raw in self._held:
            with self.dial() as server:
                server.sendall(raw)
                assert server.recv(_CHUNK)
        self._held.clear()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Relay calls in this thread, answers in a second one."""
        one = _Relay(self, client, server)
        self.start(one.answers)
        one.requests()

    def fault(self, method: str) -> Fault | None:
        """The fault of a call that has just arrived."""
        with self._lock:
            self.calls[method] += 1
            found = next((one for one in self._faults if one[0] == method), None)
            if found is not None:
                self._faults.remove(found)
            return None if found is None else found[1]

    def hold(self, raw: bytes) -> None:
        """Keep a call for `deliver`."""
        self._held.append(raw)


class _Relay:
    """One connection, with a thread for each direction. When one ends, so does the other."""

    def __init__(self, proxy: ThriftProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._fault: Fault | None = None

    def requests(self) -> None:
        while raw := self._client.recv(_CHUNK):
            if raw.startswith(_CALL):
                length = int.from_bytes(raw[4:8], "big")
                self._fault = self._proxy.fault(raw[8 : 8 + length].decode())
            if self._fault is Fault.LATER:
                self._proxy.hold(raw)
            if self._fault in (Fault.LOSE_REQUEST, Fault.LATER):
                return
            self._server.sendall(raw)

    def answers(self) -> None:
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
        end(self._client)
        end(self._server)
