"""Queues over HTTP.

* A receive is not repeated once it may have been carried out: what it leased and nobody saw comes
  again when the leases have ended, and a repetition would lease others besides. It waits in
  stretches, so that no connection is silent for long.
* What has tokens is repeated: done twice it is done once. The service knows the acks that it did
  last, so a repetition whose first answer was lost counts as done; one that was restarted meanwhile
  does not, and tells of tokens that came too late.
* Dead letters are moved back once: a repetition would move others.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tms.api import bodies, queues, routes
from tms.block.received import Received
from tms.client.http.exchange import WAIT_S_MAX, Call, Calls
from tms.client.transport import is_retriable
from tms.errors import NotFound, StorageUnavailable, TimedOut, TMSError, from_code
from tms.model.message import Buffer
from tms.model.queue import RECEIVE_BYTES, QueueInfo, QueueSettings, TokenResult
from tms.model.topic import TopicName

if TYPE_CHECKING:
    from tms.client.http.transport import HttpTransport

_UNSURE = (TimedOut, StorageUnavailable)  # also said by the service: it may have been done


class HttpQueues:
    """The queues of a service. Thread-safe."""

    def __init__(self, transport: "HttpTransport") -> None:
        self._transport = transport
        self._calls = transport.calls

    def declare(self, group: str, topic: TopicName, settings: QueueSettings) -> QueueInfo:
        body = bodies.encode(settings)
        return self._transport.call(self._info("PUT", group, topic, body))

    def update(self, group: str, topic: TopicName, changes: Mapping[str, object]) -> QueueInfo:
        body = bodies.encode(dict(changes))
        return self._transport.call(self._info("PATCH", group, topic, body))

    def describe(self, group: str, topic: TopicName) -> QueueInfo:
        return self._transport.call(self._info("GET", group, topic, None))

    def list_queues(self, topic: TopicName) -> list[QueueInfo]:
        def read(body: Buffer) -> list[QueueInfo]:
            return [queues.queue_info(one) for one in bodies.decode(body, queues.QueuesBody).queues]

        path = routes.queues_path(topic)
        return self._transport.call(self._calls.request("GET", path, None, read))

    def delete(self, group: str, topic: TopicName) -> None:
        unsure: list[bool] = []

        def again(error: BaseException) -> bool:
            unsure.append(not surely_not_done(error))
            return is_retriable(error)

        path = routes.queue_path(topic, group)
        try:
            self._transport.call(self._calls.request("DELETE", path, None, _nothing), again)
        except NotFound:
            if not any(unsure[:-1]):  # an earlier attempt, whose answer was lost, has deleted it
                raise

    def receive(
        self,
        group: str,
        topic: TopicName,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        clock = self._transport.clock
        until_s = clock.monotonic_s() + wait_s
        while True:
            left_s = max(0.0, min(WAIT_S_MAX, until_s - clock.monotonic_s()))
            call = receiving(self._calls, group, topic, limit, left_s, bytes_max)
            try:
                found = self._transport.call(call, surely_not_done, left_s)
            except TMSError as error:
                raise explained(error) from error
            if found.slices or clock.monotonic_s() >= until_s:
                return found

    def ack(self, group: str, topic: TopicName, tokens: Sequence[str]) -> TokenResult:
        return self._settle(group, topic, "ack", queues.AckBody([*tokens]))

    def nack(
        self, group: str, topic: TopicName, tokens: Sequence[str], delay_s: float | None = None
    ) -> TokenResult:
        return self._settle(group, topic, "nack", queues.NackBody([*tokens], delay_s))

    def extend(
        self, group: str, topic: TopicName, tokens: Sequence[str], lease_s: float | None = None
    ) -> TokenResult:
        return self._settle(group, topic, "extend", queues.ExtendBody([*tokens], lease_s))

    def reject(
        self, group: str, topic: TopicName, tokens: Sequence[str], cause: str = ""
    ) -> TokenResult:
        return self._settle(group, topic, "reject", queues.RejectBody([*tokens], cause))

    def redrive(self, group: str, topic: TopicName, limit: int = queues.REDRIVE_DEFAULT) -> int:
        def read(body: Buffer) -> int:
            return bodies.decode(body, queues.RedrivenBody).moved

        body = bodies.encode(queues.RedriveBody(limit))
        path = routes.queue_path(topic, group, "redrive")
        return self._transport.call(self._calls.request("POST", path, body, read), surely_not_done)

    def _settle(self, group: str, topic: TopicName, what: str, body: object) -> TokenResult:
        path = routes.queue_path(topic, group, what)
        return self._transport.call(
            self._calls.request("POST", path, bodies.encode(body), queues.token_result)
        )

    def _info(
        self, method: str, group: str, topic: TopicName, body: bytes | None
    ) -> Call[QueueInfo]:
        def read(found: Buffer) -> QueueInfo:
            return queues.queue_info(bodies.decode(found, queues.QueueBody))

        return self._calls.request(method, routes.queue_path(topic, group), body, read)


def receiving(
    calls: Calls, group: str, topic: TopicName, limit: int, wait_s: float, bytes_max: int
) -> Call[Received]:
    """One request for messages."""
    body = bodies.encode(queues.ReceiveBody(limit, round(wait_s, 3), bytes_max))
    path = routes.queue_path(topic, group, "receive")
    return calls.request("POST", path, body, queues.decode_received, accept=routes.BLOCKS)


def explained(error: TMSError) -> TMSError:
    """The error of a receive; it says so if messages may have been leased that nobody saw."""
    if surely_not_done(error) or not is_retriable(error):
        return error
    text = f"{error.message} What it may have leased comes again when the leases have ended."
    return from_code(error.code, text, {**error.details, "outcome": "unknown"})


def surely_not_done(error: BaseException) -> bool:
    """Whether a receive that failed like this may be repeated: nothing was leased by it."""
    return (
        isinstance(error, TMSError)
        and is_retriable(error)
        and not isinstance(error, _UNSURE)
        and error.details.get("outcome") != "unknown"
    )


def _nothing(body: Buffer) -> None:
    pass
