"""The older supported line of HBase: deviations would show here. All other tests of this folder run
on the newer one, or, with TMS_TEST_HBASE=2.5, on this one too."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from integration import coprocessor
from integration.cluster import Standalone, resolve
from integration.deploying import cli_of, refresh_soon
from tests.hbase_kit import read_row
from tms.block import encode
from tms.client.client import Bus
from tms.model.message import NewBlock
from tms.model.topic import TopicName

WAIT_S = 120
TABLE = "tms:messages"


@pytest.fixture(scope="module")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    directory = tmp_path_factory.mktemp("hbase-2.5")
    with Standalone(directory, runtime=resolve("2.5")) as started:
        yield started


@pytest.mark.long
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
    engine = tms.open_engine(url)
    with Bus(engine) as bus:
        bus.create_topic("kept", retention="1d")
        assert bus.create_topic("short").settings.retention_ms == 2_000  # the table's
        for topic in ("kept", "short"):
            bus.publish(topic, b"plain")
            with bus.transaction() as tx:
                tx.send(topic, b"committed")
        block = NewBlock(0, encode([b"never committed"]))
        id = engine.transactions.begin().transaction_id
        engine.transactions.submit(TopicName("default", "kept"), [block], id).result(10)
        assert [one.value for one in bus.consumer("kept", stop_at_end=True)] == [
            b"plain",
            b"committed",
        ]
        time.sleep(2.1)
        assert [one.value for one in bus.consumer("short", stop_at_end=True)] == []
        engine.transactions.invalidate(id)
        uids = [
            engine.topics.registry.find(TopicName("default", one)).uid for one in ("kept", "short")
        ]
    engine = tms.open_engine(url)
    with Bus(engine) as bus:  # seals open segments, and notes the time
        for topic in ("kept", "short"):
            bus.describe_topic(topic)
        engine.maintenance.clean()
    raw = {b"tms.isolation": b"uncommitted"}

    def stored(attributes: dict[bytes, bytes]) -> tuple[int, int]:
        """The number of rows of the two topics for a reader."""
        with hbase.connect() as gateway:
            keys = [read_row("messages", row.decode()) for row in gateway.scan(TABLE, attributes)]
        rows = Counter(key.uid for key in keys if key is not None)
        return rows[uids[0]], rows[uids[1]]

    def shown() -> tuple[int, int] | None:
        """The number of rows under the table's own isolation; None while the region has read no
        transactions."""
        try:
            return stored({})
        except hbase.types.TIOError:
            return None

    deadline = time.monotonic() + WAIT_S  # until the regions have read the time
    assert stored(raw) == (3, 2)
    while shown() != (2, 0):
        assert time.monotonic() < deadline, shown()
        time.sleep(0.2)
    while stored(raw) != (2, 0):
        assert cli("cleanup")[1]["started"]
        assert time.monotonic() < deadline, stored(raw)
        time.sleep(0.2)
    with tms.open(url) as bus:
        read = [one.value for one in bus.consumer("kept", stop_at_end=True)]
    assert read == [b"plain", b"committed"]
    code, said = cli("status")
    assert code == 0, json.dumps(said["findings"])
