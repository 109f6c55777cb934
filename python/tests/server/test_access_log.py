"""The access log: a line for each request, with the fields that its operation declares, and no
others."""

import json
import logging
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tms
from tests.access.test_access_process import first_token, run
from tests.faults.service import Service
from tests.http_kit import Served, serving
from tests.jwt_kit import claims, key_of, sign
from tests.run_seed import drawn
from tests.waiting import until
from tms.runtime.events import Event
from tms.server import access_log
from tms.server.service import AccessLimits, NetworkOptions

TOPIC = "/v2/namespaces/{namespace}/topics/{topic}"
TOKEN = f"tms_{'0' * 12}_{'a' * 64}"


@pytest.fixture
def served(caplog: pytest.LogCaptureFixture) -> Iterator[Served]:
    caplog.set_level(logging.INFO, access_log.LOGGER)
    with serving(network=NetworkOptions(access_log=True)) as served:
        yield served


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        {**one.msg.fields, "level": one.levelname}
        for one in caplog.records
        if one.name == access_log.LOGGER and isinstance(one.msg, Event)
    ]


def last(caplog: pytest.LogCaptureFixture, count: int) -> dict[str, Any]:
    until(lambda: len(lines(caplog)) == count)
    return lines(caplog)[-1]


def test_a_request_has_a_line_with_what_its_operation_declares(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    path = served.create("t", durability="written")
    assert last(caplog, 1)["operation"] == "topics.create_topic"
    body = json.dumps({"messages": [{"value": "private"}]}).encode()
    with served.connect() as client:
        answer = client.request("POST", f"{path}/messages?durability=none", body)
    line = last(caplog, 2)
    assert 0 < line.pop("ms") < 10_000
    assert line == {
        "level": "INFO",
        "method": "POST",
        "operation": "publish",
        "path": f"{TOPIC}/messages",
        "resource": "topic:default:t",
        "status": 200,
        "bytes_in": len(body),
        "bytes_out": len(answer.body),
        "request_id": answer.headers["tms-request-id"],
        "address": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "operation", "resource"),
    [
        ("GET", f"{TOPIC}/queues/g", 422, "queues.describe", "queue:default:t/g"),
        ("DELETE", TOPIC, 422, "topics.delete_topic", "topic:default:t"),
        ("GET", "/v2/transactions", 422, "transactions.open", "transactions"),
        ("PATCH", f"{TOPIC}/messages", 405, "other", None),
        ("GET", "/no/such/path", 404, "other", None),
        ("GET", "/v1/namespaces/default/topics", 200, "cdap", None),
    ],
)
def test_what_is_refused_and_what_is_not_there_has_one_too(
    method: str,
    path: str,
    status: int,
    operation: str,
    resource: str | None,
    served: Served,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = path.format(namespace="default", topic="t")
    with served.connect() as client:
        client.request(method, f"{sent}?secret=1", Private="x")
    line = last(caplog, 1)
    assert (line["status"], line["operation"]) == (status, operation)
    assert line.get("resource") == resource
    assert line.get("path") == (None if resource is None else path.replace("/g", "/{group}"))
    assert "secret" not in str(line) and "no/such" not in str(line) and "Private" not in str(line)


def test_probes_scrapes_and_the_questions_of_instances_are_told_at_debug(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    paths = ("/", "/livez", "/startupz", "/readyz", "/metrics", "/openapi.json")
    instances = "/v2/cluster/load"
    with served.connect() as client:
        for path in (*paths, instances):
            client.request("GET", path)
        assert lines(caplog) == []
        caplog.set_level(logging.DEBUG, access_log.LOGGER)
        for path in (*paths, instances):
            client.request("GET", path)
    last(caplog, len(paths) + 1)
    assert {line["level"] for line in lines(caplog)} == {"DEBUG"}


def test_who_is_gone_before_the_answer_is_told_as_cut(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    path = served.create("t", durability="written")
    with served.connect() as client:
        client.send(
            f"GET {path}/messages?start=latest&wait_s=20 HTTP/1.1\r\nHost: t\r\n\r\n".encode()
        )
        until(lambda: served.service.metrics.long_polls == 1)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line = last(caplog, 2)
    assert (line["operation"], line["cut"]) == ("fetch", True)


@pytest.mark.parametrize("name", [TOKEN, sign(key_of("RS256"), claims("ann"), "RS256"), "%zz"])
def test_a_resource_that_looks_like_a_token_or_cannot_be_read_is_left_out(
    name: str, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with served.connect() as client:
        client.request("GET", f"/v2/namespaces/default/topics/{name}")
        client.request("GET", f"/v2/namespaces/default/topics/t/queues/{name}")
    last(caplog, 2)
    assert [line["resource"] for line in lines(caplog)] == ["", ""]
    assert name not in str(lines(caplog))


def test_it_is_off_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, access_log.LOGGER)
    with serving() as served:
        served.create("t", durability="written")
        assert served.service.access_log is None
    assert lines(caplog) == []


def test_the_principal_is_who_showed_a_token_and_nobody_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, access_log.LOGGER)
    network = NetworkOptions(AccessLimits(), access_log=True)
    with serving(network=network) as served, served.connect() as client:
        access = served.service.engine.access
        ann = access.create_token("ann").token
        for token in (ann, TOKEN):
            client.request("GET", "/v2/access/tokens", Authorization=f"Bearer {token}")
        last(caplog, 2)
    shown, unknown = lines(caplog)
    assert shown["principal"] == "ann" and shown["operation"] == "access.list_tokens"
    assert unknown["status"] == 401 and "principal" not in unknown
    assert ann not in str(lines(caplog)) and TOKEN not in str(lines(caplog))


@pytest.mark.parametrize("workers", drawn("workers and access logs", ["1", "2"], 1))
def test_a_service_writes_it_as_json_whatever_its_level_and_no_secret(
    workers: str, tmp_path: Path
) -> None:
    flags = ("--access", "on", "--audit", "all", "--access-log", "--workers", workers)
    with Service(tmp_path / "data", *flags) as service:
        admin = run(service, "token", "create", "ann", token=first_token(service)).stdout.strip()
        level = ("log", "level", "debug", "--everywhere", "--json")

        def all_write_everything() -> bool:
            levels = json.loads(run(service, *level, token=admin).stdout)
            assert {one["level"] for one in levels} == {"debug"}
            return len({one["instance"] for one in levels}) == int(workers)

        until(all_write_everything)  # a worker may still be starting
        with tms.connect(service.url, token=admin) as bus:
            bus.create_topic("orders")
            bus.publish("orders", b"secret value", key=b"secret key", headers={"h": b"secret head"})
            assert [one.value for one in bus.consumer("orders", stop_at_end=True)]
        made = run(service, "token", "create", "shop", token=admin).stdout.strip()
        service.stop()
    told = [one for one in service.events("request") if one["operation"] == "publish"]
    assert told and all(one["principal"] == "ann" and one["status"] == 200 for one in told)
    assert all(one["level"] == "info" and one["timestamp"] for one in told)
    secrets = (admin, made, "secret value", "secret key", "secret head", "Bearer")
    assert not [line for line in service.lines if any(one in line for one in secrets)]
