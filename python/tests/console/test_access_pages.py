"""The page Access: principals, tokens that are shown once, grants, quotas, sessions, and why."""

import logging
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

import tms
from tests.access_kit import People
from tests.console_kit import Visitor, console_served, tab_to
from tests.pages_kit import PageReader
from tms.errors import Forbidden, Unauthenticated
from tms.model.access import Quota
from tms.server.service import AccessLimits

ACCESS = "/console/access"


@pytest.fixture(scope="module")
def guarded() -> Iterator[People]:
    with console_served(AccessLimits()) as running:
        yield People(running)


def signed_in(people: People, principal: str, *grants: str) -> PageReader:
    """A browser with a session of a principal."""
    reader = PageReader(people.url)
    token = people.token(principal, *grants)
    reader.send(reader.get(ACCESS).form(), token=token)
    return reader


@pytest.fixture
def admin(guarded: People) -> PageReader:
    return signed_in(guarded, "boss", "manage access")


def at(principal: str) -> str:
    return f"{ACCESS}/principals/{principal}"


def test_a_token_is_shown_once_and_is_valid(guarded: People, admin: PageReader) -> None:
    form = admin.get(ACCESS).form("/tokens")
    page = admin.send(form, principal="billing", days="1.5")
    assert page.status == 200 and page.headers["cache-control"] == "no-store"
    (token,) = [word for word in page.text.split() if word.startswith("tms_") and len(word) > 70]
    with tms.connect(guarded.url, token=token) as bus:
        assert bus.admin.access.whoami().principal == "billing"
    assert "tms token create billing --expires 1.5d" in page.text
    (made,) = [one for one in guarded.access.list_tokens() if one.principal == "billing"]
    assert made.expires_ms == made.created_ms + 36 * 3_600_000
    for target in (ACCESS, at("billing"), f"{ACCESS}/tokens/{made.id}/revoke"):
        shown = admin.get(target)
        assert shown.status == 200 and token.rpartition("_")[2] not in shown.html
    assert made.id in admin.get(at("billing")).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"principal": "a b"}, "principal"),
        ({"principal": ""}, "principal"),
        ({"principal": "x", "days": "many"}, "days is a number"),
        ({"principal": "x", "days": "-1"}, "expires_s"),
        ({"principal": "x", "days": "nan"}, "days is a number"),
        ({"principal": "x", "days": "1e999"}, "days is a number"),
    ],
)
def test_a_token_that_cannot_be_is_not_made(
    guarded: People, admin: PageReader, fields: dict[str, str], said: str
) -> None:
    before = guarded.access.list_tokens()
    page = admin.send(admin.get(ACCESS).form("/tokens"), **fields)
    assert page.status in (400, 422) and said in page.text
    assert guarded.access.list_tokens() == before


def test_a_token_is_revoked_by_its_typed_id(guarded: People, admin: PageReader) -> None:
    new = guarded.access.create_token("leaves")
    with tms.connect(guarded.url, token=new.token) as bus:
        session = bus.admin.access.create_session()
    page = admin.get(f"{ACCESS}/tokens/{new.id}/revoke")
    assert "1 of its sessions" in page.text and "only token" in page.text
    assert f"tms token revoke {new.id}" in page.text
    assert admin.send(page.form(), typed="leaves").status == 422
    assert guarded.access.token(new.token.encode()) is not None
    assert "not valid any more" in admin.send(page.form(), typed=new.id).text
    with pytest.raises(Unauthenticated):
        tms.connect(guarded.url, token=new.token).admin.access.whoami()
    assert guarded.access.sessions.find(session.token.encode()) is None
    again = {**page.form().fields, "typed": new.id}
    assert admin.post(f"{ACCESS}/tokens/{new.id}/revoke", again).status == 404
    assert admin.get(f"{ACCESS}/tokens/{new.id}/revoke").status == 404


def test_a_session_of_somebody_is_ended(guarded: People, admin: PageReader) -> None:
    other = signed_in(guarded, "signed", "observe *")
    (session,) = [one for one in guarded.access.list_sessions() if one.principal == "signed"]
    assert session.id in admin.get(at("signed")).text
    page = admin.get(f"{ACCESS}/tokens/{session.id}/revoke")
    assert "sign in again" in page.text
    admin.send(page.form(), typed=session.id)
    assert other.get(ACCESS).status == 401


def test_grants_are_added_explained_and_removed(guarded: People, admin: PageReader) -> None:
    guarded.token("reader")
    ask = "?verb=consume&resource=topic:orders"
    assert "No: no grant" in admin.get(at("reader") + ask).text
    form = admin.get(at("reader")).form("/grants")
    done = admin.send(form, verb="consume", pattern="topic:orders")
    assert "reader may consume topic:default:orders." in done.text
    explained = admin.get(at("reader") + ask).text
    assert "Yes: reader may consume" in explained
    assert "by the grant reader consume topic:default:orders" in explained
    (link,) = [to for text, to in done.links.items() if text == "Remove…"]
    page = admin.get(link)
    assert "tms grant remove reader consume topic:default:orders" in page.text
    assert "is removed" in admin.send(page.form()).text
    assert guarded.access.list_grants("reader") == []
    assert admin.post(f"{at('reader')}/remove-grant", page.form().fields).status == 404
    admin.get(at("reader"))
    wrong = admin.send(form, verb="consume", pattern="nothing")
    assert wrong.status == 422 and guarded.access.list_grants("reader") == []


def test_grants_and_quotas_of_everybody(guarded: People, admin: PageReader) -> None:
    page = admin.get(at("%2A"))
    done = admin.send(page.form("/grants"), verb="observe", pattern="topic:shared-*")
    assert "Everybody may observe topic:default:shared-*." in done.text
    assert "everybody" in admin.get(ACCESS).links
    admin.send(page.form("/quota"), requests_s="1000000")
    assert Quota("*", 1_000_000.0) in guarded.access.list_quotas()
    admin.send(admin.get(at("%2A")).form("/quota"), requests_s="")
    assert guarded.access.list_quotas() == []
    guarded.access.remove_grant("*", "observe", "topic:shared-*")


def test_a_quota_is_set_changed_and_removed(guarded: People, admin: PageReader) -> None:
    guarded.token("busy")
    admin.send(admin.get(at("busy")).form("/quota"), requests_s="0.5", bytes_in_s="1048576")
    assert guarded.access.list_quotas() == [Quota("busy", 0.5, 1_048_576.0)]
    commands = [one.strip() for one in admin.get(at("busy")).commands]
    assert "tms quota set busy --requests 0.5 --bytes-in 1048576" in commands
    form = admin.get(at("busy")).form("/quota")
    assert (form.fields["requests_s"], form.fields["bytes_in_s"]) == ("0.5", "1048576")
    assert admin.send(form, requests_s="much").status == 422
    assert admin.send(form, requests_s="-1").status == 422
    admin.send(form, requests_s="", bytes_in_s="")
    assert guarded.access.list_quotas() == []


def test_who_may_not_manage_access_sees_only_its_own(guarded: People) -> None:
    token_id = guarded.token("secretive").split("_")[1]
    reader = signed_in(guarded, "plain", "consume topic:orders")
    page = reader.get(ACCESS)
    assert page.status == 200 and "topic:default:orders" in page.text
    assert "needs manage on access" in page.text
    assert "secretive" not in page.html and not page.links.get("secretive")
    assert [form.action for form in page.forms if form.method == "POST"] == ["/console/sign-out"]
    boss = signed_in(guarded, "boss", "manage access")
    fields = {
        **reader.get(ACCESS).form("/sign-out").fields,
        "principal": "plain",
        "typed": token_id,
    }
    for target in (at("secretive"), at("plain"), f"{ACCESS}/tokens/{token_id}/revoke"):
        assert reader.get(target).status == 403
    for target in (
        f"{ACCESS}/tokens",
        f"{ACCESS}/tokens/{token_id}/revoke",
        f"{at('plain')}/grants",
        f"{at('plain')}/quota",
    ):
        sent = {**fields, "verb": "all", "pattern": "*", "requests_s": "1"}
        assert reader.post(target, sent).status == 403
        with_others = {**boss.get(ACCESS).form("/sign-out").fields, **sent, "form": "1.x"}
        assert boss.post(target, with_others).status == 403  # nor with a form of another one
    assert [str(one) for one in guarded.access.list_grants("plain")] == [
        "plain consume topic:default:orders"
    ]
    with tms.connect(guarded.url, token=guarded.token("plain")) as bus, pytest.raises(Forbidden):
        bus.admin.access.list_sessions()


def test_the_list_of_principals_has_pages_and_a_search(guarded: People, admin: PageReader) -> None:
    for number in range(7):
        guarded.access.create_token(f"paged-{number}")
    seen: list[str] = []
    page = admin.get(f"{ACCESS}?search=paged-&limit=3")
    while True:
        seen += [text for text in page.links if text.startswith("paged-")]
        if "Next page" not in page.links:
            break
        page = admin.get(page.links["Next page"])
    assert seen == [f"paged-{number}" for number in range(7)]
    assert "boss" not in page.links


def test_changes_at_the_console_are_in_the_audit_log_with_its_name(
    guarded: People, admin: PageReader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tms.audit")
    admin.send(admin.get(at("audited")).form("/grants"), verb="observe", pattern="topic:a")
    told = [one.msg for one in caplog.records if one.name == "tms.audit"]
    (changed,) = [one.fields for one in told if one.name == "access_changed"]
    assert (changed["via"], changed["principal"]) == ("console", "boss")
    assert changed["operation"] == "access.add_grant"
    assert changed["changed"]["pattern"] == "topic:a" and changed["changed"]["session"]


def test_without_access_control_the_page_says_so() -> None:
    with console_served() as served:
        reader = PageReader(served.url)
        page = reader.get(ACCESS)
        assert page.status == 200 and "not controlled" in page.text
        made = reader.send(page.form("/tokens"), principal="ann")
        assert made.status == 200 and "tms_" in made.text


def test_the_first_administrator_begins_at_the_console() -> None:
    with console_served(AccessLimits()) as served:
        people, reader = People(served), PageReader(served.url)
        reader.send(reader.get(ACCESS).form(), token=people.access.first_token())
        page = reader.send(reader.get(ACCESS).form("/tokens"), principal="ann", days="")
        (token,) = [one for one in page.text.split() if one.startswith("tms_") and len(one) > 70]
        assert reader.get(ACCESS).status == 401  # the token was for one call
        reader.send(reader.get(ACCESS).form(), token=token)
        assert "ann" in reader.get(ACCESS).links


def test_an_administrator_works_with_the_keyboard_alone(
    guarded: People, visiting: Callable[..., Visitor]
) -> None:
    token = guarded.token("chief", "all *")
    page = visiting(guarded.url).open(ACCESS)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Access")
    tab_to(page, "textbox", "Principal, a program or a person")
    page.keyboard.type("typist")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("The new token of typist")
    page.get_by_role("link", name="typist: grants").click()
    expect(page.get_by_role("heading", name="Grants")).to_be_visible()
    assert [one for one in guarded.access.list_tokens() if one.principal == "typist"]
