"""Kafka's groups of a shard, beside the groups of TMS's own protocol.

Invariants

* In a namespace a group has members of one protocol at a time, whatever topics they read: Kafka's
  clients get `INCONSISTENT_GROUP_PROTOCOL` while it has members of TMS's own, and members of TMS's
  own get `Conflict` while it has members of Kafka's. Its committed positions are for both.
* A commit of positions that names a Kafka member and its generation counts only in that generation.
* The journal of members has the last generation of each group that has been stable, unless it is
  too large; it has no group without members for longer than a write takes, or is impossible.

Locks: a group begins, and is saved, while no member of TMS's own protocol can join
(`members._lock`, then `_lock`); everything else takes `_lock` alone, for moments.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from tms.groups.classic_groups import ClassicGroups, Unsaved
from tms.groups.classic_member import KeptEntry, KeptGroup, decode_group, encode_group
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

T = TypeVar("T")
_log = EventLog(__name__)


class MembersJournal(Protocol):
    """The journal that TMS's own members and Kafka's groups have in common."""

    def without_members(self, key: ClassicKey, do: Callable[[], T]) -> T | None:
        """Run `do` while a group has no members of TMS's own protocol. Returns None, and does
        nothing, if it has some. Raises `StorageUnavailable` if the journal cannot be read."""
        ...

    def keep(self, take: Callable[[], Sequence[KeptEntry]]) -> None:
        """Store the entries that `take` returns, synced, and apply them. Raises an error if they
        may not be stored."""
        ...


class ClassicShard:
    """Kafka's groups of a shard. Thread-safe. Until the journal was read (`follow`) all callers are
    told to come again."""

    def __init__(self, clock: Clock, new_id: Callable[[], str], journal: MembersJournal) -> None:
        self._clock = clock
        self._journal = journal
        self._lock = threading.Lock()
        self._bounds = ClassicBounds()
        self._groups = ClassicGroups(self._bounds, new_id)
        self._kept: Mapping[ClassicKey, bytes] = {}  # the journal's groups, as its owner has them

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
        answers = self._journal.without_members(key, join)
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
        code = self._journal.without_members(key, may_commit)
        return Code.UNKNOWN_MEMBER_ID if code is None else code

    def is_current(self, key: ClassicKey, sender: Sender) -> bool:
        """True if the member may still commit what it was assigned in its generation."""
        with self.locked() as (groups, _):
            return groups.is_current(key, sender)

    def delete(self, key: ClassicKey) -> Code:
        """Drop a group without members, as `ClassicGroups.delete` does, also from the journal.
        Raises like `join`, and if the journal cannot be written."""

        def delete() -> Code:
            with self.locked() as (groups, _):
                code = groups.delete(key)
            if code is not Code.NON_EMPTY_GROUP and key in self._kept:
                self._journal.keep(lambda: [KeptEntry(key, None)])
            return code

        code = self._journal.without_members(key, delete)
        return Code.NON_EMPTY_GROUP if code is None else code

    # -- the journal -------------------------------------------------------------------------------

    def follow(self, kept: Mapping[ClassicKey, bytes]) -> None:
        """Take over the groups of the journal, which was read: at first all, later those that are
        not as this shard has left them, because another process has owned the journal, or a write
        has failed. Later changes of `kept` are those of `MembersJournal.keep`."""
        changed = {
            key: kept.get(key)
            for key in {*kept, *self._kept}
            if kept.get(key) != self._kept.get(key)
        }
        found: dict[ClassicKey, KeptGroup | None] = {}
        for key, value in changed.items():
            found[key] = None if value is None else decode_group(value)
            if value is not None and found[key] is None:
                _log.warning("kafka_group_not_restored", group=key.group, namespace=key.namespace)
        with self.locked() as (groups, now_ms):
            self._kept = kept
            groups.restore(now_ms, found)

    def save(self) -> list[Answered]:
        """Store what has to be; returns the answers that waited for it. If the journal cannot be
        written, callers are refused, and the next call tries again to remove groups."""
        taken: list[Unsaved] = []

        def take() -> list[KeptEntry]:
            with self._lock:
                taken.extend(self._groups.take_unsaved())
            return [self._entry(one) for one in taken]

        with self.locked() as (groups, now_ms):
            if not groups.has_unsaved:  # the journal was read meanwhile, and has decided
                return groups.saved(now_ms, [], True)
        is_stored = False
        try:
            self._journal.keep(take)
            is_stored = True
        except Exception as error:  # of the store, or a fault of ours: nobody waits for ever
            _log.warning("kafka_groups_not_saved", error=str(error))
            if not taken:
                take()
        with self.locked() as (groups, now_ms):
            return groups.saved(now_ms, taken, is_stored)

    def _entry(self, one: Unsaved) -> KeptEntry:
        value = None if one.kept is None else encode_group(one.kept)
        if value is None or len(value) <= self._bounds.kept_bytes_max:
            return KeptEntry(one.key, value)
        _log.warning(
            "kafka_group_too_large",
            group=one.key.group,
            namespace=one.key.namespace,
            bytes=len(value),
            bytes_max=self._bounds.kept_bytes_max,
            consequence="its members join again after a restart",
        )
        return KeptEntry(one.key, None)

    def tidy(self) -> list[Answered]:
        """End what is over, and store what has to be; for services without Kafka's clients, and
        after failures of the journal. Returns answers to callers that wait."""
        with self.locked() as (groups, now_ms):
            answers = groups.expire(now_ms)
        return answers + self.save()

    def forget(self) -> None:
        """Remove all groups: none of their members will return. Raises an error if the journal
        cannot be written."""
        keys = list(self._kept)
        if keys:
            self._journal.keep(lambda: [KeptEntry(key, None) for key in keys])
            with self.locked() as (groups, now_ms):
                groups.restore(now_ms, dict.fromkeys(keys))

    def close(self) -> list[Answered]:
        """Drop all groups; returns an answer for each caller that waits."""
        with self._lock:
            return self._groups.close()
