"""The members of one group in one topic, and who has which partition (pure state).

    Membership.decide(poll) ─▶ edits ─▶ journal ─▶ Membership.apply ─▶ Membership.assignment

Joining, heartbeat, releasing and leaving are one event, the poll of a member, which names the
partitions that it holds. A partition that is to move stays with its owner until the owner polls
without holding it, or is gone; only then the next owner gets it, with a new epoch. All other
members go on meanwhile.

The journal `system:_groups` holds one message for each change, its key `GROUP/TOPIC`, its value the
generation and the edits. Heartbeats are not in it.

Invariants

* A partition has at most one owner.
* The generation grows with every change. The epoch of a partition is the generation at which its
  owner got it, so a member with an older epoch has lost the partition in between.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from tms.errors import DataCorrupt, TMSError
from tms.groups.assignment import assign
from tms.model.group import MemberAssignment
from tms.model.topic import TopicName
from tms.model.transaction import Owner
from tms.runtime.decoding import msgpack_decoder


class _GroupEdit(msgspec.Struct, frozen=True, array_like=True, tag=str.lower, tag_field="edit"):
    """Something that happens to a group."""


class Joined(_GroupEdit, frozen=True):
    """A member joined, or changed its session time-out."""

    member: str
    session_s: float


class Left(_GroupEdit, frozen=True):
    """A member left, and owns nothing any more."""

    member: str


class Owned(_GroupEdit, frozen=True):
    """A member owns a partition from this epoch on; without a name, no member does."""

    partition: int
    member: str = ""
    epoch: int = 0


MembershipEdit = Joined | Left | Owned


class Change(msgspec.Struct, frozen=True, array_like=True):
    """Edits that happen together."""

    generation: int
    edits: tuple[MembershipEdit, ...]


class GroupKey(NamedTuple):
    """A group in a topic."""

    group: str
    topic: TopicName


class Poll(NamedTuple):
    """A poll of a member; `holding` are the partitions that it reads, with their epochs."""

    member: str
    session_s: float
    holding: Mapping[int, int]
    leaving: bool = False


class Membership:
    """The members and owners of one group in one topic. Not thread-safe."""

    def __init__(self) -> None:
        self.generation = 0
        self.sessions: dict[str, float] = {}  # by member, in the order of joining
        self.owners: dict[int, Owner] = {}
        self._seen: _View | None = None

    def decide(
        self, poll: Poll | None, partitions: int, ended: Iterable[str], generation: int
    ) -> Change | None:
        """The change that follows from a poll in a topic with this many partitions when the
        sessions of `ended` are over, None if nothing changes. `generation` is the generation of
        that change."""
        gone = [member for member in ended if member in self.sessions]
        joined: Joined | None = None
        if poll is not None and poll.leaving and poll.member in self.sessions:
            gone.append(poll.member)
        elif (
            poll is not None
            and not poll.leaving
            and self.sessions.get(poll.member) != poll.session_s
        ):
            joined = Joined(poll.member, poll.session_s)
        holding = None if poll is None else (poll.member, poll.holding)
        if not gone and joined is None and self._is_right(partitions, holding):
            return None
        after = self.copy()
        edits: list[MembershipEdit] = [Left(member) for member in gone]
        if joined is not None:
            edits.append(joined)
        for edit in edits:
            after._do(edit)
        owned = after._settle(partitions, holding, generation)
        edits += owned
        return Change(generation, tuple(edits)) if edits else None

    def apply(self, change: Change) -> None:
        """Apply a journaled change."""
        for edit in change.edits:
            self._do(edit)
        self.generation = max(self.generation, change.generation)
        self._seen = None

    def assignment(self, member: str, partitions: int) -> MemberAssignment:
        """The assignment of a member."""
        view = self._view(partitions)
        mine = view.of.get(member, {})
        return MemberAssignment(
            self.generation,
            mine,
            frozenset(p for p in mine if view.target[p] != member),
            len(self.sessions),
            view.coming.get(member, 0),
        )

    def snapshot(self) -> Change:
        """The state as one change of an empty group."""
        edits: list[MembershipEdit] = [Joined(*session) for session in self.sessions.items()]
        edits += [Owned(p, owner.member, owner.epoch) for p, owner in self.owners.items()]
        return Change(self.generation, tuple(edits))

    def _do(self, edit: MembershipEdit) -> None:
        match edit:
            case Joined(member, session_s):
                self.sessions[member] = session_s
            case Left(member):
                self.sessions.pop(member, None)
                self.owners = {p: o for p, o in self.owners.items() if o.member != member}
            case Owned(partition, member, epoch):
                if member:
                    self.owners[partition] = Owner(member, epoch)
                else:
                    self.owners.pop(partition, None)

    def copy(self) -> "Membership":
        """An independent copy."""
        membership = Membership()
        membership.generation = self.generation
        membership.sessions, membership.owners = dict(self.sessions), dict(self.owners)
        return membership

    def _is_right(self, partitions: int, holding: tuple[str, Mapping[int, int]] | None) -> bool:
        """True if every partition has an owner, and the polling member still holds every partition
        that it is to release."""
        view = self._view(partitions)
        if len(self.owners) != (partitions if self.sessions else 0) or view.beyond:
            return False
        if holding is None:
            return True
        member, held = holding
        mine = view.of.get(member, {})
        return all(view.target[p] == member or held.get(p) == epoch for p, epoch in mine.items())

    def _settle(
        self, partitions: int, holding: tuple[str, Mapping[int, int]] | None, epoch: int
    ) -> list[Owned]:
        """Take partitions that the member released, and assign those without an owner."""
        view, edits = self._view(partitions), [Owned(p) for p in self.owners if p >= partitions]
        if holding is not None:
            member, held = holding
            edits += [
                Owned(p)
                for p, since in view.of.get(member, {}).items()
                if p < partitions and view.target[p] != member and held.get(p) != since
            ]
        for edit in edits:
            self._do(edit)
        target = assign(partitions, list(self.sessions), _names(self.owners))
        assigned = [Owned(p, target[p], epoch) for p in sorted(target) if p not in self.owners]
        again = {owned.partition for owned in assigned}
        return [owned for owned in edits if owned.partition not in again] + assigned

    def _view(self, partitions: int) -> "_View":
        if self._seen is None or self._seen.partitions != partitions:
            self._seen = _View(self, partitions)
        return self._seen


class _View:
    """Values that follow from a state, computed once."""

    def __init__(self, state: Membership, partitions: int) -> None:
        self.partitions = partitions
        self.target = assign(partitions, list(state.sessions), _names(state.owners))
        self.beyond = any(p >= partitions for p in state.owners)
        self.of: dict[str, dict[int, int]] = {}  # partitions and epochs, by member
        self.coming: dict[str, int] = {}
        for partition in sorted(state.owners):
            owner = state.owners[partition]
            if partition < partitions:
                self.of.setdefault(owner.member, {})[partition] = owner.epoch
                if (then := self.target[partition]) != owner.member:
                    self.coming[then] = self.coming.get(then, 0) + 1


def _names(owners: Mapping[int, Owner]) -> dict[int, str]:
    return {partition: owner.member for partition, owner in owners.items()}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(Change)


def encode_entry(key: GroupKey, change: Change) -> tuple[bytes, bytes]:
    """Key and value of the journal's message."""
    name = f"{key.group}/{key.topic.namespace}:{key.topic.topic}"
    return name.encode(), _encoder.encode(change)


def decode_entry(key: bytes | None, value: bytes | None) -> tuple[GroupKey, Change]:
    """A message of the journal. Raises `DataCorrupt`."""
    try:
        group, topic = (key or b"").decode().rsplit("/", 1)
        return GroupKey(group, TopicName.parse(topic)), _decoder.decode(value or b"")
    except (ValueError, msgspec.MsgspecError, TMSError) as exc:
        raise DataCorrupt(
            f"An entry in the journal of groups cannot be read: {key!r:.80}. Run `tms fsck`."
        ) from exc
