"""Access and errors in the OpenAPI document, and the reading of numbers that it calls whole."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.http_kit import Served, serving
from tms.api import openapi, routes
from tms.api.bodies import PublishBody
from tms.api.operations import OPERATIONS
from tms.api.strict import decode_strict
from tms.errors import Invalid
from tms.model.access import Access
from tms.server.service import AccessLimits, NetworkOptions

ASKED = [{"bearer": []}, {"certificate": []}]


def pages(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from (page for page in path.values() if isinstance(page, dict))


class Counts(msgspec.Struct, forbid_unknown_fields=True):
    few: int
    share: float = 0.0
    text: str = ""


def test_every_operation_says_whether_it_asks_who_comes() -> None:
    document = openapi.document("1.0")
    assert document["components"]["securitySchemes"].keys() == {"bearer", "certificate"}
    for page in pages(document):
        is_open = OPERATIONS[page["operationId"]].access is Access.OPEN
        assert page["security"] == ([] if is_open else ASKED), page["operationId"]
        assert ("401" in page["responses"]) == (not is_open)


def test_a_service_that_asks_nobody_has_a_document_that_says_so() -> None:
    document = openapi.document("1.0", guarded=False)
    assert "securitySchemes" not in document["components"]
    assert not any("security" in page or "401" in page["responses"] for page in pages(document))
    for network in (NetworkOptions(), NetworkOptions(AccessLimits())):
        with serving(network=network) as served, served.connect() as client:
            said = client.request("GET", routes.OPENAPI).json
        assert ("securitySchemes" in said["components"]) == (network.access is not None)


def test_every_operation_names_the_errors_that_it_may_have() -> None:
    for page in pages(openapi.document("1.0")):
        operation = OPERATIONS[page["operationId"]]
        statuses = page["responses"].keys()
        assert {"406", "429", "503"} <= statuses
        if operation.form.body:
            assert {"400", "413", "415", "422"} <= statuses, operation.name
        if "{topic}" in operation.path:
            assert {"403", "404", "422"} <= statuses, operation.name
    by_name = {page["operationId"]: page["responses"] for page in pages(openapi.document("1.0"))}
    for name in ("fetch", "topics.offsets", "topics.truncate_topic"):
        assert "410" in by_name[name]


def test_the_document_refers_to_nothing_that_is_not_there() -> None:
    document = json.loads(json.dumps(openapi.document("1.0")))
    text = json.dumps(document)
    assert "#/$defs" not in text and "x-unshown" not in text
    assert '"snapshot"' not in json.dumps(document["paths"])


def test_bounds_of_settings_are_in_the_document() -> None:
    settings = openapi.document("1.0")["components"]["schemas"]["SettingsBody"]["properties"]
    assert (settings["partitions"]["minimum"], settings["partitions"]["maximum"]) == (1, 1_024)
    assert settings["durability"]["enum"] == ["none", "written", "synced"]


def test_a_number_without_a_fraction_is_whole() -> None:
    decoder = msgspec.json.Decoder(Counts)
    for number in ("3", "3.0", "3.000"):
        assert decode_strict(f'{{"few": {number}}}'.encode(), decoder).few == 3
    body = rb'{"text": "7.0 \" 8.0", "few": -2.0, "share": 1.0}'
    assert decode_strict(body, decoder) == Counts(-2, 1.0, '7.0 " 8.0')
    for number in ("3.5", "3.05", "true", '"3.0"', "3e1"):
        with pytest.raises(Invalid):
            decode_strict(f'{{"few": {number}}}'.encode(), decoder)


def test_a_value_of_a_message_is_stored_as_it_was_sent() -> None:
    body = b'{"messages": [{"json": {"a": 1.0}, "partition": 1.0}]}'
    (message,) = decode_strict(body, msgspec.json.Decoder(PublishBody)).messages
    assert isinstance(message.json, msgspec.Raw) and bytes(message.json) == b'{"a": 1.0}'


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_a_partition_of_a_message_is_a_whole_number(served: Served) -> None:
    path = served.create("whole", partitions=2)
    with served.connect() as client:
        body = b'{"messages": [{"value": "x", "partition": %b}]}'
        answer = client.request("POST", f"{path}/messages", body % b"1.0")
        assert answer.json["messages"][0]["partition"] == 1
        refused = client.request("POST", f"{path}/messages", body % b"0.5")
        assert refused.problem == "invalid" and refused.json["details"]["index"] == 0
        missing = client.request("POST", f"{path}/messages", body % b"2.0")
        assert missing.problem == "partition-not-found"


def test_a_plus_in_a_query_is_a_blank(served: Served) -> None:
    path = served.create("plus")
    with served.connect() as client:
        body = b'{"messages": [{"value": "x", "key": "a b"}, {"value": "y", "key": "a+b"}]}'
        client.request("POST", f"{path}/messages", body)
        for where, value in (("key+=+%22a+b%22", "x"), ("key+=+a%2Bb", "y")):
            found = client.request("GET", f"{path}/messages?where={where}").json["messages"]
            assert [message["value"] for message in found] == [value]
