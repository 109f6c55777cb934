"""The addresses of a client: it goes straight to the owner of a resource once an answer has named
it."""

import logging

import pytest

from tests.clocks import ManualClock
from tms.api.operations import TRANSACTIONS
from tms.client.http.addresses import (
    SHUNNED_S,
    OwnerKey,
    ServiceAddress,
    ServiceAddresses,
    proxy_variable,
)
from tms.errors import ConfigError
from tms.model.topic import TopicName

TOPIC = TopicName("default", "t")
A, B, C = "http://a:1", "http://b:2", "http://c:3"
PLACES: list[OwnerKey] = [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)]


def _said(text: str) -> dict[bytes, bytes]:
    return {b"tms-owner": text.encode()}


def _urls(addresses: ServiceAddresses) -> list[str]:
    """The URLs of the places."""
    return [addresses.of([place]).url for place in PLACES]


def test_what_nobody_has_said_goes_to_the_first_instance() -> None:
    addresses = ServiceAddresses(f"{A},{B}")
    assert addresses.by_owner(PLACES) == {}
    assert addresses.of([]).url == addresses.of(PLACES).url == A
    addresses.take_in(PLACES, {})
    assert addresses.by_owner(PLACES) == {}


def test_partitions_go_to_the_owners_that_answers_name() -> None:
    addresses = ServiceAddresses(A)
    addresses.take_in(PLACES, _said(f"{B} 0 2, {C} 7"))
    assert _urls(addresses) == [B, A, B]
    assert addresses.of(PLACES).url == A  # several owners: one of them asks the others
    parts = addresses.by_owner(PLACES)
    assert {address.url: numbers for address, numbers in parts.items()} == {B: [0, 2], A: [1]}
    addresses.take_in(PLACES, _said(f"{A} 0"))
    assert _urls(addresses) == [A, A, B]


def test_an_owner_of_a_whole_request_owns_all_its_places() -> None:
    addresses = ServiceAddresses(A)
    addresses.take_in([TRANSACTIONS], _said(B))
    assert addresses.of([TRANSACTIONS]).url == B
    assert _urls(addresses) == [A, A, A]


@pytest.mark.parametrize("text", ["", " ", ",", "ftp://x", f"{B} x -1 ²", "http://b:port 0", "b:1"])
def test_what_makes_no_sense_is_not_learned(text: str) -> None:
    addresses = ServiceAddresses(A)
    addresses.take_in(PLACES, _said(text))
    assert _urls(addresses) == [A, A, A]


@pytest.mark.parametrize("owner", ["http://127.0.0.1:1", "http://[::1]:1", "http://0.0.0.0:1"])
def test_an_owner_on_this_machine_is_one_of_a_service_on_this_machine(owner: str) -> None:
    near, far = ServiceAddresses("http://localhost:7070"), ServiceAddresses(A)
    for addresses in (near, far):
        addresses.take_in(PLACES, _said(owner))
    assert _urls(near) == [owner] * 3
    assert _urls(far) == [A] * 3


def test_an_owner_that_was_not_reached_is_left_alone_for_a_while() -> None:
    clock = ManualClock()
    addresses = ServiceAddresses(A, clock)
    addresses.take_in(PLACES, _said(f"{B} 0, {C} 1"))
    addresses.avoid(addresses.of([PLACES[0]]))
    assert _urls(addresses) == [A, C, A]
    addresses.take_in(PLACES, _said(f"{B} 0"))
    assert _urls(addresses) == [A, C, A]
    clock.pass_ms(round(SHUNNED_S * 1_000) + 1)
    addresses.take_in(PLACES, _said(f"{B} 0"))
    assert _urls(addresses) == [B, C, A]


def test_no_more_owners_are_remembered_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tms.client.http.addresses.PLACES_MAX", 2)
    addresses = ServiceAddresses(A)
    for place in PLACES:
        addresses.take_in([place], _said(B))
    assert _urls(addresses) == [A, A, B]  # they are learned again


def test_an_instance_that_was_not_reached_gives_way_to_the_next_one() -> None:
    addresses = ServiceAddresses(f"{A},{B}")
    addresses.avoid(addresses.now)
    assert _urls(addresses) == [B, B, B]
    addresses.avoid(addresses.now)
    assert _urls(addresses) == [A, A, A]


def test_an_address_is_a_url_without_a_path() -> None:
    for wrong in ("http://x/path", "http://u@x", "http://x:port", "zookeeper://x", "http://"):
        with pytest.raises(ConfigError):
            ServiceAddresses(wrong)


@pytest.mark.parametrize(
    ("url", "environ", "variable"),
    [
        ("http://tms.example", {"HTTP_PROXY": "http://p:3128"}, "HTTP_PROXY"),
        ("https://tms.example", {"HTTP_PROXY": "http://p:3128"}, ""),
        ("https://tms.example", {"https_proxy": "http://p:3128"}, "https_proxy"),
        ("https://tms.example", {"ALL_PROXY": "socks5://p"}, "ALL_PROXY"),
        ("http://tms.example", {"HTTP_PROXY": "http://p", "NO_PROXY": "a, .example"}, ""),
        ("http://tms.example", {"HTTP_PROXY": "http://p", "no_proxy": "TMS.example"}, ""),
        ("http://tms.example", {"HTTP_PROXY": "http://p", "NO_PROXY": "*"}, ""),
        ("http://tms.example", {"HTTP_PROXY": "http://p", "NO_PROXY": "s.example,"}, "HTTP_PROXY"),
        ("http://localhost", {"HTTP_PROXY": "http://p"}, ""),
        ("http://127.0.0.1", {"HTTP_PROXY": "http://p"}, ""),
        ("http://tms.example", {"HTTP_PROXY": ""}, ""),
    ],
)
def test_a_proxy_that_the_environment_names_for_an_address_is_known(
    url: str, environ: dict[str, str], variable: str
) -> None:
    assert proxy_variable(ServiceAddress(url), environ) == variable


def test_a_proxy_that_is_not_used_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with caplog.at_level(logging.WARNING, "tms"):
        ServiceAddresses("http://a.example,http://b.example")
    [record] = caplog.records
    assert "proxy_not_used" in record.getMessage() and "HTTP_PROXY" in record.getMessage()
