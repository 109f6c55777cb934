"""The older line of HBase that is supported: what is done differently there would show here. All
other tests of this folder run on the newer one, or, with TMS_TEST_HBASE=2.5, on this one too."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from integration import coprocessor
from integration.cluster import Standalone, resolve
from integration.deploying import cli_of, refresh_soon

WAIT_S = 60


@pytest.fixture(scope="module")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    directory = tmp_path_factory.mktemp("hbase-2.5")
    with Standalone(directory, runtime=resolve("2.5")) as started:
        yield started


@pytest.mark.timeout(400)
def test_hbase_2_5_is_installed_published_to_read_cleaned_and_isolates(
    hbase: Standalone, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    assert list(hbase.runtime.lib.glob("hbase-server-2.5.*.jar"))
    cli = cli_of(url := hbase.url("tms"), capsysbinary)
    install = ["install", "--jar", str(coprocessor.build()), "--jar-directory", str(tmp_path)]
    install += ["--regions", "2", "--isolation", "committed", "--ttl", "2s"]
    assert cli(*install)[0] == 0
    refresh_soon(url)
    with tms.open(url) as bus:
        bus.create_topic("kept", retention="1d")
        assert bus.create_topic("short").settings.retention_ms == 2_000  # the table's
        for topic in ("kept", "short"):
            bus.publish(topic, b"plain")
            with bus.transaction() as tx:
                tx.send(topic, b"committed")
        open_tx = bus.transaction()
        open_tx.send("kept", b"not committed")
        open_tx.flush()
        assert [one.value for one in bus.consumer("kept", stop_at_end=True)] == [
            b"plain",
            b"committed",
        ]
        time.sleep(2.1)
        assert [one.value for one in bus.consumer("short", stop_at_end=True)] == []
        open_tx.rollback()
    with tms.open(url) as bus:  # notes the time, and seals what it looks at
        for topic in ("kept", "short"):
            bus.describe_topic(topic)
    raw = {b"tms.isolation": b"uncommitted"}

    def stored(attributes: dict[bytes, bytes]) -> int:
        with hbase.connect() as gateway:
            return len(gateway.scan("tms:messages", attributes))

    before = stored(raw)
    assert stored({}) < before  # the table's own isolation
    deadline = time.monotonic() + WAIT_S  # until the regions have read the time
    while stored(raw) > 2:
        assert cli("cleanup")[1]["started"]
        assert time.monotonic() < deadline, stored(raw)
        time.sleep(0.2)
    assert stored({}) == 2
    with tms.open(url) as bus:
        read = [one.value for one in bus.consumer("kept", stop_at_end=True)]
    assert read == [b"plain", b"committed"]
    code, said = cli("status")
    assert code == 0, json.dumps(said["findings"])
