"""Connections to HBase's Thrift servers, for all threads of a store: the choice of a server, the
number of connections, retries.

Invariants

* At most `connections_max` calls are under way; further ones wait, within their deadlines.
* Bytes under way are bounded too, because a Thrift server holds them in its heap.
* A connection that was idle for `IDLE_S` is checked before it is used: the servers end those that
  are idle for a minute. One that ends between the check and the call is a failure like any other.
* A call that changes nothing when it is repeated is retried, within the deadline; any other call is
  retried only if it was certainly not sent.
"""

import random
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from tms.errors import Closed, ConfigError, StorageUnavailable, TMSError
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import retrying
from tms.runtime.tls import ClientTls
from tms.store.hbase.connection import Failure, ThriftConnection

IDLE_S = 30.0
AVOID_S = 5.0  # for which an unreachable server is tried last
BYTES_UNDER_WAY_MAX = 64 << 20
PORT = 9090
NAMESPACE = "tms"
_WRITES = {"putMultiple", "deleteMultiple", "checkAndPut", "checkAndDelete"}
_URL = re.compile(r"hbases?://([^/?#]+)(?:/([A-Za-z0-9_]+))?/?", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?", re.ASCII)

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HBasePlace:
    """The address of a store: equivalent Thrift servers, and the namespace of its tables."""

    servers: tuple[Address, ...]
    namespace: str
    tls: ClientTls | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, url: str, tls: ClientTls | None = None) -> "HBasePlace":
        """Parse `hbase://HOST[:PORT][,HOST[:PORT]…][/NAMESPACE]`, or `hbases://…` for TLS, with the
        settings of `tls` or the environment. Raises `ConfigError`."""
        found = _URL.fullmatch(url)
        hosts = [_HOST.fullmatch(one) for one in found[1].split(",")] if found else [None]
        servers = [(one[1].strip("[]"), int(one[2] or PORT)) for one in hosts if one is not None]
        if found is None or None in hosts or not all(0 < port < 65_536 for _, port in servers):
            raise ConfigError(
                "A store in HBase is hbase://HOST:PORT/NAMESPACE, hbases:// over TLS, with the "
                "address of a Thrift 2 server, or of several with commas between them; got "
                f"{url!r}."
            )
        used = (tls or ClientTls.of(None, None)) if url.startswith("hbases") else None
        return cls(tuple(servers), found[2] or NAMESPACE, used)

    def __str__(self) -> str:
        hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in self.servers)
        scheme = "hbase" if self.tls is None else "hbases"
        return f"{scheme}://{','.join(f'{host}:{port}' for host, port in hosts)}/{self.namespace}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Time-outs and bounds of connections."""

    connect_s: float = 5.0
    call_s: float = 30.0
    connections_max: int = 16


class Pool:
    """Makes calls over pooled connections. Thread-safe."""

    def __init__(self, place: HBasePlace, clock: Clock, limits: Limits) -> None:
        self.place = place
        self.limits = limits
        self.read_failure: TMSError | None = None  # of the newest call; None if it succeeded
        self.write_failure: TMSError | None = None
        self.succeeded_s = float("-inf")
        self.connections_made = 0
        self._clock = clock
        self._begin()
        forks.in_child(self._begin)  # connections stay with the parent; `ThriftConnection.abandon`
        self._avoid_until_s: dict[Address, float] = {}
        self._next = random.randrange(len(place.servers))
        self._closed = False

    def _begin(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._idle: list[ThriftConnection] = []
        self._under_way = 0
        self._bytes = 0

    def call(
        self,
        method: str,
        *arguments: Any,
        repeatable: bool,
        size: int = 0,
        call_s: float | None = None,
    ) -> Any:
        """Call a method of the service. `size` is the approximate number of bytes in either
        direction. Raises the error of TMS for the last attempt."""
        try:
            return self.attempt(method, *arguments, repeatable=repeatable, size=size, call_s=call_s)
        except Failure as failure:
            raise failure.error from failure

    def attempt(
        self,
        method: str,
        *arguments: Any,
        repeatable: bool,
        size: int = 0,
        call_s: float | None = None,
    ) -> Any:
        """Like `call`, but raises `Failure`, which says if the call may have taken effect."""

        def again(error: BaseException) -> bool:
            return isinstance(error, Failure) and error.again and (repeatable or not error.done)

        until_s = self._clock.monotonic_s() + (call_s or self.limits.call_s)
        self._enter(min(size, BYTES_UNDER_WAY_MAX), until_s)
        try:
            answer = retrying(
                lambda _: self._once(method, arguments, until_s),
                self._clock,
                until_s - self._clock.monotonic_s(),
                again,
                what=f"HBase {method}",
            )
        except Failure as failure:
            if method in _WRITES:
                self.write_failure = failure.error
            else:
                self.read_failure = failure.error
            raise
        finally:
            self._leave(min(size, BYTES_UNDER_WAY_MAX))
        self.read_failure = None
        self.succeeded_s = self._clock.monotonic_s()
        if method in _WRITES:
            self.write_failure = None
        return answer

    def close(self) -> None:
        """Close every connection; those in use once their calls end. A second call does nothing."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for one in idle:
            one.close()

    def _once(self, method: str, arguments: tuple[Any, ...], until_s: float) -> Any:
        connection = self._connection(until_s)
        try:
            return connection.call(method, arguments, until_s)
        finally:
            with self._changed:
                reusable = connection.alive and not self._closed
                if reusable:
                    self._idle.append(connection)
            if not reusable:
                connection.close()

    def _connection(self, until_s: float) -> ThriftConnection:
        """An idle connection, or a new one. Raises `Failure`."""
        while True:
            with self._changed:
                if self._closed:
                    raise Failure(self._closed_error(), done=False, again=False)
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(until_s)
            rested_s = self._clock.monotonic_s() - connection.used_s
            if rested_s < IDLE_S and connection.alive:
                return connection
            connection.close()

    def _connect(self, until_s: float) -> ThriftConnection:
        failure: Failure | None = None
        for address in self._servers():
            try:
                connection = ThriftConnection(
                    *address, self._clock, self.limits.connect_s, until_s, self.place.tls
                )
                connection.check(min(until_s, self._clock.monotonic_s() + self.limits.connect_s))
                self.connections_made += 1
                return connection
            except Failure as one:
                failure = one
                with self._changed:
                    self._avoid_until_s[address] = self._clock.monotonic_s() + AVOID_S
                    gone = [each for each in self._idle if (each.host, each.port) == address]
                    self._idle = [each for each in self._idle if each not in gone]
                for each in gone:
                    each.close()
        assert failure is not None, "a place has a server"
        raise Failure(failure.error, done=False, again=failure.again) from failure

    def _servers(self) -> list[Address]:
        """All servers, in turn; reachable ones first."""
        with self._changed:
            at = self._next
            self._next = (at + 1) % len(self.place.servers)
            now_s = self._clock.monotonic_s()
            turned = self.place.servers[at:] + self.place.servers[:at]
            return sorted(turned, key=lambda one: self._avoid_until_s.get(one, 0.0) > now_s)

    def _enter(self, size: int, until_s: float) -> None:
        with self._changed:
            while not self._closed and (
                self._under_way >= self.limits.connections_max
                or (self._bytes and self._bytes + size > BYTES_UNDER_WAY_MAX)
            ):
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    error = StorageUnavailable(
                        f"All {self.limits.connections_max} connections to {self.place} are busy. "
                        "Try again, or allow more."
                    )
                    raise Failure(error, done=False, again=False)
                self._changed.wait(left_s)
            if self._closed:
                raise Failure(self._closed_error(), done=False, again=False)
            self._under_way += 1
            self._bytes += size

    def _leave(self, size: int) -> None:
        with self._changed:
            self._under_way -= 1
            self._bytes -= size
            self._changed.notify_all()

    def _closed_error(self) -> Closed:
        return Closed(f"The store at {self.place} is closed; open it again.")
