"""Lists over HTTP: searched, in the order of numbers, and of what a caller may see."""

from collections.abc import Iterator
from typing import Any

import pytest

import tms
from tests.access_kit import People
from tests.http_kit import Served, serving
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore

SIZES = {"big": 30, "small": 1, "Middle": 20, "middle-2": 20, "empty": 0}
PAGES = "/v2/namespaces/default"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        with People(served).bus("admin", "all *") as admin:
            for topic, count in SIZES.items():
                admin.create_topic(topic)
                admin.publish_many(topic, [b"x" * 100] * count)
                admin.set_positions(topic, {0: "offset:0"}, group=f"readers-of-{topic}")
                admin.queue(topic, group=f"work-on-{topic}", start="earliest").receive(1)
            for namespace in ("alpha", "beta", "beta2"):
                admin.create_topic(f"{namespace}:t")
        yield served


@pytest.fixture
def people(served: Served) -> People:
    return People(served)


def ask(people: People, token: str, path: str) -> Any:
    with people.served.connect() as client:
        return client.request("GET", path, Authorization=f"Bearer {token}")


def names(people: People, token: str, kind: str, query: str) -> list[str]:
    """The names of all pages of a list, two at a time."""
    kept, after = "topics" if kind == "sizes" else kind, ""
    found: list[str] = []
    while True:
        answer = ask(people, token, f"{PAGES}/{kind}?limit=2&{query}{after}")
        assert answer.status == 200, answer
        page = answer.json[kept]
        found += [one["topic"] for one in page]
        if answer.json["next"] is None:
            return found
        assert len(page) == 2
        after = f"&after={answer.json['next']}"


@pytest.fixture
def admin(people: People) -> str:
    return people.token("admin", "all *")


BY_SIZE = ["big", "Middle", "middle-2", "small", "empty"]


@pytest.mark.parametrize(
    ("kind", "order", "expected"),
    [
        ("sizes", "messages", BY_SIZE),
        ("sizes", "published", BY_SIZE),
        ("sizes", "name", sorted(SIZES)),
        ("groups", "lag", BY_SIZE),
        ("groups", "members", sorted(SIZES)),
        ("groups", "name", sorted(SIZES)),
        ("queues", "waiting", [*BY_SIZE[:3], "empty", "small"]),
        ("queues", "name", sorted(SIZES)),
    ],
)
def test_a_list_in_the_order_of_a_number_has_all_pages(
    people: People, admin: str, kind: str, order: str, expected: list[str]
) -> None:
    assert names(people, admin, kind, f"order={order}") == expected


@pytest.mark.parametrize("order", ["", "&order=name", "&order=messages"])
def test_a_search_finds_names_whatever_their_case(people: People, admin: str, order: str) -> None:
    assert names(people, admin, "sizes", f"search=MIDDLE{order}") == ["Middle", "middle-2"]
    assert names(people, admin, "sizes", f"search=null{order}") == []
    assert sorted(names(people, admin, "sizes", f"search={order}")) == sorted(SIZES)


def test_a_search_of_groups_looks_at_topic_and_group(people: People, admin: str) -> None:
    assert names(people, admin, "groups", "search=g/read") == ["big"]
    assert names(people, admin, "queues", "search=ON-MIDDLE&order=waiting") == [
        "Middle",
        "middle-2",
    ]


def test_a_list_in_order_has_only_what_one_may_see(people: People) -> None:
    token = people.token("clerk", "observe topic:m*", "observe topic:empty")
    assert names(people, token, "sizes", "order=messages") == ["middle-2", "empty"]
    assert names(people, token, "sizes", "order=messages&search=big") == []
    assert names(people, token, "groups", "order=lag") == ["middle-2", "empty"]
    hidden = ask(people, token, f"{PAGES}/sizes?order=messages&after=big")
    assert hidden.status == 404, "the place of a topic that one may not see would tell of it"


def test_a_page_behind_an_entry_that_is_gone_says_so(people: People, admin: str) -> None:
    answer = ask(people, admin, f"{PAGES}/sizes?order=messages&after=gone")
    assert answer.status == 404 and "Begin at its first page" in answer.json["detail"]


def test_an_order_that_there_is_not_is_refused(people: People, admin: str) -> None:
    answer = ask(people, admin, f"{PAGES}/groups?order=messages")
    assert answer.status == 422 and "name, members, lag, lag_ms" in answer.json["detail"]
    assert ask(people, admin, f"{PAGES}/groups?search={'x' * 257}").status == 422


def test_nothing_of_a_deleted_topic_is_in_a_list_in_order() -> None:
    with serving(MemoryStore()) as served, tms.connect(served.url) as bus:
        for topic in ("brief", "stays"):
            bus.create_topic(topic)
            bus.set_positions(topic, {0: "offset:0"}, group="g")

        def listed(kind: str, order: str) -> list[str]:
            with served.connect() as client:
                answer = client.request("GET", f"{PAGES}/{kind}?order={order}").json
            return [one["topic"] for one in answer["topics" if kind == "sizes" else kind]]

        lists = ("sizes", "messages"), ("groups", "lag")
        assert [listed(*one) for one in lists] == [["brief", "stays"]] * 2
        bus.delete_topic("brief")
        assert [listed(*one) for one in lists] == [["stays"]] * 2, "until the lists are made anew"


def test_namespaces_are_those_of_which_one_may_see_topics(people: People, admin: str) -> None:
    def listed(token: str) -> list[str]:
        found: list[str] = []
        after = ""
        while True:
            answer = ask(people, token, f"/v2/namespaces?limit=2{after}").json
            found += answer["namespaces"]
            if answer["next"] is None:
                return found
            after = f"&after={answer['next']}"

    assert listed(admin) == ["alpha", "beta", "beta2", "default", "system"]
    assert listed(people.token("one", "publish topic:beta:t")) == ["beta"]
    assert listed(people.token("two", "observe namespace:alpha", "observe topic:x")) == [
        "alpha",
        "default",
    ]
    assert listed(people.token("nobody")) == []
