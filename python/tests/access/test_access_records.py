"""Tokens and grants in a store: their meaning for callers, here and at another instance."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clocks import ManualClock
from tms.access.records import FIRST, AccessRecords
from tms.errors import DataCorrupt, Forbidden, Invalid, NotFound
from tms.model import keys
from tms.model.access import Access, Grant
from tms.store.base import Map
from tms.store.memory import MemoryStore
from tms.topics.sweep import open_metadata


@pytest.fixture
def metadata() -> Map:
    return open_metadata(MemoryStore())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def records(metadata: Map, clock: ManualClock) -> AccessRecords:
    return AccessRecords(metadata, clock)


def test_a_token_names_its_principal_until_it_is_revoked(metadata: Map, clock: ManualClock) -> None:
    access = records(metadata, clock)
    new = access.create_token("ann")
    found = access.token(new.token.encode())
    assert found is not None and found.principal == "ann"
    assert access.token(new.token[:-1].encode()) is None
    assert access.token(b"") is None
    [info] = access.list_tokens()
    assert (info.id, info.principal, info.expires_ms) == (new.id, "ann", 0)
    access.revoke_token(new.id)
    assert access.token(new.token.encode()) is None
    with pytest.raises(NotFound, match="no token"):
        access.revoke_token(new.id)


def test_no_secret_is_stored_or_shown_twice(metadata: Map, clock: ManualClock) -> None:
    access = records(metadata, clock)
    new = access.create_token("ann")
    secret = new.token.rpartition("_")[2]
    assert secret not in repr(new) and secret not in repr(access.list_tokens())
    rows = metadata.scan(None, None, 1 << 20)
    assert all(secret.encode() not in key + value for key, value in rows)


def test_a_token_expires(metadata: Map, clock: ManualClock) -> None:
    access = records(metadata, clock)
    new = access.create_token("ann", 10.0)
    clock.pass_ms(9_999)
    assert access.token(new.token.encode()) is not None
    clock.pass_ms(1)
    assert access.token(new.token.encode()) is None


@pytest.mark.parametrize("expires_s", [0, -1, 1e12, float("nan")])
def test_a_time_that_is_none_is_refused(
    metadata: Map, clock: ManualClock, expires_s: float
) -> None:
    with pytest.raises(Invalid, match="expires_s"):
        records(metadata, clock).create_token("ann", expires_s)
    assert not metadata.scan(keys.TOKEN_PREFIX, keys.prefix_stop(keys.TOKEN_PREFIX), 1 << 20)


def test_grants_are_added_and_removed_and_those_of_everybody_count_for_all(
    metadata: Map, clock: ManualClock
) -> None:
    access = records(metadata, clock)
    access.add_grant("ann", "publish", "topic:orders")
    access.add_grant("*", "observe", "namespace:default")
    orders = "topic:default:orders"
    assert access.grants("ann").find(Access.PUBLISH, orders) is not None
    assert access.grants("eve").find(Access.PUBLISH, orders) is None
    assert access.grants("eve").find(Access.OBSERVE, orders) is not None
    assert access.explain("ann", "publish", "topic:orders").grant == Grant(
        "ann", Access.PUBLISH, orders
    )
    assert not access.explain("eve", "publish", "topic:orders").allowed
    assert [str(one) for one in access.list_grants()] == [
        "* observe namespace:default",
        "ann publish topic:default:orders",
    ]
    assert [one.principal for one in access.list_grants("ann")] == ["ann"]
    access.remove_grant("ann", "publish", "topic:default:orders")
    assert access.grants("ann").find(Access.PUBLISH, orders) is None
    with pytest.raises(NotFound, match="no grant"):
        access.remove_grant("ann", "publish", "topic:orders")


def test_the_first_administrator_is_made_once(metadata: Map, clock: ManualClock) -> None:
    access = records(metadata, clock)
    assert not access.has_administrator
    unused = access.first_token().encode()
    first = access.first_token().encode()
    assert access.token(unused) is None
    found = access.token(first)
    assert found is not None and found.principal == FIRST
    assert not access.has_administrator
    new = access.create_token("ann", caller=FIRST)
    assert access.token(first) is None
    assert access.has_administrator
    assert access.whoami(caller="ann").grants == (Grant("ann", Access.ALL, "*"),)
    access.create_token("eve", caller="ann")
    assert access.whoami(caller="eve").grants == ()
    with pytest.raises(Invalid, match=FIRST):
        access.create_token(FIRST, caller="ann")
    access.revoke_token(new.id)
    assert not access.has_administrator


def test_of_many_that_use_the_one_time_token_together_one_becomes_administrator(
    metadata: Map, clock: ManualClock
) -> None:
    access = records(metadata, clock)
    access.first_token()
    start = threading.Barrier(8)

    def become(number: int) -> bool:
        start.wait()
        try:
            access.create_token(f"person-{number}", caller=FIRST)
        except Forbidden:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(become, range(8))) == 1
    (token,) = access.list_tokens()
    assert access.list_grants() == [Grant(token.principal, Access.ALL, "*")]
    with pytest.raises(Forbidden, match="--new-administrator"):
        access.create_token("late", caller=FIRST)
    access.first_token()
    with pytest.raises(Invalid, match="expires_s"):
        access.create_token("ann", -1, caller=FIRST)
    access.create_token("ann", caller=FIRST)


def test_another_process_sees_a_change_when_it_looks(metadata: Map, clock: ManualClock) -> None:
    here, there = records(metadata, clock), records(metadata, clock)
    told: list[str] = []
    there.when_changed = lambda: told.append("changed")
    assert there.list_tokens() == []
    new = here.create_token("ann")
    there.refresh()
    assert there.token(new.token.encode()) is not None and told == ["changed"]
    there.refresh()
    assert told == ["changed"]
    here.revoke_token(new.id)
    there.refresh()
    assert there.token(new.token.encode()) is None


def test_a_damaged_record_lets_nobody_in(metadata: Map, clock: ManualClock) -> None:
    access = records(metadata, clock)
    new = access.create_token("ann")
    key = keys.TOKEN_PREFIX + new.id.encode()
    metadata.compare_and_set(key, metadata.get(key), b"{")
    with pytest.raises(DataCorrupt, match=r"access/token/.* is damaged"):
        records(metadata, clock).token(new.token.encode())


def test_the_secret_of_earlier_versions_is_dropped(metadata: Map, clock: ManualClock) -> None:
    metadata.compare_and_set(keys.PEER_SECRET, None, b"0" * 64)
    access = records(metadata, clock)
    for _ in range(2):
        access.forget_peers()
        assert metadata.get(keys.PEER_SECRET) is None


def test_records_are_read_whole_however_small_a_page_is(
    metadata: Map, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = records(metadata, clock)
    tokens = [access.create_token(f"p{number}").token for number in range(20)]
    for number in range(20):
        access.add_grant(f"p{number}", "publish", f"topic:t{number}")
    monkeypatch.setattr("tms.access.records._SCAN_BYTES", 1)
    again = records(metadata, clock)
    assert all(again.token(token.encode()) is not None for token in tokens)
    assert len(again.list_grants()) == 20
