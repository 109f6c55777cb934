"""Lists: a caller that may not see all of a list gets the part that it may see, and learns nothing
about the rest."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.access_kit import People
from tests.http_kit import Served, serving
from tms.api.operation import Resource
from tms.api.operations import OPERATIONS
from tms.client import topics as client_topics
from tms.client.client import Bus
from tms.errors import Forbidden
from tms.server import listing
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore

TOPICS = "/v2/namespaces/default/topics"
SHOP = [f"shop-{number:02}" for number in range(12)]
SECRET = [f"secret-{number:02}" for number in range(30)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits(audit=True))) as served:
        people = People(served)
        with people.bus("admin", "all *") as admin:
            for topic in (*SHOP, *SECRET, "orders"):
                admin.create_topic(topic)
            admin.create_topic("other:hidden")
            for group in ("desk", "vault-1", "vault-2"):
                admin.queue("orders", group=group, start="earliest").receive(1)
                admin.publish("orders", b"x")
                consumer = admin.consumer("orders", group=f"log-{group}", stop_at_end=True)
                assert list(consumer)
                consumer.ack()
        yield served


@pytest.fixture
def people(served: Served) -> People:
    return People(served)


def listed(bus: Bus, namespace: str = "default") -> list[str]:
    return [info.topic for info in bus.list_topics(namespace)]


def get(people: People, token: str, path: str) -> Any:
    with people.served.connect() as client:
        return client.request("GET", path, Authorization=f"Bearer {token}")


def test_every_list_says_so_where_it_is_declared() -> None:
    lists = {one.name: one.lists for one in OPERATIONS.values() if one.lists is not None}
    assert lists == {
        "topics.list_topics": Resource.TOPIC,
        "queues.list_queues": Resource.QUEUE,
        "groups.list_groups": Resource.GROUP,
        "glance.topics": Resource.TOPIC,
        "glance.groups": Resource.GROUP,
        "glance.queues": Resource.QUEUE,
        "glance.delayed": Resource.TOPIC,
    }


@pytest.mark.parametrize("verb", ["observe", "publish", "consume", "manage", "all"])
def test_a_list_of_topics_has_those_that_one_may_see(people: People, verb: str) -> None:
    grants = (f"{verb} topic:shop-*", f"{verb} topic:orders", f"{verb} topic:gone")
    with people.bus(f"shop-{verb}", *grants) as bus:
        assert listed(bus) == ["orders", *SHOP]
        with pytest.raises(Forbidden):
            listed(bus, "other")
    with people.bus(f"all-{verb}", f"{verb} namespace:default") as bus:
        assert listed(bus) == ["orders", *SECRET, *SHOP]


def test_who_may_see_nothing_of_a_list_is_denied_it(people: People) -> None:
    for number, grants in enumerate([(), ("all queue:orders/desk",), ("all namespace:other",)]):
        with people.bus(f"none-{number}", *grants) as bus, pytest.raises(Forbidden) as denied:
            listed(bus)
        assert "tms grant add" in str(denied.value) and "secret" not in str(denied.value)


def test_what_everybody_may_see_counts(people: People) -> None:
    people.access.add_grant("*", "observe", "topic:secret-0*")
    try:
        with people.bus("anybody") as bus:
            assert listed(bus) == SECRET[:10]
    finally:
        people.access.remove_grant("*", "observe", "topic:secret-0*")


@pytest.mark.parametrize("limit", [1, 2, 5, 12, 13, 100])
@pytest.mark.parametrize("looked_at", [1, 7, 1_000])
def test_pages_are_filled_with_what_one_may_see(
    people: People, monkeypatch: pytest.MonkeyPatch, limit: int, looked_at: int
) -> None:
    monkeypatch.setattr(listing, "TOPICS_DEFAULT", looked_at)
    token = people.token(f"pages-{limit}-{looked_at}", "observe topic:shop-*")
    found: list[str] = []
    after = ""
    while True:
        answer = get(people, token, f"{TOPICS}?limit={limit}{after}")
        page = [one["topic"] for one in answer.json["topics"]]
        assert b"secret" not in answer.body
        found += page
        following = answer.json["next"]
        assert (following is None) == (len(page) < limit)
        if following is None:
            break
        assert following == page[-1] and len(page) == limit
        after = f"&after={following}"
    assert found == SHOP


def test_the_client_reads_all_pages(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_topics, "TOPICS_PER_PAGE", 5)
    with people.bus("reader", "consume topic:shop-*") as bus:
        assert listed(bus) == SHOP


def test_a_page_may_begin_behind_a_topic_that_one_may_not_see(people: People) -> None:
    token = people.token("beginner", "observe topic:shop-*")
    for after in ("secret-29", "shop", "zzz"):
        answer = get(people, token, f"{TOPICS}?after={after}")
        found = [one["topic"] for one in answer.json["topics"]]
        assert found == ([] if after == "zzz" else SHOP)


@pytest.mark.parametrize(("kind", "prefix"), [("queues", ""), ("groups", "log-")])
def test_lists_of_a_topic_have_what_one_may_see(people: People, kind: str, prefix: str) -> None:
    path, resource = f"{TOPICS}/orders/{kind}", kind.removesuffix("s")

    def names(principal: str, *grants: str) -> list[str] | int:
        answer = get(people, people.token(f"{principal}-{kind}", *grants), path)
        if answer.status != 200:
            assert b"vault" not in answer.body
            return int(answer.status)
        return [one["group"] for one in answer.json[kind]]

    every = [f"{prefix}desk", f"{prefix}vault-1", f"{prefix}vault-2"]
    assert names("topic", "observe topic:orders") == every
    assert names("worker", f"consume {resource}:orders/{prefix}desk") == every[:1]
    assert names("two", f"all {resource}:orders/{prefix}vault-*") == every[1:]
    assert names("begin", f"observe {resource}:ord*") == every
    assert names("none") == 403
    assert names("elsewhere", f"all {resource}:orders2/*", f"all {resource}:order/*") == 403
    other = "group" if resource == "queue" else "queue"
    assert names("other", f"all {other}:orders/*") == 403


@pytest.mark.parametrize(("kind", "prefix"), [("queues", ""), ("groups", "log-")])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_lists_of_a_namespace_have_what_one_may_see(
    people: People, kind: str, prefix: str, limit: int
) -> None:
    resource = kind.removesuffix("s")

    def names(principal: str, *grants: str) -> list[str] | int:
        found: list[str] = []
        token, after = people.token(f"all-{principal}-{kind}-{limit}", *grants), ""
        while True:
            path = f"/v2/namespaces/default/{kind}?limit={limit}{after}"
            answer = get(people, token, path)
            if answer.status != 200:
                assert b"vault" not in answer.body
                return int(answer.status)
            found += [f"{one['topic']}/{one['group']}" for one in answer.json[kind]]
            if answer.json["next"] is None:
                return found
            after = f"&after={answer.json['next']}"

    every = [f"orders/{prefix}{name}" for name in ("desk", "vault-1", "vault-2")]
    assert names("space", "observe namespace:default") == every
    assert names("topic", "observe topic:orders") == every
    assert names("worker", f"consume {resource}:orders/{prefix}desk") == every[:1]
    assert names("two", f"all {resource}:orders/{prefix}vault-*") == every[1:]
    assert names("begin", f"observe {resource}:ord*") == every
    assert names("none") == 403
    assert names("elsewhere", f"all {resource}:orders2/*") == []


def test_sizes_are_shown_of_topics_that_one_may_see(people: People) -> None:
    token = people.token("sizer", "observe topic:shop-0*")
    answer = get(people, token, "/v2/namespaces/default/sizes?limit=7")
    assert [one["topic"] for one in answer.json["topics"]] == SHOP[:7]
    assert answer.json["next"] == SHOP[6]


def test_a_topic_that_is_not_there_looks_like_one_that_one_may_not_see(people: People) -> None:
    token = people.token("curious", "all queue:orders/desk", "all topic:shop-00")
    for kind in ("queues", "groups"):
        hidden, missing = (
            get(people, token, f"{TOPICS}/{name}/{kind}") for name in ("secret-00", "secret-99")
        )
        assert hidden.status == missing.status == 403
        assert hidden.json["detail"].replace("-00", "-99") == missing.json["detail"]


def test_cdaps_list_is_filtered_too(people: People) -> None:
    path = "/v1/namespaces/default/topics"
    assert get(people, people.token("cdap", "publish topic:shop-0*"), path).json == SHOP[:10]
    assert get(people, people.token("cdap-none"), path).status == 403


def test_a_grant_that_is_taken_away_shortens_the_next_list(people: People) -> None:
    with people.bus("fickle", "observe topic:shop-*", "observe topic:orders") as bus:
        assert "orders" in listed(bus)
        people.access.remove_grant("fickle", "observe", "topic:orders")
        assert listed(bus) == SHOP
        people.access.remove_grant("fickle", "observe", "topic:shop-*")
        with pytest.raises(Forbidden):
            listed(bus)


def test_a_long_list_is_not_remembered_topic_by_topic(people: People) -> None:
    guard = people.served.service.guard
    assert guard is not None
    with people.bus("brief", "observe topic:shop-*") as bus:
        listed(bus)
    assert not [
        one for one in guard.decisions._remembered if one[0] == "brief" and "secret" in one[2]
    ]


def test_an_audit_log_of_everything_says_what_was_shown(
    people: People, caplog: pytest.LogCaptureFixture
) -> None:
    with people.bus("noted", "observe topic:shop-*") as bus, caplog.at_level("INFO", "tms.audit"):
        listed(bus)
    said = str([vars(one) for one in caplog.records])
    assert "topic:default:*" in said and "noted" in said
