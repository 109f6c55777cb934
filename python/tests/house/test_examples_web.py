"""The examples that run inside other frameworks, tested as users would test them."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.asgi_kit import running
from tests.house.test_examples import EXAMPLES, load
from tests.waiting import PATIENCE_S, until
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
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
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


def test_tasks_of_celery_publish_once_though_a_worker_dies(log: MemoryLog, tmp_path: Path) -> None:
    service = ServiceUnderTest(log.engine)
    environment = {**os.environ, "TMS_URL": service.url, "CELERY_FOLDER": str(tmp_path / "broker")}
    told = tmp_path / "celery.log"
    command = [sys.executable, "-m", "celery", "--workdir", str(EXAMPLES), "-A", "celery_tasks"]
    command += ["worker", "--pool", "prefork", "--concurrency", "3", "--loglevel", "INFO"]
    command += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    with told.open("w") as output:
        worker = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "celery_tasks.py"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
        )
        assert done.stdout == "40 squares, each once; a worker died behind the one of 13\n", (
            done.stderr + told.read_text()
        )

        def all_succeeded() -> bool:  # also the one whose answer was lost
            assert worker.poll() is None, told.read_text()
            return told.read_text().count("] succeeded in ") >= 40

        until(all_succeeded)
    finally:
        worker.terminate()
        try:
            ended = worker.wait(PATIENCE_S)
        finally:
            worker.kill()
            service.close()
    assert ended == 0, told.read_text()
    received = Counter(re.findall(r"Task square\[(\S+)\] received", told.read_text()))
    assert (len(received), sorted(received.values())[-2:]) == (40, [1, 2])
    squares = sorted(m.json(int) for m in log.bus.consumer("squares", stop_at_end=True))
    assert squares == [number**2 for number in range(40)]
