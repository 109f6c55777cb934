"""The members of the groups of a shard, over its journal in `system:_groups`, and their sessions.

Invariants

* An assignment is journaled before it is answered. If the journal fails, all members keep their
  partitions.
* A partition changes its owner only while no transaction holds its position and no change moves
  it: the next owner reads a final position, and later changes of the former owner are refused
  (`Fenced`).
* Sessions follow the monotonic clock and start again when the engine starts. A session ends when
  another member polls; a member that is alone may be late.
* A group of which Kafka's protocol has members gets none here; see `classic_shard`.
* A group without members is dropped; generations grow over all groups of a shard, so a group that
  returns has none of its old epochs.
* The journal also keeps the last generation of each of Kafka's groups. A change of TMS's own
  members in a group of that name removes it in the same write.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tms.errors import Conflict, Fenced, Overloaded, StorageUnavailable, TopicNotFound
from tms.groups.classic_calls import ClassicKey, Sender
from tms.groups.classic_member import KeptEntry, decode_kept, encode_kept
from tms.groups.classic_shard import ClassicShard
from tms.groups.membership import (
    Change,
    GroupKey,
    Membership,
    Owned,
    Poll,
    decode_entry,
    encode_entry,
)
from tms.log.journaled import Cells, Journaled, JournalEntry, together
from tms.model.group import MemberAssignment
from tms.model.topic import Durability
from tms.model.transaction import PositionChange, PositionKey
from tms.runtime.clock import Clock
from tms.topics.sharding import GROUPS
from tms.topics.topics import Topics

MEMBERS_MAX = 1_000  # of a group
GROUPS_MAX = 10_000  # of a shard, with members
ENTRIES_MAX = 10_000  # of the journal, before it is shortened
JOURNAL_BYTES = 16 << 20  # of its entries, before it is shortened
ATTEMPTS = 8
LATE_S = 60.0  # after its session a member is removed, even if it is alone
_GENERATION = b"generation"  # the key of the entry with the number only
_NO_MEMBERS = Membership()
# A change of a group, a group of Kafka's clients, or a generation.
_Event = tuple[GroupKey, Change] | KeptEntry | int
Undisturbed = Callable[[Collection[PositionKey], Callable[[], bool]], bool]
T = TypeVar("T")


@dataclass(slots=True)
class MemberSession:
    """The end of a member's session; `reading` is True if it reads up to an end that it has not
    reached."""

    until_s: float
    reading: bool


class _Groups:
    """All groups that have members, the last generation of any, and Kafka's groups."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[GroupKey, Membership] = {}
        self.classic: dict[ClassicKey, bytes] = {}

    def apply(self, event: _Event) -> None:
        if isinstance(event, int):
            self.generation = max(self.generation, event)
            return
        if isinstance(event, KeptEntry):
            if event.value is None:
                self.classic.pop(event.key, None)
            else:
                self.classic[event.key] = event.value
            return
        key, change = event
        group = self.members.setdefault(key, Membership())
        group.apply(change)
        self.generation = max(self.generation, change.generation)
        if not group.sessions:
            del self.members[key]


class _MembersMachine:
    """The groups as they follow from the journal, and the sessions, which are in none."""

    def __init__(self, clock: Clock, classic: ClassicShard) -> None:
        self._clock = clock
        self._classic = classic
        self.sessions: dict[GroupKey, dict[str, MemberSession]] = {}

    def replay(self, entries: Iterator[JournalEntry]) -> _Groups:
        groups = _Groups()
        for key, value, _ in entries:
            if key == _GENERATION:
                groups.apply(int(value or b"0"))
            else:
                groups.apply(decode_kept(key, value) or decode_entry(key, value))
        for of in (*groups.members, *self.sessions):
            self._follow(of, groups.members.get(of))
        for of in groups.members:  # that joined by a release which does not know the others
            groups.classic.pop(_classic_key(of), None)
        self._classic.follow(groups.classic)
        return groups

    def apply(self, groups: _Groups, event: _Event) -> None:
        groups.apply(event)
        if not isinstance(event, KeptEntry | int):
            self._follow(event[0], groups.members.get(event[0]))

    def _follow(self, key: GroupKey, group: Membership | None) -> None:
        """Give new members of a group a session, and drop the sessions of members that left."""
        before = self.sessions.pop(key, {})
        if group is not None:
            now_s = self._clock.monotonic_s()
            self.sessions[key] = {
                member: before.get(member) or MemberSession(now_s + session_s, True)
                for member, session_s in group.sessions.items()
            }

    def encode(self, events: Sequence[_Event]) -> Iterator[list[Cells]]:
        return together(map(_encoded, events))


def _encoded(event: _Event) -> Cells:
    if isinstance(event, int):
        return _GENERATION, b"%d" % event
    return encode_kept(event) if isinstance(event, KeptEntry) else encode_entry(*event)


def _snapshot(groups: _Groups) -> Iterator[_Event]:
    yield groups.generation
    for key, group in groups.members.items():
        yield key, group.snapshot()
    for one in groups.classic.items():
        yield KeptEntry(*one)


class Members:
    """The members of the groups of a shard. Thread-safe. `undisturbed` runs a function while no
    transaction moves the given positions; `classic` are the shard's groups of Kafka's protocol."""

    def __init__(
        self, topics: Topics, number: int, undisturbed: Undisturbed, classic: ClassicShard
    ) -> None:
        self._journal = journal = topics.journal_of_shard(GROUPS, number)
        self._registry = topics.registry
        self._clock = clock = topics.clock
        self._undisturbed = undisturbed
        self._classic = classic
        self._lock = threading.RLock()
        machine = _MembersMachine(clock, classic)
        self._sessions = machine.sessions
        self._journaled = Journaled(journal, machine, self._lock)
        self._looked_s = clock.monotonic_s()

    @property
    def known(self) -> bool:
        """True if no journal has to be read."""
        return self._journaled.known

    def load(self) -> Mapping[GroupKey, Membership]:
        """All groups that have members, read from the journal unless they are known."""
        with self._lock:
            return self._journaled.load().members

    # -- polls -----------------------------------------------------------------------------------

    def poll(self, key: GroupKey, poll: Poll, reading: bool) -> MemberAssignment:
        """Poll for a member; returns its assignment. Raises `TopicNotFound`, `Overloaded`,
        `Conflict`."""
        partitions = self._registry.find(key.topic).partitions
        with self._lock:
            change = self._decide(key, poll, partitions)
            if change is None:
                return self._answer(key, poll, partitions, reading)
        self._change(key, change, poll, partitions)
        with self._lock:
            return self._answer(key, poll, partitions, reading)

    def _change(
        self, key: GroupKey, change: Change | None, poll: Poll | None, partitions: int
    ) -> None:
        """Make a decided change while no transaction moves positions of partitions that change
        owners."""
        for _ in range(ATTEMPTS):
            moving = _moving(key, change)

            def write(moving: set[PositionKey] = moving) -> bool:
                nonlocal change
                with self._lock:
                    change = self._decide(key, poll, partitions)
                    if not _moving(key, change) <= moving:
                        return False
                    if change is not None:
                        events: list[_Event] = [(key, change)]
                        if (of := _classic_key(key)) in self._journaled.state.classic:
                            events.insert(0, KeptEntry(of, None))  # it has no members any more
                        self._journaled.write(events, Durability.SYNCED)
                    return True

            if self._undisturbed(moving, write):
                return
        raise StorageUnavailable(f"The group {key.group} changes too often. Try again.")

    def _decide(self, key: GroupKey, poll: Poll | None, partitions: int) -> Change | None:
        groups, now_s = self._journaled.load(), self._clock.monotonic_s()
        state, sessions = groups.members.get(key), self._sessions.get(key, {})
        if state is None:
            if poll is None or poll.leaving:
                return None
            state = Membership()
        if poll is not None and poll.member not in sessions and not poll.leaving:
            self._require_room(key, len(groups.members))
            self._require_own(key)
        slack_s = LATE_S if poll is None else 0.0
        late = {
            member for member, session in sessions.items() if session.until_s + slack_s <= now_s
        }
        ended = late if poll is None else late - {poll.member}
        return state.decide(poll, partitions, ended, groups.generation + 1)

    def _require_room(self, key: GroupKey, groups: int) -> None:
        if len(self._sessions.get(key, ())) >= MEMBERS_MAX or groups >= GROUPS_MAX:
            raise Overloaded(
                f"The group {key.group} of {key.topic} cannot take another member: there are at "
                f"most {MEMBERS_MAX} in a group, and {GROUPS_MAX} groups.",
                group=key.group,
            )

    def _require_own(self, key: GroupKey) -> None:
        if self._classic.has(_classic_key(key)):
            raise Conflict(
                f"The group {key.group} of the namespace {key.topic.namespace} has members of "
                "Kafka's protocol now, which share topics in another way. Close them first, or "
                "take another group.",
                group=key.group,
                namespace=key.topic.namespace,
            )

    def without(self, key: ClassicKey, do: Callable[[], T]) -> T | None:
        """Run `do` while the group has no members and none can join; returns None, and does
        nothing, if it has some."""
        with self._lock:
            return None if any(_classic_key(one) == key for one in self.load()) else do()

    def keep(self, take: Callable[[], Sequence[KeptEntry]]) -> None:
        """Store what `take` returns of Kafka's groups, synced; TMS's own members wait meanwhile.
        Raises an error if it may not be stored."""
        with self._lock:
            self._journaled.load()
            if entries := take():
                self._journaled.write(entries, Durability.SYNCED)

    def _answer(
        self, key: GroupKey, poll: Poll, partitions: int, reading: bool
    ) -> MemberAssignment:
        group = self._journaled.state.members.get(key, _NO_MEMBERS)
        sessions = self._sessions.get(key, {})
        if poll.member in sessions:
            until_s = self._clock.monotonic_s() + poll.session_s
            sessions[poll.member] = MemberSession(until_s, reading)
        others = sum(
            session.reading for member, session in sessions.items() if member != poll.member
        )
        return replace(group.assignment(poll.member, partitions), reading=others)

    # -- the fence -------------------------------------------------------------------------------

    def check(self, changes: Iterable[PositionChange]) -> None:
        """Raises `Fenced` for a change by a member that has lost the partition, or whose generation
        of a Kafka group is over. Takes no lock of members: the commit keeps owners from
        changing."""
        for change in changes:
            if change.owner is None:
                continue
            groups = self._journaled.state.members if self.known else self.load()
            key = change.key
            group = groups.get(GroupKey(key.group, key.topic), _NO_MEMBERS)
            if group.owners.get(key.partition) == change.owner:
                continue
            sender = Sender(change.owner.member, change.owner.epoch)
            if not self._classic.is_current(_classic_key(key), sender):
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
        """The groups that have members."""
        with self._lock:
            return list(self.load())

    def present(self) -> dict[GroupKey, int]:
        """The number of members of each group whose sessions have not ended."""
        with self._lock:
            self.load()
            now_s = self._clock.monotonic_s()
            return {
                key: sum(session.until_s > now_s for session in sessions.values())
                for key, sessions in self._sessions.items()
            }

    def look(self, key: GroupKey) -> tuple[Membership, Mapping[str, float]]:
        """A copy of a group, and the seconds until the session of each member ends."""
        with self._lock:
            group, now_s = self.load().get(key, _NO_MEMBERS), self._clock.monotonic_s()
            left = {
                m: session.until_s - now_s for m, session in self._sessions.get(key, {}).items()
            }
            return group.copy(), left

    # -- now and then ------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Remove members that are long silent, and shorten the journal."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LATE_S / 10:
            self._looked_s = now_s
            for key in self.groups():
                self._expire(key)
        is_large = self._journal.bytes > JOURNAL_BYTES and self._journal.is_worth_a_snapshot
        if self._journal.length > ENTRIES_MAX or is_large:
            with self._lock:
                self._journaled.snapshot(_snapshot)

    def forget(self) -> None:
        """Remove all members, whose sessions end now."""
        with self._lock:
            self.load()
            for sessions in self._sessions.values():
                for session in sessions.values():
                    session.until_s = -LATE_S
        for key in self.groups():
            self._expire(key)

    def _expire(self, key: GroupKey) -> None:
        try:
            partitions = self._registry.find(key.topic).partitions
        except TopicNotFound:
            partitions = 0
        with self._lock:
            late_s = self._clock.monotonic_s() - LATE_S
            if all(session.until_s > late_s for session in self._sessions.get(key, {}).values()):
                return
            change = self._decide(key, None, partitions)
        self._change(key, change, None, partitions)


def _classic_key(key: GroupKey | PositionKey) -> ClassicKey:
    return ClassicKey(key.topic.namespace, key.group)


def _moving(key: GroupKey, change: Change | None) -> set[PositionKey]:
    """The positions of the partitions that change owners."""
    edits = () if change is None else change.edits
    return {PositionKey(*key, edit.partition) for edit in edits if isinstance(edit, Owned)}
