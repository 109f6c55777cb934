"""Sessions of the console at a service: what they are accepted for, and by whom they are made."""

import json
import logging
from collections.abc import Iterator

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import Instances, instances
from tests.console_kit import console_served
from tests.http_kit import Answer, Client, Served
from tests.pages_kit import PageReader
from tms.access.sessions import SESSION_S
from tms.api.operations import OPERATIONS
from tms.errors import Unauthenticated
from tms.model.access import NewToken
from tms.model.topic import TopicName, TopicSettings
from tms.server import guard as guarding
from tms.server.service import AccessLimits

SESSIONS = "/v2/access/sessions"
IDS = ("a", "b", "c")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with console_served(AccessLimits()) as served:
        yield served


@pytest.fixture
def people(served: Served, monkeypatch: pytest.MonkeyPatch) -> People:
    monkeypatch.setattr(guarding, "GUESS_S", 0.0)
    return People(served)


@pytest.fixture(scope="module")
def three() -> Iterator[Instances]:
    with instances(*IDS, access=AccessLimits()) as all:
        all.coordinator()
        yield all


def ask(served: Served, token: str, method: str, path: str) -> Answer:
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    with served.connect() as client:
        return client.request(method, path, body, Authorization=f"Bearer {token}")


def made(served: Served, token: str, one_time: bool = False) -> NewToken:
    with tms.connect(served.url, token=token) as bus:
        return bus.admin.access.create_session(one_time)


def lets_in(url: str, session: str) -> bool:
    """True if the console shows a page for this cookie."""
    page = PageReader(url, tms_session=session).get("/console/topics")
    assert page.status in (200, 401)
    return page.status == 200


@pytest.mark.parametrize("one_time", [False, True])
def test_a_request_that_is_not_the_consoles_is_refused_with_a_session(
    people: People, one_time: bool
) -> None:
    token = people.token("ann", "all *")
    new = made(people.served, token, one_time)
    for operation in OPERATIONS.values():
        if operation.name in ("access.redeem_link",) or operation.access == "open":
            continue
        answer = people.ask(operation, new.token)
        assert answer.problem in ("unauthenticated", "forbidden"), operation.name
    assert lets_in(people.url, new.token) == (not one_time)
    if one_time:
        assert ask(people.served, new.token, "POST", f"{SESSIONS}/redeem").status == 200


def test_a_link_is_redeemed_once(people: People) -> None:
    link = made(people.served, people.token("ann", "observe *"), True)
    answer = ask(people.served, link.token, "POST", f"{SESSIONS}/redeem")
    assert answer.status == 200 and answer.json["principal"] == "ann"
    assert lets_in(people.url, answer.json["token"])
    again = ask(people.served, link.token, "POST", f"{SESSIONS}/redeem")
    assert again.problem == "unauthenticated"
    assert lets_in(people.url, answer.json["token"])


def test_a_session_lasts_no_longer_than_its_token(people: People) -> None:
    new = people.access.create_token("brief", 3_600)
    assert made(people.served, new.token).expires_ms == new.expires_ms
    lasting = made(people.served, people.token("brief"))
    assert lasting.expires_ms == lasting.created_ms + 1_000 * SESSION_S


def test_a_session_ends_with_its_token(people: People) -> None:
    new = people.access.create_token("leaver")
    people.access.add_grant("leaver", "observe", "*")
    session, other = made(people.served, new.token), made(people.served, people.token("leaver"))
    assert lets_in(people.url, session.token)
    people.access.revoke_token(new.id)
    assert not lets_in(people.url, session.token)
    assert lets_in(people.url, other.token)
    with people.bus("boss", "all *") as boss:
        assert [one.id for one in boss.admin.access.list_sessions() if one.principal == "leaver"]
        boss.admin.access.revoke_token(other.id)
    assert not lets_in(people.url, other.token)


def test_the_audit_log_has_sessions_and_the_console(
    people: People, caplog: pytest.LogCaptureFixture
) -> None:
    guard = people.served.service.guard
    assert guard is not None
    guard.decisions._refusals.clear()  # of the tests before
    caplog.set_level(logging.INFO, "tms.audit")
    token = people.token("ann-audit", "all topic:default:orders")
    link = made(people.served, token, True)
    answer = ask(people.served, link.token, "POST", f"{SESSIONS}/redeem")
    session = answer.json["token"]
    assert ask(people.served, link.token, "POST", f"{SESSIONS}/redeem").status == 401
    reader = PageReader(people.url, tms_session=session)
    assert reader.get("/console/topics/default/other").status == 403
    told = [one.msg for one in caplog.records if one.name == "tms.audit"]
    changed = [one.fields for one in told if one.name == "access_changed"]
    assert [one["operation"] for one in changed] == ["access.create_session", "access.redeem_link"]
    assert changed[0]["changed"] == {"one_time": True, "id": link.id}
    assert changed[1]["changed"] == {"id": link.id, "session": link.id}
    refused = [one.fields for one in told if one.name == "access_refused"]
    assert [one["operation"] for one in refused] == ["access.redeem_link"]
    denied = [one.fields for one in told if one.name == "access_denied"]
    assert {one["via"] for one in denied} == {"console"}
    assert {one["principal"] for one in denied} == {"ann-audit"}
    assert all("via" not in one for one in changed)
    for secret in (token, link.token, session):
        assert not any(secret in str(one.fields) for one in told)


def test_without_access_control_there_are_no_sessions() -> None:
    with console_served() as served, served.connect() as client:
        for method, path in (
            ("POST", SESSIONS),
            ("POST", f"{SESSIONS}/redeem"),
            ("DELETE", f"{SESSIONS}/own"),
        ):
            answer = client.request(method, path, b"{}" if path == SESSIONS else None)
            assert answer.problem == "conflict" and b"not controlled" in answer.body


def test_a_session_is_valid_at_every_instance_until_its_token_is_revoked(three: Instances) -> None:
    access = {id: three.served[id].service.engine.access for id in IDS}
    access["a"].add_grant("ann", "observe", "*")
    token = access["a"].create_token("ann")
    with tms.connect(three.url("b"), token=token.token) as bus:
        session = bus.admin.access.create_session()
        links = [bus.admin.access.create_session(True) for _ in range(2)]
    assert [lets_in(three.url(id), session.token) for id in IDS] == [True] * 3
    three.served["a"].service.engine.create_topic(
        TopicName.parse("spread"), TopicSettings(partitions=6)
    )
    for id in IDS:  # what other instances own is asked of them for the session's principal
        reader = PageReader(three.url(id), tms_session=session.token)
        assert reader.get("/console/topics/default/spread").status == 200
        assert reader.get("/console/topics/default/other").status == 404
        refused = reader.get("/console/topics/default/spread/delete").form()
        assert reader.send(refused, typed="spread").status == 403
    redeem = f"{SESSIONS}/redeem"
    shown = {"Authorization": f"Bearer {links[0].token}"}
    statuses = []
    for id in IDS:
        with Client(three.served[id].address) as client:
            statuses.append(client.request("POST", redeem, None, **shown).status)
    assert statuses == [200, 401, 401]
    with tms.connect(three.url("c"), token=access["c"].create_token("boss").token) as boss:
        access["a"].add_grant("boss", "manage", "access")
        boss.admin.access.revoke_token(token.id)
        with pytest.raises(Unauthenticated):
            tms.connect(three.url("a"), token=token.token).admin.access.whoami()
    assert [lets_in(three.url(id), session.token) for id in IDS] == [False] * 3
    with Client(three.served["a"].address) as client:
        shown = {"Authorization": f"Bearer {links[1].token}"}
        assert client.request("POST", redeem, None, **shown).status == 401


def test_the_documents_of_a_session_have_no_secret_but_the_new_one(people: People) -> None:
    token = people.token("boss-2", "manage access")
    new = made(people.served, token)
    listed = ask(people.served, token, "GET", SESSIONS)
    (own,) = [one for one in listed.json["sessions"] if one["principal"] == "boss-2"]
    assert own == {
        "id": new.id,
        "principal": "boss-2",
        "token": token.split("_")[1],
        "created_ms": new.created_ms,
        "expires_ms": new.expires_ms,
        "is_link": False,
    }
    assert new.token.rpartition("_")[2] not in json.dumps(listed.json)
