"""A random mixed history of many blocks: a raw scan after all files were rewritten finds exactly
the blocks that the rules in Python leave."""

import random
import time
from dataclasses import replace

import pytest

from integration import coprocessor
from integration.cluster import Endpoint
from integration.install import REFRESH_MS, install
from tests.hbase_cases import random_case, random_store
from tests.hbase_kit import NOW, Store, rows_of

ROWS_PER_CALL = 2_000
FILES = 5  # per region, about
SEED = 20_261_121


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_random_blocks_leave_exactly_those_that_a_reader_may_need(
    hbase: Endpoint, hbase_namespace: str, count: int
) -> None:
    install(hbase.url(hbase_namespace), coprocessor.build())
    rng = random.Random(SEED)
    store, pointers = _rich(rng)
    expected: dict[str, dict[bytes, bool]] = {"messages": {}, "payloads": {}}
    with hbase.connect() as gateway:
        records = {
            row.encode(): {b"m:v": bytes.fromhex(value)} for row, value in rows_of(store).items()
        }
        gateway.put(f"{hbase_namespace}:metadata", records)
        time.sleep(6 * REFRESH_MS / 1000)
        batches = count // ROWS_PER_CALL
        for batch in range(batches):
            rows: dict[str, dict[bytes, dict[bytes, bytes]]] = {"messages": {}, "payloads": {}}
            for _ in range(ROWS_PER_CALL):
                table, row, block, _ = random_case(rng, store, pointers, spread_ms=3_600_000)
                rows[table][row.encode()] = {b"m:b": block}
                expected[table][row.encode()] = not store.dropped(table, row, block)
            for table, some in rows.items():
                gateway.put(f"{hbase_namespace}:{table}", some)
            if (batch + 1) % (batches // FILES) == 0:
                for table in rows:
                    hbase.admin().run("flush", f"{hbase_namespace}:{table}")
        for table, wanted in expected.items():
            hbase.admin().run("flush", f"{hbase_namespace}:{table}")
            left = {row for row, stays in wanted.items() if stays}
            assert gateway.scan(f"{hbase_namespace}:{table}").keys() >= left
            hbase.admin().run("major_compact", f"{hbase_namespace}:{table}")
            found = gateway.scan(f"{hbase_namespace}:{table}").keys()
            assert found - left == set(), "needless rows are there"
            assert left - found == set(), "rows are lost"
    stays = [one for wanted in expected.values() for one in wanted.values()]
    assert len(stays) > 0.95 * count
    assert 0.2 < sum(stays) / len(stays) < 0.8, "the history is one-sided"


def _rich(rng: random.Random) -> tuple[Store, list[int]]:
    """A store with topics of every kind, and an image."""
    while True:
        store, pointers = random_store(rng)
        records = store.records or {}
        kinds = [
            sum(name in key for key in records) for name in ("topic/", "deleted/", "partition/")
        ]
        if store.image is not None and kinds >= [3, 1, 5]:
            # HBase's clock is the machine's, which is ahead of the history's; no `tms.ttl` is set.
            wall_ms = max(NOW, time.time_ns() // 1_000_000)
            return replace(store, wall_ms=wall_ms, ttl_ms=None), pointers
