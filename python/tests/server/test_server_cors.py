"""Pages of other origins: their permissions, and the answers to a browser's preflights."""

from collections.abc import Iterator

import pytest

from tests.http_kit import Answer, Served, serving
from tms.api import routes
from tms.errors import ConfigError
from tms.serve.config_sources import load
from tms.server.http.cors import Cors
from tms.server.service import AccessLimits, NetworkOptions

PAGE, STRANGER = "https://console.example", "https://elsewhere.example"
TOPICS = "/v2/namespaces/default/topics"
ALLOWED = "access-control-allow-origin"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    network = NetworkOptions(AccessLimits(), cors=Cors([PAGE, "http://localhost:3000"]))
    with serving(network=network) as served:
        yield served


def ask(served: Served, method: str, path: str, origin: str | None, **headers: str) -> Answer:
    if origin is not None:
        headers["Origin"] = origin
    with served.connect() as client:
        return client.request(method, path, **headers)


def said(answer: Answer) -> set[str]:
    return {name for name in answer.headers if name.startswith("access-control-")}


def test_a_page_that_is_listed_may_read_answers_and_the_headers_that_it_needs(
    served: Served,
) -> None:
    answer = ask(served, "GET", routes.LIVEZ, PAGE)
    assert answer.status == routes.OK and answer.headers[ALLOWED] == PAGE
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {routes.NEXT_HEADER, routes.END_HEADER, routes.REACHED_HEADER, "Retry-After"} <= {
        *exposed
    }
    assert routes.REQUEST_ID_HEADER in exposed


@pytest.mark.parametrize("origin", [STRANGER, "null", PAGE.upper(), f"{PAGE}.evil.example", ""])
def test_others_are_told_nothing(served: Served, origin: str) -> None:
    answer = ask(served, "GET", routes.LIVEZ, origin)
    assert answer.status == routes.OK and not said(answer)
    asked = ask(served, "OPTIONS", TOPICS, origin, Access_Control_Request_Method="GET")
    assert asked.status == routes.NO_CONTENT and not said(asked)


@pytest.mark.parametrize("origin", [PAGE, STRANGER, None])
def test_every_answer_says_that_it_depends_on_the_origin(
    served: Served, origin: str | None
) -> None:
    for path in (routes.LIVEZ, TOPICS, "/nothing/here"):
        assert ask(served, "GET", path, origin).headers["vary"] == "origin"


@pytest.mark.parametrize(
    ("method", "path", "problem"),
    [
        ("GET", TOPICS, "unauthenticated"),
        ("GET", "/nothing", "not-found"),
        ("PATCH", routes.LIVEZ, "method-not-allowed"),
    ],
)
def test_a_page_may_read_errors(served: Served, method: str, path: str, problem: str) -> None:
    answer = ask(served, method, path, PAGE)
    assert answer.problem == problem and answer.headers[ALLOWED] == PAGE


def test_a_browser_is_told_without_a_token_what_it_may_ask(served: Served) -> None:
    answer = ask(
        served,
        "OPTIONS",
        f"{TOPICS}/orders",
        PAGE,
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="authorization,content-type",
    )
    assert answer.status == routes.NO_CONTENT and answer.body == b""
    assert answer.headers[ALLOWED] == PAGE
    methods = answer.headers["access-control-allow-methods"].split(", ")
    assert methods == ["DELETE", "GET", "HEAD", "PATCH", "PUT"]
    headers = answer.headers["access-control-allow-headers"]
    assert {"Authorization", "Content-Type", "Idempotency-Key"} <= {*headers.split(", ")}
    assert int(answer.headers["access-control-max-age"]) > 0
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH, PUT, OPTIONS"


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (f"{TOPICS}/orders", "POST"),  # the path has no such method
        (f"{TOPICS}/orders/owned/blocks", "POST"),  # for other instances only
        (f"{TOPICS}/orders", None),  # no preflight
    ],
)
def test_what_it_may_not_ask_is_not_allowed(served: Served, path: str, method: str | None) -> None:
    headers = {} if method is None else {"Access_Control_Request_Method": method}
    answer = ask(served, "OPTIONS", path, PAGE, **headers)
    assert answer.status == routes.NO_CONTENT and answer.headers["allow"]
    assert "access-control-allow-methods" not in answer.headers


def test_a_path_that_is_not_there_is_not_found_by_a_preflight_either(served: Served) -> None:
    answer = ask(served, "OPTIONS", "/nothing", PAGE, Access_Control_Request_Method="GET")
    assert answer.problem == "not-found"


def test_no_credentials_of_browsers_are_ever_allowed(served: Served) -> None:
    for answer in (
        ask(served, "GET", routes.LIVEZ, PAGE),
        ask(served, "OPTIONS", TOPICS, PAGE, Access_Control_Request_Method="GET"),
    ):
        assert "access-control-allow-credentials" not in answer.headers


def test_every_origin_may_be_allowed_and_caches_need_not_keep_them_apart() -> None:
    network = NetworkOptions(AccessLimits(), cors=Cors(["*"]))
    with serving(network=network) as served:
        for origin in (PAGE, STRANGER, None):
            answer = ask(served, "GET", TOPICS, origin)
            assert answer.status == 401 and answer.headers[ALLOWED] == "*"
            assert "vary" not in answer.headers
        asked = ask(served, "OPTIONS", TOPICS, PAGE, Access_Control_Request_Method="GET")
        assert asked.headers[ALLOWED] == "*" and "access-control-allow-methods" in asked.headers
        assert "access-control-allow-credentials" not in asked.headers


def test_nothing_is_said_unless_it_is_configured() -> None:
    with serving() as served:
        for answer in (
            ask(served, "GET", routes.LIVEZ, PAGE),
            ask(served, "OPTIONS", TOPICS, PAGE, Access_Control_Request_Method="GET"),
        ):
            assert not said(answer) and "vary" not in answer.headers


def test_an_instance_that_is_asked_by_another_leaves_it_to_that_one(served: Served) -> None:
    answer = ask(served, "GET", routes.LIVEZ, PAGE, TMS_Hop="1")
    assert not said(answer)


@pytest.mark.parametrize(
    ("cors", "why"),
    [
        ("https://a.example/", "is no origin"),
        ("https://a.example/app", "is no origin"),
        ("a.example", "is no origin"),
        ("https://A.example", "is no origin"),
        ("https://*.example", "is no origin"),
        ("null", "is no origin"),
        ("https://a.example:443", "write 'https://a.example'"),
        ("http://a.example:80", "write 'http://a.example'"),
        ("*,https://a.example", "leave out the others"),
        ("*", "name the origins, or add --access on"),
    ],
)
def test_what_is_no_list_of_origins_is_refused_at_the_start(cors: str, why: str) -> None:
    with pytest.raises(ConfigError, match="cors") as caught:
        load(None, {"data": "data", "server.cors": cors})
    assert why in str(caught.value)


def test_origins_are_given_with_commas_between() -> None:
    given = f"{PAGE}, http://[::1]:3000 ,http://127.0.0.1:8080"
    cors = load(None, {"data": "data", "server.cors": given}).server.pages()
    assert cors is not None
    for origin in (PAGE, "http://[::1]:3000", "http://127.0.0.1:8080"):
        assert f"{ALLOWED}: {origin}\r\n".encode() in cors.head(origin.encode())
    assert load(None, {"data": "data"}).server.pages() is None


@pytest.mark.parametrize("more", [{"server.access": "on"}, {"server.insecure": True}])
def test_every_origin_takes_tokens_or_the_word_of_who_starts_it(more: dict[str, object]) -> None:
    settings = load(None, {"data": "data", "server.cors": "*", **more})
    assert settings.server.pages() is not None
