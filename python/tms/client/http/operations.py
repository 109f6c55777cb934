"""The ports of a service over HTTP: the table of operations says how each is sent, and when it may
be repeated. Written out are those with bodies of bytes.

* A receive is not repeated once it may have been carried out: what it leased and nobody saw comes
  again when the leases have ended, and a repetition would lease others besides. It waits in
  stretches, so that no connection is silent for long.
* What has tokens is repeated: done twice it is done once. The service knows the acks that it did
  last, so a repetition whose first answer was lost counts as done; one that was restarted meanwhile
  does not, and tells of tokens that came too late.
* A commit and a delayed publish are tried once: whoever asks for them repeats them under a key.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

from tms.api.operation import Operation
from tms.api.operations import (
    OPERATIONS,
    DelayedApi,
    GroupsApi,
    QueuesApi,
    TransactionsApi,
)
from tms.api.parameters import TIMEOUT_S
from tms.block.received import Received
from tms.client.http.exchange import WAIT_S_MAX, Call, Calls
from tms.clock import Clock
from tms.errors import Conflict, StorageUnavailable, TimedOut, TMSError, from_code
from tms.model.delayed import Deferred, Due
from tms.model.message import NewBlock
from tms.model.queue import RECEIVE_BYTES
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, PositionChange
from tms.retrying import is_retriable

T = TypeVar("T")
C = TypeVar("C", bound=type)
_UNSURE = (TimedOut, StorageUnavailable)  # also said by the service: it may have been done


class Sender(Protocol):
    """What sends requests."""

    clock: Clock
    calls: Calls

    def do(self, operation: Operation, given: Mapping[str, Any]) -> Any:
        """A declared operation, repeated as it may be."""
        ...

    def call(
        self, call: Call[T], again: Callable[[BaseException], bool] = ..., extra_s: float = 0
    ) -> T:
        """A request, repeated while `again` says so of its errors and the time lasts; each attempt
        may take `extra_s` besides."""
        ...

    def call_once(self, call: Call[None], is_done: Callable[[BaseException], bool]) -> None:
        """A request that is refused once it is done. If the answer of an attempt was lost,
        `is_done` says of the error of a later one whether that one has done it."""
        ...

    def attempt(self, call: Call[T], timeout_s: float) -> T:
        """A request, once."""
        ...


def has_operations(api: str) -> Callable[[C], C]:
    """Gives a class the operations of a protocol that need no function of their own."""

    def complete(cls: C) -> C:
        for operation in OPERATIONS.values():
            if operation.api == api and not operation.by_hand:
                setattr(cls, operation.function, _method(operation))
            elif operation.api == api:
                assert operation.function in vars(cls), f"{operation.name} needs a function"
        return cls

    return complete


def _method(operation: Operation) -> Callable[..., Any]:
    def ask(self: Any, *args: Any, **named: Any) -> Any:
        return self.do(operation, operation.bound(args, named))

    ask.__name__ = operation.function
    ask.__doc__ = operation.summary
    return ask


class _Port:
    """A port of a service. Thread-safe."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.do = sender.do


@has_operations("transactions")
class HttpTransactions(_Port, TransactionsApi):
    """The transactions of a service, and the positions of groups."""

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None:
        self._sender.call(self._sender.calls.stage(name, blocks, write_pointer))

    def commit(self, request: Commit, timeout_s: float = TIMEOUT_S) -> CommitResult:
        return self._sender.attempt(self._sender.calls.commit(request), timeout_s)

    def move(self, changes: Sequence[PositionChange]) -> None:
        by_place = sorted(changes, key=_place)
        for (group, topic), some in groupby(by_place, _place):
            self._move(topic, group, list(some))

    def _move(self, topic: TopicName, group: str, changes: list[PositionChange]) -> None:
        def is_done(error: BaseException) -> bool:
            if not isinstance(error, Conflict):
                return False
            committed = self.positions(topic, group)
            return all(committed.get(one.key.partition) == one.position for one in changes)

        self._sender.call_once(self._sender.calls.move(topic, group, changes), is_done)


def _place(change: PositionChange) -> tuple[str, TopicName]:
    return change.key.group, change.key.topic


@has_operations("queues")
class HttpQueues(_Port, QueuesApi):
    """The queues of a service."""

    def receive(
        self,
        topic: TopicName,
        group: str,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received:
        sender = self._sender
        until_s = sender.clock.monotonic_s() + wait_s
        while True:
            left_s = max(0.0, min(WAIT_S_MAX, until_s - sender.clock.monotonic_s()))
            call = sender.calls.receive(topic, group, limit, left_s, bytes_max)
            try:
                received = sender.call(call, surely_not_done, left_s)
            except TMSError as error:
                raise explained(error) from error
            if received.slices or sender.clock.monotonic_s() >= until_s:
                return received


@has_operations("groups")
class HttpGroups(_Port, GroupsApi):
    """The log groups of a service."""


@has_operations("delayed")
class HttpDelayed(_Port, DelayedApi):
    """The delayed messages of a service."""

    def publish(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None = None,
        token: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> list[Deferred]:
        call = self._sender.calls.publish_later(name, blocks, due, durability, token)
        return self._sender.attempt(call, timeout_s)


def explained(error: TMSError) -> TMSError:
    """The error of a receive; it says so if messages may have been leased that nobody saw."""
    if surely_not_done(error) or not is_retriable(error):
        return error
    text = f"{error.message} What it may have leased comes again when the leases have ended."
    return from_code(error.code, text, {**error.details, "outcome": "unknown"})


def surely_not_done(error: BaseException) -> bool:
    """Whether a request that failed like this was surely not carried out, and may be repeated."""
    return (
        isinstance(error, TMSError)
        and is_retriable(error)
        and not isinstance(error, _UNSURE)
        and error.details.get("outcome") != "unknown"
    )
