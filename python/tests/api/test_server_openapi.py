"""The service does what its OpenAPI document says, for any request: a request that fits the
document is not refused for its form, any other one is refused, and every status is one that the
document names."""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.core.parameters import ParameterLocation

from tests.http_kit import Served, serving
from tests.run_seed import seed_for
from tms import block
from tms.api import bodies, commits, openapi, routes
from tms.errors import TMSError
from tms.model.message import NewBlock
from tms.model.queue import QueueSettings
from tms.model.topic import TopicName, TopicSettings
from tms.model.transaction import Commit, TopicBlock, check_group
from tms.server import guard
from tms.server.service import AccessLimits, NetworkOptions, RequestLimits
from tms.store.memory import MemoryStore

TOPIC = TopicName("default", "a")  # of commits


def _strict() -> dict[str, Any]:
    """The document, with every status named."""
    document = copy.deepcopy(openapi.document("test"))
    for page in document["paths"].values():
        for operation in page.values():
            if isinstance(operation, dict):
                del operation["responses"]["default"]
    return document


DOCUMENT = _strict()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.seed = seed_for("schemathesis")
# What is there has fewer partitions, and messages, than may be named; many tokens together
# name more messages than one request may; a valid parameter may make the URL or the head too long.
SCHEMA.config.checks.positive_data_acceptance.expected_statuses += ["410", "413", "414", "431"]
SCHEMA.config.checks.negative_data_rejection.expected_statuses = ["4xx", "5xx"]
CHECKS = [
    schemathesis.checks.CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
        "positive_data_acceptance",
        "negative_data_rejection",
        "missing_required_header",
        "unsupported_method",
        "allow_header_conformance",
        "ignored_auth",
    )
]
ALONE = {"cluster.events", "topics.owners", "cluster.drain", "cluster.move", "cluster.unpin"}
NEEDS_MORE = {  # the id of an existing object
    "stage",
    "transactions.abort",
    "transactions.describe",
    "transactions.invalidate",
    "delayed.cancel",
    "access.revoke_token",
    "access.redeem_link",
    "access.end_session",
    "backups.files",
    "backups.read",
    "backups.end",
    "backups.begin",  # or a store on disk
}
BOUNDED = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


@schemathesis.serializer(routes.BLOCKS, routes.COMMIT)
def as_bytes(context: object, value: object) -> bytes:
    """Bytes that are no block, where a block is expected."""
    return value if isinstance(value, bytes) else str(value).encode()


def _some_blocks(values: list[bytes]) -> NewBlock:
    return NewBlock(0, block.encode(values, [None] * len(values), None))


BLOCKS = st.lists(st.binary(max_size=20), min_size=1, max_size=4).map(_some_blocks)
schemathesis.openapi.media_type(
    routes.BLOCKS, BLOCKS.map(lambda new: b"".join(map(bytes, bodies.frames([new]))))
)
schemathesis.openapi.media_type(
    routes.COMMIT,
    BLOCKS.map(
        lambda new: b"".join(
            map(bytes, commits.encode_commit(Commit(blocks=(TopicBlock(TOPIC, new),))))
        )
    ),
)


class Guarded(NamedTuple):
    """A service that requires tokens, and a principal with every grant."""

    served: Served
    headers: dict[str, str]

    @property
    def url(self) -> str:
        return self.served.url

    def prepare(self, case: schemathesis.Case) -> None:
        """Create the topic and the queue that the request names: more operations succeed then."""
        engine = self.served.service.engine
        drawn = {name: unquote(str(text)) for name, text in case.path_parameters.items()}
        topic = TopicName(drawn.get("namespace", ""), drawn.get("topic", ""))
        for name in (TOPIC, topic):
            with contextlib.suppress(TMSError):
                engine.create_topic(TopicName.of(*name), TopicSettings(partitions=2))
        with contextlib.suppress(TMSError):
            if "/queues/" in case.path:
                engine.queues.declare(topic, check_group(drawn["group"]), QueueSettings())


@contextlib.contextmanager
def guarded() -> Iterator[Guarded]:
    limits = RequestLimits(fetch_wait_ms_max=1)
    network = NetworkOptions(AccessLimits())
    with serving(MemoryStore(shared=True), limits, network=network) as served:
        access = served.service.engine.access
        access.add_grant("ann", "all", "*")
        access.set_quota("ann", requests_s=1e6)  # others have lower ones
        token = access.create_token("ann").token
        yield Guarded(served, {"Authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def place() -> Iterator[Guarded]:
    with pytest.MonkeyPatch.context() as patch, guarded() as place:
        patch.setattr(guard, "GUESS_S", 0.0)
        yield place


NUMBERS = count()
SEEN: dict[str, set[int]] = defaultdict(set)


def tame(case: schemathesis.Case) -> None:
    """Adapt a request to rules that a document cannot express: following has no end; an
    Idempotency-Key is new each time, and goes with JSON only; `expect` holds for one partition, to
    which all messages of a request go."""
    query, body = case.query or {}, case.body
    query.pop("follow", None)
    many = body.get("messages") if isinstance(body, dict) else body
    if "expect" in query and isinstance(many, list) and len(many) > 1:
        del case.query["expect"]
    if case.meta is not None and case.meta.is_negative_at(ParameterLocation.HEADER):
        return
    if case.headers.pop("Idempotency-Key", None) is not None and case.media_type == routes.JSON:
        case.headers["Idempotency-Key"] = f"key-{next(NUMBERS)}"


@pytest.mark.usefixtures("log_level")
@SCHEMA.parametrize()
@BOUNDED
def test_any_request_is_answered_as_documented(case: schemathesis.Case, place: Guarded) -> None:
    place.prepare(case)
    tame(case)
    response = case.call(base_url=place.url, headers=place.headers)
    SEEN[case.operation.definition.raw["operationId"]].add(response.status_code)
    case.validate_response(response, checks=CHECKS, headers=place.headers)


def test_each_operation_was_carried_out_and_refused() -> None:
    """The tests of requests would be empty if an operation never succeeded, or was never
    refused."""
    done = {name for name, statuses in SEEN.items() if any(one < 300 for one in statuses)}
    assert not SEEN.keys() - done - ALONE - NEEDS_MORE
    assert len(SEEN) == sum(len(page) - 1 for page in DOCUMENT["paths"].values())


def test_sequences_of_requests_are_answered_as_documented() -> None:
    stack = contextlib.ExitStack()

    class Workflow(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"base_url": self.place.url, "headers": self.place.headers}

        def setup(self) -> None:
            self.place = stack.enter_context(guarded())

        def teardown(self) -> None:
            stack.close()

        def before_call(self, case: schemathesis.Case) -> None:
            tame(case)

        def validate_response(
            self, response: schemathesis.Response, case: schemathesis.Case, **_: object
        ) -> None:
            case.validate_response(response, checks=CHECKS[:5], headers=self.place.headers)

    run_state_machine_as_test(
        Workflow,
        settings=settings(BOUNDED, max_examples=12, stateful_step_count=10),
    )
