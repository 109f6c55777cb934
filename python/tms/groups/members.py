"""The members of all groups, kept in the journal `system:_groups`, and their sessions.

Invariants

* What a member is told was journaled before. A journal that fails leaves everybody what he has.
* While an owner changes, nothing is committed: what the one before committed stands in the
  positions that the next one reads, and what comes later is refused (`Fenced`).
* Sessions follow the monotonic clock and begin anew at a start. They end for those whom somebody
  else waits for; a member who is alone may be late.
* Of a group without members nothing is kept; generations grow over all groups together, so that
  one that comes back has none of its old epochs.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tms.clock import Clock
from tms.errors import Fenced, Overloaded, TopicNotFound
from tms.groups.membership import Change, GroupKey, Membership, Poll, decode_entry, encode_entry
from tms.model.group import GroupStanding
from tms.model.topic import Durability
from tms.model.transaction import PositionChange
from tms.topics.journal import Journal
from tms.topics.registry import Registry

MEMBERS_MAX = 1_000  # of a group
GROUPS_MAX = 10_000  # with members
ENTRIES_MAX = 10_000  # of the journal, before it is shortened
LATE_S = 60.0  # after its session a member is forgotten, even if nobody waits for it
_CHUNK_BYTES = 1 << 20
_GENERATION = b"generation"  # the key of the entry that keeps the number alone
_NOBODY = Membership()


@dataclass(slots=True)
class MemberSession:
    """How long a member may be silent, and whether it reads up to an end that it has not
    reached."""

    until_s: float
    reading: bool


class Members:
    """The members of all groups. Thread-safe. `alone` keeps commits out meanwhile."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        clock: Clock,
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._alone = alone
        self._lock = threading.RLock()
        self._states: dict[GroupKey, Membership] = {}
        self._sessions: dict[GroupKey, dict[str, MemberSession]] = {}
        self._generation = 0
        self._looked_s = clock.monotonic_s()
        self.length = 0  # of the journal, in entries
        self.known = False

    # -- polls -----------------------------------------------------------------------------------

    def poll(self, key: GroupKey, poll: Poll, reading: bool) -> GroupStanding:
        """A member says that it is there; what it is told. Raises `TopicNotFound`,
        `Overloaded`."""
        partitions = self._registry.find(key.topic).partitions
        with self._lock:
            change = self._decide(key, poll, partitions)
            if change is None:
                return self._answer(key, poll, partitions, reading)
        with self._alone(), self._lock:
            change = self._decide(key, poll, partitions)
            if change is not None:
                self._write(key, change)
            return self._answer(key, poll, partitions, reading)

    def _decide(self, key: GroupKey, poll: Poll | None, partitions: int) -> Change | None:
        self.load()
        state, now_s = self._states.get(key), self._clock.monotonic_s()
        sessions = self._sessions.get(key, {})
        if state is None:
            if poll is None or poll.leaving:
                return None
            state = Membership()
        if poll is not None and poll.member not in sessions and not poll.leaving:
            self._require_room(key)
        slack_s = LATE_S if poll is None else 0.0
        late = {member for member, one in sessions.items() if one.until_s + slack_s <= now_s}
        ended = late if poll is None else late - {poll.member}
        return state.decide(poll, partitions, ended, self._generation + 1)

    def _require_room(self, key: GroupKey) -> None:
        if len(self._sessions.get(key, ())) >= MEMBERS_MAX or len(self._states) >= GROUPS_MAX:
            raise Overloaded(
                f"The group {key.group} of {key.topic} cannot take another member: there are at "
                f"most {MEMBERS_MAX} in a group, and {GROUPS_MAX} groups.",
                group=key.group,
            )

    def _answer(self, key: GroupKey, poll: Poll, partitions: int, reading: bool) -> GroupStanding:
        standing = self._states.get(key, _NOBODY).standing(poll.member, partitions)
        sessions = self._sessions.get(key, {})
        if poll.member in sessions:
            until_s = self._clock.monotonic_s() + poll.session_s
            sessions[poll.member] = MemberSession(until_s, reading)
        others = sum(one.reading for member, one in sessions.items() if member != poll.member)
        return GroupStanding(
            standing.generation,
            standing.partitions,
            standing.release,
            standing.members,
            standing.coming,
            others,
        )

    # -- the fence -------------------------------------------------------------------------------

    def check(self, changes: Iterable[PositionChange]) -> None:
        """Raises `Fenced` for a change by somebody who has not the partition any more. Takes no
        lock: who commits keeps owners from changing."""
        for change in changes:
            if change.owner is None:
                continue
            if not self.known:
                self.load()
            key = change.key
            state = self._states.get(GroupKey(key.group, key.topic), _NOBODY)
            now = state.owners.get(key.partition)
            if now != change.owner:
                raise Fenced(
                    f"The member {change.owner.member} of the group {key.group} has lost partition "
                    f"{key.partition} of {key.topic}, because it was silent for longer than its "
                    "session, or let it go before it acknowledged: it is handed out again. Go on "
                    "with another consumer.",
                    group=key.group,
                    topic=str(key.topic),
                    partition=key.partition,
                    member=change.owner.member,
                )

    # -- looking ---------------------------------------------------------------------------------

    def groups(self) -> list[GroupKey]:
        """Which groups have members."""
        with self._lock:
            self.load()
            return list(self._states)

    def look(self, key: GroupKey) -> tuple[Membership, Mapping[str, float]]:
        """How a group stands, not to be changed, and for how many seconds each member may still be
        silent."""
        with self._lock:
            self.load()
            now_s = self._clock.monotonic_s()
            left = {m: one.until_s - now_s for m, one in self._sessions.get(key, {}).items()}
            return self._states.get(key, _NOBODY).copy(), left

    # -- the journal -----------------------------------------------------------------------------

    def load(self) -> None:
        """Know all members, from the journal unless they are known."""
        with self._lock:
            if self.known:
                return
            self._states, self.length = {}, 0
            for entry in self._journal.replay():
                self.length += 1
                if entry.key == _GENERATION:
                    self._generation = max(self._generation, int(entry.value or b"0"))
                else:
                    self._apply(*decode_entry(entry.key, entry.value))
            self.known = True

    def _write(self, key: GroupKey, change: Change) -> None:
        name, value = encode_entry(key, change)
        try:
            self._journal.finish(self._journal.append([value], Durability.SYNCED, [name]))
        except BaseException:  # it may have been stored all the same
            self.known = False
            raise
        self.length += 1
        self._apply(key, change)

    def _apply(self, key: GroupKey, change: Change) -> None:
        state = self._states.setdefault(key, Membership())
        state.apply(change)
        self._generation = max(self._generation, change.generation)
        sessions = self._sessions.setdefault(key, {})
        for gone in sessions.keys() - state.sessions.keys():
            del sessions[gone]
        now_s = self._clock.monotonic_s()
        for member, session_s in state.sessions.items():
            sessions.setdefault(member, MemberSession(now_s + session_s, True))
        if not state.sessions:
            del self._states[key], self._sessions[key]

    def tidy(self) -> None:
        """What is to be done now and then: forget members who are long gone, and shorten the
        journal."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LATE_S / 10:
            self._looked_s = now_s
            for key in self.groups():
                self._expire(key)
        if self.length > ENTRIES_MAX:
            self.shorten()

    def forget(self) -> None:
        """Take everybody for gone."""
        with self._lock:
            self.load()
            for sessions in self._sessions.values():
                for one in sessions.values():
                    one.until_s = -LATE_S
        for key in self.groups():
            self._expire(key)

    def _expire(self, key: GroupKey) -> None:
        with self._lock:
            late_s = self._clock.monotonic_s() - LATE_S
            if all(one.until_s > late_s for one in self._sessions.get(key, {}).values()):
                return
        try:
            partitions = self._registry.find(key.topic).partitions
        except TopicNotFound:
            partitions = 0
        with self._alone(), self._lock:
            change = self._decide(key, None, partitions)
            if change is not None:
                self._write(key, change)

    def shorten(self) -> None:
        """Keep all members in the journal, so that a start reads it from here."""
        with self._lock:
            self.load()
            chunks: list[list[tuple[bytes, bytes]]] = [[(_GENERATION, b"%d" % self._generation)]]
            size = 0
            for key, state in self._states.items():
                entry = encode_entry(key, state.kept())
                size += len(entry[0]) + len(entry[1])
                if size > _CHUNK_BYTES:
                    chunks.append([])
                    size = 0
                chunks[-1].append(entry)
            self._journal.keep(
                [[value for _, value in chunk] for chunk in chunks],
                [[name for name, _ in chunk] for chunk in chunks],
            )
            self.length = 0
