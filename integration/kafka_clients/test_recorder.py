"""The relay before the service counts requests, and survives the service."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.kafka_clients.recorder import _Frames
from integration.kafka_clients.service import KafkaService
from tests.kafka_kit import KafkaConnection


def frame(key: int, version: int, body: bytes) -> bytes:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big")
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def test_heads_are_found_wherever_the_stream_is_cut() -> None:
    stream = frame(18, 3, b"x" * 10) + frame(0, 12, b"") + frame(1, 17, b"y" * 3)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            frames = _Frames()
            chunks = stream[:first], stream[first:second], stream[second:]
            found = [head for chunk in chunks for head in frames.heads(chunk)]
            assert found == [(18, 3), (0, 12), (1, 17)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[KafkaService]:
    """A service that is not noted in the table of clients."""
    with KafkaService(tmp_path / "data") as running:
        yield running


def test_requests_are_counted_and_the_address_stays_when_the_service_is_killed(
    service: KafkaService,
) -> None:
    host, _, port = service.servers.rpartition(":")
    for asked in (1, 2):
        with KafkaConnection(socket.create_connection((host, int(port)), 10)) as connection:
            answer = connection.ask("Metadata", 1, topics=None)
            assert [(one.host, one.port) for one in answer.brokers] == [(host, int(port))]
        assert service.recorder.requests == {(3, 1): asked}
        service.restart()
