"""The groups of Kafka's classic protocol in one shard (pure state), within bounds.

A group begins with the first join of a new member and is dropped with its last member. Its last
generation is kept in a journal, from which the caller restores it after a restart or a move of the
shard; committed positions are kept elsewhere.

    restore ─▶ requests ─▶ take_unsaved ─▶ the journal ─▶ saved ─▶ answers of syncs

Invariants

* Every token of `join` and `sync` is answered once, by one of the calls, unless it is dropped.
* Nothing is decided before the first `restore`, nor after `close`: all get `NOT_COORDINATOR`.
* The journal has no group without members, but for those in `take_unsaved`.
* `size` is the sum of the sizes of the groups, and 0 without groups.
* `next_deadline_ms` is never later than the time at which `expire` has something to do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tms.errors import TMSError
from tms.groups.classic import ClassicGroup
from tms.groups.classic_calls import (
    Answered,
    CallToken,
    ClassicBounds,
    ClassicKey,
    Code,
    Description,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Listing,
    Sender,
    State,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_member import KeptGroup
from tms.model.transaction import check_group

_STALE_MAX = 64  # entries of the heap that do not count, beyond one for each group


class Unsaved(NamedTuple):
    """A group to store; None: one to remove from the journal."""

    key: ClassicKey
    kept: KeptGroup | None


class ClassicGroups:
    """Groups, by name. Not thread-safe. Times are milliseconds of any clock that never goes back;
    `new_id` returns a text that it has never returned before."""

    def __init__(self, bounds: ClassicBounds, new_id: Callable[[], str]) -> None:
        self._bounds = bounds
        self._new_id = new_id
        self._groups: dict[ClassicKey, ClassicGroup] = {}
        self._sizes: dict[ClassicKey, int] = {}
        self._answers: list[Answered] = []
        self._heap: list[tuple[int, ClassicKey]] = []
        self._due: dict[ClassicKey, int] = {}  # the entry of the heap that counts
        self._is_here = False  # restored
        self._is_closed = False
        self._stored: set[ClassicKey] = set()  # that the journal may have
        self._unsaved: dict[ClassicKey, None] = {}  # to store or to remove
        self.wants_saving = False  # something has to be stored that was not tried yet
        self.size = 0  # bytes

    # -- requests ----------------------------------------------------------------------------------

    def join(
        self, now_ms: int, token: CallToken, key: ClassicKey, request: JoinRequest
    ) -> list[Answered]:
        """Join a group; returns the answers that are ready, which may be those of other callers."""
        code = self._check_join(key, request)
        if code:
            return [(token, JoinAnswer(code, request.member))]
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ClassicGroup(self._bounds, self._answers)
        new_id = ""
        if not request.member:
            new_id = f"{request.instance or request.client.id}-{self._new_id()}"
        group.join(now_ms, token, request, new_id)
        return self._done(key)

    def _check_join(self, key: ClassicKey, request: JoinRequest) -> Code:
        bounds = self._bounds
        group = self._groups.get(key)
        if not self._is_here:
            return Code.NOT_COORDINATOR
        try:
            check_group(key.group)
        except TMSError:
            return Code.INVALID_GROUP_ID
        if not bounds.session_ms_min <= request.session_ms <= bounds.session_ms_max:
            return Code.INVALID_SESSION_TIMEOUT
        if group is None and request.member:
            return Code.UNKNOWN_MEMBER_ID
        if request.size > bounds.member_bytes_max:
            return Code.MESSAGE_TOO_LARGE
        grows = request.size if group is None else group.size_of(request)
        is_full = grows > 0 and self.size + grows > bounds.bytes_max
        if is_full or (group is None and len(self._groups) >= bounds.groups_max):
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE

    def sync(
        self, now_ms: int, token: CallToken, key: ClassicKey, request: SyncRequest
    ) -> list[Answered]:
        """Sync a member; returns the answers that are ready, as `join` does."""
        code = Code.NONE
        group = self._groups.get(key)
        if group is None:
            return [(token, SyncAnswer(self._unknown))]
        if max(map(len, request.assignments.values()), default=0) > self._bounds.member_bytes_max:
            code = Code.MESSAGE_TOO_LARGE
        elif self.size + group.size_of_sync(request) > self._bounds.bytes_max:
            code = Code.COORDINATOR_NOT_AVAILABLE
        if code:
            return [(token, SyncAnswer(code))]
        group.sync(now_ms, token, request)
        return self._done(key)

    def heartbeat(self, now_ms: int, key: ClassicKey, sender: Sender) -> Code:
        """Keep a member's session alive."""
        group = self._groups.get(key)
        return self._unknown if group is None else group.heartbeat(now_ms, sender)

    def leave(
        self, now_ms: int, key: ClassicKey, leavers: Sequence[Leaver]
    ) -> tuple[list[Code], list[Answered]]:
        """Remove members; returns the code for each, and the answers that are ready."""
        group = self._groups.get(key)
        if group is None:
            return [self._unknown for _ in leavers], []
        codes = [group.leave(now_ms, leaver) for leaver in leavers]
        return codes, self._done(key)

    def may_commit(
        self, now_ms: int, key: ClassicKey, sender: Sender, is_transactional: bool = False
    ) -> Code:
        """The answer to OffsetCommit, or TxnOffsetCommit, before any offset is stored."""
        if not self._is_here:
            return Code.NOT_COORDINATOR
        group = self._groups.get(key)
        if group is None:
            return Code.NONE if sender.generation < 0 else Code.ILLEGAL_GENERATION
        return group.may_commit(now_ms, sender, is_transactional)

    def delete(self, key: ClassicKey) -> Code:
        """Drop a group without members. `GROUP_ID_NOT_FOUND` says that it is not in memory: its
        committed positions may still be there."""
        if not self._is_here:
            return Code.NOT_COORDINATOR
        group = self._groups.get(key)
        if group is None:
            return Code.GROUP_ID_NOT_FOUND
        if group.state is not State.EMPTY:
            return Code.NON_EMPTY_GROUP
        group.fail(Code.UNKNOWN_MEMBER_ID)
        self._done(key)
        return Code.NONE

    # -- callers and time --------------------------------------------------------------------------

    def drop(self, now_ms: int, key: ClassicKey, token: CallToken) -> list[Answered]:
        """Forget a caller that waits: its connection is closed. Returns answers to others."""
        group = self._groups.get(key)
        if group is None:
            return []
        group.drop(now_ms, token)
        return self._done(key)

    def expire(self, now_ms: int) -> list[Answered]:
        """End what is over by now: sessions, rebalances. Returns the answers that this makes."""
        while (due_ms := self.next_deadline_ms) is not None and due_ms <= now_ms:
            _, key = heappop(self._heap)
            del self._due[key]
            self._groups[key].expire(now_ms)
            self._account(key)
        return self._taken()

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which to call `expire`; None if nothing can end."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def close(self) -> list[Answered]:
        """Drop all groups: another instance coordinates them from now on. Returns an answer for
        each caller that waits."""
        self._is_closed = True
        self._is_here = self.wants_saving = False
        self._unsaved.clear()
        for key in list(self._groups):
            self._groups[key].fail(Code.NOT_COORDINATOR)
            self._forget(key)
        return self._taken()

    # -- the journal -------------------------------------------------------------------------------

    def restore(self, now_ms: int, kept: Mapping[ClassicKey, KeptGroup | None]) -> None:
        """Take groups from the journal; None: it has no group of that name. Callers that wait in a
        group that is replaced get `NOT_COORDINATOR` with the next answers."""
        if self._is_closed:
            return
        self._is_here = True
        for key, one in kept.items():
            if key in self._groups:
                self._groups[key].fail(Code.NOT_COORDINATOR)
                self._forget(key)
            self._unsaved.pop(key, None)
            self._stored.discard(key)
            if one is not None:
                self._stored.add(key)
                self._groups[key] = group = ClassicGroup(self._bounds, self._answers)
                group.restore(now_ms, one)
                self._account(key)
        self.wants_saving = self.wants_saving and self.has_unsaved

    @property
    def has_unsaved(self) -> bool:
        """True if the journal has to be written, also if that was tried already."""
        return bool(self._unsaved)

    def take_unsaved(self) -> list[Unsaved]:
        """The groups that the journal has to have, or to lose. Hand them to `saved`."""
        taken = []
        for key in self._unsaved:
            group = self._groups.get(key)
            kept = None
            if group is not None:
                kept, group.unsaved = group.unsaved, None
            if kept is None:
                self._stored.discard(key)
            else:
                self._stored.add(key)
            taken.append(Unsaved(key, kept))
        self._unsaved.clear()
        self.wants_saving = False
        return taken

    def saved(self, now_ms: int, taken: Iterable[Unsaved], is_stored: bool) -> list[Answered]:
        """The journal has these, or may have some: returns the answers that waited for them. Groups
        that it could not lose are unsaved again."""
        for key, kept in taken:
            group = self._groups.get(key)
            if kept is None and not is_stored:
                self._stored.add(key)
                if group is None:
                    self._unsaved[key] = None
            elif kept is not None and group is not None:
                group.saved(now_ms, kept, is_stored)
                self._account(key)
        return self._taken()

    # -- looking -----------------------------------------------------------------------------------

    def has(self, key: ClassicKey) -> bool:
        """True if the group has members, or ids that members may join with."""
        return key in self._groups

    def is_current(self, key: ClassicKey, sender: Sender) -> bool:
        """True if the member may still commit what it was assigned in the present generation."""
        group = self._groups.get(key)
        return group is not None and group.is_current(sender)

    def describe(self, key: ClassicKey) -> Description:
        """A group; `Dead` if it is not in memory."""
        group = self._groups.get(key)
        return Description(State.DEAD) if group is None else group.describe()

    def list_groups(self, namespace: str) -> list[Listing]:
        """The groups of a namespace, in the order in which they began."""
        found = [(key.group, self.describe(key)) for key in self._groups if key[0] == namespace]
        return [Listing(group, one.protocol_type, one.state) for group, one in found]

    # -- parts -------------------------------------------------------------------------------------

    def _done(self, key: ClassicKey) -> list[Answered]:
        """Account for a group that has changed; returns the answers."""
        self._account(key)
        return self._taken()

    def _account(self, key: ClassicKey) -> None:
        group = self._groups[key]
        if not group.has_members:
            group.unsaved = None
            if key in self._stored:
                self._want_saving(key)
        if group.is_gone:
            self._forget(key)
            return
        self.size += group.size - self._sizes.get(key, 0)
        self._sizes[key] = group.size
        self._watch(key, group.due_ms)
        if group.unsaved is not None:
            self._want_saving(key)

    def _want_saving(self, key: ClassicKey) -> None:
        self._unsaved[key] = None
        self.wants_saving = True

    @property
    def _unknown(self) -> Code:
        """The code for a member of a group that has none."""
        return Code.UNKNOWN_MEMBER_ID if self._is_here else Code.NOT_COORDINATOR

    def _watch(self, key: ClassicKey, due_ms: int | None) -> None:
        before_ms = self._due.get(key)
        if due_ms is None or (before_ms is not None and before_ms <= due_ms):
            return
        self._due[key] = due_ms
        heappush(self._heap, (due_ms, key))
        if len(self._heap) > 2 * len(self._due) + _STALE_MAX:
            self._heap = [(due_ms, key) for key, due_ms in self._due.items()]
            heapify(self._heap)

    def _forget(self, key: ClassicKey) -> None:
        del self._groups[key]
        self._due.pop(key, None)
        self.size -= self._sizes.pop(key, 0)

    def _taken(self) -> list[Answered]:
        answers = self._answers[:]
        self._answers.clear()
        return answers
