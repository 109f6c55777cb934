"""Kafka's groups of a shard, beside the groups of TMS's own protocol.

Invariants

* In a namespace a group has members of one protocol at a time, whatever topics they read: Kafka's
  clients get `INCONSISTENT_GROUP_PROTOCOL` while it has members of TMS's own, and members of TMS's
  own get `Conflict` while it has members of Kafka's. Its committed positions are for both.
* A commit of positions that names a Kafka member and its generation counts only in that generation.

Locks: a group begins while no member of TMS's own protocol can join (`members._lock`, then
`_lock`); everything else takes `_lock` alone, for moments.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from tms.groups.classic_calls import (
    Answered,
    CallToken,
    ClassicBounds,
    ClassicKey,
    Code,
    JoinAnswer,
    JoinRequest,
    Sender,
)
from tms.groups.classic_groups import ClassicGroups
from tms.runtime.clock import Clock

T = TypeVar("T")


class WithoutMembers(Protocol):
    """Runs `do` while a group has no members of TMS's own protocol. Returns None, and does nothing,
    if it has some."""

    def __call__(self, key: ClassicKey, do: Callable[[], T]) -> T | None: ...


class ClassicShard:
    """Kafka's groups of a shard. Thread-safe."""

    def __init__(
        self, clock: Clock, new_id: Callable[[], str], without_members: WithoutMembers
    ) -> None:
        self._clock = clock
        self._without_members = without_members
        self._lock = threading.Lock()
        self._groups = ClassicGroups(ClassicBounds(), new_id)

    @contextmanager
    def locked(self) -> Iterator[tuple[ClassicGroups, int]]:
        """The groups and the time, for a call that neither begins nor deletes a group: sync,
        heartbeat, leave, drop, expire, and looking."""
        with self._lock:
            yield self._groups, int(self._clock.monotonic_s() * 1000)

    def has(self, key: ClassicKey) -> bool:
        """True if the group is one of Kafka's now. Takes no lock."""
        return self._groups.has(key)

    def join(self, token: CallToken, key: ClassicKey, request: JoinRequest) -> list[Answered]:
        """Join a group, as `ClassicGroups.join` does. The first join of a group may wait for the
        journal of members. Raises `StorageUnavailable` if it cannot be read."""

        def join() -> list[Answered]:
            with self.locked() as (groups, now_ms):
                return groups.join(now_ms, token, key, request)

        with self.locked() as (groups, now_ms):
            if groups.has(key):
                return groups.join(now_ms, token, key, request)
        answers = self._without_members(key, join)
        if answers is None:
            return [(token, JoinAnswer(Code.INCONSISTENT_GROUP_PROTOCOL, request.member))]
        return answers

    def may_commit(self, key: ClassicKey, sender: Sender, is_transactional: bool = False) -> Code:
        """The answer to a commit of offsets before any is stored, as `ClassicGroups.may_commit`
        gives it. A group with members of TMS's own protocol is not empty. Raises like `join`."""

        def may_commit() -> Code:
            with self.locked() as (groups, now_ms):
                return groups.may_commit(now_ms, key, sender, is_transactional)

        if self.has(key) or sender.generation >= 0:
            return may_commit()
        code = self._without_members(key, may_commit)
        return Code.UNKNOWN_MEMBER_ID if code is None else code

    def is_current(self, key: ClassicKey, sender: Sender) -> bool:
        """True if the member may still commit what it was assigned in its generation."""
        with self.locked() as (groups, _):
            return groups.is_current(key, sender)

    def delete(self, key: ClassicKey) -> Code:
        """Drop a group without members, as `ClassicGroups.delete` does. Raises like `join`."""

        def delete() -> Code:
            with self.locked() as (groups, _):
                return groups.delete(key)

        code = self._without_members(key, delete)
        return Code.NON_EMPTY_GROUP if code is None else code

    def close(self) -> list[Answered]:
        """Drop all groups; returns an answer for each caller that waits."""
        with self._lock:
            return self._groups.close()
