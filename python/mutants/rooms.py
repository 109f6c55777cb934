"""The files in which a room's mutants are made, and the quick tests that must notice them.

Quick means: no JVM, no other process, no simulation. Each room's tests end within about two minutes
on one core.
"""

from pathlib import Path
from typing import NamedTuple

PYTHON = Path(__file__).resolve().parents[1]


class Room(NamedTuple):
    """Globs of the code and of its tests, below `python/`."""

    code: tuple[str, ...]
    tests: tuple[str, ...]
    below: Path = PYTHON

    def files(self) -> list[Path]:
        """The source files, sorted."""
        return self._matching(self.code)

    def test_files(self) -> list[Path]:
        """The test files, sorted."""
        return self._matching(self.tests)

    def _matching(self, globs: tuple[str, ...]) -> list[Path]:
        return sorted({path for one in globs for path in self.below.glob(one)})


ROOMS = {
    "journal": Room(
        ("tms/log/group_commit.py", "tms/log/journaled.py"),
        ("tests/log/test_group_commit.py", "tests/log/test_journaled.py"),
    ),
    "log": Room(
        ("tms/log/*.py",),
        (
            "tests/log/*.py",
            "tests/topics/test_topic_*.py",
            "tests/transactions/test_transactions_[rs]*.py",
            "tests/cluster/test_owner.py",
            "tests/compaction/test_compaction.py",
            "tests/compaction/test_erasing*.py",
        ),
    ),
    "topics": Room(
        ("tms/topics/*.py",),
        (
            "tests/topics/*.py",
            "tests/engine/test_engine.py",
            "tests/engine/test_glance.py",
            "tests/groups/test_groups.py",
            "tests/cluster/test_cluster_glance.py",
            "tests/cluster/test_shards.py",
            "tests/log/test_expecting.py",
            "tests/log/test_log_[rsw]*.py",
            "tests/transactions/test_transactions_[irs]*.py",
            "tests/cluster/test_owner.py",
        ),
    ),
    "transactions": Room(
        ("tms/transactions/*.py",),
        (
            "tests/transactions/*.py",
            "tests/client/test_client_transactions.py",
            "tests/server/test_requests_twice.py",
        ),
    ),
    "queues": Room(
        ("tms/queues/*.py",),
        (
            "tests/queues/*.py",
            "tests/*/test_[bcs]*_queues.py",
            "tests/log/test_reading_gone.py",
        ),
    ),
    "groups": Room(("tms/groups/*.py",), ("tests/groups/*.py",)),
    "delayed": Room(
        ("tms/delayed/*.py",),
        ("tests/delayed/test_delay.py", "tests/delayed/test_delay_[celm]*.py"),
    ),
    "compaction": Room(
        ("tms/topics/compaction/*.py",),
        (
            "tests/compaction/*.py",
            "tests/delayed/test_delay_erasing.py",
            "tests/block/test_model_sparse.py",
        ),
    ),
    "leveldb": Room(
        ("tms/store/leveldb/*.py",),
        (
            "tests/store/test_store.py",
            "tests/store/test_store_[dipruv]*.py",
            "tests/store/test_store_full.py",
        ),
    ),
}
