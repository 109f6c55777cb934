"""The coordinator of Kafka's groups: calls that wait, and the times at which waits end.

    JoinGroup, SyncGroup ─▶ the shard's groups ─▶ an answer now, or one that a later call makes

* Each wait is a future, and the token by which the groups know the caller.
* A timer for each shard calls `expire` when a session or a rebalance may be over.
* What a shard has to store is stored in a thread; the answers that wait for it come from there.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tms.engine.engine import Engine
from tms.groups.classic_calls import (
    Answered,
    ClassicKey,
    JoinAnswer,
    JoinRequest,
    Listing,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_groups import ClassicGroups
from tms.groups.classic_shard import ClassicShard
from tms.server.framed import FramedConnection
from tms.server.service import Service


class Coordinator:
    """Kafka's groups of a service. Used by the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine: Engine = service.engine
        self._loop = asyncio.get_running_loop()
        self._timers: dict[ClassicShard, asyncio.TimerHandle] = {}
        self._saves: dict[ClassicShard, asyncio.Task[None]] = {}
        self._waiting: set[asyncio.Future[Any]] = set()
        self._engine.groups.deliver_classic(self._deliver_from_thread)

    def shard(self, key: ClassicKey) -> ClassicShard:
        """The groups of the shard that a group belongs to. Raises `NotOwner`, `Unavailable`."""
        return self._engine.groups.of(key.group).classic

    async def join(
        self, connection: FramedConnection, key: ClassicKey, request: JoinRequest
    ) -> JoinAnswer | None:
        """The answer to a join; None if the caller has gone."""
        shard = self.shard(key)
        token = self._loop.create_future()
        # The first join of a group may read the journal of TMS's own members.
        answers = await self._service.in_thread(shard.join, token, key, request)
        joined: JoinAnswer | None = await self._answer(connection, shard, key, token, answers)
        return joined

    async def sync(
        self, connection: FramedConnection, key: ClassicKey, request: SyncRequest
    ) -> SyncAnswer | None:
        """The answer to a sync; None if the caller has gone."""
        shard = self.shard(key)
        token = self._loop.create_future()
        with shard.locked() as (groups, now_ms):
            answers = groups.sync(now_ms, token, key, request)
        synced: SyncAnswer | None = await self._answer(connection, shard, key, token, answers)
        return synced

    def do(self, key: ClassicKey, work: Callable[[ClassicGroups, int], tuple[Any, Any]]) -> Any:
        """Do work on the groups of a shard at a time in ms; it returns a result and the answers
        that it makes. Returns the result."""
        shard = self.shard(key)
        with shard.locked() as (groups, now_ms):
            result, answers = work(groups, now_ms)
        self._deliver(answers)
        self._watch(shard)
        return result

    async def stored(self, key: ClassicKey) -> None:
        """Wait until the shard has stored what a call before this one has changed, or cannot."""
        shard = self.shard(key)
        for _ in range(2):  # the save under way may have begun before that call
            if (save := self._saves.get(shard)) is not None:
                await asyncio.wait([save])

    def all(self, namespace: str) -> list[Listing]:
        """The groups of a namespace that have members."""
        found: list[Listing] = []
        for shard in self._engine.groups.classic_shards():
            with shard.locked() as (groups, _):
                found += groups.list_groups(namespace)
        return found

    def drain(self) -> None:
        """End all waits; stable groups go on at the next start."""
        for timer in self._timers.values():
            timer.cancel()
        for token in list(self._waiting):
            if not token.done():
                token.set_result(None)

    async def _answer(
        self,
        connection: FramedConnection,
        shard: ClassicShard,
        key: ClassicKey,
        token: "asyncio.Future[Any]",
        answers: Sequence[Answered],
    ) -> Any:
        self._deliver(answers)
        self._watch(shard)
        if not token.done():
            connection.when_left(partial(_end, token))
            self._waiting.add(token)
            try:
                await asyncio.wait([token])
            finally:
                self._waiting.discard(token)
        answer = token.result()
        if answer is None:
            with shard.locked() as (groups, now_ms):
                answers = groups.drop(now_ms, key, token)
            self._deliver(answers)
            self._watch(shard)
        return answer

    def _watch(self, shard: ClassicShard) -> None:
        """Have `expire` called when something may be over, and what has to be stored."""
        with shard.locked() as (groups, now_ms):
            due_ms = groups.next_deadline_ms
            if groups.wants_saving and shard not in self._saves:
                self._saves[shard] = self._loop.create_task(self._save(shard))
        timer = self._timers.pop(shard, None)
        if timer is not None:
            timer.cancel()
        if due_ms is not None:
            delay_s = max(0, due_ms - now_ms) / 1_000 + 0.001  # the clock has whole milliseconds
            self._timers[shard] = self._loop.call_later(delay_s, self._expire, shard)

    async def _save(self, shard: ClassicShard) -> None:
        try:
            answers = await self._service.in_thread(shard.save)
        finally:
            del self._saves[shard]
        self._deliver(answers)
        self._watch(shard)

    def _expire(self, shard: ClassicShard) -> None:
        with shard.locked() as (groups, now_ms):
            answers = groups.expire(now_ms)
        self._deliver(answers)
        self._watch(shard)

    def _deliver(self, answers: Sequence[Answered]) -> None:
        for token, answer in answers:
            assert isinstance(token, asyncio.Future), "tokens are futures of this coordinator"
            if not token.done():
                token.set_result(answer)

    def _deliver_from_thread(self, answers: Sequence[Answered]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, answers)


def _end(token: "asyncio.Future[Any]") -> None:
    if not token.done():
        token.set_result(None)
