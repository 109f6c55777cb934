"""Bugs to plant in groups of Kafka's classic protocol."""

from collections.abc import Callable
from typing import Any

from sim.replacing import Replacement
from tms.groups.classic import ClassicGroup
from tms.groups.classic_calls import Answered, Sender, State
from tms.groups.classic_groups import ClassicGroups
from tms.groups.classic_shard import ClassicShard
from tms.groups.members import Members


def _commit_for_any_generation() -> list[Replacement]:
    """A commit that was allowed lands although the generation of its member is over."""

    def is_current(self: ClassicGroup, sender: Sender) -> bool:
        return sender.member in self._members

    return [(ClassicGroup, "is_current", is_current)]


def _commit_though_replaced() -> list[Replacement]:
    """A commit that was allowed lands although its static member has been replaced."""

    def is_current(self: ClassicGroup, sender: Sender) -> bool:
        return sender.generation == self.generation

    return [(ClassicGroup, "is_current", is_current)]


def _wait_for_the_vanished() -> list[Replacement]:
    """Joins wait for a member that has vanished for as long as its session lasts, and longer."""
    right = ClassicGroup._ends_of

    def ends_of(self: ClassicGroup, id: str) -> int | None:
        return None if not id and self.state is State.PREPARING else right(self, id)

    return [(ClassicGroup, "_ends_of", ends_of)]


def _expire_late() -> list[Replacement]:
    """An end that comes before those that are known is not looked at before them."""
    right = ClassicGroups._watch

    def watch(self: ClassicGroups, key: Any, due_ms: int | None) -> None:
        if key not in self._due:
            right(self, key, due_ms)

    return [(ClassicGroups, "_watch", watch)]


def _keep_the_silent() -> list[Replacement]:
    """The session of a member that has synced never ends."""
    right = ClassicGroup._ends_of

    def ends_of(self: ClassicGroup, id: str) -> int | None:
        return None if id and self.state is State.STABLE else right(self, id)

    return [(ClassicGroup, "_ends_of", ends_of)]


def _stay_in_the_generation() -> list[Replacement]:
    """A rebalance ends in the generation that it began in."""
    right = ClassicGroup._rebalance

    def rebalance(self: ClassicGroup, now_ms: int) -> None:
        if self.generation and self.state is State.STABLE:
            self.generation -= 1
        right(self, now_ms)

    return [(ClassicGroup, "_rebalance", rebalance)]


def _leave_waiters_behind() -> list[Replacement]:
    """A shard that is closed answers none of its waiting callers."""
    right = ClassicShard.close

    def close(self: ClassicShard) -> list[Answered]:
        right(self)
        return []

    return [(ClassicShard, "close", close)]


def _join_beside_kafka() -> list[Replacement]:
    """A group of Kafka's protocol takes members of TMS's own."""
    return [(Members, "_require_own", lambda self, key: None)]


def _join_beside_own() -> list[Replacement]:
    """A group with members of TMS's own protocol takes Kafka's."""
    return [(Members, "without", lambda self, key, do: do())]


CLASSIC: dict[str, Callable[[], list[Replacement]]] = {
    "commit-for-any-generation": _commit_for_any_generation,
    "commit-though-replaced": _commit_though_replaced,
    "expire-late": _expire_late,
    "join-beside-kafka": _join_beside_kafka,
    "join-beside-own": _join_beside_own,
    "keep-the-silent": _keep_the_silent,
    "leave-waiters-behind": _leave_waiters_behind,
    "stay-in-the-generation": _stay_in_the_generation,
    "wait-for-the-vanished": _wait_for_the_vanished,
}
