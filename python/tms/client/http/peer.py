"""An instance of a cluster, as another one asks it.

* A request carries `TMS-Hop`: whoever gets it does it, or refuses with `NotOwner`.
* What is refused so is not tried again here: by then somebody else may be the owner.
* Nobody waits for one that was given up.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from tms.api import routes
from tms.api.instances import PartitionsApi, PeersApi
from tms.api.operations import OPERATIONS
from tms.client.http.addresses import ServiceAddress
from tms.client.http.aio import AsyncHttpChannel
from tms.client.http.connection import HttpConnection
from tms.client.http.exchange import Call, Calls
from tms.client.http.transport import HttpTransport, PortOf, complete, has_operations
from tms.client.http.watches import WATCHES
from tms.client.transport import FetchRequest
from tms.errors import Closed, NotOwner, TMSError, Unavailable
from tms.model.message import Buffer, Fetched, PartitionPosition
from tms.model.snapshot import Isolation, ReadIsolation
from tms.model.topic import TopicName
from tms.runtime.retrying import is_retriable, retrying
from tms.runtime.tls import ClientTls

TIMEOUT_S = 10.0  # of a request to another instance
WATCH_S = 15.0  # of one look whether something has come
AGAIN_S = 1.0  # after which whoever waits is told to look, where watching has failed
T = TypeVar("T")
Prove = Callable[[bytes, bytes, Sequence[Buffer]], bytes]


def _same_peer(error: BaseException) -> bool:
    return is_retriable(error) and not isinstance(error, NotOwner)


class _ProvenCalls(Calls):
    """Calls that are sent as soon as they are made."""

    def __init__(
        self, proven: Callable[[Call[Any]], Call[Any]], authority: str, peer: str, fields: str
    ) -> None:
        super().__init__(authority, peer, fields=fields)
        self._proven = proven

    def fetch(self, request: FetchRequest, follow: bool = False) -> Call[Fetched]:
        return self._proven(super().fetch(request, follow))


@has_operations("peers")
class HttpPeer(HttpTransport, PeersApi):
    """The instance `name` at `address`. Thread-safe. `prove` makes the proof that an instance asks,
    of a request's method, target and body, just before it is sent; empty if there is none."""

    partitions = PortOf(PartitionsApi)

    def __init__(
        self, name: str, address: str, prove: Prove | None = None, tls: ClientTls | None = None
    ) -> None:
        super().__init__(address, timeout_s=TIMEOUT_S, token="", tls=tls)
        self.addresses.now.given = False  # what is wrong there is no fault of who asks here
        self.name, self.address = name, address
        self._channels: deque[AsyncHttpChannel] = deque()  # of watches that have ended
        self._watching: set[AsyncHttpChannel] = set()
        self._asked: set[HttpConnection] = set()  # whose answers are to come
        self._given_up = False
        self._once = threading.Event()  # nothing is repeated
        target = ServiceAddress(address)
        fields = f"{routes.HOP_HEADER}: 1\r\n"
        self.calls = Calls(target.authority, name, fields=fields)
        self._prove = prove
        self._watched = _ProvenCalls(self._proven, target.authority, name, fields=fields)

    def call(
        self,
        call: Call[T],
        again: Callable[[BaseException], bool] = _same_peer,
        extra_s: float = 0,
    ) -> T:
        """A request, repeated while `again` says so and this instance is the owner."""

        def once_more(error: BaseException) -> bool:
            return again(error) and _same_peer(error) and not self._once.is_set()

        return retrying(
            lambda left_s: self.attempt(call, left_s + extra_s),
            self.clock,
            self.timeout_s,
            once_more,
            hurry=self._once,
            what=f"{call.operation} at {self.name}",
        )

    def attempt(self, call: Call[T], timeout_s: float) -> T:
        """One request and its answer."""
        return super().attempt(self._proven(call), timeout_s)

    def _proven(self, call: Call[T]) -> Call[T]:
        """The call with its proof. Raises `Unavailable`."""
        if self._prove is None:
            return call
        head, *body = call.chunks
        head = bytes(head)
        method, target, _ = head.split(b" ", 2)
        proof = self._prove(method, target, body)
        if not proof:
            return call
        head = b"%b%b: %b\r\n\r\n" % (head[:-2], routes.PEER_HEADER.encode(), proof)
        return msgspec.structs.replace(call, chunks=[head, *body])

    def answers(self, timeout_s: float) -> None:
        """As `ClusterPeer`. A thread of the other instance answers, as it does all that is asked
        of it."""
        self.attempt(self.calls.of(OPERATIONS["peers.lags"], {"places": []}), timeout_s)

    def ask_once(self) -> None:
        """As `ClusterPeer`."""
        self._once.set()

    def give_up(self) -> None:
        """As `ClusterPeer`."""
        self._given_up = True
        self._once.set()
        for connection in [*self._asked]:
            connection.shut_down()
        WATCHES.soon(self._end_watches)
        self.close()

    def _end_watches(self) -> None:
        for channel in [*self._watching, *self._channels]:
            channel.close()

    def _take(self, address: ServiceAddress, timeout_s: float) -> HttpConnection:
        try:
            return super()._take(address, timeout_s)
        except Closed as exc:
            message = f"The instance {self.name} is not among the others now. Try again."
            raise Unavailable(message) from exc

    def _exchange(self, connection: HttpConnection, call: Call[T], deadline_s: float) -> T:
        self._asked.add(connection)
        try:
            if self._given_up:
                connection.shut_down()
            return super()._exchange(connection, call, deadline_s)
        finally:
            self._asked.discard(connection)

    def watch(
        self,
        name: TopicName,
        positions: Sequence[PartitionPosition],
        callback: Callable[[], None],
        isolation: ReadIsolation = Isolation.COMMITTED,
    ) -> Callable[[], None]:
        """Call `callback` once something may be there after these positions."""
        request = FetchRequest(name, positions, 1, WATCH_S, isolation)
        return WATCHES.begin(self._watch(request, callback))

    async def _watch(self, request: FetchRequest, callback: Callable[[], None]) -> None:
        channel = self._channels.pop() if self._channels else None
        channel = channel or AsyncHttpChannel(self.addresses, self._watched)
        self._watching.add(channel)
        try:
            while not self._given_up:
                fetched = await channel.fetch(request, TIMEOUT_S)
                if fetched.blocks or not fetched.ended:
                    break
                request = request.after(fetched, WATCH_S)
        except TMSError:
            channel.close()
            await asyncio.sleep(AGAIN_S)  # who waits looks, and is told
        except BaseException:  # it was cancelled
            channel.close()
            raise
        else:
            self._channels.append(channel)
        finally:
            self._watching.discard(channel)
        callback()


peer_at = complete(HttpPeer)
