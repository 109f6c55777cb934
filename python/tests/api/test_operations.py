"""The table of operations: for each of them, the service reads exactly the arguments that a client
sends."""

import re
import string
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http_kit import fronts_of, serving
from tests.run_seed import examples
from tms.api import bodies, routes
from tms.api.operation import Operation
from tms.api.operations import OPERATIONS
from tms.api.strict import decode_strict
from tms.client.http.peer import HttpPeer
from tms.client.http.transport import HttpTransport, PortOf
from tms.errors import Invalid
from tms.model.access import VERBS
from tms.model.dead_letters import LetterId
from tms.model.delayed import DelayedId
from tms.model.ids import MessageId
from tms.model.lag import GroupOrder, LagPlace, QueueOrder, TopicOrder
from tms.model.log_level import DEFAULT_LEVEL, FOR_S_MAX, LEVELS
from tms.model.message import Staged
from tms.model.position import Position
from tms.model.queue import QueueSettings, Token
from tms.model.snapshot import Isolation
from tms.model.topic import Durability, TopicName, TopicSettings
from tms.model.transaction import Commit, Owner, PositionChange, PositionKey
from tms.server.app import App
from tms.server.http.request import parameters

PLAIN = [one for one in OPERATIONS.values() if not one.by_hand]
CLIENTS = {"topics": HttpTransport, "peers": HttpPeer} | {
    name: port.kind
    for transport in (HttpTransport, HttpPeer)
    for name, port in vars(transport).items()
    if isinstance(port, PortOf)
}
_names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=20)
_topics = st.builds(TopicName, _names, _names)
_words = st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="/"), min_size=1)
_tokens = st.builds(
    lambda *parts: str(Token(*parts)),
    st.integers(0, 1_023),
    st.integers(0, 1 << 40),
    st.integers(1, 255),
    st.integers(0, 1 << 31),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "namespace": _names,
    "name": _topics,
    "topic": _topics,
    "group": _words.filter(
        lambda text: len(text) < 200 and not text.startswith(("redrive:", "system:"))
    ),
    "member": _words.filter(lambda text: len(text) < 100),
    "after": _names,
    "limit": st.integers(1, 1_000),
    "search": st.none() | st.text(max_size=100),
    "partition": st.integers(0, 1_023),
    "at": st.sampled_from([Position.earliest(), Position.latest(), Position.offset(7)]),
    "before": st.sampled_from([Position.latest(), Position.time(12), Position.offset(7)]),
    "isolation": st.sampled_from([Isolation.COMMITTED, Isolation.UNCOMMITTED]),
    "tokens": st.lists(_tokens, max_size=5),
    "expected": st.dictionaries(
        st.integers(0, 1_023), st.sampled_from(["", "earliest", "offset:7"]), max_size=3
    ),
    "letters": st.lists(
        st.builds(
            lambda p, ms: LetterId(p, MessageId(ms, 3)),
            st.integers(0, 1_023),
            st.integers(1, 1 << 46),
        ),
        max_size=5,
    ),
    "delay_s": st.none() | st.floats(0, 43_200),
    "lease_s": st.none() | st.floats(0.001, 43_200),
    "cause": st.text(max_size=100).filter(lambda text: text.isprintable()),
    "session_s": st.floats(1, 1_800),
    "holding": st.dictionaries(st.integers(0, 1_023), st.integers(0, 1 << 40), max_size=3),
    "reading": st.booleans(),
    "long": st.booleans(),
    "timeout_s": st.none() | st.floats(0.1, 100),
    "token": st.text(string.ascii_letters, max_size=30),
    "id": st.integers(1, 1 << 60),
    "before_ms": st.integers(0, 1 << 40),
}
_keys = st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 16))
_moves = st.builds(
    PositionChange,
    st.builds(PositionKey, st.just("system:delayed") | st.just("g"), _topics, st.integers(0, 9)),
    st.just(Position.offset(7)),
    st.none() | st.just("offset:4"),
    st.none() | st.builds(Owner, st.just("m"), st.integers(0, 9)),
    st.just("") | st.text(max_size=10),
    st.integers(-1, 9),
)
_staged = st.builds(Staged, *[st.integers(0, 1 << 40)] * 5)
VALUES |= {
    "write_pointer": st.integers(0, (1 << 63) - 1),
    "from_ms": st.integers(0, 1 << 40),
    "end_offset": st.integers(0, 1 << 40),
    "partitions": st.lists(st.integers(0, 1_023), max_size=5),
    "blocks": st.none() | st.lists(_staged, max_size=3),
    "first": _keys,
    "last": _keys,
    "pointers": st.lists(st.integers(1, (1 << 63) - 1), max_size=5),
    "foreign": st.booleans(),
    "elsewhere": st.booleans(),
    "key": st.binary(max_size=20),
    "message": st.binary(max_size=20),
    "waiting": st.none() | st.integers(-1, 1_023),
    "number": st.integers(0, 1_023),
    "shards": st.lists(st.integers(0, 1_023), max_size=5),
    "durability": st.sampled_from(Durability),
    "share": st.builds(Commit, positions=st.lists(_moves, max_size=2).map(tuple)),
    "principal": _names,
    "expires_s": st.none() | st.floats(1, 1_000),
    "requests_s": st.none() | st.floats(0.001, 1_000),
    "bytes_in_s": st.none() | st.floats(0.001, 1_000),
    "bytes_out_s": st.none() | st.floats(0.001, 1_000),
    "verb": st.sampled_from([str(verb) for verb in VERBS]),
    "pattern": st.just("topic:default:t*"),
    "resource": st.just("topic:default:t"),
    "to": st.text(string.ascii_letters + "_.:-", min_size=1, max_size=20),
    "level": st.sampled_from([*LEVELS, DEFAULT_LEVEL]),
    "logger": _words,
    "for_s": st.none() | st.floats(0.001, FOR_S_MAX),
    "everywhere": st.booleans(),
    "last_s": st.integers(60, 3_600),
    "one_time": st.booleans(),
}
_tokens_of_access = st.from_regex("[0-9a-f]{12}", fullmatch=True)
_backups = st.from_regex("[0-9a-f]{32}", fullmatch=True)
_places = st.builds("{}/{}".format, _names, VALUES["group"])
OF_ONE = {
    "backups.files": {"id": _backups, "after": st.integers(0, 1 << 40)},
    "backups.end": {"id": _backups},
    "access.revoke_token": {"id": _tokens_of_access},
    "cluster.drain": {"id": VALUES["to"]},
    "glance.topics": {"order": st.none() | st.sampled_from(TopicOrder)},
    "glance.groups": {
        "after": st.none() | _places,
        "order": st.none() | st.sampled_from(GroupOrder),
    },
    "glance.queues": {
        "after": st.none() | _places,
        "order": st.none() | st.sampled_from(QueueOrder),
    },
    "peers.groups_of": {"after": st.none() | _places},
    "peers.queues_of": {"after": st.none() | _places},
    "peers.lags": {
        "places": st.lists(
            st.builds(LagPlace, _topics, st.integers(0, 9), VALUES["at"]), max_size=3
        )
    },
    "peers.sizes": {"names": st.lists(_topics, max_size=3)},
    "peers.erase_own": {
        "id": st.none() | st.builds(MessageId, *[st.integers(0, 9)] * 4),
        "first": st.booleans(),
    },
    "topics.create_topic": {"settings": st.builds(TopicSettings, st.integers(1, 1_024))},
    "topics.update_topic": {"changes": st.just({"partitions": 3, "retention_ms": 5_000})},
    "queues.declare": {"settings": st.builds(QueueSettings, st.floats(1, 100))},
    "queues.update": {"changes": st.just({"lease_s": 2.5})},
    "delayed.page": {"after": st.none() | st.builds(DelayedId, *[st.integers(0, 1 << 40)] * 2)},
    "delayed.cancel": {"id": st.builds(DelayedId, *[st.integers(0, 1 << 40)] * 2)},
}


def arguments(operation: Operation) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the operation's arguments; always those without a default."""
    known = {**VALUES, **OF_ONE.get(operation.name, {})}
    always = {name: known[name] for name in operation.required}
    others = {name: known[name] for name in operation.sent if name not in always}
    return st.fixed_dictionaries(always, optional=others)


def read(operation: Operation, target: str, body: bytes | None) -> dict[str, Any]:
    """The arguments that the service reads from a request."""
    path, _, query = target.partition("?")
    parts = zip(path.split("/"), operation.path.split("/"), strict=True)
    texts = [unquote(part) for part, said in parts if said.startswith("{")]
    struct = operation.form.query
    names = () if struct is None else struct.__struct_fields__
    arguments = operation.in_path(texts)
    arguments |= operation.in_query(parameters(query.encode(), names))
    if body is not None:
        decoder = msgspec.json.Decoder(operation.form.body[routes.JSON])
        arguments |= operation.in_body(decode_strict(body, decoder))
    return arguments


@pytest.mark.parametrize("count", examples(20, 50))
@pytest.mark.parametrize("operation", PLAIN, ids=lambda one: one.name)
def test_the_service_reads_what_the_client_sends(operation: Operation, count: int) -> None:
    @settings(max_examples=count)
    @given(asked=arguments(operation))
    def agree(asked: dict[str, Any]) -> None:
        found = read(operation, operation.target(asked), operation.body(asked))
        assert {name: found[name] for name in asked if asked[name] is not None} == {
            name: value for name, value in asked.items() if value is not None
        }

    agree()


@pytest.mark.parametrize("operation", PLAIN, ids=lambda one: one.name)
def test_nothing_unknown_is_read(operation: Operation) -> None:
    struct = operation.form.body.get(routes.JSON)
    if struct is not None:
        with pytest.raises(Invalid):
            decode_strict(b'{"no_such_field":1}', msgspec.json.Decoder(struct))
    query = operation.form.query
    with pytest.raises(Invalid):
        parameters(b"no_such_parameter=1", () if query is None else query.__struct_fields__)


def test_every_operation_has_a_route_and_a_client() -> None:
    with serving() as served:
        app = App(served.service, fronts_of(served.service))
        for operation in OPERATIONS.values():
            path = re.sub(r"\{\w+\}", "x", operation.path)
            methods, _ = app.routes.find(path.encode())
            assert methods[operation.method].operation is operation
            if operation.api in CLIENTS:
                assert operation.function in vars(CLIENTS[operation.api])


def test_a_path_says_all_its_methods() -> None:
    path = "/v2/namespaces/default/topics/t"
    with serving() as served, served.connect() as client:
        for method in ("POST", "OPTIONS"):
            answer = client.request(method, path)
            allowed = {name.strip() for name in answer.headers["allow"].split(",")}
            assert allowed == {"PUT", "GET", "HEAD", "PATCH", "DELETE", "OPTIONS"}
        assert client.request("POST", path).problem == "method-not-allowed"
        assert client.request("OPTIONS", path).status == routes.NO_CONTENT
        assert client.request("OPTIONS", "/v2/nowhere").status == 404
        client.send(b"HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.answer("HEAD").status == routes.OK


def test_an_answer_is_read_as_it_was_sent() -> None:
    operation = OPERATIONS["queues.redrive"]
    assert operation.answer is not None
    sent = bodies.encode(operation.answer.encode(7))
    assert sent == b'{"moved":7}'
    assert operation.answer.decode(bodies.decode(sent, operation.answer.shape)) == 7


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"tokens":[],"lease_s":99999}', "lease_s"),
        (b'{"tokens":"x"}', "tokens"),
        (b'{"lease_s":1}', "tokens"),
        (b'{"tokens":[],"leases":1}', "leases"),
    ],
)
def test_an_error_in_a_body_names_the_field(body: bytes, field: str) -> None:
    struct = OPERATIONS["queues.extend"].form.body[routes.JSON]
    with pytest.raises(Invalid) as caught:
        decode_strict(body, msgspec.json.Decoder(struct))
    assert caught.value.details == {"field": field}


@pytest.mark.parametrize("limit", ["0", "10001", "1.0", "1e3", "x", "", "+1"])
def test_an_error_in_a_query_names_the_parameter_and_the_value(limit: str) -> None:
    with pytest.raises(Invalid, match="limit") as caught:
        OPERATIONS["topics.list_topics"].in_query({"limit": limit})
    assert caught.value.details == {"field": "limit"} and repr(limit) in caught.value.message


def test_a_list_that_is_neither_searched_nor_sorted_is_asked_for_as_before() -> None:
    """Services and instances of an earlier release refuse parameters that they do not know."""
    page = {"namespace": "n", "after": "t", "limit": 7}
    assert OPERATIONS["glance.topics"].target(page) == "/v2/namespaces/n/sizes?after=t&limit=7"
    asked = {**page, "shards": [1]}
    for name in ("peers.groups_of", "peers.queues_of"):
        assert msgspec.json.decode(OPERATIONS[name].body(asked) or b"") == asked
