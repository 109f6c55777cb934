"""Questions of a front end to operations: access, quotas, other instances, errors, waiting."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tms
from tests.access_kit import People
from tests.cluster_kit import Instances, instances
from tests.http_kit import Served, serving
from tests.pages_kit import PageReader
from tests.waiting import until
from tms.api.operations import OPERATIONS
from tms.errors import Forbidden, TMSError, TopicNotFound, Unauthenticated
from tms.model.topic import TopicName, TopicSettings
from tms.server.asking import AskedOperation, ask
from tms.server.front import Front, FrontApp
from tms.server.http.exchange import Exchange
from tms.server.problems import refuse
from tms.server.service import AccessLimits, NetworkOptions, Service
from tms.store.memory import MemoryStore

OWN_PATH = b"/asks"
ORDERS = TopicName.parse("orders")


class AskingPaths:
    """A front end that asks what a test wants to know, for whoever calls `/asks`."""

    def __init__(self) -> None:
        self.questions: list[AskedOperation] = []
        self.outcomes: list[Any] = []

    def has(self, path: bytes) -> bool:
        return path == OWN_PATH

    def refuse(self, exchange: Exchange, error: TMSError) -> None:
        refuse(exchange, error)

    async def answer(self, exchange: Exchange, app: FrontApp) -> None:
        authorization = exchange.headers.get(b"authorization", b"")
        for question in self.questions:
            try:
                self.outcomes.append(await ask(app.answer, exchange, authorization, question))
            except TMSError as error:
                self.outcomes.append(error)
        exchange.respond(200, b"")


def asked(paths: AskingPaths, served: Served, *questions: AskedOperation, token: str = "") -> Any:
    """The outcomes of questions, for a client with this token."""
    paths.questions = list(questions)
    paths.outcomes = []
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with served.connect() as client:
        assert client.request("GET", OWN_PATH.decode(), **headers).status == 200
    return paths.outcomes


def about(operation: str, **arguments: Any) -> AskedOperation:
    return AskedOperation(OPERATIONS[operation], arguments)


def fronts(paths: AskingPaths) -> Callable[[Service], list[Front]]:
    return lambda service: [Front("asks", paths=paths)]


@pytest.fixture
def paths() -> AskingPaths:
    return AskingPaths()


@pytest.fixture
def served(paths: AskingPaths) -> Iterator[Served]:
    with serving(MemoryStore(), open_fronts=fronts(paths)) as running:
        yield running


@pytest.fixture
def guarded(paths: AskingPaths) -> Iterator[People]:
    network = NetworkOptions(AccessLimits())
    with serving(MemoryStore(), network=network, open_fronts=fronts(paths)) as running:
        yield People(running)


@pytest.fixture(scope="module")
def three() -> Iterator[Instances]:
    with instances("a", "b", "c", access=AccessLimits()) as all:
        all.coordinator()
        yield all


@pytest.fixture(scope="module")
def orders_of_ann(three: Instances) -> str:
    """The token of a principal of a namespace, with messages in all partitions of a topic."""
    access = three.served["a"].service.engine.access
    access.add_grant("ann", "all", "namespace:default")
    access.add_grant("ann", "all", "topic:default:*")
    access.add_grant("ann", "all", "queue:default:*")
    token = access.create_token("ann").token
    with tms.connect(three.url("a"), token=token) as bus:
        bus.create_topic("orders", partitions=6)
        bus.queue("orders", group="desks")
        for nth in range(60):
            bus.publish("orders", b"one", key=b"%d" % nth)
        bus.publish_later("orders", b"later", delay=3_600)
    return token


def test_results_and_errors_are_those_of_a_client(paths: AskingPaths, served: Served) -> None:
    made, listed, missing, done, gone = asked(
        paths,
        served,
        about("topics.create_topic", name=ORDERS, settings=TopicSettings(partitions=2)),
        about("topics.list_topics", namespace="default", after=None, limit=10),
        about("topics.describe_topic", name=TopicName.parse("missing")),
        about("topics.delete_topic", name=ORDERS),
        about("topics.describe_topic", name=ORDERS),
    )
    assert made.settings.partitions == 2 and [one.topic for one in listed] == ["orders"]
    assert isinstance(missing, TopicNotFound) and isinstance(gone, TopicNotFound)
    assert done is None


def test_a_fetch_is_answered_as_json(paths: AskingPaths, served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("orders")
        bus.publish("orders", b"one", key=b"k")
    body = b'{"messages": [{"value": "two"}]}'
    stored, fetched = asked(
        paths,
        served,
        AskedOperation(OPERATIONS["publish"], {"name": ORDERS}, body),
        about("fetch", name=ORDERS, start="earliest", limit=10),
    )
    assert stored.messages[0].offset == 1
    assert [(one.key, one.value) for one in fetched.messages] == [("k", "one"), (None, "two")]


def test_a_question_has_the_rights_of_its_credential(paths: AskingPaths, guarded: People) -> None:
    observer = guarded.token("observer", "observe topic:default:orders")
    guarded.served.service.engine.create_topic(ORDERS, TopicSettings())
    questions = (
        about("topics.describe_topic", name=ORDERS),
        about("topics.delete_topic", name=ORDERS),
        about("access.whoami"),
    )
    known, refused, me = asked(paths, guarded.served, *questions, token=observer)
    assert known.topic == "orders" and isinstance(refused, Forbidden)
    assert me.principal == "observer"
    strangers = asked(paths, guarded.served, *questions)
    assert all(isinstance(one, Unauthenticated) for one in strangers)
    guard = guarded.served.service.guard
    assert guard is not None
    until(lambda: not guard.decisions._active)  # no question is left under way


def test_questions_count_for_quotas(paths: AskingPaths, guarded: People) -> None:
    token = guarded.token("busy", "observe *")
    guarded.access.set_quota("busy", requests_s=2.0)
    questions = [about("access.whoami")] * 40
    codes = [
        one.code if isinstance(one, TMSError) else "answered"
        for one in asked(paths, guarded.served, *questions, token=token)
    ]
    assert {"answered", "overloaded"} == set(codes)


def test_a_waiting_question_ends_with_its_client(paths: AskingPaths, served: Served) -> None:
    with tms.connect(served.url) as bus:
        bus.create_topic("orders")
    paths.questions = [about("fetch", name=ORDERS, start="latest", wait_s=30.0)]
    client = served.connect()
    client.send(b"GET /asks HTTP/1.1\r\nhost: localhost\r\n\r\n")
    time.sleep(0.5)
    assert not paths.outcomes
    started = time.monotonic()
    client.socket.close()
    while not paths.outcomes:
        assert time.monotonic() - started < 10, "the question waits for a client that is gone"
        time.sleep(0.05)


@pytest.mark.parametrize("id", ["a", "b", "c"])
def test_another_instance_answers_with_the_same_rights(
    three: Instances, orders_of_ann: str, id: str
) -> None:
    """Questions are sent on to owners as requests of clients are, with their principal: a page of
    the console is the same at each instance."""
    page = PageReader(three.url(id), tms_session=orders_of_ann).get(
        "/console/topics/default/orders"
    )
    assert page.status == 200
    assert "60 messages" in page.text and "1 delayed" in page.text
    assert "desks" in page.links
    assert PageReader(three.url(id)).get("/console/topics/default/orders").status == 401
