"""Signing in to the console and out of it, by tokens and links, and the attacks on that."""

import http.client
import logging
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import expect

import tms
from tests.access_kit import People
from tests.console_kit import Visitor, barriers, console_served
from tests.pages_kit import PageReader, ReadPage
from tms.console.console import BROWSER, SESSION, Console
from tms.console.pages.signing_in import HOME, own_target
from tms.errors import Unauthenticated
from tms.server import guard as guarding
from tms.server.service import AccessLimits

TOPICS = "/console/topics"


@pytest.fixture(scope="module")
def guarded() -> Iterator[People]:
    with console_served(AccessLimits()) as running:
        yield People(running)


@pytest.fixture(autouse=True)
def prompt_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "GUESS_S", 0.0)


@pytest.fixture
def reader(guarded: People) -> PageReader:
    return PageReader(guarded.url)


def is_in(page: ReadPage) -> bool:
    return page.status == 200 and "Sign out" in page.text


def signed_in(people: People, principal: str, *grants: str) -> PageReader:
    """A browser with a session of a principal."""
    reader = PageReader(people.url)
    token = people.token(principal, *(grants or ("observe *",)))
    assert is_in(reader.send(reader.get(TOPICS).form(), token=token))
    return reader


def link_of(people: People, principal: str) -> str:
    with people.bus(principal, "observe *") as bus:
        return f"/console/enter/{bus.admin.access.create_session(one_time=True).token}"


def test_a_token_signs_in_and_leads_to_the_page_that_was_wanted(
    guarded: People, reader: PageReader
) -> None:
    token = guarded.token("ann", "observe *")
    wanted = f"{TOPICS}?namespace=default&search=a%20b"
    asked = reader.get(wanted)
    assert asked.status == 401 and "Sign in" in asked.text and "Sign out" not in asked.text
    form = asked.form()
    assert form.fields["to"] == wanted
    answer = reader.post("/console/sign-in", {**form.fields, "token": f" {token}\n"})
    assert (answer.status, answer.headers["location"]) == (303, wanted)
    assert token not in str(answer.headers) and reader.cookies[SESSION] != token
    assert is_in(reader.get(wanted)) and "ann" in reader.get(wanted).text


def test_the_cookie_of_a_session_is_closed_to_scripts_and_other_sites(
    guarded: People, reader: PageReader
) -> None:
    form = reader.get("/console/sign-in").form()
    token = guarded.token("ann", "observe *")
    answer = reader.post("/console/sign-in", {**form.fields, "token": token})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{SESSION}=tms_")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {*cookie.split("; ")}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("token", ["wrong", "tms_" + "0" * 12 + "_" + "0" * 64, "ä", "a.b.c", " "])
def test_a_wrong_token_signs_nobody_in(reader: PageReader, token: str) -> None:
    form = reader.get(f"{TOPICS}?limit=7").form()
    page = reader.post("/console/sign-in", {**form.fields, "token": token})
    assert page.status == 401 and SESSION not in reader.cookies
    assert page.form().fields["to"] == f"{TOPICS}?limit=7"
    assert token.strip() == "" or token not in page.html


def test_who_guesses_tokens_at_the_console_waits(
    guarded: People, reader: PageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "GUESS_S", 0.5)
    form = reader.get("/console/sign-in").form()

    def guess() -> float:
        began_s = time.monotonic()
        reader.post("/console/sign-in", {**form.fields, "token": "wrong"})
        return time.monotonic() - began_s

    for _ in range(guarding.GUESSES_FREE):
        guess()
    assert guess() >= 0.5


def test_signing_out_ends_the_session_and_not_the_token(guarded: People) -> None:
    reader = signed_in(guarded, "leaver")
    session = reader.cookies[SESSION]
    page = reader.send(reader.get(TOPICS).form("/sign-out"))
    assert "You are signed out." in page.text and SESSION not in reader.cookies
    assert reader.get(TOPICS).status == 401
    assert PageReader(guarded.url, **{SESSION: session}).get(TOPICS).status == 401
    assert is_in(signed_in(guarded, "leaver").get(TOPICS))


def test_a_browser_that_is_not_signed_in_signs_out_all_the_same(guarded: People) -> None:
    reader = signed_in(guarded, "twice")
    form = reader.get(TOPICS).form("/sign-out")
    with tms.connect(guarded.url, token=guarded.token("boss", "manage access")) as boss:
        for one in boss.admin.access.list_sessions():
            if one.principal == "twice":
                boss.admin.access.revoke_token(one.id)
    assert "You are signed out." in reader.send(form).text
    assert SESSION not in reader.cookies


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/console//evil.example",
        "/consolation",
        "/v2/access/tokens",
        "/console/a\r\nset-cookie: x=y",
        "/console/\tb",
        "/console/ä",
        "javascript:alert(1)",
        "\\\\evil.example",
        "/console/sign-out",
        "/console/sign-in?to=/console/sign-in",
        "/console/" + "x" * 3_000,
        "",
    ],
)
def test_a_sign_in_leads_to_pages_of_the_console_only(
    guarded: People, reader: PageReader, target: str
) -> None:
    form = reader.get(f"/console/sign-in?to={quote(target)}").form()
    token = guarded.token("ann", "observe *")
    for to in (form.fields["to"], target):
        fresh = PageReader(guarded.url)
        fields = {**fresh.get("/console/sign-in").form().fields, "to": to, "token": token}
        answer = fresh.post("/console/sign-in", fields)
        assert answer.status == 303
        leads_to = urlsplit(answer.headers["location"])
        assert not leads_to.netloc and leads_to.path.startswith("/console/")
        assert "x" not in fresh.cookies
    assert own_target(target) in (HOME, target)


def test_a_link_signs_in_once_and_by_its_button(guarded: People, reader: PageReader) -> None:
    address = link_of(guarded, "linked")
    for _ in range(3):  # a preview, a prefetcher
        page = PageReader(guarded.url).get(address)
        assert page.status == 200 and not is_in(page)
    form = reader.get(address).form()
    assert reader.post("/console/enter", form.fields).status == 303
    assert "linked" in reader.get(TOPICS).text and is_in(reader.get(TOPICS))
    second = PageReader(guarded.url)
    again = second.send(second.get(address).form())
    assert again.status == 401 and "not valid any more" in again.text
    assert SESSION not in second.cookies and is_in(reader.get(TOPICS))


@pytest.mark.parametrize("link", ["x", "tms_" + "0" * 12 + "_" + "0" * 64, "%3Cscript%3E", "a%2Fb"])
def test_a_wrong_link_signs_nobody_in(reader: PageReader, link: str) -> None:
    page = reader.get(f"/console/enter/{link}")
    assert page.status == 200 and "<script>" not in page.html.partition("<main")[2]
    answer = reader.send(page.form())
    assert answer.status == 401 and "not valid any more" in answer.text


def test_neither_a_token_nor_a_session_is_a_link(guarded: People, reader: PageReader) -> None:
    other = signed_in(guarded, "other")
    for text in (guarded.token("other"), other.cookies[SESSION]):
        fields = reader.get(f"/console/enter/{text}").form().fields
        answer = reader.post("/console/enter", fields)
        assert answer.status in (401, 404) and SESSION not in reader.cookies


def test_a_link_is_no_token_to_sign_in_with(guarded: People, reader: PageReader) -> None:
    link = link_of(guarded, "linked").rpartition("/")[2]
    form = reader.get("/console/sign-in").form()
    assert reader.send(form, token=link).status == 401 and SESSION not in reader.cookies
    assert PageReader(guarded.url, **{SESSION: link}).get(TOPICS).status == 401


def test_a_link_is_in_no_log(
    guarded: People,
    reader: PageReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither when its page fails, nor when it is wrong or used."""
    caplog.set_level(logging.DEBUG)
    address = link_of(guarded, "linked")
    secret = address.rpartition("_")[2]
    form = reader.get(address).form()
    with monkeypatch.context() as patched:
        patched.setattr(Console, "_shown", broken)
        assert reader.get(address).status == 500
    assert reader.post("/console/enter", form.fields).status == 303
    assert reader.post("/console/enter", form.fields).status in (401, 403)
    assert "request_broke" in caplog.text and "/console/enter/tms_" in caplog.text
    assert secret not in caplog.text


async def broken(*_: object) -> None:
    raise RuntimeError("broken")


# -- attacks ---------------------------------------------------------------------------------------


def test_a_session_that_a_browser_had_before_does_not_go_on(guarded: People) -> None:
    """Session fixation: the victim signs in with a cookie that the attacker knows."""
    attacker = signed_in(guarded, "attacker", "observe namespace:default")
    planted = attacker.cookies[SESSION]
    victim = PageReader(guarded.url, **{SESSION: planted})
    token = guarded.token("victim", "observe *")
    victim.send(victim.get("/console/sign-in").form(), token=token)
    assert victim.cookies[SESSION] != planted
    assert "victim" in victim.get(TOPICS).text
    assert "attacker" in attacker.get(TOPICS).text


def test_a_form_is_of_one_session(guarded: People) -> None:
    """Of a form that was open before a sign-in, a sign-out, or in another person's browser, nothing
    is done, even with the cookies of the one who may."""
    guarded.served.service.engine.access.add_grant("admin-f", "all", "*")
    with guarded.bus("admin-f") as bus:
        bus.create_topic("kept-f")
    target = f"{TOPICS}/default/kept-f/delete"
    admin = signed_in(guarded, "admin-f")
    old = admin.get(target).form().fields
    other = signed_in(guarded, "admin-f").get(target).form().fields
    browser = admin.cookies[BROWSER]
    admin.send(admin.get(TOPICS).form("/sign-out"))
    assert admin.post(target, {**old, "typed": "kept-f"}).status == 401
    admin = signed_in(guarded, "admin-f")
    admin.cookies[BROWSER] = browser
    for fields in (old, other, {}, {"form": "0.0"}):
        assert admin.post(target, {**fields, "typed": "kept-f"}).status == 403
    fresh = admin.get(target).form().fields
    answer = admin.post(target, {**fresh, "typed": "kept-f"}, {"Origin": "http://evil.example"})
    assert answer.status == 403
    assert admin.post(target, {**fresh, "typed": "kept-f"}).status == 303


@pytest.mark.parametrize("path", ["/console/sign-in", "/console/sign-out", "/console/enter"])
@pytest.mark.parametrize(
    ("headers", "forged"),
    [
        ({"Origin": "http://evil.example"}, {}),
        ({"Origin": "null"}, {}),
        ({}, {"form": ""}),
    ],
)
def test_no_other_page_signs_somebody_in_or_out(
    guarded: People, path: str, headers: dict[str, str], forged: dict[str, str]
) -> None:
    """Neither in as the attacker, nor out."""
    reader = signed_in(guarded, "steady")
    session = reader.cookies[SESSION]
    fields = {
        **reader.get(TOPICS).form("/sign-out").fields,
        "token": guarded.token("attacker"),
        "link": link_of(guarded, "attacker").rpartition("/")[2],
        **forged,
    }
    assert reader.post(path, fields, headers).status == 403
    assert reader.cookies[SESSION] == session and "steady" in reader.get(TOPICS).text


def test_the_cookies_of_another_site_and_of_another_principal_are_of_no_use(
    guarded: People,
) -> None:
    reader = signed_in(guarded, "owner-c")
    session = reader.cookies[SESSION]
    id, _, secret = session.removeprefix("tms_").partition("_")
    other = signed_in(guarded, "owner-d").cookies[SESSION]
    mixed = f"tms_{other.split('_')[1]}_{secret}"
    for wrong in (f"tms_{id}_{'0' * 64}", mixed, session[:-1], session.upper()):
        assert PageReader(guarded.url, **{SESSION: wrong}).get(TOPICS).status == 401


def test_a_revoked_session_says_so_where_a_page_is_open(guarded: People) -> None:
    """A form that is sent, a page that is loaded, and the live parts of a page."""
    guarded.access.add_grant("revoked", "all", "*")
    with guarded.bus("revoked") as bus:
        bus.create_topic("kept-r")
    new = guarded.access.create_token("revoked")
    reader = PageReader(guarded.url)
    assert is_in(reader.send(reader.get(TOPICS).form(), token=new.token))
    session, target = reader.cookies[SESSION], f"{TOPICS}/default/kept-r/delete"
    form = reader.get(target).form()
    address = urlsplit(guarded.url)
    live = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    cookie = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
    live.request("GET", f"/console/live?page={TOPICS}&parts=topics", headers={"Cookie": cookie})
    events = live.getresponse()
    assert events.status == 200
    while not events.readline().startswith(b"event: parts"):
        pass
    guarded.access.revoke_token(new.id)
    rest = events.read().decode()
    assert "event: ended" in rest and "revoked" in rest
    live.close()
    fields = {**form.fields, "typed": "kept-r"}
    referer = {"Referer": f"{guarded.url}{TOPICS}/default/kept-r/delete"}
    sent = reader.post(target, fields, referer)
    assert sent.status == 401
    assert "not signed in any more" in sent.text and "was not carried out" in sent.text
    assert sent.form().fields["to"] == target
    assert SESSION not in reader.cookies
    reader.cookies[SESSION] = session
    late = reader.ask("GET", TOPICS, headers={"Sec-Fetch-Mode": "cors"})
    assert late.status == 401 and SESSION in reader.cookies
    assert "not signed in any more" in reader.get(TOPICS).text
    assert SESSION not in reader.cookies
    with guarded.bus("revoked") as bus:
        assert [one.topic for one in bus.list_topics()].count("kept-r") == 1
    with pytest.raises(Unauthenticated):
        tms.connect(guarded.url, token=new.token).admin.access.whoami()


@pytest.mark.parametrize(
    "target", [f"/console/live?page={TOPICS}&parts=topics", "/console/messages/default/any/follow"]
)
def test_a_page_that_connects_again_without_a_session_is_told_so(
    guarded: People, target: str
) -> None:
    """Requests that a revoked token ends are cut; the browser then asks again."""
    reader = signed_in(guarded, "again")
    for session in ({}, {SESSION: reader.cookies[SESSION][:-1]}):
        lost = PageReader(guarded.url, **session)
        page = lost.ask("GET", target, headers={"Accept": "text/event-stream"})
        assert page.status == 200 and page.headers["content-type"] == "text/event-stream"
        assert page.html.startswith("event: ended\n") and "not signed in" in page.html


def test_without_access_control_there_is_nothing_to_sign_in_to() -> None:
    with console_served() as served:
        for path in ("/console/sign-in", "/console/enter/x"):
            page = PageReader(served.url).get(path)
            assert page.status == 200 and "nothing to sign in to" in page.text


# -- in a browser ----------------------------------------------------------------------------------


@pytest.mark.parametrize("javascript", [True, False])
def test_a_person_signs_in_and_out(
    guarded: People, visiting: Callable[..., Visitor], javascript: bool
) -> None:
    token = guarded.token("person", "observe *")
    page = visiting(guarded.url).open(f"{TOPICS}?limit=3", javascript=javascript)
    if javascript:
        assert barriers(page) == []
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**{TOPICS}?limit=3")
    expect(page.get_by_role("banner")).to_contain_text("person")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("main")).to_contain_text("You are signed out.")
    page.goto(TOPICS)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_a_person_enters_by_the_link_of_the_command(
    guarded: People, visiting: Callable[..., Visitor]
) -> None:
    page = visiting(guarded.url).open(link_of(guarded, "clicker"))
    assert barriers(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/")
    page.goto(TOPICS)
    expect(page.get_by_role("banner")).to_contain_text("clicker")


def test_an_open_page_says_that_its_session_is_over(
    guarded: People, visiting: Callable[..., Visitor]
) -> None:
    guarded.access.add_grant("watcher", "observe", "*")
    new = guarded.access.create_token("watcher")
    page = visiting(guarded.url).open(TOPICS)
    page.get_by_label("Token").fill(new.token)
    page.get_by_role("button", name="Sign in").click()
    state = page.locator("#live-state")
    expect(state).to_have_text("Live")
    guarded.access.revoke_token(new.id)
    expect(state).to_contain_text("Not live any more")
    expect(state).to_contain_text("revoked")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("main")).to_contain_text("You are signed out.")


def test_no_page_of_another_site_shows_the_console_in_a_frame(
    guarded: People, reader: PageReader
) -> None:
    for page in (reader.get("/console/sign-in"), signed_in(guarded, "framed").get(TOPICS)):
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-store"


def test_a_link_in_another_site_opens_the_page_signed_in(
    guarded: People, visiting: Callable[..., Visitor]
) -> None:
    """An address that was sent to a colleague opens, although browsers leave the cookie out of the
    first request; open forms of other tabs stay valid."""
    visitor = visiting(guarded.url, "http://elsewhere.localhost")
    page = visitor.open(TOPICS)
    page.locator("input[name=token]").fill(guarded.token("linked", "observe *"))
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
    keys = {one["name"]: one["value"] for one in page.context.cookies()}
    link = f"<a href='{guarded.url}{TOPICS}?search=a'>the topics</a>"
    page.route(
        "http://elsewhere.localhost/*",
        lambda route: route.fulfill(body=link, content_type="text/html"),
    )
    page.goto("http://elsewhere.localhost/chat")
    page.get_by_role("link").click()
    page.wait_for_url(f"**{TOPICS}?search=a")
    page.get_by_role("button", name="Sign out").wait_for()
    assert page.url.endswith(f"{TOPICS}?search=a")
    assert {one["name"]: one["value"] for one in page.context.cookies()} == keys
