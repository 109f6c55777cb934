"""The service does what its OpenAPI document says, whatever is sent to it."""

import contextlib
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.http_kit import serving
from tms.api import openapi, routes
from tms.model.topic import PARTITIONS_MAX

DOCUMENT = openapi.document("test")
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@schemathesis.serializer(routes.BLOCKS, routes.COMMIT)
def as_bytes(context: object, value: object) -> bytes:
    """Blocks are bytes; that these are hardly ever blocks is the point."""
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as served:
        for name in ("a", "b"):
            served.create(name, partitions=2)
        host, port = served.address
        with served.connect() as client:
            for group in ("g", "h"):
                path = f"/v2/namespaces/default/topics/a/queues/{group}"
                assert client.request("PUT", path, b"{}").status == routes.CREATED
        yield f"http://{host}:{port}"


def tame(case: schemathesis.Case) -> None:
    """Long waits and huge topics take time and show nothing; a known topic or queue shows more."""
    if case.query and "wait_s" in case.query:
        case.query["wait_s"] = 0
    if isinstance(case.body, dict) and "wait_s" in case.body:
        case.body["wait_s"] = 0
    if case.path_parameters and len(str(case.path_parameters.get("group"))) < 3:
        case.path_parameters["group"] = "g"
    if isinstance(case.body, dict) and isinstance(case.body.get("partitions"), int):
        case.body["partitions"] %= PARTITIONS_MAX
    if case.path_parameters and len(str(case.path_parameters.get("topic"))) < 3:
        case.path_parameters["topic"] = "a"
        case.path_parameters["namespace"] = "default"


@SCHEMA.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_request_is_answered_as_documented(case: schemathesis.Case, url: str) -> None:
    tame(case)
    response = case.call(base_url=url)
    case.validate_response(response, checks=CHECKS)


def test_sequences_of_requests_are_answered_as_documented() -> None:
    stack = contextlib.ExitStack()

    class Workflow(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, str]:
            return {"base_url": self.url}

        def setup(self) -> None:
            self.served = stack.enter_context(serving())
            self.url = "http://{}:{}".format(*self.served.address)

        def teardown(self) -> None:
            stack.close()

        def before_call(self, case: schemathesis.Case) -> None:
            tame(case)

        def validate_response(
            self, response: schemathesis.Response, case: schemathesis.Case, **_: object
        ) -> None:
            case.validate_response(response, checks=CHECKS)

    run_state_machine_as_test(
        Workflow,
        settings=settings(
            max_examples=20,
            stateful_step_count=10,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
