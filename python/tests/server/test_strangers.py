"""Requests that a web page makes a browser send, to a service that requires no token."""

from collections.abc import Iterator

import pytest

from tests.http_kit import Served, serving
from tms.api import routes
from tms.errors import ConfigError
from tms.serve.config import ServerSection
from tms.serve.config_sources import load
from tms.server.http.cors import Cors
from tms.server.service import AccessLimits, NetworkOptions

PAGE = "http://console.example"
TOPICS = "/v2/namespaces/default/topics"
OLD = "/v1/namespaces/default/topics"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    network = NetworkOptions(cors=Cors([PAGE]), hosts=frozenset({"tms.example"}))
    with serving(network=network) as served:
        yield served


def status(served: Served, method: str, path: str, body: bytes | None = None, **head: str) -> int:
    with served.connect() as client:
        return client.request(
            method, path, body, media=head.pop("media", "application/json"), **head
        ).status


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7070", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("path", [TOPICS, OLD, "/metrics"])
def test_a_page_that_resolves_its_name_to_this_machine_reads_nothing(
    served: Served, host: str, path: str
) -> None:
    with served.connect() as client:
        answer = client.request("GET", path, Host=host)
    assert answer.status == 403
    assert b"--hosts" in answer.body


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:7070", "[::1]:7070", "10.1.2.3", "localhost:1", "tms:7070"),
        *("node.local", "a.b.internal:80", "tms.example", "TMS.example:443", "x.localhost."),
    ],
)
def test_addresses_and_local_names_and_those_of_the_setting_are_answered(
    served: Served, host: str
) -> None:
    for path in (TOPICS, OLD):
        assert status(served, "GET", path, Host=host) == 200


def test_probes_are_answered_under_every_name(served: Served) -> None:
    assert status(served, "GET", routes.LIVEZ, Host="evil.example") == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"{PAGE}.evil.example"])
def test_a_page_of_another_origin_changes_nothing(served: Served, origin: str) -> None:
    for method, path in (("PUT", TOPICS + "/theirs"), ("DELETE", TOPICS + "/theirs")):
        body = b"{}" if method == "PUT" else None
        assert status(served, method, path, body, Origin=origin) == 403
    assert status(served, "PUT", OLD + "/theirs", b"{}", Origin=origin) == 403
    assert status(served, "GET", TOPICS + "/theirs") == 404
    assert status(served, "GET", TOPICS, Origin=origin) == 200  # the browser does not show it


@pytest.mark.parametrize(
    "media", ["text/plain", "Text/Plain;charset=utf-8", "application/x-www-form-urlencoded"]
)
def test_a_form_starts_nothing_that_takes_no_body(served: Served, media: str) -> None:
    assert status(served, "POST", "/v2/backups", b"{}", media=media) == 415
    assert status(served, "POST", TOPICS + "/orders/messages", b"{}", media=media) in (400, 415)


def test_a_page_of_its_own_and_one_that_is_listed_may_change_something(served: Served) -> None:
    for number, origin in enumerate(("http://test", PAGE)):
        assert status(served, "PUT", f"{TOPICS}/own-{number}", b"{}", Origin=origin) == 201


def test_where_a_token_is_asked_for_names_do_not_matter() -> None:
    with serving(network=NetworkOptions(AccessLimits())) as guarded:
        assert status(guarded, "GET", TOPICS, Host="evil.example") == 401


def test_names_come_from_the_settings() -> None:
    def given(**flags: str) -> ServerSection:
        of_server = {f"server.{name}": value for name, value in flags.items()}
        return load(None, {"data": "somewhere", **of_server}).server

    assert given(hosts="tms.example, Other.example").names() == {
        *("tms.example", "other.example", "127.0.0.1"),
    }
    assert "me.example" in given(advertise="https://me.example:1").names()
    for wrong in ("http://tms.example", "tms.example:7070", "a b"):
        with pytest.raises(ConfigError, match="hosts"):
            given(hosts=wrong)
