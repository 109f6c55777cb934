"""What the engine's parts promise to the client, as protocols: the engine itself has them, and
`client.http` over a network. A `Transport` gives them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tms.block.received import Received
from tms.model.delayed import Deferred, DelayedId, DelayedInfo, DelayedMessage, Due
from tms.model.group import GroupInfo, GroupStanding, GroupSummary
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.queue import RECEIVE_BYTES, QueueInfo, QueueSettings, TokenResult
from tms.model.topic import Durability, TopicName
from tms.model.transaction import Commit, CommitResult, PositionChange, TransactionInfo


class TransactionsPort(Protocol):
    """The engine's transactions; see `tms.transactions.Transactions` for what they promise."""

    def begin(
        self, *, long: bool = False, timeout_s: float | None = None, token: str = ""
    ) -> TransactionInfo: ...

    def describe(self, id: int) -> TransactionInfo: ...

    def open(self) -> list[TransactionInfo]: ...

    def abort(self, id: int) -> TransactionInfo: ...

    def invalidate(self, id: int) -> TransactionInfo: ...

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None: ...

    def commit(self, request: Commit, timeout_s: float = 30.0) -> CommitResult: ...

    def positions(self, group: str, topic: TopicName) -> Mapping[int, Position]: ...

    def move(self, changes: Sequence[PositionChange]) -> None: ...

    def forget_positions(self, group: str, topic: TopicName) -> None: ...

    def prune(self, before_ms: int) -> int: ...


class QueuesPort(Protocol):
    """The engine's queues; see `tms.queues.Queues` for what they promise. Each call for tokens says
    which of them came too late; `receive` waits up to `wait_s` for the first message."""

    def declare(self, group: str, topic: TopicName, settings: QueueSettings) -> QueueInfo: ...

    def update(self, group: str, topic: TopicName, changes: Mapping[str, object]) -> QueueInfo: ...

    def describe(self, group: str, topic: TopicName) -> QueueInfo: ...

    def list_queues(self, topic: TopicName) -> list[QueueInfo]: ...

    def delete(self, group: str, topic: TopicName) -> None: ...

    def receive(
        self,
        group: str,
        topic: TopicName,
        limit: int = 1,
        wait_s: float = 0,
        bytes_max: int = RECEIVE_BYTES,
    ) -> Received: ...

    def ack(self, group: str, topic: TopicName, tokens: Sequence[str]) -> TokenResult: ...

    def nack(
        self, group: str, topic: TopicName, tokens: Sequence[str], delay_s: float | None = None
    ) -> TokenResult: ...

    def extend(
        self, group: str, topic: TopicName, tokens: Sequence[str], lease_s: float | None = None
    ) -> TokenResult: ...

    def reject(
        self, group: str, topic: TopicName, tokens: Sequence[str], cause: str = ""
    ) -> TokenResult: ...

    def redrive(self, group: str, topic: TopicName, limit: int = 1_000) -> int: ...


class GroupsPort(Protocol):
    """The engine's log groups; see `tms.groups.groups.LogGroups` for what they promise."""

    def poll(
        self,
        group: str,
        topic: TopicName,
        member: str,
        session_s: float,
        holding: Mapping[int, int],
        *,
        leaving: bool = False,
        reading: bool = False,
    ) -> GroupStanding: ...

    def describe(self, group: str, topic: TopicName) -> GroupInfo: ...

    def of(self, topic: TopicName) -> list[GroupSummary]: ...


class DelayedPort(Protocol):
    """Delayed messages; see `tms.delayed.delayed.DelayedMessages` for what they promise."""

    def publish(
        self,
        name: TopicName,
        blocks: Sequence[NewBlock],
        due: Due,
        durability: Durability | None = None,
        token: str = "",
        timeout_s: float = 30.0,
    ) -> list[Deferred]: ...

    def cancel(self, name: TopicName, id: DelayedId, timeout_s: float = 30.0) -> bool: ...

    def info(self, name: TopicName) -> DelayedInfo: ...

    def messages(
        self, name: TopicName, after: DelayedId | None = None, limit: int = 100
    ) -> list[DelayedMessage]: ...
