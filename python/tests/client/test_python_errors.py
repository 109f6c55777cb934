"""Errors of TMS that are also Python's, and what handles both."""

import asyncio
import copy
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
import tms.aio
from tms import errors
from tms.client.http.addresses import ServiceAddress
from tms.client.http.connection import HttpConnection
from tms.runtime.clock import SystemClock
from tms.server.peer_blocks import _expecting

PAIRS = [
    (errors.TimedOut, TimeoutError),
    (errors.NotFound, LookupError),
    (errors.Invalid, ValueError),
    (errors.Unavailable, ConnectionError),
]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tms.Bus]:
    with tms.open(tmp_path / "data") as opened:
        yield opened


@pytest.mark.parametrize(("ours", "pythons"), PAIRS)
def test_an_error_is_also_pythons(ours: type[tms.TMSError], pythons: type[Exception]) -> None:
    kinds = [ours, *(kind for kind in errors.codes().values() if issubclass(kind, ours))]
    for kind in kinds:
        error = kind("What is wrong.", index=7)
        assert isinstance(error, pythons)
        assert (str(error), error.args, error.details) == (
            "What is wrong.",
            ("What is wrong.",),
            {"index": 7},
        )


@pytest.mark.parametrize("kind", errors.codes().values(), ids=str)
def test_an_error_is_copied_and_rebuilt_whole(kind: type[tms.TMSError]) -> None:
    error = kind("What is wrong.", outcome="unknown")
    again = errors.from_code(kind.code, "What is wrong.", {"outcome": "unknown"})
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), errors.again(error), again):
        assert type(twin) is kind
        assert (str(twin), twin.message, twin.details) == (
            "What is wrong.",
            "What is wrong.",
            {"outcome": "unknown"},
        )


def test_a_program_catches_them_by_the_names_of_python(bus: tms.Bus) -> None:
    with pytest.raises(LookupError):
        bus.describe_topic("none")
    with pytest.raises(ValueError, match="Durability is"):
        bus.create_topic("t", durability="strong")  # type: ignore[arg-type]
    with tms.connect("http://127.0.0.1:9", timeout_s=0.05) as away, pytest.raises(ConnectionError):
        away.describe_topic("t")


def test_a_request_that_is_not_taken_in_time_is_late_and_not_broken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clock = SystemClock()
        target = ServiceAddress(f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection = HttpConnection(target, clock, 1.0, 1, None)
        connection.send([bytes(64 << 20)], clock.monotonic_s() + 0.05)
        assert isinstance(connection.failure, errors.TimedOut)
        connection.close()


def test_the_service_keeps_the_error_of_an_expectation() -> None:
    with pytest.raises(errors.Invalid, match="message id"):
        _expecting([], "0:?")
    with pytest.raises(errors.Invalid, match="NUMBER:ID"):
        _expecting([], "one:nothing")


def test_the_failure_of_an_asyncio_producer_is_raised_as_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with tms.aio.open(tmp_path / "data") as bus:
            await bus.create_topic("t")
            producer = bus.producer("t")
            await producer.send(b"1")
            await producer.flush()
            failure = errors.NotOwner("Another process owns the store.")
            producer._sending.give_up(failure)
            with pytest.raises(errors.NotOwner):
                await producer.flush()

    asyncio.run(work())
