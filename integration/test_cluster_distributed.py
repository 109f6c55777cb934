"""HBase as several processes, on files and on HDFS: acknowledged rows survive killed servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster import Distributed, Gateway

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TABLE = "rows"
SPLITS = [b"%02x" % (16 * number) for number in range(1, 16)]


@pytest.fixture(params=[False, True], ids=["files", "hdfs"])
def hbase(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Distributed]:
    """A cluster for this test only."""
    with Distributed(tmp_path / "hbase", hdfs=request.param) as started:
        yield started


def test_acknowledged_rows_survive_killed_servers(hbase: Distributed) -> None:
    with hbase.connect() as gateway:
        gateway.create_table(TABLE, "m", split_keys=SPLITS)
        acknowledged = _put(gateway, "all run")
        regions = hbase.admin().run("regions", TABLE)
        assert len(set(regions[3::4])) == 2, "the table should lie on both servers"

        hbase.regions[0].kill()
        acknowledged |= _put(gateway, "one region server is dead")
        assert gateway.scan(TABLE) == acknowledged

        hbase.master.kill()
        acknowledged |= _put(gateway, "the master is dead too")
        hbase.start()
        acknowledged |= _put(gateway, "all run again")
        assert gateway.scan(TABLE) == acknowledged
        assert len(hbase.admin().run("servers")) == 2


def _put(gateway: Gateway, phase: str) -> dict[bytes, dict[bytes, bytes]]:
    """Put rows into every region; they are acknowledged when this returns."""
    rows = {
        b"%02x/%s" % (number, phase.encode()): {b"m:b": b"%d %s" % (number, phase.encode())}
        for number in range(256)
    }
    for tries_left in reversed(range(4)):
        try:
            gateway.put(TABLE, rows)
            break
        except gateway.types.TIOError:
            if not tries_left:
                raise
    return rows
