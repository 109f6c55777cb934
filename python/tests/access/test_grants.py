"""The resources that grants cover, checked against the definition, written out naively."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms.access.grants import Grants, example_of, some_group, some_topic
from tms.access.tokens import digest, make
from tms.errors import Invalid
from tms.model.access import (
    VERBS,
    Access,
    Grant,
    check_pattern,
    check_principal,
    check_resource,
    check_verb,
)

NAMES = st.sampled_from(["a", "ab", "abc", "b", "a-b", "a.b"])
TOPICS = st.builds(lambda ns, t: f"{ns}:{t}", st.sampled_from(["n", "nn"]), NAMES)
PARTS = st.builds(
    lambda kind, topic, group: f"{kind}:{topic}/{group}",
    st.sampled_from(["group", "queue"]),
    TOPICS,
    NAMES,
)
RESOURCES = st.one_of(
    st.sampled_from(["service", "cluster", "access", "transactions"]),
    st.sampled_from(["namespace:n", "namespace:nn"]),
    TOPICS.map(lambda name: f"topic:{name}"),
    PARTS,
)
PATTERNS = st.one_of(
    RESOURCES,
    st.just("*"),
    st.builds(lambda text, cut: text[:cut] + "*", RESOURCES, st.integers(10, 20)),
)


def covers(pattern: str, resource: str) -> bool:
    if pattern.endswith("*") and resource.startswith(pattern[:-1]):
        return True
    if pattern == resource:
        return True
    kind, _, rest = resource.partition(":")
    if kind in ("group", "queue"):
        return covers(pattern, f"topic:{rest.partition('/')[0]}")
    return kind == "topic" and covers(pattern, f"namespace:{rest.partition(':')[0]}")


def allows(granted: Access, wanted: Access) -> bool:
    return granted in (wanted, Access.ALL) or wanted is Access.OBSERVE


@given(
    st.lists(st.tuples(st.sampled_from(VERBS), PATTERNS), max_size=8),
    st.sampled_from([verb for verb in VERBS if verb is not Access.ALL]),
    RESOURCES,
)
def test_a_principal_may_do_what_some_grant_covers_and_nothing_else(
    some: list[tuple[Access, str]], verb: Access, resource: str
) -> None:
    grants = Grants([Grant("ann", *one) for one in some])
    found = grants.find(verb, resource)
    fitting = [one for one in some if covers(one[1], resource) and allows(one[0], verb)]
    assert (found is not None) == bool(fitting)
    assert found is None or (found.verb, found.pattern) in fitting


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("topic:orders", "topic:default:orders"),
        ("topic:sales:orders", "topic:sales:orders"),
        ("topic:ord*", "topic:default:ord*"),
        ("topic:sales:*", "topic:sales:*"),
        ("topic:shop.orders", "topic:default:shop.orders"),
        ("topic:sales:shop.*", "topic:sales:shop.*"),
        ("topic:__consumer_offsets", "topic:default:__consumer_offsets"),
        ("topic:" + "x" * 249, "topic:default:" + "x" * 249),
        ("queue:shop.*", "queue:default:shop.*"),
        ("group:shop.orders/b.c", "group:default:shop.orders/b.c"),
        ("group:orders/billing", "group:default:orders/billing"),
        ("queue:orders/*", "queue:default:orders/*"),
        ("queue:orders*", "queue:default:orders*"),
        ("namespace:sales", "namespace:sales"),
        ("access", "access"),
        ("*", "*"),
    ],
)
def test_a_pattern_has_a_full_form(text: str, full: str) -> None:
    assert check_pattern(text) == full == check_pattern(full)


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "topic:", "topic:a b", "topic:*x", "topic:a*b", "to*", "access:x"),
        *("group:orders", "queue:a/b/c", "namespace:a-b", "topic:../x", "topic:a/b"),
        *("topic:.", "topic:..", "topic:.a", "topic:.*", "topic:a.b:c", "topic:" + "x" * 250),
        "topic:" + "x" * 700,
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="resource is"):
        check_pattern(text)


def test_a_dot_in_a_pattern_is_that_character() -> None:
    grants = Grants([Grant("ann", Access.CONSUME, check_pattern("topic:shop.*"))])
    assert grants.find(Access.CONSUME, "topic:default:shop.orders")
    assert grants.find(Access.CONSUME, "queue:default:shop.orders/g")
    assert not grants.find(Access.CONSUME, "topic:default:shop-orders")
    assert not grants.find(Access.CONSUME, "topic:default:shop")


def test_a_resource_is_one_thing() -> None:
    with pytest.raises(Invalid, match=r"no \*"):
        check_resource("topic:ord*")


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "*", "ä", "x" * 129, "@instance"])
def test_what_is_no_principal_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="principal is"):
        check_principal(name)


@pytest.mark.parametrize("verb", ["", "open", "known", "read", "ALL"])
def test_what_is_no_verb_of_a_grant_is_refused(verb: str) -> None:
    with pytest.raises(Invalid, match="verb is"):
        check_verb(verb)


def test_a_token_is_its_id_and_a_secret() -> None:
    token = make(bytes(range(38)))
    assert token.text == f"tms_{token.id}_{bytes(range(6, 38)).hex()}"
    assert digest(token.text.encode()) != digest(token.text[:-1].encode())


@given(
    st.lists(st.tuples(st.sampled_from(VERBS), PATTERNS), max_size=6),
    st.sampled_from(["topic:n:", "topic:nn:", "queue:n:a/", "group:nn:ab/"]),
    NAMES,
)
def test_grants_reach_into_whatever_they_allow_a_part_of(
    granted: list[tuple[Access, str]], within: str, name: str
) -> None:
    grants = Grants(Grant("ann", verb, pattern) for verb, pattern in granted)
    kind, _, rest = within.partition(":")
    whole = f"namespace:{rest[:-1]}" if kind == "topic" else f"topic:{rest[:-1]}"
    seen = grants.find(Access.OBSERVE, within + name) is not None
    assert not seen or grants.reach_into(within) or grants.find(Access.OBSERVE, whole) is not None
    beginnings = [pattern.rstrip("*") for _, pattern in granted]
    near = [one.startswith(within) or within.startswith(one) for one in beginnings]
    assert not grants.reach_into(within) or any(near)


@pytest.mark.parametrize(
    ("pattern", "topics", "groups"),
    [  # of the namespace `default`, and of its group `desks`
        ("*", True, True),
        ("namespace:default", True, True),
        ("namespace:def*", True, True),
        ("namespace:other", False, False),
        ("namespace:other*", False, False),
        ("topic:default:orders", True, True),
        ("topic:default:o*", True, True),
        ("topic:other:orders", False, False),
        ("topic:defaults:orders", False, False),
        ("group:default:orders/desks", False, True),
        ("group:default:orders/de*", False, True),
        ("group:default:ord*", False, True),
        ("group:default:orders/others", False, False),
        ("group:default:orders/other*", False, False),
        ("group:other:orders/desks", False, False),
        ("queue:default:orders/desks", False, False),
        ("access", False, False),
        ("cluster", False, False),
    ],
)
def test_a_grant_covers_some_topic_or_some_group(pattern: str, topics: bool, groups: bool) -> None:
    resources = ((some_topic("default"), topics), (some_group("default", "desks"), groups))
    for resource, covered in resources:
        grants = Grants([Grant("ann", Access.CONSUME, pattern)])
        for verb in (Access.CONSUME, Access.OBSERVE):
            assert (grants.find(verb, resource) is not None) is covered
        assert grants.find(Access.MANAGE, resource) is None
        everything = Grants([Grant("ann", Access.ALL, pattern)])
        assert (everything.find(Access.MANAGE, resource) is not None) is covered


def test_an_example_of_a_grant_covers_its_resource() -> None:
    for resource in (some_topic("default"), some_group("default", "a:b/c"), "topic:default:orders"):
        pattern = example_of(resource)
        grants = Grants([Grant("ann", Access.PUBLISH, pattern)])
        assert grants.find(Access.PUBLISH, resource) is not None, pattern
    assert check_pattern(example_of(some_group("default", "desks"))) == "group:default:TOPIC/desks"
