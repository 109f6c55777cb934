"""The console in a browser, with access control: who signs in sees and does what the grants allow,
at each instance, until the token is revoked or the session ends."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.access_kit import People
from tests.cluster_kit import instances
from tests.console_kit import Visitor, barriers, tab_to
from tests.console_world import ORDERS, Shop
from tms.model.topic import TopicName
from tms.server.service import AccessLimits

ADMINISTRATOR = "all *"


@pytest.fixture(scope="module")
def people(guarded: People) -> Iterator[People]:
    with guarded.bus("filler", ADMINISTRATOR) as bus:
        Shop(bus).fill()
    yield guarded


@pytest.fixture
def visitor(people: People, visiting: Callable[..., Visitor]) -> Visitor:
    return visiting(people.url)


def signed_in(visitor: Visitor, token: str, address: str = "/console/topics") -> Page:
    """The page at an address, after signing in on the way to it."""
    page = visitor.open(address)
    page.get_by_label("Token").fill(token)
    with page.expect_navigation():
        page.get_by_role("button", name="Sign in").click()
    return page


def test_signing_in_leads_to_the_page_that_was_wanted(people: People, visitor: Visitor) -> None:
    token = people.token("ann", ADMINISTRATOR)
    page = visitor.open("/console/topics/shop/orders")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert barriers(page) == []
    tab_to(page, "textbox", "Token")
    page.keyboard.type("tms_wrong")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(token)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(ORDERS)
    expect(page.get_by_role("banner")).to_contain_text("ann")
    assert token not in page.content()
    assert token not in str(page.context.cookies()), "the browser keeps a session, no token"
    assert page.evaluate("document.cookie") == ""


def test_signing_out_ends_the_session(people: People, visitor: Visitor) -> None:
    page = signed_in(visitor, people.token("bob", ADMINISTRATOR))
    cookies = page.context.cookies()
    with page.expect_navigation():
        page.get_by_role("button", name="Sign out").click()
    page.goto("/console/topics")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.context.add_cookies(cookies)  # as somebody who has copied them would
    page.goto("/console/topics")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_an_observer_of_a_namespace_sees_that_and_changes_nothing(
    people: People, visitor: Visitor
) -> None:
    page = signed_in(visitor, people.token("eve", "observe topic:shop:*"))
    expect(page.get_by_role("main")).not_to_contain_text("audit")
    page.goto("/console/topics?namespace=shop")
    expect(page.get_by_role("link", name=ORDERS, exact=True)).to_be_visible()
    page.goto("/console/topics/shop/orders")
    expect(page.get_by_role("main")).to_contain_text("240 messages")
    expect(page.get_by_text("needs manage on topic:shop:orders").first).to_be_visible()
    assert page.get_by_role("link", name="Delete…").count() == 0
    assert barriers(page) == []
    page.goto("/console/topics/default/audit")
    expect(page.get_by_role("heading", level=1)).not_to_have_text("audit")
    page.goto("/console/topics/shop/orders/delete")
    if page.get_by_role("textbox").count():  # the page may be shown; the act is refused
        page.get_by_role("textbox").fill(ORDERS)
        with page.expect_navigation():
            page.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_role("main")).to_contain_text("manage")
    assert people.served.service.engine.topics.registry.find(TopicName.parse(ORDERS))


def test_a_principal_without_grants_sees_nothing(people: People, visitor: Visitor) -> None:
    page = signed_in(visitor, people.token("nobody"), "/console/topics?namespace=shop")
    expect(page.get_by_role("main")).not_to_contain_text("orders")
    page.goto("/console/messages/shop/orders")
    expect(page.get_by_role("main")).not_to_contain_text("kettle")


def test_a_page_says_that_its_session_was_revoked(people: People, visitor: Visitor) -> None:
    page = signed_in(visitor, people.token("tom", ADMINISTRATOR), "/console/topics/shop/orders")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.get_by_role("link", name="Delete…").click()
    page.get_by_role("textbox").fill(ORDERS)
    for one in people.access.list_tokens():
        if one.principal == "tom":
            people.access.revoke_token(one.id)
    with page.expect_navigation():
        page.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("main")).to_contain_text("The form was not carried out.")


def test_a_token_is_made_shown_once_and_used(people: People, visitor: Visitor) -> None:
    page = signed_in(visitor, people.token("root", ADMINISTRATOR), "/console/access")
    assert barriers(page) == []
    page.get_by_label("Principal, a program or a person").fill("reporter")
    with page.expect_navigation():
        page.get_by_role("button", name="Create a token").click()
    token = page.get_by_label("The token").inner_text().strip()
    assert token.startswith("tms_")
    assert barriers(page) == []
    page.get_by_role("link", name="reporter: grants, tokens, sessions").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("reporter")
    assert token not in page.content()
    assert barriers(page) == []
    reporter = signed_in(visitor, token, "/console/topics?namespace=shop")
    expect(reporter.get_by_role("banner")).to_contain_text("reporter")


def test_a_session_is_valid_at_each_instance(visiting: Callable[..., Visitor]) -> None:
    with instances("a", "b", "c", access=AccessLimits()) as three:
        three.coordinator()
        token = People(three.served["a"]).token("ann", ADMINISTRATOR)
        visitor = visiting(three.url("a"), three.url("b"), three.url("c"))
        page = signed_in(visitor, token)
        for id in "bca":
            page.goto(f"{three.url(id)}/console/topics")
            expect(page.get_by_role("banner")).to_contain_text("ann")
        with page.expect_navigation():
            page.get_by_role("button", name="Sign out").click()
        page.goto(f"{three.url('c')}/console/topics")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
