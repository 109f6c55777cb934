"""The examples that run inside of others' frameworks, tested as users would test them."""

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.asgi_kit import running
from tests.house.test_examples import EXAMPLES, load
from tms.testing.memory import MemoryLog
from tms.testing.service import ServiceUnderTest


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    opened = MemoryLog()
    yield opened
    opened.close()


def ask(
    address: tuple[str, int], method: str, body: object = None, **headers: str
) -> tuple[int, Any]:
    """Status and JSON of the answer of `/orders`."""
    connection = http.client.HTTPConnection(*address, timeout=20)
    with contextlib.closing(connection):
        sent = None if body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, "/orders", sent, {"Content-Type": "application/json", **named})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_fastapi_publishes_and_says_when_the_service_is_away(log: MemoryLog) -> None:
    web: Any = load("fastapi_orders")
    order = {"customer": "ann", "total": 12}
    with running(web.application(lambda: log.aio_bus)) as address:
        status, placed = ask(address, "POST", order)
        assert status == 201
        [message] = log.bus.consumer("orders", stop_at_end=True)
        assert (str(message.id), message.key, message.json()) == (placed["id"], b"ann", order)
        assert ask(address, "POST", {"customer": "ann"})[0] == 422
        with log.faults.away():
            status, said = ask(address, "POST", order)
            assert (status, said["code"]) == (503, "unavailable")
        assert ask(address, "GET") == (200, [order])


def test_fastapi_stores_an_order_once_though_its_answer_is_lost(log: MemoryLog) -> None:
    web: Any = load("fastapi_orders")
    order = {"customer": "ann", "total": 12}
    with running(web.application(lambda: log.aio_bus)) as address:
        log.faults.lose_answer()
        assert ask(address, "POST", order, Idempotency_Key="1")[0] == 503
        assert ask(address, "POST", order, Idempotency_Key="1")[0] == 201
        assert ask(address, "GET") == (200, [order])


def test_forked_workers_do_each_job_once_though_one_dies(log: MemoryLog) -> None:
    service = ServiceUnderTest(log.engine)
    try:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "prefork.py", service.url],
            capture_output=True,
            text=True,
            timeout=60,
        )
        # The clock of the log stands still, but leases follow time that runs.
        assert done.stdout == "40 messages, each once; 1 of 4 workers died\n", done.stderr
    finally:
        service.close()
