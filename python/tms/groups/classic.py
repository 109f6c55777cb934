"""One group of Kafka's classic protocol (pure state): the clients assign, this only coordinates.

    Empty ──a member joins──▶ PreparingRebalance ──all have joined──▶ CompletingRebalance
                                    ▲   ▲                                     │
                                    │   └── join, leave, lost member ◀────────┤
                                    └────── join, leave, lost member ◀── Stable ◀─ leader's sync

Joins wait until all known members have joined, or the longest rebalance time-out of a member has
passed; members that have not joined by then are removed, unless they are static. Then a new
generation begins, with the protocol that most members prefer among those that all support. One
member, the leader, learns the metadata of all and sends an assignment for each with its sync; the
syncs of the others wait for it. A member that does not sync within the rebalance time-out is
removed. The semantics are those of Kafka's `GroupCoordinator`; the decision record 0058 lists the
differences.

The group is stable, and syncs are answered, once its caller has stored `unsaved` and said so with
`saved`. It sets `unsaved` again when a static member gets a new id in a stable group: the join that
brought the id is answered then. Decision record 0069 has the reasons.

Invariants

* A group is in one generation. All its members get the generation's number, protocol and leader,
  and the assignment that this leader sent.
* An id belongs to one member, an instance to one member, and only the last id of an instance is
  answered without `FENCED_INSTANCE_ID`.
* A join or sync that waits is answered once: at the latest when the phase ends, or the member goes.
* No member learns an assignment, or a new id in a stable group, that is not stored.
* Time is an argument. The result depends on the calls, their times and the given ids alone.
"""

from collections import Counter

from tms.groups.classic_calls import (
    ENTRY_BYTES,
    SKIP_VERSION,
    Answered,
    CallToken,
    ClassicBounds,
    Code,
    Description,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    Leaver,
    MemberDescription,
    Sender,
    State,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_member import ClassicMember, KeptGroup, protocols_of


class ClassicGroup:
    """A group. Not thread-safe. Answers for callers that wait are appended to `answers`."""

    def __init__(self, bounds: ClassicBounds, answers: list[Answered]) -> None:
        self._bounds = bounds
        self._answers = answers
        self.state = State.EMPTY
        self.generation = 0
        self.size = 0  # bytes
        self.due_ms: int | None = None  # nothing ends before; may be too early
        self._protocol_type = ""
        self._protocol = ""  # of this generation
        self._leader = ""  # of this generation
        self._members: dict[str, ClassicMember] = {}  # in the order in which they came
        self._static: dict[str, str] = {}  # ids by instance
        self._pending: dict[str, int] = {}  # ids given out, until they expire
        self._supporters: Counter[str] = Counter()  # members that support each protocol
        self._joining: dict[str, CallToken] = {}  # members whose join waits
        self._syncing: dict[str, CallToken] = {}  # members whose sync waits
        self._unsynced: dict[str, None] = {}  # members of this generation that have not synced
        self._until_ms: int | None = None  # the joins of a rebalance, later its syncs, end then
        self._extension_ms: int | None = None  # the first rebalance may be delayed by so much more
        self._delay_ms = 0  # of the first rebalance
        self._newcomer = False  # joined during the delay of the first rebalance
        self.unsaved: KeptGroup | None = None  # to be stored, and handed to `saved`
        self._saving: KeptGroup | None = None  # the newest of those that `saved` was not told of
        self._is_assigned = False  # the leader has synced in this generation
        self._replaced: dict[str, str] = {}  # static members with a new id, and the leader to name

    @property
    def has_members(self) -> bool:
        """True if there are members, whatever the state is."""
        return bool(self._members)

    @property
    def is_gone(self) -> bool:
        """True if nothing remains to be remembered."""
        return not self._members and not self._pending

    # -- joining -----------------------------------------------------------------------------------

    def join(self, now_ms: int, token: CallToken, request: JoinRequest, new_id: str) -> None:
        """Join, or join again. `new_id` is the id of a new member. The answer may wait."""
        if not self._has_room(request.member or self._id_of(request.instance)):
            self._remove(request.member)
            self._refuse(token, "", Code.GROUP_MAX_SIZE_REACHED)
        elif not self._supports(request):
            self._refuse(token, request.member, Code.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member:
            self._join_known(now_ms, token, request)
        elif self._id_of(request.instance):
            self._replace(now_ms, token, request, new_id)
        elif not request.needs_id:
            self._add(now_ms, token, request, new_id)
        elif len(self._pending) >= self._bounds.members_max:
            self._refuse(token, "", Code.COORDINATOR_NOT_AVAILABLE)
        else:
            self._pending[new_id] = self._ends(now_ms + request.session_ms)
            self.size += ENTRY_BYTES + len(new_id)
            self._refuse(token, new_id, Code.MEMBER_ID_REQUIRED)
        self._settle(now_ms)

    def size_of(self, request: JoinRequest) -> int:
        """The bytes by which a join makes the group larger."""
        before = self._members.get(request.member or self._id_of(request.instance))
        return request.size if before is None else request.size - before.size

    def _has_room(self, member: str) -> bool:
        most = self._bounds.members_max
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING:
            return member in self._joining or len(self._joining) < most
        return member in self._members or len(self._members) < most

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self._protocol_type and any(
            self._supporters[name] == len(self._members) for name, _ in request.protocols
        )

    def _join_known(self, now_ms: int, token: CallToken, request: JoinRequest) -> None:
        if request.member in self._pending and request.instance is None:
            self._add(now_ms, token, request, request.member)
            return
        code = self._check(Sender(request.member, instance=request.instance))
        if code or self.state is State.EMPTY:
            self._refuse(token, request.member, code or Code.UNKNOWN_MEMBER_ID)
            return
        member = self._members[request.member]
        is_same = list(member.protocols.items()) == list(protocols_of(request).items())
        may_repeat = self.state is State.COMPLETING or (
            self.state is State.STABLE
            and member.id != self._leader  # a leader asks for a rebalance
        )
        if is_same and may_repeat:  # the answer may have been lost
            self._answers.append((token, self._joined(member)))
        else:
            self._update(token, request, member)
            self._rebalance(now_ms)

    def _add(self, now_ms: int, token: CallToken, request: JoinRequest, id: str) -> None:
        if self._pending.pop(id, None) is not None:
            self.size -= ENTRY_BYTES + len(id)
        if not self._members:
            self._protocol_type = request.protocol_type
            self._delay_ms = request.delay_ms
        if self.state is State.PREPARING and self.generation == 0:
            self._newcomer = True
        until_ms = self._ends(now_ms + self._bounds.new_member_ms)
        member = self._admit(request, id, until_ms)
        member.knows_id = bool(request.member) or request.instance is not None
        self._joining[id] = token
        self._rebalance(now_ms)

    def _replace(self, now_ms: int, token: CallToken, request: JoinRequest, id: str) -> None:
        """A static member joins without its id: it gets a new one, and the old one is fenced."""
        leader = self._leader
        old = self._members[self._id_of(request.instance)]
        has_synced = old.id not in self._unsynced
        self._dismiss(old.id, Code.FENCED_INSTANCE_ID)
        until_ms = self._ends(now_ms + request.session_ms)
        member = self._admit(request, id, until_ms, old)
        member.is_new = False
        member.assignment = old.assignment
        self.size += len(old.assignment)
        self._joining[id] = token
        if leader == old.id:
            self._leader = id
        if not has_synced:
            self._unsynced[id] = None
        if self.state is State.COMPLETING or (
            self.state is State.STABLE and self._preferred() != self._protocol
        ):
            self._rebalance(now_ms)
        elif self.state is State.STABLE:
            # An older client must not take itself for the leader: nobody waits for an assignment.
            self._replaced[id] = self._leader if request.version >= SKIP_VERSION else leader
            self._save()

    def _admit(
        self, request: JoinRequest, id: str, until_ms: int, old: ClassicMember | None = None
    ) -> ClassicMember:
        """Make a member; one that replaces another one keeps its client."""
        self._members[id] = member = ClassicMember(
            id,
            request.instance,
            request.client if old is None else old.client,
            protocols_of(request),
            request.session_ms,
            max(0, request.rebalance_ms),
            until_ms,
        )
        if request.instance is not None:
            self._static[request.instance] = id
        self._supporters.update(member.protocols.keys())
        self.size += member.size
        return member

    def _update(self, token: CallToken, request: JoinRequest, member: ClassicMember) -> None:
        """Take a known member's protocols and time-outs. An earlier join of it that waits ends."""
        self.size -= member.size
        self._supporters.subtract(member.protocols.keys())
        member.protocols = protocols_of(request)
        member.session_ms = request.session_ms
        member.rebalance_ms = max(0, request.rebalance_ms)
        self._supporters.update(member.protocols.keys())
        self._supporters += Counter()  # drops names without members
        self.size += member.size
        if (earlier := self._joining.pop(member.id, None)) is not None:
            self._refuse(earlier, member.id, Code.REBALANCE_IN_PROGRESS)
        self._joining[member.id] = token

    # -- a rebalance -------------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        """Prepare a rebalance, unless one is being prepared."""
        if self.state is State.PREPARING:
            return
        self._is_assigned = False
        self._replaced.clear()  # their joins wait like those of the others
        for member in self._members.values():
            if (token := self._syncing.pop(member.id, None)) is not None:
                self._answers.append((token, SyncAnswer(Code.REBALANCE_IN_PROGRESS)))
                self._restart_session(now_ms, member)
        rest_ms = self._longest_ms()
        if self.state is State.EMPTY:
            delay_ms = self._delay_ms
            self._extension_ms, rest_ms = max(0, rest_ms - delay_ms), delay_ms
        self.state = State.PREPARING
        self._until_ms = self._ends(now_ms + rest_ms)

    def _settle(self, now_ms: int) -> None:
        """End the joins if all have joined, or the time is over."""
        if self.state is not State.PREPARING or self._until_ms is None:
            return
        have_all = len(self._joining) == len(self._members) and not self._pending
        is_early = self._extension_ms is not None and self._members
        if (have_all and not is_early) or self._until_ms <= now_ms:
            self._end_joins(now_ms)

    def _end_joins(self, now_ms: int) -> None:
        if self._until_ms is not None and self._extension_ms and self._newcomer and self._members:
            delay_ms = min(self._delay_ms, self._extension_ms)
            self._extension_ms -= delay_ms
            self._newcomer = False
            self._until_ms = self._ends(self._until_ms + delay_ms)
            return
        self._extension_ms = None
        self._newcomer = False
        for member in list(self._members.values()):
            if member.id not in self._joining and member.instance is None:
                self._remove(member.id)
        if self._members and not self._joining:  # static ones that may still come
            self._until_ms = self._ends(now_ms + max(1, self._longest_ms()))
            return
        self.generation += 1
        if not self._members:
            self.state = State.EMPTY
            self._until_ms = None
            return
        if self._leader not in self._joining:
            self._leader = next(id for id in self._members if id in self._joining)
        self.state = State.COMPLETING
        self._protocol = self._preferred()
        self._unsynced = dict.fromkeys(self._members)
        self._until_ms = self._ends(now_ms + self._longest_ms())
        for member in self._members.values():
            member.is_new = False
            member.knows_id = True
            self._restart_session(now_ms, member)
            if (token := self._joining.pop(member.id, None)) is not None:
                self._answers.append((token, self._joined(member)))

    def _end_syncs(self, now_ms: int) -> None:
        """Remove the members that have not synced in time, and rebalance."""
        for id in list(self._unsynced):
            self._remove(id)
        self._rebalance(now_ms)
        self._settle(now_ms)

    def _preferred(self) -> str:
        """The protocol with the most votes: each member votes for the first one of its own that all
        support. If there are several, the one of the member that came first."""
        everyone = len(self._members)
        votes = Counter(
            next(name for name in member.protocols if self._supporters[name] == everyone)
            for member in self._members.values()
        )
        return max(votes, key=votes.__getitem__)

    def _longest_ms(self) -> int:
        return max((member.rebalance_ms for member in self._members.values()), default=0)

    # -- members -----------------------------------------------------------------------------------

    def sync(self, now_ms: int, token: CallToken, request: SyncRequest) -> None:
        """Send or get the assignment of this generation. The answer may wait."""
        sender = request.sender
        code = self._check_generation(sender)
        if not code and (
            request.protocol_type not in (None, self._protocol_type)
            or request.protocol not in (None, self._protocol)
        ):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if not code and self.state is State.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code:
            self._answers.append((token, SyncAnswer(code)))
            return
        if (earlier := self._syncing.pop(sender.member, None)) is not None:
            self._answers.append((earlier, SyncAnswer(Code.REBALANCE_IN_PROGRESS)))
        self._syncing[sender.member] = token
        self._unsynced.pop(sender.member, None)
        if self._takes_assignment(sender):
            for member in self._members.values():
                assignment = request.assignments.get(member.id, b"")
                self.size += len(assignment) - len(member.assignment)
                member.assignment = assignment
            self._is_assigned = True
            self._save()
        if self.state is State.STABLE:
            self._answer_syncs(now_ms)

    def size_of_sync(self, request: SyncRequest) -> int:
        """The bytes that the group keeps of a sync; 0 unless it ends a rebalance."""
        if not self._takes_assignment(request.sender):
            return 0
        return sum(len(request.assignments.get(id, b"")) for id in self._members)

    def _takes_assignment(self, sender: Sender) -> bool:
        is_open = self.state is State.COMPLETING and not self._is_assigned
        return is_open and sender.member == self._leader

    def _answer_syncs(self, now_ms: int) -> None:
        if not self._unsynced:
            self._until_ms = None
        syncing, self._syncing = self._syncing, {}
        for id, token in syncing.items():
            member = self._members[id]
            answer = SyncAnswer(Code.NONE, self._protocol_type, self._protocol, member.assignment)
            self._answers.append((token, answer))
            self._restart_session(now_ms, member)

    def heartbeat(self, now_ms: int, sender: Sender) -> Code:
        """Keep a member's session alive; `REBALANCE_IN_PROGRESS` asks it to join again."""
        code = self._check_generation(sender)
        if code:
            return code
        self._restart_session(now_ms, self._members[sender.member])
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def leave(self, now_ms: int, leaver: Leaver) -> Code:
        """Remove a member at once. By its instance alone, an operator may remove a static one."""
        id, instance = leaver
        if not id:
            id = self._id_of(instance)
            code = Code.NONE if id else Code.UNKNOWN_MEMBER_ID
        else:
            code = Code.NONE if id in self._pending else self._check(Sender(id, -1, instance))
        if not code:
            self._lose(now_ms, id)
        return code

    def may_commit(self, now_ms: int, sender: Sender, is_transactional: bool) -> Code:
        """The answer to a commit of offsets before any is stored. A commit without a member is for
        groups without members, except in transactions of clients before version 3."""
        if self.state is State.EMPTY and sender.generation < 0:
            return Code.NONE
        if sender.generation < 0 and not sender.member and sender.instance is None:
            return Code.NONE if is_transactional else Code.UNKNOWN_MEMBER_ID
        code = self._check_generation(sender)
        if code or is_transactional:
            return code
        if self.state is State.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        self._restart_session(now_ms, self._members[sender.member])
        return Code.NONE

    def is_current(self, sender: Sender) -> bool:
        """True if the member may still commit what it was assigned in this generation."""
        return not self._check_generation(sender) and self.state is not State.COMPLETING

    def _check(self, sender: Sender) -> Code:
        """The error of a request by a member that is not, or no longer, in the group."""
        if sender.instance is not None:
            current = self._id_of(sender.instance)
            if current != sender.member:
                return Code.FENCED_INSTANCE_ID if current else Code.UNKNOWN_MEMBER_ID
        return Code.NONE if sender.member in self._members else Code.UNKNOWN_MEMBER_ID

    def _id_of(self, instance: str | None) -> str:
        """The id of the static member of an instance; empty without one."""
        return "" if instance is None else self._static.get(instance, "")

    def _check_generation(self, sender: Sender) -> Code:
        code = self._check(sender)
        if not code and sender.generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return code

    def drop(self, now_ms: int, token: CallToken) -> None:
        """Forget a caller whose connection is closed. Its member has its session to come back; a
        new member that cannot know its id is removed at once."""
        waiting = (*self._joining.items(), *self._syncing.items())
        dropped = [self._members[id] for id, waiter in waiting if waiter == token]
        for member in dropped:
            self._joining.pop(member.id, None)
            self._syncing.pop(member.id, None)
            member.is_new = False
            self._restart_session(now_ms, member)
        for member in dropped:
            if not member.knows_id:
                self._lose(now_ms, member.id)

    def fail(self, code: Code) -> None:
        """Answer all callers that wait with an error: the group is given up."""
        for id in list(self._members):
            self._dismiss(id, code)
        self._pending.clear()

    # -- storing -----------------------------------------------------------------------------------

    def _save(self) -> None:
        members = tuple(member.kept() for member in self._members.values())
        kept = KeptGroup(
            self.generation, self._protocol_type, self._protocol, self._leader, members
        )
        self.unsaved = self._saving = kept

    def saved(self, now_ms: int, kept: KeptGroup, is_stored: bool) -> None:
        """A group that was to be stored is, or cannot be: answer the callers that waited for it. If
        it has a new assignment and cannot be stored, a rebalance follows."""
        if kept is not self._saving:  # a newer one follows
            return
        self._saving = None
        if self.state is State.COMPLETING and self._is_assigned:
            if is_stored:
                self.state = State.STABLE
                self._answer_syncs(now_ms)
            else:
                for token in self._syncing.values():
                    self._answers.append((token, SyncAnswer(Code.COORDINATOR_NOT_AVAILABLE)))
                for id in self._syncing:
                    self._restart_session(now_ms, self._members[id])
                self._syncing.clear()
                self._rebalance(now_ms)
                self._settle(now_ms)
        replaced, self._replaced = self._replaced, {}
        for id, leader in replaced.items():
            if (token := self._joining.pop(id, None)) is None:
                continue
            self._restart_session(now_ms, self._members[id])
            if is_stored:
                self._answers.append((token, self._joined(self._members[id], leader)))
            else:
                self._refuse(token, "", Code.COORDINATOR_NOT_AVAILABLE)

    def restore(self, now_ms: int, kept: KeptGroup) -> None:
        """Let a new group be the stable one that was stored; the session of each member begins."""
        self.state = State.STABLE
        self.generation = kept.generation
        self._protocol_type = kept.protocol_type
        self._protocol = kept.protocol
        self._leader = kept.leader
        for one in kept.members:
            self._members[one.id] = member = ClassicMember.restored(one, now_ms)
            self._ends(member.until_ms)
            if one.instance is not None:
                self._static[one.instance] = one.id
            self._supporters.update(member.protocols.keys())
            self.size += member.size

    # -- time --------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """End what is over: sessions, ids given out, joins or syncs. What ended first is first."""
        while over := sorted(end for end in self._all_ends() if end[0] <= now_ms):
            for _, id in over:
                end_ms = self._ends_of(id)
                if end_ms is None or end_ms > now_ms:  # an earlier one has changed it
                    continue
                if id:
                    self._lose(now_ms, id)
                elif self.state is State.PREPARING:
                    self._end_joins(now_ms)
                else:
                    self._end_syncs(now_ms)
        self.due_ms = min((end_ms for end_ms, _ in self._all_ends()), default=None)

    def _all_ends(self) -> list[tuple[int, str]]:
        """The time of each end, with the member's id; empty for that of joins or syncs."""
        ids = ("", *self._members, *self._pending)
        return [(end_ms, id) for id in ids if (end_ms := self._ends_of(id)) is not None]

    def _ends_of(self, id: str) -> int | None:
        if not id:
            return self._until_ms
        member = self._members.get(id)
        if member is None:
            return self._pending.get(id)
        waits = id in self._syncing or (id in self._joining and id not in self._replaced)
        return None if waits and not member.is_new else member.until_ms

    def _ends(self, end_ms: int) -> int:
        """The time itself, at which `expire` is due."""
        self.due_ms = end_ms if self.due_ms is None else min(self.due_ms, end_ms)
        return end_ms

    def _restart_session(self, now_ms: int, member: ClassicMember) -> None:
        member.until_ms = self._ends(now_ms + member.session_ms)

    # -- removing ----------------------------------------------------------------------------------

    def _lose(self, now_ms: int, id: str) -> None:
        """Remove a member or a given id, and let the others rebalance."""
        is_member = id in self._members
        self._remove(id)
        if is_member:
            self._rebalance(now_ms)
        self._settle(now_ms)

    def _remove(self, id: str) -> None:
        if self._pending.pop(id, None) is not None:
            self.size -= ENTRY_BYTES + len(id)
        elif id in self._members:
            self._dismiss(id, Code.UNKNOWN_MEMBER_ID)

    def _dismiss(self, id: str, code: Code) -> None:
        """Take a member out and answer what waits of it with an error."""
        member = self._members.pop(id)
        self.size -= member.size
        self._supporters.subtract(member.protocols.keys())
        self._supporters += Counter()
        if member.instance is not None:
            del self._static[member.instance]
        self._unsynced.pop(id, None)
        if (token := self._joining.pop(id, None)) is not None:
            self._refuse(token, "" if code is Code.UNKNOWN_MEMBER_ID else id, code)
        if (token := self._syncing.pop(id, None)) is not None:
            self._answers.append((token, SyncAnswer(code)))

    # -- answers -----------------------------------------------------------------------------------

    def _refuse(self, token: CallToken, member: str, code: Code) -> None:
        self._answers.append((token, JoinAnswer(code, member)))

    def _joined(self, member: ClassicMember, leader: str | None = None) -> JoinAnswer:
        """The answer to a join in this generation. A leader that is named already knows the others'
        assignment: it keeps it."""
        leads = member.id == (self._leader if leader is None else leader)
        members = tuple(
            JoinedMember(one.id, one.instance, one.protocols[self._protocol])
            for one in (self._members.values() if leads else ())
        )
        return JoinAnswer(
            Code.NONE,
            member.id,
            self.generation,
            self._protocol_type,
            self._protocol,
            self._leader if leader is None else leader,
            members,
            skip_assignment=leads and leader is not None,
        )

    def describe(self) -> Description:
        """The group for operators."""
        is_stable = self.state is State.STABLE
        members = tuple(
            MemberDescription(
                one.id,
                one.instance,
                one.client,
                one.protocols[self._protocol] if is_stable else b"",
                one.assignment if is_stable else b"",
            )
            for one in self._members.values()
        )
        protocol = self._protocol if is_stable else ""
        return Description(self.state, self._protocol_type, protocol, members)
