"""`tms consume --follow`: at the end of the topic it follows, and prints each new message
immediately."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tms
from tests.http_kit import Served, serving
from tests.waiting import until

TMS = (sys.executable, "-c", "from tms.cli.main import main; main()")


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


def as_text(line: bytes) -> str:
    return line.decode().rstrip("\n")


def as_json(line: bytes) -> str:
    value: str = json.loads(line)["value"]
    return value


@pytest.mark.parametrize(
    ("flags", "read"), [((), as_text), (("--json",), as_json)], ids=["text", "json"]
)
def test_it_follows_and_prints_each_message_as_it_comes(
    served: Served, tmp_path: Path, flags: tuple[str, ...], read: Callable[[bytes], str]
) -> None:
    url = served.url
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TMS_")}
    metrics = served.service.metrics
    with tms.connect(url) as bus:
        bus.create_topic("news", partitions=2)
        bus.publish("news", b"before")
        process = subprocess.Popen(
            [*TMS, "--url", url, "consume", "news", "--follow", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean,
            cwd=tmp_path,
        )
        with process:
            assert process.stdout is not None
            assert read(process.stdout.readline()) == "before"
            until(lambda: metrics.followers == 1)
            fetches = sum(count for (name, _), count in metrics.answers.items() if name == "fetch")
            for number in range(20):
                bus.publish("news", b"message %d" % number)
                assert read(process.stdout.readline()) == f"message {number}"
            answers = sum(count for (name, _), count in metrics.answers.items() if name == "fetch")
            assert answers == fetches, "it has fetched"
            process.terminate()
    until(lambda: metrics.followers == 0)
