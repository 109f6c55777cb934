"""The console over TLS: cookies that leave by TLS only, visitors known by their certificates."""

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.access_kit import People
from tests.http_kit import Served, serving
from tests.pages_kit import ReadPage
from tests.tls_kit import Authority, Certificate
from tms.console.settings import ConsoleSection
from tms.model.topic import TopicName, TopicSettings
from tms.runtime.tls import ServerTls
from tms.server.certificates import Certificates
from tms.server.front import Front, FrontTerms
from tms.server.service import AccessLimits, NetworkOptions, Service
from tms.store.memory import MemoryStore

TOPICS = "/console/topics"


@pytest.fixture(scope="module")
def served(authority: Authority) -> Iterator[Served]:
    tls = ServerTls(*authority.sign().pair, str(authority.ca), required=False)

    def fronts(service: Service) -> list[Front]:
        terms = FrontTerms(None, "", True, 50, Certificates(tls))
        return [ConsoleSection().open(service, terms)]

    network = NetworkOptions(AccessLimits())
    with serving(MemoryStore(), tls=tls, network=network, open_fronts=fronts) as served:
        served.service.engine.start()
        yield served


def ask(
    served: Served,
    authority: Authority,
    certificate: Certificate | None,
    method: str,
    target: str,
    body: str | None = None,
    **headers: str,
) -> ReadPage:
    """The answer to one request, by a client with a certificate or none."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    if certificate is not None:
        context.load_cert_chain(*certificate.pair)
    port = served.address[1]
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        lines = {"set-cookie": "\n".join(answer.headers.get_all("set-cookie") or ())}
        fields = {name.lower(): value for name, value in answer.headers.items()}
        return ReadPage(answer.status, fields | lines, answer.read().decode())
    finally:
        connection.close()


def test_who_has_a_certificate_needs_no_sign_in(served: Served, authority: Authority) -> None:
    People(served).access.add_grant("alice", "observe", "*")
    alice = authority.sign("alice")
    page = ask(served, authority, alice, "GET", TOPICS)
    assert page.status == 200 and "alice" in page.text
    assert "Sign out" not in page.text  # there is nothing to end
    unnamed = authority.sign("a b", of=())
    assert ask(served, authority, unnamed, "GET", TOPICS).status == 401
    assert ask(served, authority, None, "GET", TOPICS).status == 401


def test_cookies_are_of_this_host_and_of_tls_only(served: Served, authority: Authority) -> None:
    people = People(served)
    page = ask(served, authority, None, "GET", "/console/sign-in")
    browser = page.headers["set-cookie"].partition(";")[0]
    token = people.token("ann", "observe *")
    origin = f"https://localhost:{served.address[1]}"
    answer = ask(
        served,
        authority,
        None,
        "POST",
        "/console/sign-in",
        urlencode({**page.form().fields, "token": token}),
        **{
            "Cookie": browser,
            "Origin": origin,
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    assert answer.status == 303
    for line in (page.headers["set-cookie"], answer.headers["set-cookie"]):
        name, *attributes = line.split("; ")
        assert name.startswith("__Host-tms_")
        assert {"HttpOnly", "SameSite=Strict", "Secure", "Path=/"} <= {*attributes}
        assert not any(one.lower().startswith("domain") for one in attributes)
    session = answer.headers["set-cookie"].partition(";")[0]
    assert ask(served, authority, None, "GET", TOPICS, Cookie=session).status == 200
    plain = session.removeprefix("__Host-")  # which another host of the domain could have set
    assert ask(served, authority, None, "GET", TOPICS, Cookie=plain).status == 401


def test_a_session_wins_over_a_certificate(served: Served, authority: Authority) -> None:
    people = People(served)
    people.access.add_grant("bob", "observe", "*")
    new = people.access.create_token("bob")
    shown = people.served.service.guard
    assert shown is not None
    session = people.access.create_session(shown=shown._named_by(new.token.encode()))
    cookie = f"__Host-tms_session={session.token}"
    page = ask(served, authority, authority.sign("alice"), "GET", TOPICS, Cookie=cookie)
    assert page.status == 200 and "bob" in page.text and "Sign out" in page.text
    people.access.revoke_token(new.id)
    page = ask(served, authority, authority.sign("alice"), "GET", TOPICS, Cookie=cookie)
    assert page.status == 401 and "not signed in any more" in page.text
    assert "__Host-tms_session=; " in page.headers["set-cookie"]
    assert "Max-Age=0" in page.headers["set-cookie"]  # now the certificate counts


@contextlib.contextmanager
def looking(
    served: Served, authority: Authority, certificate: Certificate
) -> Iterator[http.client.HTTPResponse]:
    """The events of a browser that looks at the list of topics."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(*certificate.pair)
    port = served.address[1]
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    connection.request("GET", f"/console/live?page={TOPICS}&parts=topics")
    yield connection.getresponse()
    connection.close()


def first_parts(events: http.client.HTTPResponse) -> str:
    while not (line := events.readline().decode()).startswith("data: "):
        assert line, "the events ended"
    return line


def test_live_parts_are_of_one_certificate(served: Served, authority: Authority) -> None:
    served.service.engine.create_topic(TopicName.parse("of-carol"), TopicSettings())
    People(served).access.add_grant("carol", "observe", "topic:default:of-carol")
    carol, dave = authority.sign("carol"), authority.sign("dave")
    with looking(served, authority, carol) as hers, looking(served, authority, carol) as again:
        assert "of-carol" in first_parts(hers) and "of-carol" in first_parts(again)
        with looking(served, authority, dave) as his:
            assert "of-carol" not in first_parts(his)
