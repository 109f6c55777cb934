"""Sessions of the console and one-time links in a store, at two instances that share it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.clocks import ManualClock
from tms.access import sessions as rules
from tms.access.records import AccessRecords
from tms.access.sessions import LINK_S, SESSION_S, SESSIONS_MAX
from tms.access.tokens import TOKEN
from tms.errors import Conflict, DataCorrupt, NotFound, Unauthenticated
from tms.model import keys
from tms.model.access import Credential, NewToken
from tms.store.base import Map
from tms.store.memory import MemoryStore
from tms.topics.sweep import open_metadata


@pytest.fixture
def metadata() -> Map:
    return open_metadata(MemoryStore())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def access(metadata: Map, clock: ManualClock) -> AccessRecords:
    return AccessRecords(metadata, clock)


def with_token(access: AccessRecords, principal: str, expires_s: float | None = None) -> Credential:
    new = access.create_token(principal, expires_s)
    return Credential(principal, new.expires_ms, new.id)


def shown(access: AccessRecords, new: NewToken) -> Credential | None:
    return access.sessions.find(new.token.encode())


def redeemed(access: AccessRecords, link: NewToken) -> NewToken:
    return access.redeem_link(shown=shown(access, link))


def rows(metadata: Map) -> int:
    return len(metadata.scan(keys.SESSION_PREFIX, keys.prefix_stop(keys.SESSION_PREFIX), 1 << 24))


def test_a_session_is_of_its_principal_and_lasts_its_time(
    access: AccessRecords, clock: ManualClock
) -> None:
    token = with_token(access, "ann")
    session = access.create_session(shown=token)
    assert session.expires_ms == clock.now_ms() + 1_000 * SESSION_S
    found = Credential("ann", session.expires_ms, token.token, session.id)
    assert shown(access, session) == found
    clock.pass_ms(1_000 * SESSION_S - 1)
    assert shown(access, session) == found
    clock.pass_ms(1)
    assert shown(access, session) is None


def test_a_session_is_no_token(access: AccessRecords, metadata: Map) -> None:
    """Neither for HTTP and PLAIN, which look for its digest, nor for SCRAM, nor for who counts
    administrators."""
    token = with_token(access, "ann")
    access.add_grant("ann", "all", "*")
    before = metadata.get(keys.ACCESS_CHANGES)
    made = [access.create_session(one_time, shown=token) for one_time in (False, True)]
    assert metadata.get(keys.ACCESS_CHANGES) == before, "other instances read all tokens again"
    for one in made:
        assert TOKEN.fullmatch(one.token.encode())
        assert access.token(one.token.encode()) is None
    assert len(access.tokens_of("ann")) == 1
    assert [one.id for one in access.list_tokens()] == [token.token]
    access.revoke_token(token.token)
    assert not access.has_administrator


def test_another_secret_is_no_session(access: AccessRecords) -> None:
    text = access.create_session(shown=with_token(access, "ann")).token
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    for one in (wrong, text[:-1], text + "0", "", "tms_", text.upper()):
        assert access.sessions.find(one.encode()) is None


@pytest.mark.parametrize("one_time", [False, True])
def test_nothing_outlives_the_credential_it_was_made_with(
    access: AccessRecords, clock: ManualClock, one_time: bool
) -> None:
    token = with_token(access, "ann", 10.0)
    session = access.create_session(shown=token)
    made = access.create_session(one_time, shown=shown(access, session))
    assert session.expires_ms == made.expires_ms == token.expires_ms
    if one_time:
        made = redeemed(access, made)
        assert made.expires_ms == token.expires_ms
    clock.pass_ms(9_999)
    assert shown(access, made) is not None
    clock.pass_ms(1)
    assert shown(access, made) is None


def test_a_session_made_with_a_session_is_of_the_same_token(access: AccessRecords) -> None:
    token = with_token(access, "ann")
    first = access.create_session(shown=token)
    second = access.create_session(shown=shown(access, first))
    access.end_session(shown=shown(access, first))
    assert shown(access, first) is None
    found = shown(access, second)
    assert found is not None and found.token == token.token
    access.revoke_token(token.token)
    assert shown(access, second) is None


def test_a_revoked_token_ends_its_sessions_and_links_and_leaves_none(
    access: AccessRecords, metadata: Map, clock: ManualClock
) -> None:
    ann, other = with_token(access, "ann"), with_token(access, "ann")
    made = [access.create_session(one_time, shown=ann) for one_time in (False, True)]
    kept = access.create_session(shown=other)
    found = shown(access, made[0])
    there = AccessRecords(metadata, clock)
    assert there.sessions.find(made[0].token.encode()) is not None
    access.revoke_token(ann.token)
    there.refresh()
    for records in (access, there):
        assert [shown(records, one) for one in made] == [None, None]
        assert shown(records, kept) is not None
        assert found is not None and not records.sessions.is_lasting(found)
    assert rows(metadata) == 1


def test_a_session_of_a_token_that_is_gone_is_over_before_it_is_removed(
    access: AccessRecords, metadata: Map
) -> None:
    """The process may die between the two, and another instance may make one in between."""
    token = with_token(access, "ann")
    session = access.create_session(shown=token)
    access.revoke_token(token.token)
    late = access.create_session(shown=token)
    assert shown(access, session) is None and shown(access, late) is None
    assert rows(metadata) == 1 and access.list_sessions() == []


def test_without_a_token_a_session_ends_by_its_time(access: AccessRecords) -> None:
    """A JWT is in no record; its expiry bounds the session."""
    expires_ms = 2_000 + with_token(access, "x", 1.0).expires_ms
    session = access.create_session(shown=Credential("ann@login.example", expires_ms))
    assert session.expires_ms == expires_ms
    assert shown(access, session) is not None


def test_a_session_is_ended_by_its_id(access: AccessRecords) -> None:
    token = with_token(access, "ann")
    session, link = (access.create_session(one, shown=token) for one in (False, True))
    assert {(one.id, one.is_link, one.token) for one in access.list_sessions()} == {
        (session.id, False, token.token),
        (link.id, True, token.token),
    }
    for one in (session, link):
        access.revoke_token(one.id)
        assert shown(access, one) is None
        with pytest.raises(NotFound, match="no token"):
            access.revoke_token(one.id)


def test_a_link_becomes_a_session_once(access: AccessRecords, clock: ManualClock) -> None:
    link = access.create_session(True, shown=with_token(access, "ann"))
    assert link.expires_ms == clock.now_ms() + 1_000 * LINK_S
    credential = shown(access, link)
    assert credential is not None and credential.is_link
    session = access.redeem_link(shown=credential)
    assert session.token != link.token and shown(access, link) is None
    found = shown(access, session)
    assert found is not None and not found.is_link
    with pytest.raises(Unauthenticated, match="not valid any more"):
        access.redeem_link(shown=credential)


def test_of_many_that_redeem_a_link_together_one_gets_a_session(
    metadata: Map, clock: ManualClock
) -> None:
    access = AccessRecords(metadata, clock)
    credential = shown(access, access.create_session(True, shown=with_token(access, "ann")))
    instances = [AccessRecords(metadata, clock) for _ in range(8)]
    start = threading.Barrier(8)

    def redeem(records: AccessRecords) -> bool:
        start.wait()
        try:
            records.redeem_link(shown=credential)
        except Unauthenticated:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(redeem, instances)) == 1
    assert len(access.list_sessions()) == 1


def test_a_link_is_over_after_a_minute(access: AccessRecords, clock: ManualClock) -> None:
    link = access.create_session(True, shown=with_token(access, "ann"))
    credential = shown(access, link)
    clock.pass_ms(1_000 * LINK_S)
    assert shown(access, link) is None
    with pytest.raises(Unauthenticated):
        access.redeem_link(shown=credential)


def test_credentials_of_another_kind_are_refused(access: AccessRecords) -> None:
    token = with_token(access, "ann")
    session = shown(access, access.create_session(shown=token))
    for credential in (token, session, Credential("by-certificate")):
        with pytest.raises(NotFound, match="one-time link"):
            access.redeem_link(shown=credential)
    with pytest.raises(NotFound, match="no session"):
        access.end_session(shown=token)
    for refuse in (access.create_session, access.redeem_link, access.end_session):
        with pytest.raises(Conflict, match="not controlled"):
            refuse()


def test_no_secret_of_a_session_is_stored_or_shown_twice(
    access: AccessRecords, metadata: Map
) -> None:
    session = access.create_session(shown=with_token(access, "ann"))
    secret = session.token.rpartition("_")[2]
    assert secret not in repr(session) and secret not in repr(access.list_sessions())
    assert all(secret.encode() not in key + raw for key, raw in metadata.scan(None, None, 1 << 20))


@pytest.mark.parametrize("one_time", [False, True])
def test_the_oldest_sessions_of_a_principal_give_way(
    access: AccessRecords, metadata: Map, clock: ManualClock, one_time: bool
) -> None:
    token, other = with_token(access, "ann"), with_token(access, "bob")
    kept = [access.create_session(not one_time, shown=token), access.create_session(shown=other)]
    made = []
    for _ in range(SESSIONS_MAX + 3):
        clock.pass_ms(1)
        made.append(access.create_session(one_time, shown=token))
    valid = [shown(access, one) is not None for one in made]
    assert valid == [False] * 3 + [True] * SESSIONS_MAX
    assert all(shown(access, one) is not None for one in kept)
    assert rows(metadata) == SESSIONS_MAX + 2


def test_sessions_that_are_over_are_removed_when_others_are_made(
    access: AccessRecords, metadata: Map, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of principals that never come again."""
    monkeypatch.setattr(rules, "_SWEEP_BYTES", 1 << 10)  # four of them
    most = 0
    for day in range(8):
        for number in range(100):
            access.create_session(shown=Credential(f"p{day}-{number}"))
        most = max(most, rows(metadata))
        clock.pass_ms(1_000 * SESSION_S)
    assert most < 250


def test_a_damaged_session_lets_nobody_in(access: AccessRecords, metadata: Map) -> None:
    session = access.create_session(shown=with_token(access, "ann"))
    key = keys.SESSION_PREFIX + session.id.encode()
    metadata.compare_and_set(key, metadata.get(key), b"{")
    with pytest.raises(DataCorrupt, match=r"access/session/.* is damaged"):
        shown(access, session)


@dataclass
class KnownSession:
    """A session or link as the model knows it: an index of its token, None for a JWT."""

    new: NewToken
    principal: str
    token: int | None
    ends_ms: int
    is_link: bool


class SessionModel:
    """The tokens and sessions that must be valid, beside two instances of a store."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        metadata = open_metadata(MemoryStore())
        self.instances = [AccessRecords(metadata, self.clock) for _ in range(2)]
        self.tokens: list[tuple[Credential, bool]] = []  # and if it was revoked
        self.known: list[KnownSession] = []

    def any_instance(self) -> AccessRecords:
        """An instance, which looks for changes before it answers."""
        records = self.random.choice(self.instances)
        records.refresh()
        return records

    def token_is_valid(self, index: int | None) -> bool:
        if index is None:
            return True
        token, revoked = self.tokens[index]
        return not revoked and not 0 < token.expires_ms <= self.clock.now_ms()

    def is_valid(self, one: KnownSession) -> bool:
        return one.new.expires_ms > self.clock.now_ms() and self.token_is_valid(one.token)

    def create_token(self) -> None:
        principal = self.random.choice(("ann", "bob"))
        expires_s = self.random.choice((None, 5.0, 100_000.0))
        self.tokens.append((with_token(self.any_instance(), principal, expires_s), False))

    def revoke_token(self) -> None:
        valid = [nth for nth in range(len(self.tokens)) if not self.tokens[nth][1]]
        if valid:
            nth = self.random.choice(valid)
            token, _ = self.tokens[nth]
            self.any_instance().revoke_token(token.token)
            self.tokens[nth] = token, True

    def create_session(self) -> None:
        index: int | None = None
        shows = Credential("ann", self.clock.now_ms() + 7_000)
        valid = [nth for nth in range(len(self.tokens)) if self.token_is_valid(nth)]
        if valid and self.random.random() < 0.8:
            index = self.random.choice(valid)
            shows = self.tokens[index][0]
        records, is_link = self.any_instance(), self.random.random() < 0.5
        sessions = [one for one in self.known if self.is_valid(one) and not one.is_link]
        if sessions and self.random.random() < 0.3:
            by = self.random.choice(sessions)
            found = shown(records, by.new)
            assert found is not None
            index, shows = by.token, found
        ends_ms = self.clock.now_ms() + 1_000 * SESSION_S
        if shows.expires_ms:
            ends_ms = min(ends_ms, shows.expires_ms)
        new = records.create_session(is_link, shown=shows)
        self.known.append(KnownSession(new, shows.principal, index, ends_ms, is_link))
        self._drop_oldest(shows.principal, is_link)

    def redeem(self) -> None:
        links = [one for one in self.known if one.is_link and self.is_valid(one)]
        if links:
            link = self.random.choice(links)
            session = redeemed(self.any_instance(), link.new)
            assert session.expires_ms == link.ends_ms
            self.known.remove(link)
            self.known.append(
                KnownSession(session, link.principal, link.token, link.ends_ms, False)
            )
            self._drop_oldest(link.principal, False)

    def end(self) -> None:
        sessions = [one for one in self.known if self.is_valid(one) and not one.is_link]
        if sessions:
            one, records = self.random.choice(sessions), self.any_instance()
            records.end_session(shown=shown(records, one.new))
            self.known.remove(one)

    def pass_time(self) -> None:
        self.clock.pass_ms(self.random.choice((1, 500, 3_000, 61_000, 20_000_000)))

    def _drop_oldest(self, principal: str, is_link: bool) -> None:
        """The oldest by the time of the record; each made here has a time of its own."""
        self.clock.pass_ms(1)
        own = [one for one in self.known if (one.principal, one.is_link) == (principal, is_link)]
        stored = [one for one in own if one.new.expires_ms > self.clock.now_ms() - 1]
        revoked = [one for one in stored if one.token is not None and self.tokens[one.token][1]]
        for one in [one for one in stored if one not in revoked][: -rules.SESSIONS_MAX]:
            self.known.remove(one)

    def check(self) -> None:
        valid = {one.new.id for one in self.known if self.is_valid(one)}
        for records in self.instances:
            records.refresh()
            for one in self.known:
                found = shown(records, one.new)
                if one.new.id not in valid:
                    assert found is None
                    continue
                assert found is not None
                assert (found.principal, found.is_link) == (one.principal, one.is_link)
            assert {one.id for one in records.list_sessions()} == valid


@pytest.mark.parametrize("seed", range(30))
def test_sessions_are_valid_as_the_model_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SESSIONS_MAX", 4)
    model = SessionModel(seed)
    for _ in range(120):
        step = model.random.choice(
            (
                model.create_token,
                model.revoke_token,
                model.create_session,
                model.create_session,
                model.redeem,
                model.end,
                model.pass_time,
            )
        )
        step()
        model.check()
