"""A transactional producer of Kafka's protocol that reads, transforms and commits offsets, on a
service that is killed again and again: each message is made of its source exactly once."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.clients import free_port
from tests.faults.service import Service
from tests.kafka_kit import KafkaConnection, batch, create_topic, produced, records_in
from tests.kafka_producer import TransactionalProducer, committed, offset_of, values
from tests.run_seed import seed_for
from tests.waiting import PATIENCE_S
from tms.compat.kafka.errors import ErrorCode

IN, OUT, GROUP, ID = "in", "out", "group", "id"
MESSAGES = 150
KILLS = 6
AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


def connected(port: int) -> KafkaConnection:
    """A connection to the service. Raises `OSError` while it does not run."""
    return KafkaConnection(socket.create_connection(("127.0.0.1", port), PATIENCE_S))


class Refusal(Exception):
    """A code that ends a transaction."""


class Transformer:
    """Reads the input from the group's offset on, and publishes each message with the next offset.
    It repeats a request until it has an answer, and begins anew when it is refused."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stopped = threading.Event()
        self.begun = 0  # transactions
        self.refused: list[ErrorCode] = []
        self._kafka: KafkaConnection | None = None
        self._producer = TransactionalProducer(None, ID)  # type: ignore[arg-type]
        self._chance = random.Random(seed_for("aborts of a transformer"))

    def run(self) -> None:
        """Transform until the input ends."""
        offset: int | None = None
        while not self.stopped.is_set():
            try:
                if offset is None:
                    self._ask(lambda: self._producer.initialise(20_000))
                    offset = max(0, self._offset())
                if offset == MESSAGES:
                    return
                offset = self._transform(offset)
            except Refusal:
                offset = None

    def _transform(self, offset: int) -> int | None:
        """Do a transaction; the next offset, None if it is not known."""
        producer = self._producer
        found = self._repeated(lambda: committed(self._connection(), IN, offset))
        taken = [one for one in records_in(found.records) if one[0] >= offset][:5]
        if not taken:
            return offset
        self.begun += 1
        self._ask(lambda: producer.add(OUT, 0, 1))
        for partition in (0, 1):
            made = [b"%d" % number for number, _, _ in taken if number % 2 == partition]
            if made:
                self._ask(lambda p=partition, m=made: producer.produce(OUT, *m, partition=p))
        self._ask(lambda: producer.add_group(GROUP))
        self._ask(lambda: producer.move(GROUP, IN, taken[-1][0] + 1))
        commits = self._chance.random() < 0.8
        self._ask(lambda: producer.end(commits))
        return taken[-1][0] + 1 if commits else None

    def _offset(self) -> int:
        def ask() -> int | ErrorCode:
            return offset_of(self._connection(), GROUP, IN, stable=True)

        # An offset may be the number of a code.
        while isinstance(found := self._repeated(ask), ErrorCode) and found in AGAIN:
            time.sleep(0.01)
        return int(found)

    def _ask(self, request: Callable[[], ErrorCode]) -> None:
        while True:
            code = self._repeated(request)
            if code is ErrorCode.NONE:
                return
            if code not in AGAIN:
                self.refused.append(code)
                raise Refusal
            time.sleep(0.01)

    def _repeated(self, work: Callable[[], Any]) -> Any:
        """The result of work, once the service has answered it."""
        while True:
            try:
                self._connection()
                return work()
            except (OSError, EOFError):
                if self.stopped.is_set():
                    raise Refusal from None
                if self._kafka is not None:
                    self._kafka.socket.close()
                self._kafka = None
                time.sleep(0.02)

    def _connection(self) -> KafkaConnection:
        if self._kafka is None:
            self._kafka = connected(self.port)
            self._producer.kafka = self._kafka
        return self._kafka


def prepare(kafka: KafkaConnection) -> None:
    """Create the topics, and publish the input."""
    for name, count in ((IN, 1), (OUT, 2)):
        assert not create_topic(kafka, name, count).error_code
    for number in range(0, MESSAGES, 3):
        records = batch([(None, b"%d" % one) for one in range(number, number + 3)])
        [result] = produced(kafka, IN, records)
        assert not result.error_code


@pytest.mark.timeout(180)
def test_transactions_of_a_kafka_producer_survive_kills_of_the_service(fast_path: Path) -> None:
    port, chance = free_port(), random.Random(seed_for("kills under a Kafka producer"))
    arguments = ("--kafka-port", str(port))
    with contextlib.ExitStack() as running:
        service = running.enter_context(Service(fast_path / "data", *arguments))
        with connected(port) as kafka:
            prepare(kafka)
        transformer = Transformer(port)
        thread = threading.Thread(target=transformer.run, daemon=True)
        thread.start()
        kills = 0
        while thread.is_alive() and kills < KILLS:
            begun, until = transformer.begun, time.monotonic() + PATIENCE_S
            while transformer.begun < begun + 2 and thread.is_alive():
                assert time.monotonic() < until, f"it does not go on: {transformer.refused}"
                time.sleep(0.001)
            time.sleep(chance.random() * 0.02)
            service.kill()
            kills += 1
            service = running.enter_context(Service(fast_path / "data", *arguments))
        thread.join(PATIENCE_S * 2)
        transformer.stopped.set()
        assert not thread.is_alive(), transformer.refused
        assert kills == KILLS
        with connected(port) as kafka:
            found = sorted(int(one or b"") for p in (0, 1) for one in values(kafka, OUT, p))
            assert found == list(range(MESSAGES))
            assert offset_of(kafka, GROUP, IN, stable=True) == MESSAGES
