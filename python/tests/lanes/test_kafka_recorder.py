"""The relay before the service of the lane `kafka` counts requests, for the table of clients, and
survives the service."""

import socket
from pathlib import Path

import pytest

from integration.kafka_clients import table
from integration.kafka_clients.recorder import Frames
from integration.kafka_clients.service import KafkaService
from tests.kafka_kit import KafkaConnection


def frame(key: int, version: int, body: bytes) -> bytes:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big")
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def test_heads_are_found_wherever_the_stream_is_cut() -> None:
    stream = frame(18, 3, b"x" * 10) + frame(0, 12, b"") + frame(1, 17, b"y" * 3)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            frames = Frames()
            chunks = stream[:first], stream[first:second], stream[second:]
            found = [head for chunk in chunks for head in frames.heads(chunk)]
            assert found == [(18, 3), (0, 12), (1, 17)]


def test_requests_are_counted_and_the_address_stays_when_the_service_is_killed(
    tmp_path: Path,
) -> None:
    with KafkaService(tmp_path / "data") as service:
        host, _, port = service.servers.rpartition(":")
        for asked in (1, 2):
            with KafkaConnection(socket.create_connection((host, int(port)), 10)) as connection:
                answer = connection.ask("Metadata", 1, topics=None)
                assert [(one.host, one.port) for one in answer.brokers] == [(host, int(port))]
            assert service.recorded() == {(3, 1): asked}
            service.restart()


def test_the_table_has_the_highest_answered_version_of_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "NOTES", tmp_path / "notes")
    table.note("kcat (librdkafka)", "1", [(18, 3), (0, 7), (0, 3), (18, 32_000), (32_000, 0)])
    table.note("kcat (librdkafka)", "1", [(0, 4), (1, 11)])
    table.note("aiokafka", "2", [(3, 5)])
    assert table.read(table.table()) == [
        table.Used("aiokafka", "2", {"Metadata": 5}),
        table.Used("kcat (librdkafka)", "1", {"ApiVersions": 3, "Fetch": 11, "Produce": 7}),
    ]
