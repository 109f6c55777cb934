"""A coordinator of Kafka's classic groups for tests: its own clock, a token for each request, and
the answers by token."""

import itertools
from collections.abc import Mapping, Sequence

from tms.groups.classic_calls import (
    Answered,
    ClassicBounds,
    ClassicKey,
    Client,
    Code,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Sender,
    State,
    SyncAnswer,
    SyncRequest,
)
from tms.groups.classic_groups import ClassicGroups
from tms.groups.classic_member import KeptGroup

KEY = ClassicKey("default", "g")
BOUNDS = ClassicBounds(members_max=10)
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
Protocols = tuple[tuple[str, bytes], ...]
RANGE: Protocols = (("range", b"topics"),)


class Coordinator:
    """Groups, with a clock that only `wait` moves. `tell` keeps the answers by token. What has to
    be stored is in `stored` at once, unless `saves` is False: then after `save`."""

    def __init__(self, bounds: ClassicBounds = BOUNDS) -> None:
        self._bounds = bounds
        self._ids = itertools.count(1)
        self.now_ms = 1_000_000
        self.saves = True
        self.stored: dict[ClassicKey, KeptGroup] = {}
        self.restart()

    def restart(self) -> None:
        """The service is killed and starts again: the groups are those that were stored."""
        self.groups = ClassicGroups(self._bounds, lambda: str(next(self._ids)))
        self.groups.restore(self.now_ms, self.stored)
        self.tokens = itertools.count(1)
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}

    def tell(self, answers: Sequence[Answered]) -> None:
        for token, answer in answers:
            assert isinstance(token, int) and token not in self.answers, "answered twice"
            self.answers[token] = answer
        if self.saves:
            self.save()

    def save(self, is_stored: bool = True) -> None:
        """Store what has to be, or fail to."""
        if not self.groups.has_unsaved:
            return
        taken = self.groups.take_unsaved()
        for key, kept in taken if is_stored else ():
            if kept is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = kept
        answers = self.groups.saved(self.now_ms, taken, is_stored)
        saves, self.saves = self.saves, False  # a failure would be tried again at once
        self.tell(answers)
        self.saves = saves

    def join(
        self,
        member: str = "",
        protocols: Protocols = RANGE,
        *,
        instance: str | None = None,
        version: int = 5,
        type: str = "consumer",
        key: ClassicKey = KEY,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        token: int | None = None,
        delay_ms: int = DELAY_MS,
    ) -> int:
        """Send a join; returns its token."""
        request = JoinRequest(
            version=version,
            client=Client("client", "/127.0.0.1"),
            protocol_type=type,
            protocols=protocols,
            session_ms=session_ms,
            rebalance_ms=rebalance_ms,
            member=member,
            instance=instance,
            delay_ms=delay_ms,
        )
        token = next(self.tokens) if token is None else token
        self.tell(self.groups.join(self.now_ms, token, key, request))
        return token

    def new(self, protocols: Protocols = RANGE, **more: int) -> tuple[str, int]:
        """Join as a dynamic member that gets its id first; returns the id, and the token of the
        second join."""
        asked = self.joined(self.join("", protocols, **more))  # type: ignore[arg-type]
        assert asked.code == Code.MEMBER_ID_REQUIRED
        return asked.member, self.join(asked.member, protocols, **more)  # type: ignore[arg-type]

    def sync(
        self,
        member: str,
        generation: int = 1,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        type: str | None = None,
        protocol: str | None = None,
        key: ClassicKey = KEY,
    ) -> int:
        """Send a sync; returns its token."""
        sender = Sender(member, generation, instance)
        request = SyncRequest(sender, assignments or {}, type, protocol)
        token = next(self.tokens)
        self.tell(self.groups.sync(self.now_ms, token, key, request))
        return token

    def beat(self, member: str, generation: int = 1, instance: str | None = None) -> Code:
        return self.groups.heartbeat(self.now_ms, KEY, Sender(member, generation, instance))

    def leave(self, *leavers: Leaver) -> list[Code]:
        codes, answers = self.groups.leave(self.now_ms, KEY, leavers)
        self.tell(answers)
        return codes

    def may_commit(
        self, member: str, generation: int, instance: str | None = None, in_txn: bool = False
    ) -> Code:
        sender = Sender(member, generation, instance)
        return self.groups.may_commit(self.now_ms, KEY, sender, in_txn)

    def wait(self, ms: int) -> None:
        """Let time pass, as an event loop does that calls `expire` at each deadline."""
        end_ms = self.now_ms + ms
        while (due_ms := self.groups.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.tell(self.groups.expire(self.now_ms))
        self.now_ms = end_ms

    def keep(self, ms: int, *members: str, generation: int = 1) -> None:
        """Let time pass with heartbeats of these members."""
        for _ in range(0, ms, SESSION_MS // 2):
            self.wait(min(ms, SESSION_MS // 2))
            for member in members:
                self.beat(member, generation)

    def joined(self, token: int) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, token: int) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    @property
    def state(self) -> State:
        return self.groups.describe(KEY).state

    # -- groups that have come so far --------------------------------------------------------------

    def stable(self, *protocols: Protocols, instances: Sequence[str | None] = ()) -> list[str]:
        """A stable group in generation 1; returns the ids of its members, the leader first. Their
        assignments are `a0`, `a1` and so on."""
        tokens = []
        for number, mine in enumerate(protocols or (RANGE, RANGE)):
            instance = instances[number] if instances else None
            tokens.append(self.join("", mine, instance=instance) if instance else self.new(mine)[1])
        self.wait(2 * DELAY_MS)
        ids = [self.joined(token).member for token in tokens]
        assert {self.joined(token).leader for token in tokens} == {ids[0]}
        assignments = {id: b"a%d" % number for number, id in enumerate(ids)}
        syncs = [self.sync(id, 1, assignments) for id in ids]
        assert [self.synced(token).code for token in syncs] == [Code.NONE] * len(ids)
        assert self.state is State.STABLE
        return ids
