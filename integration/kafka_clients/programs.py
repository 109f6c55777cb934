"""The clients of the contract: each publishes rows, and reads rows as a member of a group.

The programs in Go, Java and JavaScript take and print one JSON object a line, with bytes in base64:

    {"key": "azE=", "value": null, "headers": [{"name": "h", "value": "MQ=="}]}
    {"assigned": [0, 2]}      # the partitions of a member, after each rebalance

A member commits what it printed, and leaves its group after so many rows.
"""

import base64
import importlib.metadata
import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from integration.kafka_clients import install
from integration.kafka_clients.running import Running, run


class Row(NamedTuple):
    """A message as its producer gave it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Member(Running):
    """A consumer, with the rows that it has read and the partitions that it has."""

    def __init__(self, command: Sequence[str]) -> None:
        self.rows: list[Row] = []
        self._assigned: set[int] = set()
        super().__init__(command)

    @property
    def assigned(self) -> set[int]:
        """The partitions that it has."""
        return self._assigned

    def understand(self, line: bytes) -> None:
        """Take a row or an assignment."""
        told = json.loads(line)
        if "assigned" in told:
            self._assigned = set(told["assigned"])
        elif "key" in told:
            headers = tuple((one["name"], _bytes(one["value"]) or b"") for one in told["headers"])
            self.rows.append(Row(_bytes(told["key"]), _bytes(told["value"]), headers))


class Client(ABC):
    """A client, by its name in the table of docs/kafka.md."""

    name: str
    codecs: tuple[str, ...]  # besides its default

    @property
    @abstractmethod
    def version(self) -> str:
        """The version that runs."""

    @abstractmethod
    def produce(self, servers: str, topic: str, codec: str, rows: Iterable[Row]) -> None:
        """Publish rows in order; returns when all are acknowledged."""

    @abstractmethod
    def member(self, servers: str, topic: str, group: str, count: int) -> Member:
        """Start a member of a group, which leaves after `count` rows."""


class _Program(Client):
    """A program of this folder."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command, without arguments."""

    @property
    def version(self) -> str:
        return install.pins()[self.name]

    def produce(self, servers: str, topic: str, codec: str, rows: Iterable[Row]) -> None:
        lines = "".join(json.dumps(_told(row)) + "\n" for row in rows)
        run([*self.command(), "produce", servers, topic, codec], lines.encode())

    def member(self, servers: str, topic: str, group: str, count: int) -> Member:
        return Member([*self.command(), "consume", servers, topic, group, str(count)])


class FranzGo(_Program):
    """franz-go, a client in Go."""

    name = "franz-go"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def command(self) -> list[str]:
        return install.go_program()


class KafkaJS(_Program):
    """KafkaJS, a client in JavaScript. Other codecs come from other packages."""

    name = "KafkaJS"
    codecs = ("none", "gzip")

    def command(self) -> list[str]:
        return install.javascript_program()


class Java(_Program):
    """Kafka's own client."""

    name = "Kafka's Java client and tools"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def command(self) -> list[str]:
        return install.java_program("Client")


class Kcat(Client):
    """kcat, a program on librdkafka, which reads and prints text."""

    name = "kcat (librdkafka)"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    @property
    def version(self) -> str:
        told = run([self.program(), "-V"])
        found = re.search(r"Version (\S+) .*librdkafka (\S+)", told)
        assert found, told
        return f"{found[1]} ({found[2]})"

    def program(self) -> str:
        """The path of kcat."""
        return install.program("kcat", "kcat")

    def produce(self, servers: str, topic: str, codec: str, rows: Iterable[Row]) -> None:
        """kcat's headers, and its treatment of empty keys and values as null, are those of a run:
        so it runs once for each stretch of rows that have the same."""
        for (headers, has_null), stretch in itertools.groupby(rows, _of_run):
            command = [self.program(), "-b", servers, "-t", topic, "-P", "-K", "\t"]
            command += [] if codec == "default" else ["-z", codec]
            command += ["-Z"] if has_null else []
            for name, value in headers:
                command += ["-H", f"{name}={value.decode()}"]
            lines = [(row.key or b"") + b"\t" + (row.value or b"") + b"\n" for row in stretch]
            run(command, b"".join(lines))

    def member(self, servers: str, topic: str, group: str, count: int) -> Member:
        settings = ["auto.offset.reset=earliest", "session.timeout.ms=6000"]
        settings += ["heartbeat.interval.ms=500", "partition.assignment.strategy=roundrobin"]
        command = [self.program(), "-b", servers, "-J", "-u", "-c", str(count)]
        for setting in settings:
            command += ["-X", setting]
        return _KcatMember([*command, "-G", group, topic])


class _KcatMember(Member):
    """kcat prints rows as JSON with text, and assignments to its standard error."""

    def understand(self, line: bytes) -> None:
        told = json.loads(line)
        names, values = told.get("headers", [])[::2], told.get("headers", [])[1::2]
        headers = tuple((name, value.encode()) for name, value in zip(names, values, strict=True))
        self.rows.append(Row(_text(told["key"]), _text(told["payload"]), headers))

    @property
    def assigned(self) -> set[int]:
        """The partitions of its last assignment."""
        found = re.findall(r"assigned: ?(.*)", self.errors)
        return {int(one) for one in re.findall(r"\[(\d+)\]", found[-1])} if found else set()


class PythonClient(NamedTuple):
    """A package for Python. Its programs are those of `make test`."""

    name: str

    @property
    def version(self) -> str:
        """The version that is installed."""
        return importlib.metadata.version(self.name)


CLIENTS: tuple[Client, ...] = (Kcat(), KafkaJS(), FranzGo(), Java())


def _of_run(row: Row) -> tuple[tuple[tuple[str, bytes], ...], bool]:
    return row.headers, row.key is None or row.value is None


def _told(row: Row) -> dict[str, Any]:
    headers = [{"name": name, "value": _text_of(value)} for name, value in row.headers]
    return {"key": _text_of(row.key), "value": _text_of(row.value), "headers": headers}


def _text_of(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
