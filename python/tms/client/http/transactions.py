"""Transactions over HTTP. What may be done twice without harm is repeated here; a commit is
repeated by its transaction, which has the time for it."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tms.client.transport import TIMEOUT_S
from tms.errors import Conflict
from tms.model.message import NewBlock
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.model.transaction import Commit, CommitResult, PositionChange, TransactionInfo

if TYPE_CHECKING:
    from tms.client.http.transport import HttpTransport


class HttpTransactions:
    """The transactions of a service. Thread-safe."""

    def __init__(self, transport: "HttpTransport") -> None:
        self._transport = transport
        self._calls = transport.calls

    def begin(
        self, *, long: bool = False, timeout_s: float | None = None, token: str = ""
    ) -> TransactionInfo:
        return self._transport.call(self._calls.begin(timeout_s, long, token))

    def describe(self, id: int) -> TransactionInfo:
        return self._transport.call(self._calls.describe_transaction(id))

    def open(self) -> list[TransactionInfo]:
        return self._transport.call(self._calls.open_transactions())

    def abort(self, id: int) -> TransactionInfo:
        return self._transport.call(self._calls.abort(id))

    def invalidate(self, id: int) -> TransactionInfo:
        return self._transport.call(self._calls.invalidate(id))

    def stage(self, name: TopicName, blocks: Sequence[NewBlock], write_pointer: int) -> None:
        return self._transport.call(self._calls.stage(name, blocks, write_pointer))

    def commit(self, request: Commit, timeout_s: float = TIMEOUT_S) -> CommitResult:
        return self._transport.attempt(self._calls.commit(request), timeout_s)

    def positions(self, group: str, topic: TopicName) -> Mapping[int, Position]:
        return self._transport.call(self._calls.positions(group, topic))

    def move(self, changes: Sequence[PositionChange]) -> None:
        by_place = sorted(changes, key=lambda one: (one.key.group, one.key.topic))
        for (group, topic), some in groupby(by_place, lambda one: (one.key.group, one.key.topic)):
            self._move(group, topic, list(some))

    def _move(self, group: str, topic: TopicName, changes: list[PositionChange]) -> None:
        def is_done(error: BaseException) -> bool:
            if not isinstance(error, Conflict):
                return False
            stands = self.positions(group, topic)
            return all(stands.get(one.key.partition) == one.position for one in changes)

        self._transport.call_once(self._calls.move(group, topic, changes), is_done)

    def forget_positions(self, group: str, topic: TopicName) -> None:
        self._transport.call(self._calls.forget_positions(group, topic))

    def prune(self, before_ms: int) -> int:
        return self._transport.call(self._calls.prune(before_ms))
