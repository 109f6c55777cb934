"""The state that all requests share: the engine, the limits, the memory in flight, threads and
metrics."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from tms.block import checking_bytes
from tms.engine.engine import Engine
from tms.errors import TimedOut
from tms.log.pending import Pending
from tms.model.message import Buffer, NewBlock
from tms.model.setting import ConfiguredSetting
from tms.model.topic import MESSAGE_BYTES_MAX
from tms.runtime.clock import Clock
from tms.runtime.tls import ClientTls
from tms.server.access_log import AccessLog
from tms.server.forwarding import Forwarding
from tms.server.guard import Guard
from tms.server.histories import Histories
from tms.server.http.compression import COMPRESS_BYTES_MIN, VARY, Coding, compress
from tms.server.http.cors import Cors
from tms.server.http.exchange import Exchange, settle, settle_from_thread
from tms.server.http.request import Body, Budget
from tms.server.http.strangers import Strangers
from tms.server.http.watchdog import ConnectionLimits, Watchdog
from tms.server.inline_sync import InlineSync
from tms.server.issuer import IssuerOptions, TrustedIssuer
from tms.server.log_levels import LogLevels
from tms.server.metrics import Metrics
from tms.server.routing import OwnershipCheck, Routing

AT_ONCE_BYTES = 4 << 10  # of a body that the event loop uses up for a sole client
UNPACKED_BYTES_MIN = 1 << 20  # of a block, from which on they wait for each other
COMPRESSING_MAX = 2  # answers that are compressed at the same time, outside of the event loop
COMPRESS_INLINE_BYTES = 32 << 10  # an answer up to this size is compressed by the event loop
QUICK_BLOCKS_MAX = 64  # of a request, and
QUICK_BYTES_MAX = 1 << 20  # of memory to check them, up to which the event loop does it
DRAINING = "The service is draining; go to another instance or try again."

_P = ParamSpec("_P")
_T = TypeVar("_T")


def are_quick(blocks: Sequence[NewBlock]) -> bool:
    """True if checking incoming blocks takes little time and memory."""
    if len(blocks) > QUICK_BLOCKS_MAX:
        return False
    size = 0
    for new in blocks:
        size += checking_bytes(new.block)
    return size <= QUICK_BYTES_MAX


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of requests and of all of them together."""

    body_bytes_max: int = 16 << 20
    publish_bytes_in_flight_max: int = 64 << 20
    fetch_bytes_in_flight_max: int = 10 << 20
    fetch_bytes_max: int = MESSAGE_BYTES_MAX
    fetch_wait_ms_max: int = 60_000
    publish_timeout_s: float = 30.0
    budget_wait_s: float = 1.0  # for memory, before a request is refused
    threads: int = 8

    @property
    def answer_s(self) -> float:
        """The longest time until an answer begins."""
        return self.publish_timeout_s + self.fetch_wait_ms_max / 1_000


class AccessLimits(NamedTuple):
    """The settings of access control. `audit`: True if the audit log also has allowed requests that
    change only messages; `issuer`: of tokens that are trusted besides those that TMS makes."""

    audit: bool = False
    issuer: IssuerOptions | None = None


class NetworkOptions(NamedTuple):
    """Access to a service, and its way to other instances."""

    access: AccessLimits | None = None  # None: everybody may do everything
    peers: ClientTls = ClientTls()
    cors: Cors | None = None  # None: nothing is said to pages of other origins
    access_log: bool = False
    hosts: frozenset[str] = frozenset()  # further names of a service without access control


class Service:
    """One running service. Used by the event loop's thread only, but for `threads`."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        limits: RequestLimits,
        connection_limits: ConnectionLimits,
        network: NetworkOptions | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.limits = limits
        self.watchdog = Watchdog(connection_limits, clock)
        in_flight = limits.publish_bytes_in_flight_max
        self.publishing = Budget("publish", in_flight, limits.budget_wait_s)
        # Answers do not wait: what stands in their way may never be read.
        self.fetching = Budget("fetch", limits.fetch_bytes_in_flight_max, wait_s=0)
        self.watchdog.refusals = lambda: self.fetching.refused
        self.threads = ThreadPoolExecutor(limits.threads, "tms-http")
        # Others ask while threads of theirs wait: who waits here for them must not keep them out.
        self.peer_threads = ThreadPoolExecutor(limits.threads, "tms-http-peers")
        self.received = partial(Body, self.publishing, self.threads, limits.body_bytes_max)
        self._unpacking = asyncio.Lock()
        self._compressing = asyncio.Semaphore(COMPRESSING_MAX)
        self.checking = asyncio.Lock()  # of requests that are large once they are unpacked
        self.metrics = self._metrics()
        self.histories = Histories(engine, self.metrics, self.watchdog.connections)
        self.inline_sync = InlineSync(clock, engine.immediate)
        self.draining = False
        self.warnings: list[str] = []  # this and the next: of how the service was started
        self.settings: list[ConfiguredSetting] = []
        network = network or NetworkOptions()
        self.cors = network.cors
        self.access_log = AccessLog() if network.access_log else None
        access = network.access
        identity = None if engine.cluster is None else engine.cluster.identity
        self.log_levels = LogLevels(clock, engine.cluster)
        self.issuer = access and access.issuer and TrustedIssuer(access.issuer, clock)
        self.guard = access and Guard(engine.access, clock, identity, access.audit, self.issuer)
        self.strangers = None if access else Strangers(network.hosts, network.cors)
        self.forwarding = forwarding = Forwarding(limits.answer_s, network.peers, engine.cluster)
        self.ownership = self.routing = None
        if engine.is_disputed:
            self.ownership = ownership = OwnershipCheck(engine)
            self.routing = Routing(ownership, forwarding, self.metrics)

    def _metrics(self) -> Metrics:
        engine = self.engine
        return Metrics(
            engine.stats,
            lambda: not self.reasons(),
            self.watchdog,
            (self.publishing, self.fetching),
            engine.queues.stats,
            engine.delayed.lateness,
        )

    def reasons(self) -> list[str]:
        """Why the service is not ready; empty when it is."""
        return ([DRAINING] if self.draining else []) + self.engine.readiness()

    def close(self) -> None:
        """End the threads; no request is left."""
        self.threads.shutdown(wait=True, cancel_futures=True)
        self.peer_threads.shutdown(wait=True, cancel_futures=True)
        self.forwarding.close()
        self.log_levels.close()
        if self.ownership is not None:
            self.ownership.close()

    def small_body(self, exchange: Exchange) -> Buffer | None:
        """The body of a request if it is here, small and plain: no memory is reserved for one that
        the event loop uses up at once. None for others, which are still to be read."""
        limit = min(AT_ONCE_BYTES, self.limits.body_bytes_max)
        is_here = not exchange.more_body and b"content-encoding" not in exchange.headers
        return exchange.body if is_here and len(exchange.body) <= limit else None

    async def in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do what may wait for the store, or takes long, outside of the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: work(*args, **kwargs))

    async def for_peer(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do the work of another instance's request in a thread of its own pool."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.peer_threads, lambda: work(*args, **kwargs))

    async def in_turn(
        self,
        turn: asyncio.Lock | asyncio.Semaphore,
        work: Callable[_P, _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Like `in_thread`, when it is this request's turn: what takes much memory or time for its
        bytes takes it once, and leaves threads to others."""
        async with turn:
            return await self.in_thread(work, *args, **kwargs)

    async def unpack(
        self, size: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Unpack compressed blocks of this unpacked size, one request at a time. The memory is
        counted and never refused: the request asked for little."""
        async with self._unpacking:
            self.fetching.bytes += size
            try:
                return await self.in_thread(work, *args, **kwargs)
            finally:
                self.fetching.release(size)

    async def respond(self, exchange: Exchange, status: int, head: bytes, body: Buffer) -> None:
        """Answer in the coding that the client wants."""
        if exchange.coding is not None:
            head, body = await self.compressed(exchange.coding, head, body)
        exchange.respond(status, head, body)

    async def compressed(self, coding: Coding, head: bytes, body: Buffer) -> tuple[bytes, Buffer]:
        """Head and body of an answer in a coding, where that makes it smaller. The memory is
        counted and never refused, as in `unpack`."""
        size, head = len(body), head + VARY
        if size < COMPRESS_BYTES_MIN and coding.may_be_plain:
            return head, body
        if size <= COMPRESS_INLINE_BYTES:
            packed = compress(coding, body)
        else:
            self.fetching.bytes += size
            try:
                packed = await self.in_turn(self._compressing, compress, coding, body)
            finally:
                self.fetching.release(size)
        if len(packed) >= size and coding.may_be_plain:
            return head, body
        return head + b"content-encoding: %b\r\n" % coding.name.encode(), packed

    async def outcome(self, pending: Pending[_T]) -> list[_T]:
        """The outcome of a call that the engine has begun, without a thread that waits for it.
        Raises its error, or `TimedOut`."""
        if not pending.done():
            timeout_s = self.limits.publish_timeout_s
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            timer = loop.call_later(timeout_s, settle, done)
            pending.add_done_callback(partial(settle_from_thread, loop, done))
            try:
                await done
            finally:
                timer.cancel()
            if not pending.done():
                cluster = self.engine.cluster
                others = [] if cluster is None else cluster.hindrances()
                why = " ".join(["", *self.engine.readiness(), *others])
                raise TimedOut(
                    f"It was not finished after {timeout_s:g} s and may or may not be stored.{why} "
                    "Repeat it with the same producer sequence, transaction or token."
                )
        return pending.result(0)
